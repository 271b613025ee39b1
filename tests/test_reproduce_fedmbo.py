"""The verdicts on FedMBO's paper are computed: what would falsify a claim does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fbompi.config import resolve
from fbompi.reproduce.papers import fedmbo_cases, fedmbo_fednest
from fbompi.reproduce.papers.fedmbo_cases import Case
from fbompi.reproduce.papers.fedmbo_fednest import ESTIMATORS, OURS, SOLVERS


class Fake(dict):
    """A run's columns and its partition, without a run."""

    partition = {"train": np.full((2, 5), 10)}


def run(accuracy: float, per_round: float = 1.0, data: float = 100.0, loss: float = 1.0) -> Fake:
    """Ten outer rounds towards an accuracy and a loss, so many rounds of communication and samples in each."""
    rounds = np.arange(11.0)
    way = 1 - 0.5**rounds
    return Fake(
        round=rounds, communication=per_round * rounds, gradients=data * rounds, hvps=0 * rounds, crosses=0 * rounds,
        accuracy=0.1 + (accuracy - 0.1) * way, upper=2.3 + (loss - 2.3) * way, time=rounds,
    )  # fmt: skip


GOOD: Mapping[Case, float] = {
    (1, 100, 10): 0.5, (2, 100, 10): 0.6, (5, 100, 10): 0.7, (10, 100, 10): 0.8, (2, 50, 10): 0.55, (2, 500, 10): 0.7,
    (2, 100, 30): 0.65, (2, 100, 50): 0.7,
}  # fmt: skip
CASES = {
    "digits": fedmbo_cases.fewer_digits_are_worse, "clients": fedmbo_cases.more_clients_are_better,
    "ratio": fedmbo_cases.more_sampled_is_better,
}  # fmt: skip


def cases(accuracies: Mapping[Case, float], **of_data: Any) -> dict[str, list[Fake]]:
    data = {tuple(case): value for case, value in of_data.get("data", [])}
    return {
        fedmbo_cases.label(case): [run(accuracy, data=data.get(case, 100.0))] * 2
        for case, accuracy in accuracies.items()
    }


def test_names_of_cases_are_read_back() -> None:
    for case in GOOD:
        assert fedmbo_cases.case_of(fedmbo_cases.label(case)) == case
    assert {panel: len(found) for panel, found in fedmbo_cases.panels(cases(GOOD)).items()} == {
        "digits": 4, "clients": 3, "ratio": 3,
    }  # fmt: skip


@pytest.mark.parametrize("panel", CASES)
def test_an_ordering_holds_where_it_is_there(panel: str) -> None:
    assert CASES[panel](cases(GOOD)).outcome == "holds"


@pytest.mark.parametrize("panel", CASES)
@pytest.mark.parametrize("accuracies", [lambda a: 1 - a, lambda a: 0.5, lambda a: np.nan], ids=["less", "same", "NaN"])
def test_an_ordering_that_is_not_there_does_not_hold(panel: str, accuracies: Any) -> None:
    assert CASES[panel](cases({case: accuracies(a) for case, a in GOOD.items()})).outcome == "does not hold"


@pytest.mark.parametrize(
    ("panel", "case", "value"), [("digits", (5, 100, 10), 0.85), ("clients", (2, 50, 10), 0.62),
                                 ("ratio", (2, 100, 30), 0.75)],
)  # fmt: skip
def test_one_case_out_of_order_leaves_a_part(panel: str, case: Case, value: float) -> None:
    assert CASES[panel](cases({**GOOD, case: value})).outcome == "holds in part"


def test_what_holds_by_rounds_may_not_hold_by_data() -> None:
    """Fifty per cent of the clients have five times the samples."""
    dear = [((2, 100, 30), 300.0), ((2, 100, 50), 500.0)]
    verdict = fedmbo_cases.more_sampled_is_better(cases(GOOD, data=dear))
    assert verdict.outcome == "holds in part" and "2 of 2 go up by rounds and 0 of 2 by data" in verdict.sentence


PAIRS = [f"{e} + {s}" for e in ESTIMATORS for s in SOLVERS]


def pairs(**changes: Any) -> dict[str, list[Fake]]:
    """All pairs as the paper has them, FedMBO's ahead; then some with other figures."""
    found = {
        name: {"accuracy": 0.7, "loss": {"MinibatchSGD": 1.0, "FedSVRG": 1.05, "FedAvg": 1.4}[name.split()[-1]]}
        for name in PAIRS
    }
    found[OURS] = {"accuracy": 0.8, "loss": 0.95}
    for name, change in changes.items():
        found[name] = {**found[name], **change}
    return {name: [run(**figures)] * 2 for name, figures in found.items()}


def test_the_fastest_in_rounds() -> None:
    judge = fedmbo_fednest.fastest_in_rounds
    assert judge(pairs()).outcome == "holds"
    assert judge(pairs(**{OURS: {"per_round": 3.0}})).outcome == "does not hold"  # its rounds are dear
    assert judge(pairs(**{"IHGP + MinibatchSGD": {"loss": 0.5}})).outcome == "does not hold"
    assert judge(pairs(**{OURS: {"loss": np.nan}})).outcome == "does not hold"
    same = {name: {"loss": 1.0} for name in PAIRS}
    assert judge(pairs(**same)).outcome == "does not hold"


def test_alike_by_data() -> None:
    judge = fedmbo_fednest.alike_by_data
    assert judge(pairs()).outcome == "holds"
    assert judge(pairs(**{"PHE + FedAvg": {"loss": 0.2}})).outcome == "holds in part"
    drift = {name: {"loss": 0.1 if name.endswith("FedAvg") else 1.0} for name in PAIRS}
    assert judge(pairs(**drift)).outcome == "does not hold"
    dear = {name: {"data": 1000.0} for name in PAIRS if name.endswith("FedSVRG")}
    assert judge(pairs(**dear)).outcome != "holds"


def test_the_most_accurate() -> None:
    judge = fedmbo_fednest.most_accurate
    assert judge(pairs()).outcome == "holds"
    assert judge(pairs(**{"IHGP + FedSVRG": {"accuracy": 0.9}})).outcome == "does not hold"
    assert judge(pairs(**{OURS: {"accuracy": 0.7}})).outcome == "does not hold"
    assert judge(pairs(**{OURS: {"accuracy": np.nan}})).outcome == "does not hold"


def test_a_round_of_local_steps_and_one_of_minibatches_draw_as_many_samples() -> None:
    """All pairs are given the same steps to choose from, and the pair of FedMBO is FedMBO."""
    found = fedmbo_fednest.FedmboFednest().cases("paper")
    assert list(found) == PAIRS and found[OURS]["run.algorithm"] == "fedmbo"
    for keys in found.values():
        local = keys.get("clients.local_steps", 1) if keys.get("algorithm.inner", "minibatch") != "minibatch" else 1
        assert keys["clients.batch"] * local == 64
        assert not [key for key in keys if "step_" in key]
        tables: dict[str, dict[str, Any]] = {"run": {"problem": "hyperrep"}}
        for key, value in keys.items():
            section, _, word = key.partition(".")
            tables.setdefault(section, {})[word] = value
        resolve(tables)
