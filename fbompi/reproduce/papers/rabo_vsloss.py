"""Figure 5 of the RABO paper: tuning a loss on long-tailed data, clients holding half of the classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fbompi.reproduce.drawing import lines
from fbompi.reproduce.experiment import Claim, Experiment, Keys, Results, Scale, ScaleName, Table, Verdict, judged
from fbompi.reproduce.measures import last, mean
from fbompi.reproduce.papers.rabo import FEDMBO, FORMULAS, MARGIN, MEANINGS, PAPER, POLICIES, two_levels

METRIC = "balanced_accuracy"
WHOLE = ("FedMBO", "FedAvg")


def accuracy(results: Results, method: str) -> float:
    return mean(last(run, METRIC) for run in results[method])


def beats_submodels(results: Results, method: str) -> Verdict:
    """Whether a method is ahead of every one-level policy."""
    own, others = accuracy(results, method), {policy: accuracy(results, policy) for policy in POLICIES}
    return judged(
        [own > value + MARGIN for value in others.values()],
        f"{own:.3f} against " + ", ".join(f"{value:.3f} ({policy})" for policy, value in others.items()),
        f"More than a point counts; on average {mean(100 * (own - value) for value in others.values()):+.1f} points; "
        f"the paper has {9.97 if method == 'RABO' else 5.53:+.1f} per cent.",
    )


def competes(results: Results) -> Verdict:
    """Whether half models with a tuned loss reach whole models without, and stay below whole models with one."""
    rabo, tuned, plain = (accuracy(results, method) for method in ("RABO", "FedMBO", "FedAvg"))
    return judged(
        [rabo >= plain - MARGIN, tuned >= rabo],
        f"RABO {rabo:.3f}, FedAvg with whole models {plain:.3f}, FedMBO with whole models {tuned:.3f}",
        "Competitive is taken as: at most one point below.",
    )


class RaboVsLoss(Experiment):
    """Whether half a classifier with a tuned loss is better than half a classifier without."""

    name = "rabo-vsloss"
    paper = PAPER
    figure = "Figure 5"
    about = "Weights, shifts and scales of classes tuned on long-tailed CIFAR-10, capacity 1/2: accuracy by iterations."
    keys = {
        "run.problem": "vsloss", "problem.data": "cifar10", "problem.scaling": "standard", "problem.tail": 0.6,
        "problem.dtype": "float32", "clients.count": 10, "algorithm.smoothness": 600.0, "delays.model": "none",
        "record.iterates": False,
    }  # fmt: skip
    small = Scale(
        {"problem.train": 4000, "problem.validation": 1000, "problem.test": 4000, "clients.batch": 64,
         "run.rounds": 40, "record.every": 4},
        seeds=(1,), data=("cifar10",),
    )  # fmt: skip
    full = Scale(
        {"problem.train": 0, "problem.validation": 2500, "clients.batch": 256, "run.rounds": 300, "record.every": 10},
        seeds=(1, 2), data=("cifar10",),
    )  # fmt: skip
    remarks = (
        "The paper's classifier is a ResNet-18, here it is softmax regression, and μ is not printed (0.6 here). The "
        "printed upper objective, the VS loss itself, is lowered by small weights alone; here it is the class-balanced "
        "cross-entropy of validation samples. Steps on y are 1/ℓ with one ℓ for all methods, those on x automatic.",
        FORMULAS,
    )
    claims = (
        Claim(
            "RABO is more accurate than one-level training of submodels",
            lambda results: beats_submodels(results, "RABO"),
            "in few rounds the loss's parameters move little",
        ),
        Claim(
            "RAFBO, without second derivatives, is more accurate than these too",
            lambda results: beats_submodels(results, "RAFBO"),
            "differences along some of the 30 parameters of the loss are noisy",
        ),
        Claim(
            "RABO with half models competes with whole models without a tuned loss; whole models with one are best",
            competes,
            "a half model that is trained as if the other half were absent is not half of a good whole model",
        ),
    )

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        local: Keys = {"clients.local_steps": 5}
        half: Keys = {"clients.capacity": 0.5, "algorithm.masked": "y"}
        cases: dict[str, Keys] = {"FedMBO": FEDMBO, "FedAvg": {"run.algorithm": "fedavg", **local}}
        for title, policy in POLICIES.items():
            window = {"algorithm.stride": 64} if policy == "rolling" else {}  # of 3,072 features: by one takes for ever
            cases[title] = {"run.algorithm": "fedavg", "algorithm.masks": policy, **window, **local, **half}
        coordinates = 10 if scale == "small" else 0
        return {**cases, **{method: {**two_levels(method, coordinates), **half} for method in ("RABO", "RAFBO")}}

    def table(self, results: Results) -> Table:
        columns = ["method", "model", "balanced accuracy (%)", "upper value", "lower value", "MB", "work (1e9)"]
        rows = [
            [method, "whole" if method in WHOLE else "half", 100 * accuracy(results, method),
             mean(last(run, "upper") for run in runs), mean(last(run, "lower") for run in runs),
             mean((run["bytes_down"][-1] + run["bytes_up"][-1]) / 1e6 for run in runs),
             mean(run["work"][-1] / 1e9 for run in runs)]
            for method, runs in results.items()
        ]  # fmt: skip
        notes = [
            "At the end; the paper prints curves only. The lower value is that of the whole model, which nobody "
            "trains where halves are: clients train windows that move on (FedRolex) as if the rest were absent, and "
            "it may rise."
        ]
        return Table(columns, rows, notes)

    def draw(self, figure: Any, results: Results) -> None:
        axes = figure.subplots()
        halves = {
            f"{method}: {MEANINGS.get(method, 'largest weights, tuned loss')}": runs
            for method, runs in results.items()
            if method not in WHOLE
        }
        lines(axes, halves, METRIC, "round")
        for method, colour in (("FedMBO", "black"), ("FedAvg", "#8B5A2B")):
            axes.axhline(accuracy(results, method), color=colour, linestyle="--", linewidth=1)
            axes.annotate(
                f"{method}, whole models, at the end", (0.01, accuracy(results, method)), (0, 2),
                xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=6.5, color=colour,
            )  # fmt: skip
        axes.set_ylabel("accuracy on test data, mean over classes")
        axes.set_title("long-tailed CIFAR-10, softmax regression: each client holds half of the classifier")
        axes.legend(loc="lower right", ncols=2)
