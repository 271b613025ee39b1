"""Figure 4 of the AFBO paper: up to five stragglers among 18 clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fbompi.plots.figure import line
from fbompi.reproduce.drawing import legend, lines
from fbompi.reproduce.experiment import Claim, Keys, Results, ScaleName, Table, Tuned, Verdict, judged
from fbompi.reproduce.measures import mean, passage
from fbompi.reproduce.papers.afbo import (
    ASYNCHRONOUS,
    COVTYPE,
    COVTYPE_FULL,
    COVTYPE_SMALL,
    METHODS,
    MUCH,
    SLIGHTLY,
    SYNCHRONOUS,
    Race,
    clock,
    is_first,
    method,
    shared_levels,
    slowdown,
)
from fbompi.reproduce.papers.afbo_covtype import COVTYPE_REMARKS

SHARES = (0.95, 0.97, 0.99)  # of the way: accuracies that take more than the first outer round


def case(name: str, stragglers: int) -> str:
    return name if not stragglers else f"{name}, {stragglers} stragglers"


def counts(results: Results) -> list[int]:
    """Numbers of stragglers that were run."""
    return [n for n in range(6) if case("AFBO", n) in results]


def slowdowns(results: Results, stragglers: int) -> dict[str, float]:
    """How many times longer each method takes with so many stragglers."""
    marks = shared_levels(results, SHARES)
    return {name: slowdown(results[name], results[case(name, stragglers)], marks) for name in METHODS}


def told(slower: Mapping[str, float], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {slower[name]:.2g}" for name in names) + " times slower with five of 18 clients at 5×"


def synchronous_suffer(results: Results) -> Verdict:
    """Whether five stragglers cost synchronous methods much."""
    slower = slowdowns(results, max(counts(results)))
    parts = [slower[name] >= MUCH for name in SYNCHRONOUS]
    sentence = f"Significant is taken as {MUCH:g} times, in time to three levels of accuracy that all methods reach."
    return judged(parts, told(slower, SYNCHRONOUS), sentence)


def asynchronous_hardly_suffer(results: Results) -> Verdict:
    """Whether they cost asynchronous methods little, and less than synchronous ones."""
    slower = slowdowns(results, max(counts(results)))
    least = min(slower[name] for name in SYNCHRONOUS)
    slightly = [slower[name] <= SLIGHTLY for name in ASYNCHRONOUS]
    less = [slower[name] < least for name in ASYNCHRONOUS]
    sentence = (
        f"Slightly is taken as {SLIGHTLY:g} times: {sum(slightly)} of {len(slightly)} methods; "
        f"less than the synchronous ones ({least:.2g} at least) lose {sum(less)} of {len(less)}."
    )
    return judged([*slightly, *less], told(slower, ASYNCHRONOUS), sentence)


def first_with_stragglers(results: Results) -> Verdict:
    """Whether AFBO is first where there are stragglers."""
    return is_first({name: results[case(name, max(counts(results)))] for name in METHODS})


class AfboStragglers(Race):
    """Who suffers from slow clients."""

    name = "afbo-stragglers"
    figure = "Figure 4"
    about = (
        "Regularisation coefficients on Covertype where some of 18 clients are five times slower: accuracy against "
        "time, with and without stragglers."
    )
    keys = {**COVTYPE, "delays.factor": 5.0}
    small = COVTYPE_SMALL
    full = COVTYPE_FULL
    remarks = COVTYPE_REMARKS
    claims = (
        Claim("the synchronous FedNest and SDBO are significantly affected by stragglers", synchronous_suffer),
        Claim(
            "AFBO and ADBO suffer slightly from stragglers, since they are asynchronous",
            asynchronous_hardly_suffer,
            "with five slow clients there are fewer answers in a second: at the paper's size AFBO's rounds took 1.45 "
            "times as long, and ADBO's, which asks all workers for every plane, 2.7 times. The rest of AFBO's loss is "
            "that vectors of slow clients are older, and steps shorter for that.",
        ),
        Claim("AFBO is the most efficient where there are five stragglers", first_with_stragglers),
    )

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        found = {}
        for stragglers in (0, 5) if scale == "small" else (0, 1, 3, 5):
            for name, rounds in self.rounds[scale].items():
                found[case(name, stragglers)] = {**method(name, rounds), "delays.stragglers": stragglers}
                if stragglers:
                    steps = self.scale(scale).keys["algorithm.step_x"].values
                    found[case(name, stragglers)]["algorithm.step_x"] = Tuned(steps, like=name)
        return found

    def table(self, results: Results) -> Table:
        marks = shared_levels(results, SHARES)
        rows = []
        for name in METHODS:
            for stragglers in counts(results):
                runs = results[case(name, stragglers)]
                times = [mean(passage(run, "accuracy", level) for run in runs) for level in marks]
                slower = slowdown(results[name], runs, marks)
                rows.append([name, stragglers, *times, slower])
        columns = ["method", "stragglers", *(f"to {level:.3f} (s)" for level in marks), "times slower"]
        return Table(columns, rows, [clock(results)])

    def order(self, results: Results) -> list[str]:
        most = max(counts(results))
        return super().order({name: results[case(name, most)] for name in METHODS})

    def draw(self, figure: Any, results: Results) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        most = max(counts(results))
        lines(left, {name: results[case(name, most)] for name in METHODS}, "accuracy")
        left.set_title(f"Covertype, {most} of 18 clients five times slower")
        left.set_ylabel("accuracy on test data")
        legend(figure, left, results)
        for index, name in enumerate(METHODS):
            slower = [slowdowns(results, n)[name] if n else 1.0 for n in counts(results)]
            right.plot(counts(results), slower, **line(index), marker="o", label=name)
        right.set_title("times slower than without stragglers")
        right.set_xlabel("stragglers among 18 clients")
        right.set_ylabel("time to the same accuracy, ratio")
        right.set_xticks(counts(results))
