"""Figure 3 of the FedMBO paper: two hypergradient estimators, each with three ways to solve the lower problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fbompi.plots.figure import COLOURS
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
from fbompi.reproduce.measures import average_until, best, mean, ratio
from fbompi.reproduce.papers.fedmbo import (
    AXES,
    FULL,
    HYPERREP,
    PAPER,
    SMALL,
    at,
    average,
    costed,
    reached,
    shared,
    trace,
    training_samples,
)
from fbompi.runs import Run

ESTIMATORS = {"PHE": "phe", "IHGP": "ihgp"}
SOLVERS = {"MinibatchSGD": "minibatch", "FedSVRG": "svrg", "FedAvg": "fedavg"}
OURS = "PHE + MinibatchSGD"
LOCAL = 4  # steps of FedSVRG and FedAvg; their batches are as many times smaller (Remark 2)
BATCH: Mapping[ScaleName, int] = {"small": 32, "paper": 64}
NEAR = 1.25  # times as much loss, in the mean, is similar
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)  # of the way from the first loss to the least that any pair gets to

Curves = dict[str, list[dict[str, np.ndarray]]]


def curves(results: Results) -> Curves:
    """Loss and accuracy by both costs."""
    return {name: [costed(run, training_samples(run)) for run in runs] for name, runs in results.items()}


def losses(found: Curves, axis: str) -> dict[str, float]:
    """The mean loss of every pair along an axis, as far as all got."""
    until = shared(list(found.values()), axis)
    return {name: average(runs, "loss", until, axis) for name, runs in found.items()}


def fastest_in_rounds(results: Results) -> Verdict:
    """Whether FedMBO's pair has less loss than any other after as many rounds, and is at every level of loss first."""
    found = curves(results)
    averages = losses(found, "communication")
    until = shared(list(found.values()), "communication")
    begin = mean(run["loss"][0] for runs in found.values() for run in runs)
    least = float(np.nanmin([at(runs, "loss", until, "communication") for runs in found.values()]))
    marks = [begin + share * (least - begin) for share in LEVELS]
    rounds = {
        name: [reached(runs, "loss", mark, until, "communication") for mark in marks] for name, runs in found.items()
    }
    others = {name: value for name, value in averages.items() if name != OURS}
    second = min(others, key=lambda name: others[name])
    first = [all(rounds[OURS][i] < rounds[name][i] for name in others) for i in range(len(marks))]
    return judged(
        [averages[OURS] < others[second], *first],
        f"mean loss over {until:.0f} rounds {averages[OURS]:.3f}, that of the best other pair, {second}, "
        f"{others[second]:.3f}; first at {sum(first)} of {len(first)} levels of loss from {marks[0]:.2f} to "
        f"{marks[-1]:.2f}",
        "In the order of the mean: " + ", ".join(f"{name} {averages[name]:.3f}" for name in by_value(averages)) + ".",
    )


def by_value(values: Mapping[str, float]) -> list[str]:
    """Names, the smallest value first."""
    return sorted(values, key=lambda name: values[name])


def alike_by_data(results: Results) -> Verdict:
    """Whether, by passes over the data, MinibatchSGD does as well as FedSVRG and FedAvg worse than both."""
    found = curves(results)
    averages = losses(found, "passes")
    parts, told = [], []
    for estimator in ESTIMATORS:
        minibatch, svrg, fedavg = (averages[f"{estimator} + {solver}"] for solver in SOLVERS)
        parts += [1 / NEAR <= ratio(minibatch, svrg) <= NEAR, minibatch < fedavg, svrg < fedavg]
        told.append(f"{estimator}: {minibatch:.3f} (MinibatchSGD), {svrg:.3f} (FedSVRG), {fedavg:.3f} (FedAvg)")
    until = shared(list(found.values()), "passes")
    return judged(
        parts,
        f"mean loss over {until:.3g} passes, {'; '.join(told)}",
        f"{sum(parts)} of {len(parts)} parts: MinibatchSGD within {NEAR:g} times FedSVRG, each of them below FedAvg.",
    )


def most_accurate(results: Results) -> Verdict:
    """Whether FedMBO's pair has the best accuracy, at its best moment and in the mean over rounds."""
    found = curves(results)
    until = shared(list(found.values()), "communication")
    tops = {name: mean(best_until(run, until) for run in runs) for name, runs in found.items()}
    means = {name: average(runs, "accuracy", until, "communication") for name, runs in found.items()}
    others = [name for name in found if name != OURS]
    return judged(
        [figures[OURS] > max(figures[name] for name in others) for figures in (tops, means)],
        f"best accuracy within {until:.0f} rounds {tops[OURS]:.3f}, of the others at most "
        f"{max(tops[name] for name in others):.3f}; mean accuracy {means[OURS]:.3f}, of the others at most "
        f"{max(means[name] for name in others):.3f}",
        "Best accuracies: " + ", ".join(f"{name} {tops[name]:.3f}" for name in reversed(by_value(tops))) + ".",
    )


def best_until(run: dict[str, np.ndarray], until: float) -> float:
    """The best accuracy within so many rounds of communication."""
    within = run["communication"] <= until
    return best({"time": run["communication"][within], "accuracy": run["accuracy"][within]}, "accuracy")


class FedmboFednest(Experiment):
    """PHE and IHGP with MinibatchSGD, FedSVRG and FedAvg."""

    name = "fedmbo-fednest"
    paper = PAPER
    figure = "Figure 3"
    about = (
        "Hyper-representation on label-sorted MNIST by 100 clients: two hypergradient estimators, three lower solvers."
    )
    keys = {
        **HYPERREP, "problem.partition": "sorted", "clients.count": 100, "clients.participation": 0.1,
    }  # fmt: skip
    small = Scale(
        {**SMALL, "algorithm.step_x": 0.05, "algorithm.step_y": 0.2, "run.rounds": 12, "record.every": 2},
        seeds=(1, 2), data=("mnist",),
    )  # fmt: skip
    full = Scale(
        {**FULL, "algorithm.step_x": Tuned((0.02, 0.05)), "algorithm.step_y": Tuned((0.05, 0.1)), "run.rounds": 40,
         "record.every": 4},
        seeds=(1, 2), data=("mnist",),
    )  # fmt: skip
    remarks = (
        f"T = 5 as printed; {LOCAL} local steps of FedSVRG and FedAvg, chains of at most 4 factors and ℓ are ours. "
        f"As its Remark 2 has it, MinibatchSGD draws larger batches, {LOCAL} times those of a local step, and a "
        "round costs it no more than FedAvg. IHGP is followed by FedNest's local steps on x, PHE by a step of the "
        "server.",
        "At the paper's sizes both steps are chosen for each pair by its loss over rounds. At the small scale all have "
        "0.05 on x and 0.2 on y: asked at one seed, every pair chose the larger of 0.02 and 0.05, and of 0.03 and "
        "0.08, with which the loss of PHE + MinibatchSGD rises again at another seed.",
    )
    claims = (
        Claim(
            "PHE + MinibatchSGD converges the fastest in rounds of communication",
            fastest_in_rounds,
            "a round of PHE waits for the longest of ten chains, nearly always four factors, one of IHGP for a chain "
            "of two on average; the noise that independent chains save is small beside that of sampling ten clients "
            "of one digit each.",
        ),
        Claim(
            "By passes over the data MinibatchSGD is similar to FedSVRG, and both are better than FedAvg",
            alike_by_data,
            "with four local steps that share one step length, drift is small; FedAvg needs one gradient where FedSVRG "
            "needs two, and its smaller batches make its chains cheaper than those of MinibatchSGD.",
        ),
        Claim(
            "PHE + MinibatchSGD achieves the best test accuracy",
            most_accurate,
            "with ten of 100 clients of one digit each, accuracy goes up and down by several points from row to row.",
        ),
    )

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        return {f"{e} + {s}": self._pair(e, s, BATCH[scale]) for e in ESTIMATORS for s in SOLVERS}

    def _pair(self, estimator: str, solver: str, batch: int) -> Keys:
        """MinibatchSGD draws as many samples per round as the local steps of the others together."""
        size = batch if solver == "MinibatchSGD" else batch // LOCAL
        if (estimator, solver) == ("PHE", "MinibatchSGD"):
            return {"run.algorithm": "fedmbo", "clients.batch": size}
        return {
            "run.algorithm": "fednest", "clients.batch": size, "clients.local_steps": LOCAL,
            "algorithm.inner": SOLVERS[solver], "algorithm.hypergradient": ESTIMATORS[estimator],
        }  # fmt: skip

    def score(self, run: Run) -> float:
        return -average_until(run, "upper", float(run["communication"][-1]), "communication")

    def table(self, results: Results) -> Table:
        found = curves(results)
        until = {axis: shared(list(found.values()), axis) for axis in AXES}
        columns = ["pair", "rounds per outer round",
                   *(f"{metric} after {until[axis]:.3g} {named}" for axis, named in AXES.items()
                     for metric in ("loss", "accuracy")),
                   f"best accuracy in {until['communication']:.0f} rounds"]  # fmt: skip
        rows = [
            [name, mean(run["communication"][-1] / run["round"][-1] for run in results[name]),
             *(at(runs, metric, until[axis], axis) for axis in AXES
               for metric in ("loss", "accuracy")),
             mean(best_until(run, until["communication"]) for run in runs)]
            for name, runs in found.items()
        ]  # fmt: skip
        return Table(columns, rows, ["Means over seeds; loss is that of validation. The paper prints curves only."])

    def draw(self, figure: Any, results: Results) -> None:
        found = curves(results)
        figure.set_size_inches(figure.get_figwidth(), 3.0)
        panels = figure.subplots(1, 3)
        for axes, metric, axis in zip(
            panels, ("loss", "loss", "accuracy"), ("communication", "passes", "communication")
        ):
            until = shared(list(found.values()), axis)
            for name, runs in found.items():
                estimator, _, solver = name.partition(" + ")
                style = {
                    "color": COLOURS[list(SOLVERS).index(solver)],
                    "linestyle": "-" if estimator == "PHE" else "--",
                }
                trace(axes, runs, metric, axis, label=name, **style)
            axes.set_xlabel(AXES[axis])
            axes.set_xlim(0, until)
            axes.set_ylabel("validation loss" if metric == "loss" else "accuracy on test images")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
