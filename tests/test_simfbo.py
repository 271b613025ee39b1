"""SimFBO and ShroFBO: what clients send, what unequal local steps do, and what storing products costs."""

from __future__ import annotations

import numpy as np
import pytest
from federation import federation, play

from fbompi.links.link import EVENT

M = 6
BOTH = pytest.mark.parametrize("algorithm", ["simfbo", "shrofbo"])


UNEQUAL = {"local_steps": [1, 9], "steps_by": "client"}


def driver(algorithm: str, local_steps=1, problem=None, **parameters):
    return federation(
        {
            "run": {"problem": "quadratic", "algorithm": algorithm},
            "problem": {"dim_x": 4, "dim_y": 6, "condition": 10.0, **(problem or {})},
            "clients": {"count": M, **(UNEQUAL if local_steps == "unequal" else {"local_steps": local_steps})},
            "delays": {"model": "none"},
            "algorithm": parameters,
        }
    )


def distance(d, x: np.ndarray) -> float:
    return float(np.linalg.norm(d.state.x - x) / np.linalg.norm(x))


def directions(shard, rho: float, x: np.ndarray, y: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
    """∇̄f_i, ∇_y g_i and ∇_v R_i of one quadratic."""
    return (
        rho * (x - shard.s) + shard.B.T @ v,
        shard.A @ y - shard.B @ x - shard.c,
        shard.A @ v - (y - shard.t),
    )


@BOTH
def test_reaches_x_star_of_different_clients_in_one_round_of_communication_per_step(algorithm: str) -> None:
    d = driver(algorithm)
    d.method.p.step_x = 0.3 / d.parts.problem.upper_smoothness(M)
    play(d, 600)
    assert d.link.round == 600
    assert distance(d, d.parts.problem.x_star(M)) < 1e-6


@BOTH
@pytest.mark.parametrize("store", [True, False])
def test_the_server_moves_to_the_average_of_the_points_where_simultaneous_local_steps_end(algorithm, store) -> None:
    tau, alpha, beta, gamma = 4, 0.02, 0.5, 0.3
    d = driver(algorithm, tau, step_x=alpha, step_y=beta, step_v=gamma, store=store)
    play(d, 2)
    problem, s = d.parts.problem, d.state
    ends = []
    for i in range(M):
        x, y, v = s.x, s.y, s.v
        for _ in range(tau):
            d_x, d_y, d_v = directions(problem.shard(i, M), problem.curvature, x, y, v)
            x, y, v = x - alpha / tau * d_x, y - beta / tau * d_y, v - gamma / tau * d_v
        ends.append((x, y, v))
    play(d, 1)
    for reached, points in zip((s.x, s.y, s.v), zip(*ends)):
        np.testing.assert_allclose(reached, np.mean(points, axis=0), rtol=1e-12)


@BOTH
def test_clients_that_take_more_steps_weigh_more_in_simfbo_and_alike_in_shrofbo(algorithm) -> None:
    d = driver(algorithm, "unequal")
    problem, x, y, v = d.parts.problem, np.ones(4), np.linspace(-1, 1, 6), np.linspace(1, 2, 6)
    still = [np.array([a]) for a in (1.0, 0.0, 0.0, 0.0)]  # local steps of length 0
    updates = d.method.ask(d.link, "stored", x, y, v, *still)
    found, steps = d.method.aggregate(updates), [update.task.local_steps for update in updates]
    assert len(set(steps)) > 2
    weights = steps if algorithm == "simfbo" else np.ones(M)
    parts = [directions(problem.shard(i, M), problem.curvature, x, y, v) for i in range(M)]
    for d_k, each in zip(found, zip(*parts)):
        np.testing.assert_allclose(d_k, np.average(each, axis=0, weights=weights), rtol=1e-12)


def test_a_discount_gives_later_local_steps_more_weight() -> None:
    sums = {}
    for discount in (1.0, 0.5):
        d = driver("simfbo", 3, discount=discount)
        numbers = [np.array([a]) for a in (discount, 0.0, 0.3, 0.0)]
        (update, *_) = d.method.ask(d.link, "stored", np.ones(4), np.zeros(6), np.zeros(6), *numbers)
        sums[discount] = update.arrays
    assert sums[1.0][3] == 3
    assert sums[0.5][3] == 1.75
    shard, y, q = d.parts.problem.shard(0, M), np.zeros(6), np.zeros(6)
    for a in (0.25, 0.5, 1.0):
        g = shard.A @ y - shard.B @ np.ones(4) - shard.c
        q, y = q + a * g, y - 0.1 * g
    np.testing.assert_allclose(sums[0.5][1], q, rtol=1e-12)


def test_unequal_local_steps_lead_simfbo_farther_from_x_star_than_shrofbo() -> None:
    errors = {}
    for algorithm in ("simfbo", "shrofbo"):
        d = driver(algorithm, "unequal", step_y=0.2, step_v=0.2)
        d.method.p.step_x = 0.1 / d.parts.problem.upper_smoothness(M)
        errors[algorithm] = distance(play(d, 1500), d.parts.problem.x_star(M))
    assert errors["shrofbo"] < 0.3 * errors["simfbo"]


def test_with_equal_local_steps_shrofbo_is_simfbo() -> None:
    x, other = (play(driver(name, 3, step_x=0.01), 30).state.x for name in ("simfbo", "shrofbo"))
    np.testing.assert_allclose(x, other, rtol=1e-12)


def memory(store: bool, tau: int) -> float:
    """The peak of a client's memory, in vectors of the length of x."""
    d = play(driver("simfbo", tau, {"dim_x": 20000, "dim_y": 2, "samples": 1}, store=store), 2)
    return int(np.array(d.link.events, EVENT)["memory"].max()) / (8 * 20000)


def test_stored_products_make_memory_grow_with_the_local_steps_and_sums_do_not() -> None:
    assert memory(True, 20) - memory(True, 5) == pytest.approx(15, abs=1)
    assert memory(False, 20) == pytest.approx(memory(False, 5), abs=1)


def test_v_stays_in_its_ball() -> None:
    free, kept = (play(driver("simfbo", radius=radius, step_x=1e-9), 100).state.v for radius in (0.0, 0.5))
    assert np.linalg.norm(free) > 1
    assert np.linalg.norm(kept) == pytest.approx(0.5)


@BOTH
@pytest.mark.parametrize("problem", [{}, {"heterogeneity": 0.0, "condition": 20.0}])
def test_the_default_step_on_x_is_stable(algorithm: str, problem: dict) -> None:
    d = driver(algorithm, [1, 5], problem)
    assert distance(play(d, 500), d.parts.problem.x_star(M)) < 0.9
