"""The verdicts on FISM's paper are computed: what would falsify a claim does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fbompi.bench.location import PRINTED
from fbompi.reproduce.papers import fism_location, fism_mnist
from fbompi.reproduce.papers.fism import COUNTS, METHODS, iteration_seconds, total_seconds

METHOD_CLIENTS = dict(zip(METHODS, (1, *COUNTS)))


class Timed(dict):
    """A run's columns and its log of arrivals, without a run."""

    def __init__(self, clients: int, seconds: float, rounds: int, **columns: Any) -> None:
        super().__init__(round=np.array([0, rounds]), **columns)
        times = np.full((max(rounds, 1), clients), seconds)
        self.events = {"client": np.tile(np.arange(clients), len(times)), "seconds": times.ravel()}


def location(seconds: Mapping[tuple[int, int], tuple[float, ...]], draws: int = 1) -> dict[str, list[Timed]]:
    """Runs of ten iterations that take these seconds, for IR-IG and 1, 2, 4 and 8 clients."""
    return {
        fism_location.label(*size, method, draw): [Timed(clients, spent / 10, 10)]
        for size, row in seconds.items()
        for (method, clients), spent in zip(METHOD_CLIENTS.items(), row)
        for draw in range(draws)
    }


def changed(size: tuple[int, int], place: int, value: float) -> dict[str, list[Timed]]:
    """Table I with another number in one cell."""
    row = list(PRINTED[size])
    row[place] = value
    return location({**PRINTED, size: tuple(row)})


def test_the_clock_is_the_slowest_client_and_does_not_feel_what_else_a_machine_does() -> None:
    run = Timed(2, 1.0, 40)
    run.events["seconds"][run.events["client"] == 1] = 3.0
    assert iteration_seconds(run) == 3.0 and total_seconds(run) == 120.0
    run.events["seconds"][::7] += 100.0  # somebody else's turn
    assert iteration_seconds(run) == 3.0
    assert np.isnan(iteration_seconds(Timed(0, 1.0, 1)))


LOCATION = (
    fism_location.faster, fism_location.falls, fism_location.grows, fism_location.twenty_times,
    fism_location.same_ratios,
)  # fmt: skip


@pytest.mark.parametrize("judge", LOCATION)
def test_the_printed_table_fulfils_what_is_said_of_it(judge: Any) -> None:
    assert judge(location(PRINTED, draws=2)).outcome == "holds"


@pytest.mark.parametrize(
    ("judge", "size", "place", "value"),
    [
        (fism_location.faster, (10, 500), 1, 17.0),  # one client slower than IR-IG
        (fism_location.faster, (10, 500), 1, np.nan),
        (fism_location.falls, (50, 1000), 3, 13.0),  # four clients slower than two
        (fism_location.falls, (50, 1000), 3, np.nan),
        (fism_location.grows, (10, 10000), 4, 100.0),
        (fism_location.twenty_times, (100, 10000), 4, 768.78 / 19),
        (fism_location.twenty_times, (100, 10000), 4, np.nan),
        (fism_location.same_ratios, (10, 500), 4, 5.0),
    ],
)
def test_one_cell_takes_a_claim_on_table_1_away(judge: Any, size: tuple[int, int], place: int, value: float) -> None:
    assert judge(changed(size, place, value)).outcome == "holds in part"


@pytest.mark.parametrize("judge", LOCATION)
def test_nothing_is_claimed_of_a_method_whose_clients_do_not_help(judge: Any) -> None:
    assert judge(location({size: (row[0],) * 5 for size, row in PRINTED.items()})).outcome == "does not hold" or (
        judge is fism_location.same_ratios  # one client is printed as 1.06 times as fast
    )


def test_draws_are_averaged() -> None:
    runs = location({(10, 500): (4.0, 4.0, 4.0, 4.0, 4.0)}, draws=2)
    runs[fism_location.label(10, 500, "IR-IG", 1)] = [Timed(1, 0.8, 10)]
    assert fism_location.cells(runs, total_seconds)[10, 500]["IR-IG"] == pytest.approx(6.0)


def digits(
    seconds: Mapping[str, float], accuracy: Mapping[str, float], loss: Mapping[str, float], seeds: int = 2
) -> dict[str, list[Timed]]:
    """Runs of Figures 2 and 3: seconds of an iteration; accuracy and loss from the first iteration on."""
    found = {}
    for m in (2000, fism_mnist.TRAIN):
        for name, clients in METHOD_CLIENTS.items():
            run = Timed(clients, seconds[name] * m, 100)
            run["round"] = np.arange(101)
            run["accuracy"] = np.where(run["round"] > 0, accuracy[name], 0.5)
            run["lower"] = np.where(run["round"] > 0, loss[name], 1e4) / clients  # a run has the mean over clients
            found[fism_mnist.label(m, name)] = [run] * seeds
    return found


SECONDS = {"IR-IG": 9.0, "S = 1": 8.0, "S = 2": 4.0, "S = 4": 2.0, "S = 8": 1.0}
ACCURACY = {"IR-IG": 0.95, "S = 1": 0.94, "S = 2": 0.96, "S = 4": 0.98, "S = 8": 0.99}
LOSS = {"IR-IG": 50.0, "S = 1": 60.0, "S = 2": 40.0, "S = 4": 20.0, "S = 8": 10.0}


def test_time_falls() -> None:
    assert fism_mnist.time_falls(digits(SECONDS, ACCURACY, LOSS)).outcome == "holds"
    slow = fism_mnist.time_falls(digits({**SECONDS, "S = 1": 9.5}, ACCURACY, LOSS))
    assert slow.outcome == "holds in part"
    rising = dict(zip(SECONDS, (1.0, 2.0, 3.0, 4.0, 5.0)))
    assert fism_mnist.time_falls(digits(rising, ACCURACY, LOSS)).outcome == "does not hold"
    assert fism_mnist.time_falls(digits(dict.fromkeys(SECONDS, np.nan), ACCURACY, LOSS)).outcome == "does not hold"


def test_many_clients_are_best_in_a_given_time() -> None:
    assert fism_mnist.many_are_best(digits(SECONDS, ACCURACY, LOSS)).outcome == "holds"
    less = fism_mnist.many_are_best(digits(SECONDS, {**ACCURACY, "S = 4": 0.9}, LOSS))
    assert less.outcome == "holds in part" and "ahead 0 times in accuracy and 5 times in loss" in less.measured
    early = {**dict.fromkeys(ACCURACY, 0.99), "IR-IG": 0.98}
    assert fism_mnist.many_are_best(digits(SECONDS, early, dict.fromkeys(LOSS, 5.0))).outcome != "holds"
    worst = digits(SECONDS, {**ACCURACY, "S = 8": 0.6}, {**LOSS, "S = 8": 90.0})
    assert fism_mnist.many_are_best(worst).outcome == "does not hold"


def test_the_loss_is_that_of_all_samples_for_any_number_of_clients() -> None:
    found = fism_mnist.curves(digits(SECONDS, ACCURACY, dict.fromkeys(LOSS, 7.0)))
    assert {runs[0]["loss"][-1] for runs in found.values()} == {7.0}


def test_one_client_is_worse_only_if_it_is_for_every_seed() -> None:
    assert fism_mnist.one_is_worse(digits(SECONDS, ACCURACY, LOSS)).outcome == "holds"
    same = digits(SECONDS, {**ACCURACY, "S = 1": 0.95}, {**LOSS, "S = 1": 50.0})
    assert fism_mnist.one_is_worse(same).outcome == "does not hold"
    better = digits(SECONDS, {**ACCURACY, "S = 1": 0.97}, LOSS)
    assert fism_mnist.one_is_worse(better).outcome == "holds in part"
    unknown = digits(SECONDS, {**ACCURACY, "S = 1": np.nan}, {**LOSS, "S = 1": np.nan})
    assert fism_mnist.one_is_worse(unknown).outcome == "does not hold"
