"""AFBO: equal to its synchronous form without delay, right where the printed formula is wrong, stable when stale."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from conftest import needs_mpi, options, trajectory
from federation import federation, play

from fbompi.errors import UserError
from fbompi.problems.quadratic import Quadratic

M = 18
STEP = 1 / Quadratic().upper_smoothness(M)  # on x: the longest that is stable without delay and drift


def driver(rounds: int = 300, **tables):
    base = {"run": {"problem": "quadratic", "algorithm": "afbo", "rounds": rounds}, "delays": {"model": "none"}}
    for key, table in tables.items():
        base[key] = {**base.get(key, {}), **table}
    return federation(base)


def hypergradient_error(hypergradient: str, terms: int = 60, **problem) -> float:
    """Relative error of one synchronous hypergradient at y*(x), from v = 0."""
    d = driver(problem=problem, algorithm={"hypergradient": hypergradient, "terms": terms, "quorum": 0})
    s, p = d.state, d.parts.problem
    s.x = np.linspace(-1, 1, p.dim_x)
    s.y = p.y_star(s.x, M)
    exact = p.gradient(s.x, M)
    estimate = d.method._dense if "matrices" in s.recent else d.method._aphe
    return float(np.linalg.norm(estimate(s, d.link)[0] - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("mode", ["warm", "cold", "cg", "dense"])
def test_the_hypergradient_is_right(mode: str) -> None:
    assert hypergradient_error(mode) <= 1e-3


def test_conjugate_gradients_need_far_fewer_products_where_the_condition_is_bad() -> None:
    errors = {mode: hypergradient_error(mode, terms=15, condition=1000, heterogeneity=0.1) for mode in ("cold", "cg")}
    assert errors["cg"] < 0.02 < 0.5 < errors["cold"], errors


@pytest.mark.parametrize("condition", [2, 10, 20, 50])
def test_the_printed_formula_is_wrong(condition: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        printed = hypergradient_error("printed", condition=condition)
    assert printed > 0.3 > 100 * hypergradient_error("dense", terms=200, condition=condition)


def test_the_printed_formula_warns() -> None:
    with pytest.warns(UserWarning, match="not a Hessian inverse"):
        driver(algorithm={"hypergradient": "printed"})


def test_vectors_and_matrices_give_the_same_sum() -> None:
    vectors, matrices = (
        play(driver(algorithm={"hypergradient": mode, "quorum": 0, "step_x": 0.01}), 5) for mode in ("cold", "dense")
    )
    np.testing.assert_allclose(vectors.state.x, matrices.state.x, rtol=1e-12)


def synchronous(d, rounds: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1 without delay, written out with averages over all clients."""
    problem, p, ell, beta = d.parts.problem, d.method.p, d.setting.smoothness, d.method.beta
    shards = [problem.shard(i, M) for i in range(M)]
    x, y = problem.start(None)
    v = np.zeros_like(y)

    def aligned(shard, y):
        gradients = []
        for _ in range(steps):
            gradients.append(problem.lower_grad(shard, x, y))
            y = y - beta * gradients[-1]
        return np.mean(gradients, axis=0)

    for _ in range(rounds):
        for _ in range(p.inner_rounds):
            y = y - beta * np.mean([aligned(s, y) for s in shards], axis=0)
        for _ in range(p.terms):
            Hv = np.mean([problem.hvp(s, x, y, v) for s in shards], axis=0)
            b = np.mean([problem.upper_grad(s, x, y)[1] for s in shards], axis=0)
            v = v - (Hv - b) / ell
        H = np.mean([problem.upper_grad(s, x, y)[0] - problem.cross(s, x, y, v) for s in shards], axis=0)
        x = x - p.step_x * H
    return x, y


@pytest.mark.parametrize("steps", [1, 3])
def test_without_delay_and_with_everyone_it_is_the_synchronous_method(steps: int) -> None:
    d = driver(algorithm={"quorum": 0, "step_x": 0.01}, clients={"local_steps": steps})
    x, y = synchronous(d, 20, steps)
    play(d, 20)
    np.testing.assert_allclose(d.state.x, x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(d.state.y, y, rtol=1e-12, atol=1e-12)
    assert max(e[5] for e in d.link.events) == 0


STRAGGLERS = {"model": "lognormal", "sigma": 1.0, "stragglers": 5, "factor": 5.0}


def course(quorum: int, seed: int, rounds: int, **algorithm) -> tuple[float | None, float, list[float]]:
    """Virtual time to a relative error of 0.3, the largest error after it, and the whole course."""
    settings = {"quorum": quorum, "inner_rounds": 20, "terms": 20, "step_x": STEP, **algorithm}
    d = driver(delays=STRAGGLERS, algorithm=settings, run={"seed": seed})
    hit, errors = None, []
    for _ in range(rounds):
        play(d, 1)
        errors.append(d.parts.problem.exact(d.state.x, d.state.y, M)["x_error"])
        if hit is None and errors[-1] < 0.3:
            hit = len(errors), d.link.now
    after = max(errors[hit[0] - 1 :]) if hit else np.inf
    return hit and hit[1], after, errors


def test_stragglers_hold_up_the_synchronous_form_eight_times_longer() -> None:
    synchronous, _, _ = course(0, 0, 20)
    asynchronous, after, _ = course(1, 0, 300)
    assert asynchronous <= synchronous / 8
    assert after <= 0.35


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [1, 9])
def test_no_quorum_diverges(quorum: int) -> None:
    ratios = []
    for seed in range(3):
        synchronous, _, _ = course(0, seed, 20)
        asynchronous, after, errors = course(quorum, seed, {1: 800, 9: 150}[quorum])
        ratios.append(asynchronous / synchronous)
        assert after <= 0.35 and errors[-1] < 0.05
    print(f"quorum {quorum}: time to 0.3 over that of the synchronous form: {np.round(ratios, 3)}")
    assert max(ratios) <= (1 / 8 if quorum < 9 else 1 / 4)


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [1, 3, 9])
def test_small_loops_and_the_automatic_step_do_not_diverge_either(quorum: int) -> None:
    for seed, inner in enumerate((5, 10)):
        rounds = {1: 1500, 3: 500, 9: 200}[quorum]
        _, _, errors = course(quorum, seed, rounds, inner_rounds=inner, terms=inner, step_x="auto")
        assert max(errors) < 1.1 and errors[-1] < 0.85


def test_full_steps_on_stale_vectors_diverge_and_adaptive_ones_do_not() -> None:
    with pytest.raises(UserError, match=r"the run diverges: .* algorithm\.step_x = "):
        course(1, 0, 60, adaptive=False)
    assert max(course(1, 0, 60)[2]) < 1.1


@pytest.mark.parametrize("bound", [0, 2, 5])
def test_bounds_on_the_age_are_kept(bound: int) -> None:
    d = driver(delays=STRAGGLERS, algorithm={"quorum": 2, "inner_bound": bound, "outer_bound": bound})
    ages = []
    gather = d.method._gather

    def watched(s, link, kind, *rest):
        result = gather(s, link, kind, *rest)
        ages.append(s.recent[kind].ages(rest[1]).max())
        return result

    d.method._gather = watched
    play(d, 15)
    assert max(ages) <= bound
    assert bound == 0 or max(ages) > 0


def test_every_client_is_in_every_average() -> None:
    """From the first step on: the first round of each kind waits until all have been heard."""
    d = driver(delays=STRAGGLERS, algorithm={"quorum": 1})
    play(d, 1)
    for recent in d.state.recent.values():
        assert recent.stamps.min() >= 0


def bias(steps: int | list[int], **algorithm) -> float:
    """The relative error of x after 150 rounds without delay, with these local steps."""
    d = driver(clients={"local_steps": steps}, algorithm={"quorum": 0, "step_x": STEP, **algorithm})
    play(d, 150)
    return d.parts.problem.exact(d.state.x, d.state.y, M)["x_error"]


@pytest.mark.slow
def test_unequal_local_steps_leave_a_bias_of_the_order_of_their_length_and_the_correction_none() -> None:
    """Aligned averages leave an error of the order of (local step × E); one step, or the correction, leaves none."""
    coarse, fine, finer = (bias([1, 5], local_step=step) for step in (0.1, 0.05, 0.025))
    print(f"E in [1, 5]: {coarse:.4f}, {fine:.4f}, {finer:.4f} for local steps 0.1, 0.05, 0.025")
    whole, corrected = bias(3), bias(3, drift="corrected")
    print(f"E = 3, local step 1/ℓ: {whole:.4f}; corrected {corrected:.2g}")
    assert 0.03 < whole < 0.15 and corrected < 1e-3
    assert 1.6 < coarse / fine < 2.6 and 1.6 < fine / finer < 2.6, "halving the step halves the bias"
    assert bias(1) < 1e-4
    for step in (0.1, 0.05):
        left = bias([1, 5], local_step=step, drift="corrected")
        print(f"E in [1, 5], local step {step}, corrected: {left:.2g}")
        assert left < 1e-4


@pytest.mark.slow
def test_under_delays_the_correction_leaves_what_one_local_step_leaves() -> None:
    settings = {"quorum": 3, "inner_rounds": 20, "terms": 20, "step_x": STEP, "local_step": 0.5}
    errors = {}
    for drift, steps in (("plain", 1), ("plain", [1, 5]), ("corrected", [1, 5])):
        tables = {"delays": STRAGGLERS, "clients": {"local_steps": steps}, "algorithm": {**settings, "drift": drift}}
        d = play(driver(**tables), 250)
        errors[drift, str(steps)] = d.parts.problem.exact(d.state.x, d.state.y, M)["x_error"]
    print(f"relative error of x under stragglers: {errors}")
    one, plain, corrected = errors.values()
    assert corrected < 1.3 * one < plain


CONVERGE = options(
    run_problem="quadratic", run_rounds=500, problem_condition=20, algorithm_step_x=0.014, record_every=50
)


def test_reaches_x_star_under_delays(run_file) -> None:
    assert trajectory(run_file(*CONVERGE, *options(delays_stragglers=5)), "x_error")[-1] < 1e-2


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_reaches_x_star_on_mpi(run_file, ranks: int) -> None:
    """With a quorum that needs every host: on few cores the one beside the server may hardly ever get its turn."""
    error = trajectory(run_file(*CONVERGE, *options(algorithm_quorum=14, run_rounds=140), "-n", ranks), "x_error")[-1]
    print(f"{ranks} ranks: relative error {error:.4g}")
    assert error < 1e-2
