"""Figure 4 of the MemFBO paper: a client's memory against its local steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fbompi.plots.figure import line
from fbompi.reproduce.experiment import Claim, Experiment, Keys, Results, Scale, ScaleName, Table, Verdict, judged
from fbompi.reproduce.measures import mean
from fbompi.reproduce.papers.memfbo import PAPER

METHODS: dict[str, Keys] = {
    "MemFBO": {"run.algorithm": "memfbo"},
    "SimFBO": {"run.algorithm": "simfbo"},
    "SimFBO, summed": {"run.algorithm": "simfbo", "algorithm.store": False},
}

LEGEND = {"SimFBO, summed": "SimFBO, products summed as they come"}


def name(method: str, tau: int) -> str:
    return f"{method}, τ = {tau}"


def steps(results: Results) -> list[int]:
    """The τ that were run."""
    return sorted({int(case.rpartition(" ")[2]) for case in results})


def memory(results: Results, method: str, tau: int) -> float:
    """The most that a task took on any client, in MB; NaN where nothing was traced."""
    peaks = [float(np.max(np.asarray(run.clients["peak_memory"], float))) for run in results.get(name(method, tau), [])]
    return mean(peak / 1e6 if peak > 0 else math.nan for peak in peaks)


def growth(results: Results, method: str) -> float:
    """Memory at the most local steps over that at two, or the fewest above one: of a single step nothing is kept."""
    some = [tau for tau in steps(results) if tau > 1]
    return memory(results, method, some[-1]) / memory(results, method, some[0])


def simfbo_grows(results: Results) -> Verdict:
    """Whether SimFBO's memory rises with every longer τ, and to at least twice what it was."""
    taus = steps(results)
    values = [memory(results, "SimFBO", tau) for tau in taus]
    least = [a < b for a, b in itertools.pairwise(values)]
    return judged(
        [all(least) and len(least) > 0, values[-1] > 2 * values[0]],
        f"{values[0]:.3g} MB at τ = {taus[0]}, {values[-1]:.3g} MB at τ = {taus[-1]}",
        f"With sums made on the way instead of kept products, which give the same directions, SimFBO takes "
        f"{memory(results, 'SimFBO, summed', taus[-1]):.3g} MB at τ = {taus[-1]}.",
    )


def memfbo_stays(results: Results) -> Verdict:
    """Whether MemFBO's memory is the same for all τ above one (5 %), and below SimFBO's for all of these."""
    some = [tau for tau in steps(results) if tau > 1]
    flat = abs(growth(results, "MemFBO") - 1) <= 0.05
    below = [memory(results, "MemFBO", tau) < memory(results, "SimFBO", tau) for tau in some]
    more = ", ".join(str(tau) for tau, less in zip(some, below) if not less)
    return judged(
        [flat, all(below) and bool(below)],
        f"MemFBO {memory(results, 'MemFBO', some[0]):.3g} MB at τ = {some[0]}, "
        f"{memory(results, 'MemFBO', some[-1]):.3g} MB at τ = {some[-1]}; SimFBO then "
        f"{memory(results, 'SimFBO', some[-1]) / memory(results, 'MemFBO', some[-1]):.2g} times as much",
        f"MemFBO takes more than SimFBO at τ = {more}." if more else "MemFBO takes less at every τ above 1.",
    )


class MemFboMemory(Experiment):
    """What local steps cost in memory."""

    name = "memfbo-memory"
    paper = PAPER
    figure = "Figure 4"
    about = (
        "The peak of a client's memory in a task of τ local steps, for MemFBO and SimFBO; hyper-representation, MNIST."
    )
    keys = {
        "run.problem": "hyperrep", "problem.data": "mnist", "problem.partition": "shards", "problem.hidden": 200,
        "problem.dtype": "float32", "clients.batch": 64, "delays.model": "none", "record.iterates": False,
    }  # fmt: skip
    small = Scale(
        {"problem.train": 2000, "problem.validation": 500, "problem.test": 200, "clients.count": 2, "run.rounds": 2},
        seeds=(1,), data=("mnist",),
        instead={"problem.data": "digits", "problem.train": 900, "problem.validation": 300},
    )  # fmt: skip
    full = Scale(
        {"problem.train": 0, "problem.validation": 10000, "clients.count": 100, "clients.participation": 0.1,
         "run.rounds": 6, "record.every": 6},
        seeds=(1,), data=("mnist",),
    )  # fmt: skip
    remarks = (
        "Memory is what a task allocates, the vectors that it is sent included and the shard apart, on one client; the "
        "paper measures a GPU. τ and the network's width are not printed; here 200 units, as in FedNest's experiments.",
    )
    claims = (
        Claim(
            "SimFBO's memory grows strongly with the number of local steps",
            simfbo_grows,
            "the products are small beside what else a task needs",
        ),
        Claim(
            "MemFBO's memory stays low, whatever the number of local steps",
            memfbo_stays,
            "MemFBO holds three gradients and their sums at once, and SimFBO, for few local steps, fewer vectors",
        ),
    )

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        taus = (1, 2, 8, 32) if scale == "small" else (1, 2, 4, 8, 16, 32, 64)
        return {
            name(method, tau): {**keys, "clients.local_steps": tau} for method, keys in METHODS.items() for tau in taus
        }

    def table(self, results: Results) -> Table:
        taus = steps(results)
        rows = [[method, *(memory(results, method, tau) for tau in taus)] for method in METHODS]
        notes = ["MB of a client's task at most; the paper prints a figure only."]
        return Table(["method", *(f"τ = {tau}" for tau in taus)], rows, notes)

    def draw(self, figure: Any, results: Results) -> None:
        axes, taus = figure.subplots(), steps(results)
        for index, method in enumerate(METHODS):
            values = [memory(results, method, tau) for tau in taus]
            axes.plot(taus, values, marker="o", **line(index), label=LEGEND.get(method, method))
        axes.set_xscale("log", base=2)
        axes.set_xticks(taus, [str(tau) for tau in taus])
        axes.set_ylim(0)
        axes.set_xlabel("local steps τ")
        axes.set_ylabel("memory of a client's task at most (MB)")
        axes.set_title("hyper-representation, MNIST: SimFBO keeps the products of all its local steps")
        axes.legend(loc="upper left")
