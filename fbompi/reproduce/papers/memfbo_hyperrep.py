"""Figure 3 of the MemFBO paper: hyper-representation on MNIST, clients with few digits each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fbompi.reproduce.drawing import lines
from fbompi.reproduce.experiment import (
    Claim,
    Experiment,
    Keys,
    Results,
    Scale,
    ScaleName,
    Table,
    Tuned,
    Verdict,
    judged,
)
from fbompi.reproduce.measures import average_until, best, end, mean, passage, ratio
from fbompi.reproduce.papers.memfbo import PAPER, closing
from fbompi.runs import Run

AXIS = "communication"
SUBLOOPS = ("FedNest", "LFedNest", "AggITD")
SHARES = (0.6, 0.8, 0.95)


def common(results: Results) -> float:
    """The rounds of communication that all runs have had."""
    return end((run for runs in results.values() for run in runs), AXIS)


def marks(results: Results) -> list[float]:
    """Levels of accuracy: shares of the way from the start to the best of MemFBO."""
    runs = results["MemFBO"]
    start, top = mean(run["accuracy"][0] for run in runs), min(best(run, "accuracy") for run in runs)
    return [start + share * (top - start) for share in SHARES]


def rounds_to(results: Results, method: str, level: float) -> float:
    return mean(passage(run, "accuracy", level, AXIS) for run in results[method])


def final(results: Results, method: str) -> float:
    return mean(closing(run, "accuracy", common(results)) for run in results[method])


def beats_subloops(results: Results) -> Verdict:
    """Whether MemFBO reaches levels in fewer rounds than each method with loops inside, and ends higher."""
    levels, own = marks(results), final(results, "MemFBO")
    parts, told = [], []
    for other in SUBLOOPS:
        sooner = [rounds_to(results, "MemFBO", level) < rounds_to(results, other, level) for level in levels]
        theirs = final(results, other)
        parts += [*sooner, own > theirs]
        leads = [ratio(rounds_to(results, other, level), rounds_to(results, "MemFBO", level)) for level in levels]
        lead = max((x for x in leads if math.isfinite(x)), default=math.nan)
        told.append(
            f"{other} {theirs:.3f}, " + (f"up to {lead:.2g} times the rounds" if lead == lead else "no level reached")
        )
    return judged(
        parts,
        f"after {common(results):.0f} rounds of communication MemFBO {own:.3f}; " + "; ".join(told),
        f"MemFBO is sooner or higher in {sum(parts)} of {len(parts)} comparisons, at levels of accuracy "
        + ", ".join(f"{level:.2f}" for level in levels) + ".",
    )  # fmt: skip


def equals_simfbo(results: Results) -> Verdict:
    """Whether the two end within three points of each other, and MemFBO needs at most half as many rounds again."""
    levels, own, other = marks(results), final(results, "MemFBO"), final(results, "SimFBO")
    ratios = [
        ratio(rounds_to(results, "MemFBO", level), rounds_to(results, "SimFBO", level)) for level in levels
    ]  # fmt: skip
    return judged(
        [abs(own - other) <= 0.03, mean(ratios) <= 1.5],
        f"MemFBO {own:.3f}, SimFBO {other:.3f}; MemFBO needs {mean(ratios):.2g} times SimFBO's rounds",
        "Comparable is taken as: three points of accuracy, and half as many rounds again.",
    )


class MemFboHyperRep(Experiment):
    """Who learns a representation in the fewest rounds of communication."""

    name = "memfbo-hyperrep"
    paper = PAPER
    figure = "Figure 3"
    about = (
        "The first layer of a network above, its head below, MNIST in label-sorted shards: accuracy by communication."
    )
    keys = {
        "run.problem": "hyperrep", "problem.data": "mnist", "problem.partition": "shards", "problem.dtype": "float32",
        "delays.model": "none", "record.iterates": False,
    }  # fmt: skip
    small = Scale(
        {"problem.train": 5000, "problem.validation": 1000, "problem.test": 2000, "problem.hidden": 32,
         "clients.count": 50, "clients.participation": 0.1, "algorithm.step_x": Tuned(("auto", 0.03))},
        seeds=(1,), data=("mnist",),
    )  # fmt: skip
    full = Scale(
        {"problem.train": 0, "problem.validation": 10000, "problem.hidden": 200, "clients.count": 100,
         "clients.participation": 0.1, "clients.batch": 64, "algorithm.step_x": Tuned(("auto", 0.03, 0.1))},
        seeds=(1, 2, 3), data=("mnist",),
    )  # fmt: skip
    remarks = (
        "The paper's steps, λ and τ are in an appendix that is not at hand. Here τ = 5 (4 at the small scale), λ = 10, "
        "5 inner rounds and 5 terms for the methods that have them; a round of communication is one exchange with the "
        "clients drawn, as fbompi counts it for every method.",
    )
    claims = (
        Claim(
            "MemFBO converges faster and ends higher than FedNest, LFedNest and AggITD",
            beats_subloops,
            "FedNest and AggITD solve the lower problem well before each step on x, which pays where few steps suffice",
        ),
        Claim(
            "MemFBO performs as well as SimFBO, which needs second-order products",
            equals_simfbo,
            "MemFBO's y sees λ times the curvature of g, and its step is smaller by that",
        ),
    )

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        budget, tau = (80, 4) if scale == "small" else (600, 5)
        inner: Keys = {"algorithm.inner_rounds": 5, "algorithm.terms": 5}
        per_round = {"MemFBO": 1, "SimFBO": 1, "FedNest": 14, "LFedNest": 6, "AggITD": 12}  # of communication
        own: dict[str, Keys] = {
            "MemFBO": {"clients.local_steps": tau}, "SimFBO": {"clients.local_steps": tau},
            "FedNest": inner, "LFedNest": inner, "AggITD": {"algorithm.inner_rounds": 5},
        }  # fmt: skip
        return {
            method: {
                "run.algorithm": method.lower(), "run.rounds": math.ceil(budget / per_round[method]),
                "record.every": max(1, budget // per_round[method] // 40), **keys,
            }
            for method, keys in own.items()
        }  # fmt: skip

    def score(self, run: Run) -> float:
        return average_until(run, "accuracy", float(run[AXIS][-1]), AXIS)

    def table(self, results: Results) -> Table:
        levels, until = marks(results), common(results)
        columns = ["method", *(f"rounds to {level:.2f}" for level in levels), f"accuracy at {until:.0f} rounds",
                   "outer rounds", "MB a round of communication"]  # fmt: skip
        rows = [
            [method, *(rounds_to(results, method, level) for level in levels), final(results, method), runs[0].rounds,
             mean((run["bytes_down"][-1] + run["bytes_up"][-1]) / run[AXIS][-1] / 1e6 for run in runs)]
            for method, runs in results.items()
        ]  # fmt: skip
        notes = ["Rounds of communication; the paper prints curves only. Accuracy: mean over the last third of rows."]
        return Table(columns, rows, notes)

    def draw(self, figure: Any, results: Results) -> None:
        axes = figure.subplots()
        lines(axes, results, "accuracy", AXIS)
        axes.set_title("hyper-representation, MNIST in label-sorted shards, a tenth of the clients in a round")
        axes.set_ylabel("accuracy on test data")
        axes.legend(loc="lower right")
