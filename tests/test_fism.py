"""FISM against its own lines written out in NumPy, and on problems whose answer a convex solver knows."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import pytest
from conftest import needs_mpi, options, trajectory
from federation import federation, play
from scipy.optimize import minimize

from fbompi import registry
from fbompi.algorithms import regularized
from fbompi.links.link import EVENT
from fbompi.problems.location import BOX, Location, Shard
from fbompi.run import Driver

TABLES = {"run": {"algorithm": "fism", "problem": "location"}, "clients": {"count": 4}, "delays": {"model": "none"}}
EPSILON = 0.1
THEOREM_11 = {"step_power": 0.5 + 0.5 * EPSILON, "weight_power": 0.5 - EPSILON}
STRAGGLERS = {"model": "lognormal", "stragglers": 1, "factor": 5.0}


def tables(**algorithm: Any) -> dict:
    return {**TABLES, "problem": {"dim_x": 5, "balls": 42}, "algorithm": algorithm}


def test_a_round_is_algorithm_1_line_by_line() -> None:
    driver = federation(tables(step=0.7, weight=2.0, step_power=0.75, weight_power=0.2))
    problem = Location(dim_x=5, balls=42)
    x = driver.state.x.copy()
    for k in range(1, 6):
        gamma, weight = 0.7 / k**0.75, 2.0 / k**0.2
        outer = x - problem.anchor
        ends = []
        for client in range(4):
            shard, z = problem.shard(client, 4), x
            for centre, radius in zip(shard.centres, shard.radii):
                gap = z - centre
                distance = np.linalg.norm(gap)
                g = gap / distance if distance > radius else np.zeros(5)
                z = np.clip(z - gamma * g - gamma * weight / 42 * outer, *BOX)
            ends.append(z)
        x = np.mean(ends, axis=0)
        play(driver, 1)
        np.testing.assert_allclose(driver.state.x, x, rtol=1e-12, atol=1e-12)


class Balls(Location):
    """Balls sorted along an axis, so that clients differ much, and an anchor outside of all of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.all = self.drawn(np.random.default_rng(5))
        self.anchor = np.linspace(4.0, 9.0, self.dim_x)

    def drawn(self, rng: np.random.Generator) -> Shard:
        centres = rng.uniform(*BOX, (self.balls, self.dim_x))
        return Shard(centres[np.argsort(centres[:, 0])], rng.uniform(0, 1, self.balls))

    def shard(self, client: int, clients: int) -> Shard:
        mine = np.array_split(np.arange(self.balls), clients)[client]
        return Shard(self.all.centres[mine], self.all.radii[mine])

    def answer(self) -> np.ndarray:
        """F has one minimiser, and no ball has it on its surface."""
        centres, radii = self.all.centres, self.all.radii

        def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
            gaps = x - centres
            distances = np.linalg.norm(gaps, axis=1)
            outside = distances > radii
            return (distances - radii)[outside].sum(), (gaps[outside] / distances[outside, None]).sum(axis=0)

        found = minimize(value_and_slope, np.zeros(self.dim_x), jac=True, method="BFGS", options={"gtol": 1e-9})
        assert found.success, found
        return found.x


class Common(Balls):
    """Balls with a common part, a ball of radius 1.5 around the origin at least: all its points are minimisers of F."""

    def drawn(self, rng: np.random.Generator) -> Shard:
        centres = rng.uniform(-6, 6, (self.balls, self.dim_x))
        centres = centres[np.argsort(centres[:, 0])]
        return Shard(centres, np.linalg.norm(centres, axis=1) + rng.uniform(1.5, 3, self.balls))

    def answer(self) -> np.ndarray:
        """The point of all balls that is nearest to the anchor."""
        centres, radii = self.all.centres, self.all.radii
        inside = {
            "type": "ineq",
            "fun": lambda x: radii**2 - ((x - centres) ** 2).sum(axis=1),
            "jac": lambda x: -2 * (x - centres),
        }
        found = minimize(
            self.outer, np.zeros(self.dim_x), jac=self.outer_subgradient, method="SLSQP", constraints=inside,
            options={"ftol": 1e-12},
        )  # fmt: skip
        assert found.success, found
        return found.x


def solving(problem: type, clients: int = 4, delays: dict | None = None, method: str = "fism", **keys: Any) -> Driver:
    """A run on one of the problems above."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "problem", lambda name: problem)
        return federation(
            {
                "run": {"algorithm": method, "problem": "location"}, "problem": {"dim_x": 3, "balls": 40},
                "clients": {"count": clients}, "delays": delays or {"model": "none"}, "algorithm": keys,
            }
        )  # fmt: skip


def distances(driver: Driver, *rounds: int) -> list[float]:
    """How far x is from x_H* before and after so many rounds; X is 20 wide."""
    answer, found = driver.parts.problem.answer(), []
    for count in (0, *rounds):
        play(driver, count)
        found.append(float(np.linalg.norm(driver.state.x - answer)))
    return found


def events(driver: Driver) -> np.ndarray:
    """What arrived, a row each."""
    return np.array(driver.link.events, EVENT)


def inner(driver: Driver, x: np.ndarray) -> float:
    problem = driver.parts.problem
    return problem.value(problem.shard(0, 1), x)


def rate(driver: Driver) -> float:
    """The slope of log(F(x̂_K) − F*) over log K."""
    least, counts = inner(driver, driver.parts.problem.answer()), [50, 100, 200, 400, 800]
    gaps = []
    for count in counts:
        play(driver, count - driver.state.round)
        gaps.append(inner(driver, driver.method.average(driver.state)) - least)
    return float(np.polyfit(np.log(counts), np.log(gaps), 1)[0])


SIZES = {"auto": {}, "given": {"step": 1.0, "weight": 1.0}}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("problem", [Balls, Common])
def test_iterates_go_to_the_minimiser_of_h_among_those_of_f(problem: type, sizes: dict) -> None:
    before, early, late = distances(solving(problem, **sizes, **THEOREM_11), 40, 1500)
    assert before > 4 and early > late and late < 0.25, (before, early, late)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("problem", [Balls, Common])
def test_the_average_iterate_has_the_rate_of_theorem_11(problem: type, sizes: dict) -> None:
    assert rate(solving(problem, **sizes, **THEOREM_11)) < -(0.5 - EPSILON) + 0.05


def test_the_average_iterate_is_weighted_by_the_steps(run_file) -> None:
    path = run_file(*options(run_algorithm="fism", run_problem="location", run_rounds=7, record_every=1))
    x, gammas = trajectory(path, "x")[:7], np.arange(1, 8) ** -0.8
    with h5py.File(path, "r") as file:
        np.testing.assert_allclose(file["final/x_average"], gammas @ x / gammas.sum(), rtol=1e-12)


ASYNCHRONOUS = {"mode": "asynchronous", "quorum": 2}
PAST_THE_PAPER = {
    "late": (ASYNCHRONOUS, 0.1), "shuffled": ({"order": "random"}, 0.1), "sampled": ({"sample": 0.3}, 0.35),
    "late and sampled": ({**ASYNCHRONOUS, "sample": 0.3}, 0.6),
}  # fmt: skip


@pytest.mark.parametrize(("keys", "near"), PAST_THE_PAPER.values(), ids=PAST_THE_PAPER)
@pytest.mark.parametrize(
    ("problem", "step", "weight"), [(Balls, 0.5, 0.2), (Common, 2.0, 1.0)], ids=["Balls", "Common"]
)
def test_late_and_partial_sweeps_get_there_too(
    problem: type, step: float, weight: float, keys: dict, near: float
) -> None:
    driver = solving(problem, 4, STRAGGLERS, step=step, weight=weight, **keys, **THEOREM_11)
    before, after = distances(driver, 2200)
    assert before > 4 and after < near, (before, after)
    if "mode" in keys:
        assert events(driver)["age"].mean() > 0.5


def test_who_does_not_wait_for_stragglers_is_there_earlier() -> None:
    late = {}
    for mode in ("synchronous", "asynchronous"):
        driver = solving(Balls, 8, {**STRAGGLERS, "stragglers": 2, "factor": 10.0}, mode=mode, **THEOREM_11)
        while driver.link.now < 1000:
            play(driver, 1)
        late[mode] = distances(driver)[0]
    assert late["asynchronous"] < 0.3 * late["synchronous"], late


def test_without_delays_and_with_all_in_the_quorum_asynchronous_is_synchronous() -> None:
    for keys in ({}, {"stop": 1e-9}, {"sample": 0.5}):
        one, other = (federation(tables(**keys, **mode)) for mode in ({}, {"mode": "asynchronous", "quorum": 0}))
        play(one, 40), play(other, 40)
        np.testing.assert_allclose(other.state.x, one.state.x, rtol=0, atol=1e-11)
        np.testing.assert_allclose(other.state.inner, one.state.inner, rtol=1e-12)


def test_a_sample_is_of_the_size_that_was_asked_for() -> None:
    driver = play(federation(tables(sample=0.25)), 200)
    swept = events(driver)["gradients"]
    swept = swept[swept < 10]  # a probe takes them all
    assert set(swept) <= {2, 3} and swept.mean() == pytest.approx(42 / 4 * 0.25, abs=0.06)
    again = play(federation(tables(sample=0.25)), 200)
    np.testing.assert_array_equal(driver.state.x, again.state.x)


def rule(driver: Driver, stop: float) -> int:
    """Plays until two iterates in a row are as near as the paper's stopping rule asks; the round of the second."""
    problem = driver.parts.problem
    found = []
    while True:
        x = driver.state.x
        found.append((x, problem.outer(x), inner(driver, x)))
        if len(found) > 1:
            (x0, H0, F0), (x1, H1, F1) = found[-2:]
            changes = (
                np.linalg.norm(x1 - x0) / (np.linalg.norm(x0) + 1),
                abs(H1 - H0) / (H0 + 1),
                abs(F1 - F0) / (F0 + 1),
            )
            if max(changes) <= stop:
                return len(found) - 1
        play(driver, 1)


def test_the_run_stops_where_x_and_both_objectives_do() -> None:
    driver, free = (solving(Balls, step=1.0, weight=1.0, stop=stop) for stop in (1e-3, 0.0))
    while not driver.over:
        play(driver, 1)
    met = rule(free, 1e-3)
    assert 10 < met == driver.state.round - 1  # F of an iterate is known one round later
    play(free, 1)
    np.testing.assert_array_equal(driver.state.x, free.state.x)
    assert driver.state.change <= 1e-3 and np.isnan(free.state.change)


def test_a_run_that_stopped_is_complete(run_file) -> None:
    path = run_file(*options(run_algorithm="fism", run_problem="location", algorithm_stop=1e-3, run_rounds=5000))
    with h5py.File(path, "r") as file:
        assert file.attrs["status"] == "complete"
    assert 2 < trajectory(path, "round")[-1] < 500 and trajectory(path, "change")[-1] <= 1e-3


@pytest.mark.parametrize("method", ["fism", "irig"])
def test_steps_that_nobody_tuned_go_down_whatever_the_sizes(method: str) -> None:
    for name, problem in (("location", {"dim_x": 2, "balls": 20}), ("location", {"dim_x": 50, "balls": 3000}),
                          ("sparse-logistic", {"train": 20}), ("sparse-logistic", {"train": 240})):  # fmt: skip
        for clients in (1, 18):
            driver = federation(
                {"run": {"algorithm": method, "problem": name}, "problem": problem, "clients": {"count": clients}}
            )
            values = [inner(driver, driver.state.x)]
            for rounds in (25, 75):
                values.append(inner(driver, play(driver, rounds).state.x))
            assert max(values[1:]) < 0.8 * values[0], (name, problem, clients, values)
            s, made = driver.state, driver.parts.problem
            assert s.step * s.weight * made.outer_convexity <= 2 * made.components


def test_the_probe_measures_the_subgradients() -> None:
    driver = federation(tables())
    problem = driver.parts.problem.problem
    shard, x = problem.shard(1, 4), driver.state.x
    outside = np.linalg.norm(x - shard.centres, axis=1) > shard.radii  # where the subgradient is of length 1
    driver.link.send([1], "probe", x)
    (answer,) = driver.link.collect()
    assert answer.arrays[0][0] == pytest.approx(outside.mean(), abs=1e-6)
    assert len(outside) < regularized.PROBES


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (0.8, 0.3), (0.6, 0.0)])
def test_powers_without_a_proof_are_told(a: float, b: float) -> None:
    with pytest.warns(UserWarning, match="FISM converges for"):
        federation(tables(step_power=a, weight_power=b))


def test_a_first_step_without_a_proof_is_told() -> None:
    with pytest.warns(UserWarning, match="exceeds 2M = 84"):
        federation(tables(step=50.0, weight=2.0))


def test_methods_and_problems_of_other_families_do_not_meet(here) -> None:
    result = here("run", *options(run_algorithm="fism", run_problem="quadratic"))
    assert result.status == 2 and result.err.count("\n") == 1 and "smooth" in result.err, result


def test_a_quorum_of_more_than_all_is_refused(here) -> None:
    keys = options(run_algorithm="fism", run_problem="location", algorithm_quorum=99)
    result = here("run", *keys)
    assert result.status == 2 and result.err.count("\n") == 1 and "algorithm.quorum = 99" in result.err, result


@needs_mpi
@pytest.mark.slow
def test_the_same_bits_on_ranks_and_in_one_process(run_file) -> None:
    for problem, more in (("sparse-logistic", {}), ("location", {"sample": 0.5, "stop": 1e-9})):
        keys = options(
            run_algorithm="fism", run_problem=problem, run_rounds=5, record_every=1, clients_count=5,
            **{f"algorithm_{key}": value for key, value in more.items()},
        )  # fmt: skip
        one, three = run_file(*keys, name="one.h5"), run_file("-n", 3, *keys, name="three.h5")
        for column in ("x", "upper", "lower"):
            np.testing.assert_array_equal(trajectory(one, column), trajectory(three, column))
