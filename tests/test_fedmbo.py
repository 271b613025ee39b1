"""FedMBO: the estimator's mean, its variance, and where the method goes."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import options, trajectory
from federation import federation, play

from fbompi.randomness import stream

M, N = 18, 30


def driver(n: int, **algorithm):
    return federation(
        {
            "run": {"problem": "quadratic", "algorithm": "fedmbo"},
            "problem": {"dim_x": 4, "dim_y": 6, "noise": 0.5},
            "clients": {"participation": n / M, "replacement": True, "batch": 4},
            "delays": {"model": "none"},
            "algorithm": {"terms": N, **algorithm},
        }
    )


def target(d, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """E[H_i]: the hypergradient at (x, y) with the N-term Neumann sum of the average Hessian."""
    problem, ell = d.parts.problem, d.setting.smoothness
    mean = problem.average(M)
    A, b = np.eye(y.size) - mean.A / ell, y - mean.t
    v = sum(np.linalg.matrix_power(A, u) for u in range(N)) @ b / ell
    return problem.curvature * (x - mean.s) + mean.B.T @ v


def draws(n: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` estimates by n chains each, at one point, and the target; every task draws its own minibatch."""
    d = driver(n)
    x, y = np.ones(4), np.linspace(-1, 1, 6)
    rngs = (stream(0, "server", k) for k in range(count))
    estimates = np.array([d.method.chains(x, y, d.link, rng).mean(axis=0) for rng in rngs])
    return estimates, target(d, x, y)


def slope(variances: dict[int, float]) -> float:
    """Of the logarithm of the variance against that of n."""
    return float(np.polyfit(np.log(list(variances)), np.log(list(variances.values())), 1)[0])


def test_the_mean_of_phe_is_the_neumann_sum_and_its_variance_falls_as_one_over_n() -> None:
    variances = {}
    for n, count in ((1, 800), (4, 250), (16, 100)):
        estimates, expected = draws(n, count)
        error = estimates.std(axis=0, ddof=1) / np.sqrt(count)
        assert np.all(np.abs(estimates.mean(axis=0) - expected) < 4 * error), n
        variances[n] = estimates.var(axis=0, ddof=1).sum()
    assert slope(variances) == pytest.approx(-1, abs=0.15)


@pytest.mark.slow
def test_over_thousands_of_chains_the_mean_is_within_three_standard_errors() -> None:
    variances = {}
    for n, count in ((1, 2000), (4, 1000), (16, 500)):
        estimates, expected = draws(n, count)
        error = estimates.std(axis=0, ddof=1) / np.sqrt(count)
        z = np.abs(estimates.mean(axis=0) - expected) / error
        variances[n] = estimates.var(axis=0, ddof=1).sum()
        print(f"n = {n}: {z.round(2)} standard errors, variance {variances[n]:.4f}")
        assert z.max() < 3
    print(f"slope {slope(variances):.3f}")
    assert slope(variances) == pytest.approx(-1, abs=0.1)


def test_chains_draw_a_new_client_for_every_factor() -> None:
    d = driver(16)
    play(d, 1)
    clients = [e[0] for e in d.link.events if d.link.kinds[e[1]] == "factor"]
    assert len(set(clients)) == M


def test_full_participation_without_replacement_steps_y_on_the_average_gradient() -> None:
    d = federation(
        {"run": {"problem": "quadratic", "algorithm": "fedmbo"}, "algorithm": {"inner_rounds": 1, "terms": 1}}
    )
    x, y, problem = d.state.x, d.state.y, d.parts.problem
    mean = problem.average(M)
    play(d, 1)
    np.testing.assert_allclose(d.state.y, y - d.method.step_y("auto") * (mean.A @ y - mean.B @ x - mean.c), atol=1e-14)


def test_theory_steps_shrink_with_the_root_of_the_rounds() -> None:
    d = driver(4, schedule="theory", step_x=1.0)
    x, h = d.state.x, np.ones(4)
    d.method.descend(d.state, h)
    np.testing.assert_allclose(d.state.x, x - np.sqrt(4 / 300) * h)


CONVERGE = options(
    run_algorithm="fedmbo", run_problem="quadratic", run_rounds=1500, problem_heterogeneity=0.5, problem_condition=20,
    algorithm_step_x=0.0035, algorithm_schedule="decay", algorithm_decay=120, algorithm_inner_rounds=3,
    algorithm_terms=50, record_every=100, delays_model="none",
)  # fmt: skip


def test_descends_to_the_global_solution(run_file) -> None:
    path = run_file(*CONVERGE, "-o", "run.rounds=250")
    assert trajectory(path, "x_error")[-1] < 0.13


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "keys"),
    [
        (1, []),
        (4, options(algorithm_estimator="sum", algorithm_terms=15, algorithm_step_x=0.05, algorithm_decay=60,
                    problem_condition=5, run_rounds=150)),
    ],
)  # fmt: skip
def test_reaches_x_star(run_file, ranks: int, keys: list[str]) -> None:
    """On ranks, whose rounds take longer and have the same bits, by chains that are shorter and vary less."""
    error = trajectory(run_file(*CONVERGE, *keys, "-n", ranks, timeout=600), "x_error")[-1]
    print(f"{ranks} ranks: relative error {error:.4g}")
    assert error < 1e-2
