"""ADBO and SDBO: x* where planes are exact, O(√ε) from it where they are relaxed, and one method in two forms."""

from __future__ import annotations

import numpy as np
import pytest
from federation import federation, play

from fbompi.links.link import EVENT

M = 6
STRAGGLERS = {"model": "lognormal", "sigma": 1.0, "stragglers": 2, "factor": 5.0}
EXACT = {"cut": "distance", "estimate_rounds": 40, "damping": 0.0}  # for an affine y*(x), as that of quadratics is


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def driver(name: str = "adbo", delays=None, clients=None, run=None, **algorithm):
    tables = {
        "run": {"problem": "quadratic", "algorithm": name, **(run or {})},
        "clients": {"count": M, **(clients or {})},
        "delays": delays or {"model": "none"},
        "algorithm": algorithm,
    }
    if tables["run"]["problem"] == "quadratic":
        tables["problem"] = {"dim_x": 3, "dim_y": 5, "condition": 4}
    return federation(tables)


def x_error(d) -> float:
    x_star = d.parts.problem.x_star(M)
    return float(np.linalg.norm(d.state.x - x_star) / np.linalg.norm(x_star))


def workers(d) -> tuple[np.ndarray, np.ndarray]:
    """All x_i and all y_i."""
    x, y = d.state.recent["worker"].parts
    return x.reshape(M, -1), y.reshape(M, -1)


@pytest.mark.parametrize("name", ["adbo", slow("sdbo")])
def test_exact_planes_lead_to_x_star_and_to_consensus(name: str) -> None:
    d = play(driver(name, **EXACT), 35)
    x_i, y_i = workers(d)
    assert x_error(d) < 1e-9
    np.testing.assert_allclose(x_i, np.tile(d.state.x, (M, 1)), atol=1e-8)
    np.testing.assert_allclose(y_i, np.tile(d.parts.problem.y_star(d.state.x, M), (M, 1)), atol=1e-8)


@pytest.mark.parametrize(("tolerance", "far"), [(1e-2, 0.02), slow(1.0, 0.15), slow(1e-4, 0.005)])
def test_a_tolerance_is_reached_and_costs_its_root(tolerance: float, far: float) -> None:
    d = play(driver(**EXACT, tolerance=tolerance), 40)
    assert tolerance < d.state.gap < 2 * tolerance
    assert x_error(d) < far


def test_few_rounds_for_the_estimate_leave_a_bias() -> None:
    """What K steps leave out of dφ/dv: of y*(x) itself nothing is left out, as estimates go on where the last ended."""
    d = play(driver(**{**EXACT, "estimate_rounds": 3}), 30)
    assert 1e-3 < x_error(d) < 0.2


def test_as_it_comes_it_ends_near_x_star() -> None:
    assert x_error(play(driver(), 40)) < 0.15


@pytest.mark.parametrize("cut", ["square", "distance"])
def test_planes_cut_off_the_point_they_are_made_at_and_nothing_feasible(cut: str) -> None:
    d = driver(**{**EXACT, "cut": cut})
    rng = np.random.default_rng(0)
    for _ in range(8):
        v, z, Y = (rng.standard_normal(size) for size in (3, 5, (M, 5)))
        d.state.x, d.state.y, d.state.phi = v, z, z
        workers(d)[1][:] = Y
        d.state.lately = np.ones(d.state.duals.size)  # keep them all
        d.method.cut(d.state, d.link)
        here = np.concatenate([v, Y.ravel(), z])
        assert d.state.normals[-1] @ here + d.state.offsets[-1] > 0
    for _ in range(20):
        x = 3 * rng.standard_normal(3)
        feasible = np.concatenate([x, np.tile(d.parts.problem.y_star(x, M), M + 1)])
        assert np.all(d.state.normals @ feasible + d.state.offsets < 1e-3)


def test_planes_are_bounded_in_number_and_dropped_when_idle() -> None:
    d = driver(planes=4)
    counts = [play(d, 1).state.duals.size for _ in range(12)]
    assert max(counts) == 4
    d.state.lately = np.zeros(4)
    d.method.cut(d.state, d.link)
    assert d.state.duals.size == 1


def test_with_everyone_and_no_delay_both_are_the_same_method() -> None:
    asynchronous, synchronous = (play(driver(name, **q), 12) for name, q in (("adbo", {"quorum": M}), ("sdbo", {})))
    np.testing.assert_allclose(asynchronous.state.x, synchronous.state.x, rtol=1e-12)
    np.testing.assert_allclose(asynchronous.state.y, synchronous.state.y, rtol=1e-12)


def test_sdbo_ends_in_the_same_place_whatever_the_delays() -> None:
    slow, fast = (play(driver("sdbo", delays), 8) for delays in (STRAGGLERS, None))
    np.testing.assert_array_equal(slow.state.x, fast.state.x)


def test_stragglers_do_not_change_where_it_ends() -> None:
    d = play(driver(delays=STRAGGLERS, quorum=2, **EXACT), 35)
    kind, client = EVENT.names.index("kind"), EVENT.names.index("client")
    answers = np.bincount([e[client] for e in d.link.events if d.link.kinds[e[kind]] == "worker"])
    assert answers.min() < answers.max() / 2  # nobody waited for the slow ones
    assert x_error(d) < 0.03


def test_a_bound_on_the_age_is_kept() -> None:
    for bound in (0, 3):
        d = driver(delays=STRAGGLERS, quorum=1, bound=bound)
        oldest = []
        for _ in range(3):
            d.method.cut(d.state, d.link)
            for _ in range(10):
                d.method.iterate(d.state, d.link)
                oldest.append(d.state.recent["worker"].ages(d.state.iteration - 1).max())
        assert max(oldest) <= bound and (bound == 0 or max(oldest) > 0)


def test_clients_that_own_a_block_of_x_keep_to_it() -> None:
    """Hyper-cleaning: a weight per training sample, copied by the client that holds the sample alone."""
    d = driver(run={"problem": "hypercleaning"})
    clients, blocks = [d.parts.client(i) for i in range(M)], d.parts.shapes.blocks

    def upper() -> float:
        return float(np.mean([c.oracles.upper(d.state.x[b], d.state.y) for c, b in zip(clients, blocks)]))

    before = upper()
    play(d, 6)
    assert upper() < 0.7 * before
    copies = d.state.recent["worker"].parts[0]
    assert copies.size == d.state.x.size
    assert np.linalg.norm(copies - d.state.x) < 0.2 * np.linalg.norm(d.state.x)
