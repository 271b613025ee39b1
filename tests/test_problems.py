"""Every oracle of every problem against finite differences, and the closed form against itself."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from fbompi.problem import Oracles, _largest_eigenvalue, blocks
from fbompi.problems.hypercleaning import HyperCleaning
from fbompi.problems.quadratic import Quadratic
from fbompi.randomness import stream

CLIENTS = 6
PROBLEMS = {
    "quadratic": lambda: Quadratic(dim_x=4, dim_y=7, noise=0.3),
    "hypercleaning": lambda: HyperCleaning(train=120, validation=60),
    "hypercleaning sorted": lambda: HyperCleaning(train=120, validation=60, partition="sorted"),
}


@pytest.fixture(params=PROBLEMS)
def oracles(request) -> Oracles:
    problem = PROBLEMS[request.param]()
    return Oracles(problem, problem.shard(2, CLIENTS))


def point(oracles: Oracles) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    block = blocks(oracles.problem, CLIENTS)[2]
    q = oracles.problem.dim_y
    return rng.standard_normal(block.stop - block.start), 0.3 * rng.standard_normal(q), rng.standard_normal(q)


def slope(function, at: np.ndarray, along: np.ndarray, step: float = 1e-5):
    return (function(at + step * along) - function(at - step * along)) / (2 * step)


@pytest.mark.parametrize("batch", [None, np.array([3, 0, 3, 5])], ids=["whole shard", "batch"])
def test_gradients_and_products_are_derivatives(oracles: Oracles, batch) -> None:
    x, y, v = point(oracles)
    u = np.random.default_rng(2).standard_normal(x.size)
    grad_x, grad_y = oracles.upper_grad(x, y, batch)
    assert grad_x @ u == pytest.approx(slope(lambda z: oracles.upper(z, y, batch), x, u), abs=1e-7)
    assert grad_y @ v == pytest.approx(slope(lambda z: oracles.upper(x, z, batch), y, v), rel=1e-6)
    lower_grad, lower_grad_x = oracles.lower_grad(x, y, batch), oracles.lower_grad_x(x, y, batch)
    assert lower_grad @ v == pytest.approx(slope(lambda z: oracles.lower(x, z, batch), y, v), rel=1e-6)
    assert lower_grad_x @ u == pytest.approx(slope(lambda z: oracles.lower(z, y, batch), x, u), rel=1e-6, abs=1e-9)
    hvp, cross = oracles.hvp(x, y, v, batch), oracles.cross(x, y, v, batch)
    np.testing.assert_allclose(hvp, slope(lambda z: oracles.lower_grad(x, z, batch), y, v), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(cross, slope(lambda z: oracles.lower_grad_x(x, z, batch), y, v), rtol=1e-5, atol=1e-8)


def test_batches_average_to_the_shard(oracles: Oracles) -> None:
    x, y, v = point(oracles)
    n = oracles.lower_size
    for of in (oracles.lower_grad, lambda x, y, b: oracles.hvp(x, y, v, b), lambda x, y, b: oracles.cross(x, y, v, b)):
        singles = np.mean([of(x, y, np.array([j])) for j in range(n)], axis=0)
        np.testing.assert_allclose(singles, of(x, y, None), rtol=1e-9, atol=1e-12)


def test_smoothness_bounds_the_hessian(oracles: Oracles) -> None:
    x, y, _ = point(oracles)
    hessian = np.stack([oracles.hvp(x, y, e) for e in np.eye(y.size)])
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)
    eigenvalues = np.linalg.eigvalsh(hessian)
    assert eigenvalues[0] > 0 and eigenvalues[-1] <= oracles.smoothness(x, y) * (1 + 1e-12)


class Bare:
    """A problem that offers the least: what is missing must be derived."""

    dim_x, dim_y = 4, 7

    def __init__(self, *leave_out: str) -> None:
        whole = Quadratic(dim_x=4, dim_y=7)
        for name in ("shard", "size", "start", "upper", "lower", "upper_grad", "lower_grad", "lower_grad_x"):
            if name not in leave_out:
                setattr(self, name, getattr(whole, name))


@pytest.mark.parametrize("leave_out", [(), ("lower_grad_x",)], ids=["with lower_grad_x", "without"])
def test_missing_oracles_are_derived(leave_out) -> None:
    whole, bare = Quadratic(dim_x=4, dim_y=7), Bare(*leave_out)
    shard, (x, y, v) = whole.shard(0, 3), (np.arange(4.0), np.arange(7.0), np.ones(7))
    native, derived = Oracles(whole, shard), Oracles(bare, shard)
    for name, args in (("lower_grad_x", (x, y)), ("hvp", (x, y, v)), ("cross", (x, y, v))):
        np.testing.assert_allclose(getattr(derived, name)(*args), getattr(native, name)(*args), rtol=1e-6, atol=1e-6)
    assert 0.95 <= derived.smoothness(x, y) <= 1.2


def test_a_largest_eigenvalue_off_the_beaten_track_is_found() -> None:
    for place in range(20):
        curvature = np.ones(20)
        curvature[place] = 5.0
        assert 5.0 <= _largest_eigenvalue(lambda v, c=curvature: c * v, 20) <= 6.0


def test_closed_form_solves_both_levels() -> None:
    problem, m = Quadratic(condition=20), 18
    shards = [problem.shard(i, m) for i in range(m)]
    x = problem.x_star(m)
    y = problem.y_star(x, m)
    np.testing.assert_allclose(np.mean([problem.lower_grad(s, x, y) for s in shards], axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(problem.gradient(x, m), 0, atol=1e-8)

    def phi(z: np.ndarray) -> float:
        return float(np.mean([problem.upper(s, z, problem.y_star(z, m)) for s in shards]))

    at, along = x + 1.0, np.linspace(-1, 1, problem.dim_x)
    assert problem.gradient(at, m) @ along == pytest.approx(slope(phi, at, along), rel=1e-6)


def test_condition_number_and_heterogeneity_are_as_chosen() -> None:
    alike, apart = Quadratic(condition=50, heterogeneity=0), Quadratic(condition=50, heterogeneity=1)
    assert np.linalg.cond(apart.shard(3, 18).A) == pytest.approx(50)
    np.testing.assert_array_equal(alike.shard(0, 18).A, alike.shard(1, 18).A)
    assert np.linalg.norm(apart.shard(0, 18).A - apart.shard(1, 18).A) > 0.5


def test_local_hypergradients_do_not_average_to_the_global_one() -> None:
    """The heterogeneous test that separates the two: methods that claim the global one are tested on this problem."""
    problem, m = Quadratic(), 18
    x = np.zeros(problem.dim_x)
    local = []
    for s in (problem.shard(i, m) for i in range(m)):
        y = np.linalg.solve(s.A, s.B @ x + s.c)
        local.append(problem.curvature * (x - s.s) + s.B.T @ np.linalg.solve(s.A, y - s.t))
    exact = problem.gradient(x, m)
    assert np.linalg.norm(np.mean(local, axis=0) - exact) > 0.5 * np.linalg.norm(exact)


@pytest.mark.parametrize("partition", ["iid", "sorted"])
@pytest.mark.parametrize("clients", [1, 7, 18])
def test_every_sample_is_dealt_out_once(partition: str, clients: int) -> None:
    problem = HyperCleaning(partition=partition)
    for which, size in zip(range(3), (900, 300, 597)):
        dealt = np.concatenate([parts[which] for parts in problem.parts(clients)])
        np.testing.assert_array_equal(np.sort(dealt), np.arange(size))
    owned = [problem.block(c, clients) for c in range(clients)]
    assert owned[0].start == 0 and owned[-1].stop == problem.dim_x
    assert all(a.stop == b.start for a, b in pairwise(owned))


def test_sorted_clients_see_few_classes() -> None:
    problem = HyperCleaning(partition="sorted")
    for c in range(18):
        train = problem.parts(18)[c][0]
        assert len(set(problem.labels[problem.train[train]])) <= 3


def test_corruption_changes_exactly_the_fraction_asked_for() -> None:
    problem = HyperCleaning(corruption=0.25)
    true = problem.labels[problem.train]
    assert (problem.given_labels != true).sum() == round(0.25 * 900)
    wrong = sum(problem.shard(c, 18).corrupted.sum() for c in range(18))
    assert wrong == 225


def test_streams_with_other_names_are_other_numbers() -> None:
    names = product((0, 1), ("client", "delay"), (0, 1), (0, 1))
    draws = {stream(*name).integers(2**62) for name in names}
    assert len(draws) == 16
    assert stream(3, "client", 4, 5).integers(2**62) == stream(3, "client", 4, 5).integers(2**62)
