"""AFL: ends where the mean of local hypergradients is 0, which is not x*, and stays stable when stale."""

from __future__ import annotations

import numpy as np
import pytest
from federation import federation, play

M = 18
STEP = 0.02  # on x; without delay it is stable up to three times that
STRAGGLERS = {"model": "lognormal", "sigma": 1.0, "stragglers": 5, "factor": 5.0}
PROBLEM = {"dim_x": 4, "dim_y": 6, "condition": 4}


def driver(delays=None, **algorithm):
    return federation(
        {
            "run": {"problem": "quadratic", "algorithm": "afl"},
            "problem": PROBLEM,
            "delays": delays or {"model": "none"},
            "algorithm": {"inverse": "cg", **algorithm},
        }
    )


def local_fixed_point(problem) -> np.ndarray:
    """The x at which the mean of ρ(x − s_i) + B_iᵀA_i⁻¹(y*(x) − t_i) is 0; y*(x) is that of all clients."""
    mean = problem.average(M)
    S, C = np.linalg.solve(mean.A, mean.B), np.linalg.solve(mean.A, mean.c)
    H, b = problem.curvature * np.eye(problem.dim_x), problem.curvature * mean.s
    for shard in (problem.shard(i, M) for i in range(M)):
        D = np.linalg.solve(shard.A, shard.B).T / M
        H, b = H + D @ S, b + D @ (shard.t - C)
    return np.linalg.solve(H, b)


def distance(d, x: np.ndarray) -> float:
    return float(np.linalg.norm(d.state.x - x) / np.linalg.norm(x))


def test_without_delay_it_ends_where_local_hypergradients_cancel_and_not_at_x_star() -> None:
    d = driver(quorum=0, step_x=STEP)
    problem = d.parts.problem
    expected = local_fixed_point(problem)
    play(d, 400)
    assert distance(d, expected) < 1e-6
    assert distance(d, problem.x_star(M)) > 0.05
    np.testing.assert_allclose(d.state.y, problem.y_star(d.state.x, M), rtol=1e-6)


def test_neumann_sums_of_many_terms_are_conjugate_gradients() -> None:
    cg, neumann = (
        play(driver(quorum=0, step_x=STEP, inverse=inverse, terms=terms), 5)
        for inverse, terms in (("cg", 6), ("neumann", 120))
    )
    np.testing.assert_allclose(neumann.state.x, cg.state.x, rtol=1e-9)


def test_alike_clients_lead_to_x_star() -> None:
    d = federation(
        {
            "run": {"problem": "quadratic", "algorithm": "afl"},
            "problem": {**PROBLEM, "heterogeneity": 0.0},
            "delays": {"model": "none"},
            "algorithm": {"inverse": "cg", "quorum": 0, "step_x": STEP},
        }
    )
    play(d, 400)
    assert distance(d, d.parts.problem.x_star(M)) < 1e-4


def course(rounds: int, **algorithm) -> list[float]:
    """Distances from the fixed point under stragglers."""
    d = driver(STRAGGLERS, **algorithm)
    expected = local_fixed_point(d.parts.problem)
    return [distance(play(d, 1), expected) for _ in range(rounds)]


def test_stragglers_do_not_change_where_it_ends() -> None:
    errors = course(1000, quorum=3, step_x=STEP)
    assert max(errors) < 1 and errors[-1] < 0.05


def test_full_steps_on_stale_vectors_diverge() -> None:
    full = course(200, quorum=3, step_x=STEP, adaptive=False)
    assert not np.isfinite(full[-1]) or full[-1] > 10


def test_the_automatic_step_is_stable() -> None:
    assert course(150, quorum=0)[-1] < 1e-3
    errors = course(600, quorum=3)
    assert max(errors) < 1.01 and errors[-1] < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [1, 3, 9])
def test_no_quorum_diverges(quorum: int) -> None:
    for step_x in (STEP, "auto"):
        errors = course({1: 4000, 3: 2000, 9: 400}[quorum], quorum=quorum, step_x=step_x)
        print(f"quorum {quorum}, step {step_x}: {errors[-1]:.3g}")
        assert max(errors) < 1.01 and errors[-1] < (0.01 if step_x == STEP else 0.9)
