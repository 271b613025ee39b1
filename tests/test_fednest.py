"""FedNest and LFedNest: their estimators, their local steps, and where the two go."""

from __future__ import annotations

import numpy as np
import pytest
from federation import federation, play

from fbompi.randomness import stream

M = 6


def driver(algorithm: str = "fednest", problem=None, clients=None, **parameters):
    return federation(
        {
            "run": {"problem": "quadratic", "algorithm": algorithm},
            "problem": {"dim_x": 4, "dim_y": 6, "condition": 10.0, **(problem or {})},
            "clients": {"count": M, **(clients or {})},
            "delays": {"model": "none"},
            "algorithm": parameters,
        }
    )


def neumann_sum(A: np.ndarray, ell: float, terms: int) -> np.ndarray:
    """(1/ℓ) Σ_{u<N} (I − A/ℓ)^u."""
    step = np.eye(len(A)) - A / ell
    return np.sum([np.linalg.matrix_power(step, u) for u in range(terms)], axis=0) / ell


def distance(d, x: np.ndarray) -> float:
    return float(np.linalg.norm(d.state.x - x) / np.linalg.norm(x))


def test_the_mean_of_ihgp_is_the_neumann_sum_of_the_average_hessian() -> None:
    N, draws = 12, 1000
    noisy, few = {"noise": 0.5}, {"batch": 4, "participation": 0.5}
    d = driver("fednest", noisy, few, estimator="sampled", smoothness=2.0, terms=N)
    mean, x, y = d.parts.problem.average(M), np.ones(4), np.linspace(-1, 1, 6)
    expected = neumann_sum(mean.A, 2.0, N) @ (y - mean.t)
    estimates = np.array([d.method.fedihgp(x, y, d.link, stream(0, "server", k)) for k in range(draws)])
    error = estimates.std(axis=0, ddof=1) / np.sqrt(draws)
    assert np.all(np.abs(estimates.mean(axis=0) - expected) < 4 * error)

    exact = driver(estimator="sum", terms=N)
    v = exact.method.fedihgp(x, y, exact.link, stream(0, "server"))
    np.testing.assert_allclose(v, neumann_sum(mean.A, exact.method.ell, N) @ (y - mean.t), rtol=1e-12)


@pytest.mark.parametrize(("estimator", "chain"), [("sum", 9), ("sampled", None)])
def test_an_outer_round_takes_two_rounds_per_inner_one_and_three_more_than_the_chain(estimator, chain) -> None:
    d = driver(estimator=estimator, inner_rounds=3, terms=10)
    play(d, 1)
    factors = stream(d.setting.seed, "server", 0).integers(10) if chain is None else chain
    assert d.link.round == 2 * 3 + factors + 3


@pytest.mark.parametrize("inner", ["svrg", "minibatch", "fedavg"])
def test_one_local_step_makes_all_inner_rounds_gradient_descent(inner: str) -> None:
    d = driver(inner=inner)
    mean, x, y = d.parts.problem.average(M), np.ones(4), np.linspace(-1, 1, 6)
    stepped = d.method.fedinn(x, y, d.link)
    np.testing.assert_allclose(stepped, y - d.method.beta * (mean.A @ y - mean.B @ x - mean.c), atol=1e-14)


def test_svrg_compares_gradients_on_the_same_samples() -> None:
    d = driver("fednest", {"noise": 0.5}, {"batch": 1})
    x, y, q, h, step = np.ones(4), np.linspace(-1, 1, 6), np.arange(6.0), np.arange(4.0), np.array([0.5])
    for update in d.method.ask(d.link, "svrg", x, y, q, step):  # one local step: its own two gradients cancel
        np.testing.assert_array_equal(update.arrays[0], q)
    for update in d.method.ask(d.link, "outer", x, y, h, step):
        np.testing.assert_array_equal(update.arrays[0], np.zeros(4))


def test_local_svrg_steps_on_y_leave_y_star_where_it_is_and_those_of_fedavg_do_not() -> None:
    moved = {}
    for inner in ("svrg", "fedavg"):
        d = driver(inner=inner, clients={"local_steps": 5})
        x = np.ones(4)
        y_star = d.parts.problem.y_star(x, M)
        moved[inner] = np.linalg.norm(d.method.fedinn(x, y_star, d.link) - y_star)
    assert moved["svrg"] < 1e-13
    assert moved["fedavg"] > 1e-2


def test_the_server_moves_to_the_average_of_the_points_where_local_svrg_steps_end() -> None:
    d = driver(clients={"local_steps": 3}, step_y=0.6)
    problem, x, y = d.parts.problem, np.ones(4), np.linspace(-1, 1, 6)
    shards, mean = [problem.shard(i, M) for i in range(M)], problem.average(M)
    q = mean.A @ y - mean.B @ x - mean.c
    ends = []
    for shard in shards:
        z = y
        for _ in range(3):
            z = z - 0.2 * (shard.A @ (z - y) + q)
        ends.append(z)
    np.testing.assert_allclose(d.method.fedinn(x, y, d.link), np.mean(ends, axis=0), rtol=1e-12)


def test_local_steps_on_x_follow_the_direct_part_of_the_hypergradient() -> None:
    rho, alpha = 0.1, 0.5
    d = driver(clients={"local_steps": 4}, step_x=alpha, estimator="sum", problem={"curvature": rho})
    play(d, 1)  # after which the length of steps on x is known
    s, h = d.state, np.arange(4.0)
    x = z = s.x
    for _ in range(4):
        z = z - alpha / 4 * (h + rho * (z - x))
    d.method.fedout(s, d.link, h, d.method.ask(d.link, "begin", s.x, s.y))
    np.testing.assert_allclose(s.x, z, rtol=1e-12)


@pytest.mark.parametrize("tau", [1, 3])
def test_fednest_reaches_x_star_of_different_clients(tau: int) -> None:
    d = driver(clients={"local_steps": tau}, estimator="sum", terms=40, inner_rounds=8)
    d.method.p.step_x = 1 / d.parts.problem.upper_smoothness(M)
    assert distance(play(d, 120), d.parts.problem.x_star(M)) < 1e-4


@pytest.mark.slow
def test_the_sampled_chain_reaches_x_star_by_steps_that_decay() -> None:
    d = driver(estimator="sampled", terms=40, inner_rounds=5, schedule="decay", decay=100.0)
    d.method.p.step_x = 0.3 / d.parts.problem.upper_smoothness(M)
    assert distance(play(d, 1200), d.parts.problem.x_star(M)) < 0.01


@pytest.mark.parametrize("algorithm", ["fednest", "lfednest"])
@pytest.mark.parametrize("estimator", ["sum", "sampled"])
def test_the_default_step_on_x_is_stable(algorithm: str, estimator: str) -> None:
    d = driver(algorithm, estimator=estimator)
    x_star = d.parts.problem.x_star(M)
    begin = distance(d, x_star)
    assert distance(play(d, 150), x_star) < 0.9 * begin


def local_solution(d, terms: int) -> np.ndarray:
    """Where the mean of the clients' own N-term hypergradients is 0 at y = y*(x)."""
    problem, ell = d.parts.problem, d.method.ell
    shards, mean = [problem.shard(i, M) for i in range(M)], problem.average(M)
    S, offset = np.linalg.solve(mean.A, mean.B), np.linalg.solve(mean.A, mean.c)  # y*(x) = Sx + offset
    chains = [shard.B.T @ neumann_sum(shard.A, ell, terms) for shard in shards]
    matrix = problem.curvature * np.eye(len(mean.s)) + np.mean(chains, axis=0) @ S
    target = np.mean([chain @ (offset - shard.t) for chain, shard in zip(chains, shards)], axis=0)
    return np.linalg.solve(matrix, problem.curvature * mean.s - target)


def test_lfednest_settles_where_the_mean_of_local_hypergradients_is_zero_and_not_at_x_star() -> None:
    N = 15
    d = driver("lfednest", estimator="sum", terms=N, step_x=0.02, inner_rounds=10)
    biased, x_star = local_solution(d, N), d.parts.problem.x_star(M)
    play(d, 400)
    assert distance(d, biased) < 1e-6
    assert distance(d, x_star) > 0.05


def test_the_local_chain_of_lfednest_has_the_mean_of_its_sum() -> None:
    answers = {}
    for estimator, count in (("sum", 1), ("sampled", 1000)):
        d = driver("lfednest", estimator=estimator, terms=6)
        x, y = np.ones(4), np.linspace(-1, 1, 6)
        numbers = np.zeros(1), np.array([d.method.ell]), np.array([6.0])
        answers[estimator] = np.array(
            [d.method.mean_x(d.method.ask(d.link, estimator, x, y, *numbers)) for _ in range(count)]
        )
    error = answers["sampled"].std(axis=0, ddof=1) / np.sqrt(1000)
    assert np.all(np.abs(answers["sampled"].mean(axis=0) - answers["sum"][0]) < 4 * error)


def test_where_clients_are_alike_lfednest_and_fednest_are_one() -> None:
    alike = {"heterogeneity": 0.0}
    x, other = (play(driver(name, alike, step_x=0.01, estimator="sum"), 20).state.x for name in ("fednest", "lfednest"))
    np.testing.assert_allclose(x, other, rtol=1e-10)


def test_with_minibatches_and_independent_chains_it_is_fedmbo_to_the_last_bit() -> None:
    clients, keys = {"batch": 4, "participation": 0.5}, {"inner_rounds": 3, "terms": 8, "step_x": 0.02}
    pair = driver("fednest", {"noise": 0.5}, clients, inner="minibatch", hypergradient="phe", **keys)
    fedmbo = driver("fedmbo", {"noise": 0.5}, clients, **keys)
    for d in (pair, fedmbo):
        play(d, 5)
    np.testing.assert_array_equal(pair.state.x, fedmbo.state.x)
    assert pair.link.round == fedmbo.link.round


@pytest.mark.parametrize("inner", ["svrg", "fedavg"])
def test_independent_chains_go_with_any_inner_rounds(inner: str) -> None:
    """Chains begin and end with a round; with all terms in them the descent has no noise of its own."""
    d = driver(inner=inner, hypergradient="phe", estimator="sum", inner_rounds=3, terms=10)
    play(d, 1)
    assert d.link.round == 3 * {"svrg": 2, "fedavg": 1}[inner] + 9 + 2
