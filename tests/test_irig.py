"""IR-IG against its own steps written out in NumPy, and on problems whose answer a convex solver knows."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from federation import federation, play
from test_fism import EPSILON, SIZES, THEOREM_11, Balls, Common, distances, events, rate, rule, solving

from fbompi.bench import location
from fbompi.problems.location import BOX, Location
from fbompi.problems.sparse_logistic import SparseLogistic


@pytest.mark.parametrize("clients", [1, 3])
def test_a_round_is_equation_1_through_all_functions(clients: int) -> None:
    """However many clients x goes through."""
    tables = {
        "run": {"algorithm": "irig", "problem": "location"}, "problem": {"dim_x": 5, "balls": 42},
        "clients": {"count": clients}, "delays": {"model": "none"},
        "algorithm": {"step": 0.7, "weight": 2.0, "step_power": 0.75, "weight_power": 0.2},
    }  # fmt: skip
    driver, problem = federation(tables), Location(dim_x=5, balls=42)
    x, shard = driver.state.x.copy(), problem.shard(0, 1)
    for k in range(1, 6):
        gamma, weight = 0.7 / k**0.75, 2.0 / k**0.2
        for centre, radius in zip(shard.centres, shard.radii):
            gap = x - centre
            distance = np.linalg.norm(gap)
            g = gap / distance if distance > radius else np.zeros(5)
            x = np.clip(x - gamma * g - gamma * weight / 42 * (x - problem.anchor), *BOX)
        play(driver, 1)
        np.testing.assert_allclose(driver.state.x, x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("problem", [Location, SparseLogistic])
def test_a_problem_that_does_not_say_what_its_outer_objective_is_takes_the_same_steps(problem: type) -> None:
    class Silent(problem):  # type: ignore[misc, valid-type]
        @property
        def fresh(self) -> None:
            raise AttributeError("fresh")

    keys = {"step": 0.5, "weight": 1.0, "stop": 1e-9}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fbompi.registry.problem", lambda name: Silent if name == "silent" else problem)
        drivers = [
            federation({"run": {"algorithm": "irig", "problem": name}, "clients": {"count": 3}, "algorithm": keys})
            for name in ("location", "silent")
        ]
    spoken, silent = (play(driver, 4) for driver in drivers)
    np.testing.assert_allclose(silent.state.x, spoken.state.x, rtol=1e-11, atol=1e-11)
    np.testing.assert_array_equal(events(silent)["gradients"], events(spoken)["gradients"])


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("problem", [Balls, Common])
def test_iterates_go_to_the_minimiser_of_h_among_those_of_f(problem: type, sizes: dict) -> None:
    before, early, late = distances(solving(problem, 1, method="irig", **sizes, **THEOREM_11), 40, 1500)
    assert before > 4 and early > late and late < 0.25, (before, early, late)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("problem", [Balls, Common])
def test_the_average_iterate_has_the_rate_of_theorem_11(problem: type, sizes: dict) -> None:
    assert rate(solving(problem, 1, method="irig", **sizes, **THEOREM_11)) < -(0.5 - EPSILON) + 0.05


@pytest.mark.parametrize("clients", [1, 3])
def test_the_run_stops_where_x_and_both_objectives_do(clients: int) -> None:
    driver, free = (solving(Balls, clients, method="irig", step=1.0, weight=1.0, stop=stop) for stop in (1e-3, 0.0))
    while not driver.over:
        play(driver, 1)
    assert 10 < rule(free, 1e-3) == driver.state.round - 1


@pytest.mark.slow
def test_fism_with_8_clients_is_many_times_faster_than_irig() -> None:
    """Table I prints 22 times, for n = 10 and m = 10,000; and NumPy takes some hundred times as long as we do."""
    found = location.figures(10, 10_000, [8], 3)
    print(location.page(found))
    assert found["parallel_ratios"]["8"] > 12 and found["numpy_ratios"]["8"] > 250
    irig, fism = found["rows"]
    assert irig["iterations"] > 2.3 * fism["iterations"]


def test_the_plain_loop_takes_the_same_steps_as_irig() -> None:
    driver = location.federation("irig", 1, 4, 50, seed=2)
    problem = driver.parts.problem
    shard, x = problem.shard(0, 1), driver.state.x
    for k in range(1, 5):
        before, x = x, location.plain_pass(problem, shard.centres, shard.radii, x, k)
        play(driver, 1)
        np.testing.assert_allclose(driver.state.x, x, rtol=1e-12, atol=1e-12)
    play(driver, 1)  # in which F at x is known
    assert driver.state.change == pytest.approx(location.stopping(problem, shard.centres, shard.radii, x, before))


def test_the_table_is_printed_and_comes_as_json(fbompi) -> None:
    result = fbompi("bench", "location", "--balls", 500, "--repeats", 1, "--clients", 8, "--json")
    found = json.loads(result.out)
    assert re.search(r"FISM S = 8 .* 1\.39 s +12\.2\n", location.page(found))
    assert [(row["method"], row["clients"], row["printed"]) for row in found["rows"]] == [
        ("irig", 1, 16.92), ("fism", 8, 1.39),
    ]  # fmt: skip
    refused = fbompi("bench", "location", "--clients", "1,0")
    assert refused.status == 2 and refused.err.count("\n") == 1 and "--clients 1,0" in refused.err
