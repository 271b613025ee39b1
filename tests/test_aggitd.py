"""AggITD: its estimators against the derivative of the unrolled inner map, and where it goes."""

from __future__ import annotations

import numpy as np
import pytest
from federation import federation, play

from fbompi.randomness import stream

M = 6


def driver(problem=None, clients=None, **parameters):
    return federation(
        {
            "run": {"problem": "quadratic", "algorithm": "aggitd"},
            "problem": {"dim_x": 4, "dim_y": 6, "condition": 10.0, **(problem or {})},
            "clients": {"count": M, **(clients or {})},
            "delays": {"model": "none"},
            "algorithm": parameters,
        }
    )


def inner_path(d, x: np.ndarray, y: np.ndarray, N: int) -> list[np.ndarray]:
    """y^0, …, y^N: gradient descent on the mean of the clients' lower objectives."""
    mean, path = d.parts.problem.average(M), [y]
    for _ in range(N):
        path.append(path[-1] - d.method.beta * (mean.A @ path[-1] - mean.B @ x - mean.c))
    return path


def unrolled(d, x: np.ndarray, y: np.ndarray, N: int) -> float:
    """F(x, y^N(x)), F the mean of the clients' upper objectives."""
    problem, end = d.parts.problem, inner_path(d, x, y, N)[-1]
    return float(np.mean([problem.upper(problem.shard(i, M), x, end) for i in range(M)]))


def powers(d, N: int) -> list[np.ndarray]:
    """(I − λĀ)^u for u < N."""
    A = np.eye(6) - d.method.beta * d.parts.problem.average(M).A
    return [np.linalg.matrix_power(A, u) for u in range(N)]


def distance(d, x: np.ndarray) -> float:
    return float(np.linalg.norm(d.state.x - x) / np.linalg.norm(x))


X, Y = np.linspace(-1, 2, 4), np.linspace(-1, 1, 6)


def placed(d):
    d.state.x, d.state.y = X, Y
    return d


@pytest.mark.parametrize("N", [1, 7])
def test_reverse_is_the_derivative_of_the_upper_objective_through_all_inner_steps(N: int) -> None:
    d = placed(driver(estimator="reverse", inner_rounds=N))
    problem, mean = d.parts.problem, d.parts.problem.average(M)
    h, _ = d.method.reverse(d.state, d.link)
    end = inner_path(d, X, Y, N)[-1]
    np.testing.assert_allclose(d.state.y, end, rtol=1e-12)
    exact = problem.curvature * (X - mean.s) + d.method.beta * mean.B.T @ sum(powers(d, N)) @ (end - mean.t)
    np.testing.assert_allclose(h, exact, rtol=1e-12)
    differences = [(unrolled(d, X + e, Y, N) - unrolled(d, X - e, Y, N)) / 2e-3 for e in 1e-3 * np.eye(4)]
    np.testing.assert_allclose(h, differences, rtol=1e-8)


def test_reverse_takes_every_product_where_y_was() -> None:
    """On a problem whose Hessians change with y; along one direction, from central differences."""
    tables = {
        "run": {"problem": "regcoef", "algorithm": "aggitd"},
        "clients": {"count": 3},
        "delays": {"model": "none"},
    }
    d = federation({**tables, "algorithm": {"estimator": "reverse", "inner_rounds": 4}})
    x, y = d.state.x, d.state.y
    along = np.cos(np.arange(x.size))

    def end(x: np.ndarray) -> tuple[np.ndarray, float]:
        d.state.x, d.state.y = x, y
        h, _ = d.method.reverse(d.state, d.link)
        d.link.evaluate(0, x, d.state.y)
        d.link.finish_evaluations()
        return h, float(d.link.evaluated.pop()[1][:, 0].mean())

    slope = (end(x + 1e-3 * along)[1] - end(x - 1e-3 * along)[1]) / 2e-3
    assert end(x)[0] @ along == pytest.approx(slope, rel=1e-5)


def test_sum_weighs_every_point_of_the_inner_path_by_the_factors_after_it() -> None:
    N = 7
    d = placed(driver(estimator="sum", inner_rounds=N))
    w = d.method.all_chains(d.state, d.link)
    path, t = inner_path(d, X, Y, N), d.parts.problem.average(M).t
    expected = sum(power @ (path[N - 1 - u] - t) for u, power in enumerate(powers(d, N)))
    np.testing.assert_allclose(w, d.method.beta * expected, rtol=1e-12)
    np.testing.assert_allclose(d.state.y, path[N], rtol=1e-12)


def test_the_mean_of_the_sampled_chain_is_the_sum() -> None:
    N, draws = 6, 600
    w = driver(estimator="sum", inner_rounds=N)
    expected = w.method.all_chains(placed(w).state, w.link)
    d = driver(estimator="sampled", inner_rounds=N)
    chains = np.array([d.method.chain(placed(d).state, d.link, stream(0, "server", k)) for k in range(draws)])
    error = chains.std(axis=0, ddof=1) / np.sqrt(draws)
    assert np.all(np.abs(chains.mean(axis=0) - expected) < 4 * error)


def test_once_y_has_settled_the_sum_is_the_neumann_sum_and_so_is_the_reverse() -> None:
    N = 5
    found = []
    for estimator in ("sum", "reverse"):
        d = driver(estimator=estimator, inner_rounds=N)
        d.state.x, d.state.y = X, d.parts.problem.y_star(X, M)
        mean = d.parts.problem.average(M)
        if estimator == "sum":
            w = d.method.all_chains(d.state, d.link)
            found.append(d.parts.problem.curvature * (X - mean.s) + mean.B.T @ w)
        else:
            found.append(d.method.reverse(d.state, d.link)[0])
    v = d.method.beta * sum(powers(d, N)) @ (d.parts.problem.y_star(X, M) - mean.t)
    for h in found:
        np.testing.assert_allclose(h, d.parts.problem.curvature * (X - mean.s) + mean.B.T @ v, rtol=1e-10)


@pytest.mark.parametrize(("estimator", "rounds"), [("sampled", 2 * 4 + 2), ("sum", 2 * 4 + 2), ("reverse", 3 * 4 + 2)])
def test_the_chain_along_the_inner_rounds_costs_no_rounds_of_its_own(estimator: str, rounds: int) -> None:
    assert play(driver(estimator=estimator, inner_rounds=4), 1).link.round == rounds


@pytest.mark.parametrize("tau", [1, 3])
def test_the_bias_of_truncation_falls_with_the_inner_rounds(tau: int) -> None:
    errors = []
    for N in (1, 4, 16):
        d = driver(estimator="sum", inner_rounds=N, clients={"local_steps": tau})
        d.method.p.step_x = 1 / d.parts.problem.upper_smoothness(M)
        errors.append(distance(play(d, 150), d.parts.problem.x_star(M)))
    assert errors[0] > 5 * errors[1] > 25 * errors[2]
    assert errors[2] < 1e-3


def test_where_the_truncated_sum_settles_on_quadratics() -> None:
    N = 4
    d = driver(estimator="sum", inner_rounds=N, step_x=0.02)
    problem, mean = d.parts.problem, d.parts.problem.average(M)
    S, offset = np.linalg.solve(mean.A, mean.B), np.linalg.solve(mean.A, mean.c)  # y*(x) = Sx + offset
    chain = d.method.beta * mean.B.T @ sum(powers(d, N))
    x = np.linalg.solve(
        problem.curvature * np.eye(4) + chain @ S, problem.curvature * mean.s - chain @ (offset - mean.t)
    )
    assert distance(play(d, 500), x) < 1e-6


@pytest.mark.parametrize("estimator", ["sampled", "sum", "reverse"])
def test_the_default_step_on_x_is_stable(estimator: str) -> None:
    d = driver(estimator=estimator)
    assert distance(play(d, 120), d.parts.problem.x_star(M)) < 0.9
