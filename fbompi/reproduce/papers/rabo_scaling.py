"""Figure 3 and Table III of the RABO paper: how often coordinates are trained, and how many clients there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fbompi.plots.figure import COLOURS, line
from fbompi.reproduce.drawing import lines
from fbompi.reproduce.experiment import Claim, Experiment, Keys, Results, Scale, ScaleName, Table, Verdict, judged
from fbompi.reproduce.measures import average_until, end, last, mean
from fbompi.reproduce.papers.rabo import (
    BACKBONE,
    CAPACITIES,
    FEWSHOT,
    FEWSHOT_FULL,
    FEWSHOT_SMALL,
    FORMULAS,
    MARGIN,
    PAPER,
    covering_file,
    two_levels,
)

METHODS, CLIENTS, LEAST = ("RABO", "RAFBO"), (10, 20, 30, 50), (1, 2)
PRINTED = {"RABO": (76.05, 75.81, 74.39, 72.76), "RAFBO": (75.09, 74.85, 73.04, 71.80)}  # 5-way 1-shot, by clients


def many(method: str, clients: int) -> str:
    return f"{method}, {clients} clients"


def covered(method: str, least: int) -> str:
    return f"{method}, C_x* = {least}"


def accuracy(results: Results, case: str) -> float:
    return mean(last(run, "accuracy") for run in results.get(case, []))


def on_the_way(results: Results, case: str, until: float) -> float:
    """The mean accuracy over the rounds: high where a method is fast."""
    return mean(average_until(run, "accuracy", until, "round") for run in results[case])


def more_covering_helps(results: Results) -> Verdict:
    """Whether both methods are better with C_x* = 2, on the way and at the end; and whether C_x* was what it should."""
    cases = [covered(method, least) for method in METHODS for least in LEAST]
    until = end((run for case in cases for run in results[case]), "round")
    for method in METHODS:
        for least in LEAST:
            if any(last(run, "covering_x") != least for run in results[covered(method, least)]):
                return judged(
                    [False], f"{covered(method, least)} was not", "The masks are not those of the experiment."
                )
    parts, told = [], []
    for method in METHODS:
        one, two = covered(method, 1), covered(method, 2)
        ends, ways = ([f(case) for case in (one, two)] for f in (
            lambda case: accuracy(results, case), lambda case: on_the_way(results, case, until)))  # fmt: skip
        parts += [after > before + MARGIN for before, after in (ends, ways)]
        told.append(f"{method} {ends[0]:.3f} → {ends[1]:.3f} at the end, {ways[0]:.3f} → {ways[1]:.3f} on the way")
    return judged(parts, "; ".join(told), "From C_x* = 1 to 2; more than a point counts.")


def falls_slowly(results: Results) -> Verdict:
    """Whether accuracy falls from the fewest clients to the most, and by no more than ten points."""
    found = [c for c in CLIENTS if many("RABO", c) in results]
    parts, told = [], []
    for method in METHODS:
        values = [100 * accuracy(results, many(method, c)) for c in found]
        fall = values[0] - values[-1]
        parts += [fall > 0, fall <= 10]
        told.append(f"{method} " + ", ".join(f"{v:.1f}" for v in values))
    return judged(
        parts,
        "; ".join(told) + f" % with {', '.join(map(str, found))} clients",
        "The paper has 3.3 points from 10 to 50 clients, with either method.",
    )


class RaboScaling(Experiment):
    """What the covering number and the number of clients do to accuracy."""

    name = "rabo-scaling"
    paper = PAPER
    figure = "Figure 3 and Table III"
    about = "The same few-shot tasks among 10 to 50 clients; and quarters of the model that one client holds, or two."
    keys = {**FEWSHOT, "algorithm.step_x": "auto"}
    small = Scale({**FEWSHOT_SMALL, "run.rounds": 10, "record.every": 10}, seeds=(1, 2), data=("omniglot",))
    full = Scale(
        {**FEWSHOT_FULL, "problem.ways": 5, "problem.hidden": 32, "run.rounds": 150, "record.every": 10},
        seeds=(1, 2), data=("omniglot",),
    )  # fmt: skip
    remarks = (
        BACKBONE,
        FORMULAS,
        "All clients together have the same tasks, however many they are. C_x*: 5-way 1-shot at the small scale, "
        "5-shot as in the paper at the other; capacity 1/4, masks of x and y from a file. Steps on x are automatic.",
    )
    claims = (
        Claim(
            "With C_x* = 2 both methods are better than with C_x* = 1",
            more_covering_helps,
            "with few seeds and some 50 tasks differences of two points are chance, and quarters that one client "
            "trains alone move as far in a round as the others: a mean over holders is no smaller for fewer of them",
        ),
        Claim(
            "Accuracy falls slowly as the same data are spread over more clients",
            falls_slowly,
            "tasks have heads of their own here, which belong to one client each, so that a client's hypergradient "
            "does not get worse with fewer tasks: their mean is the same however they are dealt out",
        ),
    )

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        cases: dict[str, Keys] = {}
        shots = {} if scale == "small" else {"problem.shots": 5}
        for method in METHODS:
            own = two_levels(method)
            for least in LEAST:
                cases[covered(method, least)] = {
                    **own, **shots, "clients.capacity": 0.25, "algorithm.masks": "given",
                    "record.every": 4 if scale == "small" else 10,
                    "algorithm.masks_file": covering_file(least),
                }  # fmt: skip
        for method in METHODS:
            for clients in CLIENTS if scale == "paper" else (CLIENTS[0], CLIENTS[-1]):
                cases[many(method, clients)] = {
                    **two_levels(method), "clients.capacity": CAPACITIES, "clients.count": clients,
                }  # fmt: skip
        return cases

    def table(self, results: Results) -> Table:
        columns = ["method", *(f"{c} clients{what}" for c in CLIENTS for what in ("", " printed")),
                   *(f"C_x* = {least}" for least in LEAST)]  # fmt: skip
        rows = []
        for method in METHODS:
            ours = [100 * accuracy(results, many(method, c)) for c in CLIENTS]
            pairs = [cell for pair in zip(ours, PRINTED[method]) for cell in pair]
            rows.append([method, *pairs, *(100 * accuracy(results, covered(method, least)) for least in LEAST)])
        return Table(columns, rows, ["Accuracy in per cent, 5-way 1-shot; of C_x* the paper has curves only."])

    def draw(self, figure: Any, results: Results) -> None:
        left, right = figure.subplots(1, 2)
        lines(left, {case: results[case] for case in results if "C_x*" in case}, "accuracy", "round")
        left.set_ylabel("accuracy in new tasks")
        left.set_title("quarters of the model, held by C_x* clients at least")
        left.set_ylim(0)
        left.legend(loc="lower right")
        for index, method in enumerate(METHODS):
            found = [c for c in CLIENTS if many(method, c) in results]
            ours = [100 * accuracy(results, many(method, c)) for c in found]
            right.plot(found, ours, marker="o", **line(index), label=f"{method}, here")
            right.plot(CLIENTS, PRINTED[method], "s:", color=COLOURS[index], label=f"{method}, printed (ResNet-12)")
        right.set_xticks(CLIENTS)
        right.set_ylim(0, 100)
        right.set_xlabel("clients")
        right.set_ylabel("accuracy in new tasks (%)")
        right.set_title("the same tasks among more clients")
        right.legend(loc="lower right")
