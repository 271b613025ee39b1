"""The claims of the MemFBO paper: data that would falsify them falsify them, and data that fulfil them fulfil them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fbompi.reproduce.papers import memfbo, memfbo_cleaning, memfbo_hyperrep, memfbo_memory
from fbompi.reproduce.papers.memfbo_cleaning import NOISE, name


class Fake(dict):
    """A run's columns, without a run."""

    def __init__(self, clients: Any = None, **columns: Any) -> None:
        super().__init__({column: np.asarray(values, float) for column, values in columns.items()})
        self.clients = clients


def ending(accuracy: float, **columns: Any) -> list[Fake]:
    """One run that has this accuracy at the end."""
    return [Fake(communication=[0, 1, 2], time=[0, 1, 2], accuracy=[0.1, accuracy, accuracy], **columns)]


def test_the_end_is_the_mean_of_the_last_third() -> None:
    run = Fake(communication=range(9), accuracy=[0, 0, 0, 0, 0, 0, 0.3, 0.6, 0.9])
    assert memfbo.closing(run, "accuracy") == pytest.approx(0.6)
    assert memfbo.closing(run, "accuracy", 6) == pytest.approx(0.15)
    assert np.isnan(memfbo.closing(Fake(communication=[0], accuracy=[np.nan]), "accuracy"))


# Cleaning


def cleaning(**accuracies: Sequence[float]) -> dict[str, list[Fake]]:
    """Softmax regression of these accuracies, by noise."""
    return {name(m, noise): ending(value) for m, found in accuracies.items() for noise, value in zip(NOISE, found)}


PRINTED = cleaning(**{m: memfbo_cleaning.PRINTED[m] for m in memfbo_cleaning.METHODS})


def test_robust_is_who_loses_less() -> None:
    assert memfbo_cleaning.is_robust(PRINTED).outcome == "holds"
    alike = cleaning(MemFBO=[0.4, 0.4, 0.4, 0.3], SimFBO=[0.4, 0.4, 0.4, 0.3], FedAvg=[0.4, 0.4, 0.4, 0.29])
    assert memfbo_cleaning.is_robust(alike).outcome == "does not hold", "a point less is not much"
    half = cleaning(MemFBO=[0.4, 0.4, 0.4, 0.4], SimFBO=[0.4, 0.4, 0.4, 0.1], FedAvg=[0.4, 0.4, 0.4, 0.2])
    assert memfbo_cleaning.is_robust(half).outcome == "holds in part"
    unharmed = cleaning(MemFBO=[0.4] * 4, SimFBO=[0.4] * 4, FedAvg=[0.4] * 4)
    assert memfbo_cleaning.is_robust(unharmed).outcome == "does not hold", "nothing to be robust against"
    unknown = cleaning(MemFBO=[np.nan] * 4, SimFBO=[np.nan] * 4, FedAvg=[0.4, 0.3, 0.2, 0.1])
    assert memfbo_cleaning.is_robust(unknown).outcome == "does not hold"


def test_best_is_who_is_ahead_of_all_at_every_noise() -> None:
    assert memfbo_cleaning.is_best(PRINTED).outcome == "holds"
    second = {**PRINTED, **cleaning(SimFBO=[0.9, 99.0, 99.0, 99.0])}
    assert memfbo_cleaning.is_best(second).outcome == "holds in part"
    worst = {**PRINTED, **cleaning(MemFBO=[99.0, 1.0, 1.0, 1.0])}
    assert memfbo_cleaning.is_best(worst).outcome == "does not hold", "noise 0 is not in the claim"
    tie = cleaning(MemFBO=[0.3, 0.3, 0.3, 0.3], SimFBO=[0.3, 0.295, 0.295, 0.295])
    assert memfbo_cleaning.is_best(tie).outcome == "does not hold", "half a point is chance"
    unknown = {**PRINTED, **cleaning(MemFBO=[np.nan] * 4)}
    assert memfbo_cleaning.is_best(unknown).outcome == "does not hold"


@pytest.mark.parametrize(
    ("clean", "corrupted", "outcome"),
    [
        ([0.5, 0.55], [0.5, 0.1], "holds"),
        ([0.5, 0.9], [0.5, 0.45], "holds in part"),  # the rise is the larger
        ([0.5, 0.55], [0.5, 0.43], "holds in part"),  # the rise is not slight
        ([0.5, 0.2], [0.5, 0.1], "holds in part"),  # both fall
        ([0.5, 0.4], [0.5, 0.6], "does not hold"),
        ([0.5, 0.5], [0.5, 0.5], "does not hold"),
    ],
)
def test_weights_move_apart(clean: Any, corrupted: Any, outcome: str) -> None:
    run = Fake(time=[0, 1], weight_clean=clean, weight_corrupted=corrupted)
    assert memfbo_cleaning.weights_move_apart({name("MemFBO", 0.5): [run]}).outcome == outcome


# Hyper-representation


def race(**ways: Sequence[float]) -> dict[str, list[Fake]]:
    """Runs that have these accuracies after 0, 10, 20, … rounds of communication."""
    places = 10 * np.arange(4)
    return {m: [Fake(communication=places, time=places, accuracy=way)] for m, way in ways.items()}


FAST, SLOW = [0.1, 0.6, 0.8, 0.8], [0.1, 0.2, 0.3, 0.5]


def test_memfbo_beats_methods_with_loops_inside() -> None:
    judge = memfbo_hyperrep.beats_subloops
    assert judge(race(MemFBO=FAST, FedNest=SLOW, LFedNest=SLOW, AggITD=SLOW)).outcome == "holds"
    assert judge(race(MemFBO=FAST, FedNest=SLOW, LFedNest=SLOW, AggITD=FAST)).outcome == "holds in part"
    assert judge(race(MemFBO=SLOW, FedNest=FAST, LFedNest=FAST, AggITD=FAST)).outcome == "does not hold"
    assert judge(race(MemFBO=FAST, FedNest=FAST, LFedNest=FAST, AggITD=FAST)).outcome == "does not hold", "ties"
    lost = [0.1, np.nan, np.nan, np.nan]
    assert judge(race(MemFBO=lost, FedNest=SLOW, LFedNest=SLOW, AggITD=SLOW)).outcome == "does not hold"


def test_memfbo_is_as_good_as_simfbo() -> None:
    judge = memfbo_hyperrep.equals_simfbo
    assert judge(race(MemFBO=FAST, SimFBO=FAST)).outcome == "holds"
    assert judge(race(MemFBO=SLOW, SimFBO=FAST)).outcome == "does not hold"
    late = race(MemFBO=[0.1, 0.1, 0.1, 0.8], SimFBO=[0.1, 0.8, 0.8, 0.8])
    assert judge(late).outcome == "holds in part", "as high, and three times the rounds"


# Memory


def megabytes(**found: Sequence[float]) -> dict[str, list[Fake]]:
    """Clients' peaks for τ = 1, 2, 8 and 32, by method."""
    methods = {"memfbo": "MemFBO", "simfbo": "SimFBO", "summed": "SimFBO, summed"}
    return {
        memfbo_memory.name(methods[m], tau): [Fake({"peak_memory": np.array([0, 1e6 * peak])})]
        for m, peaks in found.items()
        for tau, peak in zip((1, 2, 8, 32), peaks)
    }


def test_memory_by_local_steps() -> None:
    grows, stays = memfbo_memory.simfbo_grows, memfbo_memory.memfbo_stays
    good = megabytes(memfbo=[3, 4, 4, 4], simfbo=[4, 5, 10, 40], summed=[4, 4, 4, 4])
    assert memfbo_memory.memory(good, "SimFBO", 8) == pytest.approx(10)
    assert grows(good).outcome == stays(good).outcome == "holds"
    flat = megabytes(memfbo=[3, 4, 4, 4], simfbo=[4, 4, 4, 4], summed=[4, 4, 4, 4])
    assert grows(flat).outcome == "does not hold"
    little = megabytes(memfbo=[3, 4, 4, 4], simfbo=[4, 5, 5.5, 6], summed=[4, 4, 4, 4])
    assert grows(little).outcome == "holds in part"
    crossing = megabytes(memfbo=[3, 6, 6, 6], simfbo=[4, 5, 10, 40], summed=[4, 4, 4, 4])
    assert stays(crossing).outcome == "holds in part" and "at τ = 2" in stays(crossing).sentence
    both = megabytes(memfbo=[3, 6, 12, 50], simfbo=[4, 5, 10, 40], summed=[4, 4, 4, 4])
    assert stays(both).outcome == "does not hold"
    untraced = megabytes(memfbo=[0, 0, 0, 0], simfbo=[0, 0, 0, 0], summed=[0, 0, 0, 0])
    assert grows(untraced).outcome == stays(untraced).outcome == "does not hold"
