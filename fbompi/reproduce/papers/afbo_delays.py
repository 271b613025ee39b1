"""Figures 5 and 6 of the AFBO paper: delays in the inner and in the outer loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fbompi.plots.figure import GREY
from fbompi.reproduce.drawing import bars, legend, lines
from fbompi.reproduce.experiment import Claim, Keys, Results, Scale, ScaleName, Table, Tuned, Verdict, judged
from fbompi.reproduce.measures import mean, passage
from fbompi.reproduce.papers.afbo import (
    ASYNCHRONOUS,
    BOUND,
    CLEANING,
    CLEANING_FULL,
    CLEANING_SMALL,
    COVTYPE,
    COVTYPE_FULL,
    COVTYPE_SMALL,
    DIGITS,
    METHODS,
    MUCH,
    NON_IID,
    SLIGHTLY,
    SYNCHRONOUS,
    Race,
    clock,
    is_first,
    method,
    shared_levels,
    slowdown,
)

TASKS = ("IID MNIST", "non-IID MNIST", "Covertype")
EQUAL, HEAVY = "equal delays", "heavy tail"
MODELS: dict[str, Keys] = {EQUAL: {"delays.sigma": 0.0}, HEAVY: {"delays.sigma": 1.0}}
SHARES = (0.85, 0.9, 0.95)
CLEARLY = 1.1  # times: less is no difference


def of_task(results: Results, task: str, model: str) -> dict[str, Any]:
    """The methods on one task under one model of delays."""
    return {name: results[f"{name}, {task}, {model}"] for name in METHODS}


def slowdowns(results: Results, task: str) -> dict[str, float]:
    """How many times longer each method takes to levels of accuracy where delays of the same mean are heavy-tailed."""
    equal, heavy = (of_task(results, task, model) for model in (EQUAL, HEAVY))
    marks = shared_levels(
        {f"{name}, {i}": runs for i, of in enumerate((equal, heavy)) for name, runs in of.items()}, SHARES
    )
    return {name: slowdown(equal[name], heavy[name], marks) for name in METHODS}


def afbo_is_best(results: Results) -> Verdict:
    """Whether AFBO is first on every task."""
    verdicts = {task: is_first(of_task(results, task, HEAVY)) for task in TASKS}
    measured = "; ".join(f"{task}: {verdict.measured.partition(';')[0]}" for task, verdict in verdicts.items())
    parts = [v.outcome == "holds" for v in verdicts.values()] + [
        v.outcome != "does not hold" for v in verdicts.values()
    ]
    return judged(parts, measured, "Levels go from half of the way to the best accuracy of the time that all have.")


def told(slower: Mapping[str, Mapping[str, float]], names: tuple[str, ...] = METHODS) -> str:
    return "; ".join(f"{task}: " + ", ".join(f"{n} {of[n]:.2g}" for n in names) for task, of in slower.items())


def only_afbo_keeps_its_rate(results: Results) -> Verdict:
    """Whether AFBO is hardly slower with a heavy tail, all others are much slower, and it loses least."""
    slower = {task: slowdowns(results, task) for task in TASKS}
    others = METHODS[1:]
    keeps = [of["AFBO"] <= SLIGHTLY for of in slower.values()]
    lose = [min(of[name] for name in others) >= MUCH for of in slower.values()]
    least = [all(of["AFBO"] < of[name] for name in others) for of in slower.values()]
    sentence = (
        "Times slower than with delays that are all equal, of the same mean. AFBO keeps its rate (at most "
        f"{SLIGHTLY:g} times) on {sum(keeps)} of {len(keeps)} tasks, all others lose theirs (at least {MUCH:g} times) "
        f"on {sum(lose)}, and AFBO loses least on {sum(least)}."
    )
    return judged([*keeps, *lose, *least], told(slower), sentence)


def synchronous_lose_more(results: Results) -> Verdict:
    """Whether every synchronous method loses more than every asynchronous one."""
    slower = {task: slowdowns(results, task) for task in TASKS}
    parts = [of[late] > of[early] for of in slower.values() for late in SYNCHRONOUS for early in ASYNCHRONOUS]
    return judged(parts, told(slower), f"True of {sum(parts)} of {len(parts)} pairs of methods and tasks.")


def non_iid_hurts_more(results: Results) -> Verdict:
    """Whether methods lose more on MNIST that is not IID."""
    iid, other = (slowdowns(results, task) for task in TASKS[:2])
    parts = [other[name] >= CLEARLY * iid[name] for name in METHODS]
    measured = (
        ", ".join(f"{name} {iid[name]:.2g} → {other[name]:.2g}" for name in METHODS) + " times slower, IID → non-IID"
    )
    return judged(parts, measured, f"More by a factor of {CLEARLY:g} counts: {sum(parts)} of {len(parts)} methods.")


class AfboDelays(Race):
    """Whose rate survives delays in both loops."""

    name = "afbo-delays"
    figure = "Figures 5 and 6"
    about = (
        "Delays in inner and outer rounds, ρ = τ = 10, on IID and non-IID MNIST and on Covertype: accuracy against "
        "time, and how much time a heavy tail costs beside delays that are all equal."
    )
    keys = {"algorithm.step_x": "auto"}
    small = Scale({}, (1,), ("mnist", "covtype"), DIGITS)
    full = Scale({}, (1, 2), ("mnist", "covtype"))
    remarks = (
        *Race.remarks[:1],
        "How much a method degenerates is told in the paper by comparing figures. Here it is the time to an accuracy "
        "under log-normal delays (σ = 1) over that under equal ones of the same mean, everything else being the same. "
        "Prometheus, which is decentralised, is not here.",
    )
    claims = (
        Claim(
            "AFBO performs best among all algorithms where both loops have delays",
            afbo_is_best,
            "with both bounds AFBO's server waits often, and near the end of the time that was run a new cutting plane "
            "can carry SDBO or ADBO past it for a while, whose accuracy swings.",
        ),
        Claim(
            "all algorithms except AFBO suffer an obvious degeneration; AFBO keeps its rate",
            only_afbo_keeps_its_rate,
            "where delays are equal, AFBO's clients answer all at once, with no ages and full steps; a heavy tail "
            "makes ages, and ages shorten steps. The bounds add to that: without ρ and τ it got to 0.78 on IID MNIST "
            "in 91 s instead of 108 s (equal delays: 63 s).",
        ),
        Claim(
            "synchronous algorithms degenerate more than AFBO and ADBO",
            synchronous_lose_more,
            "ADBO asks all workers for every plane, and so is synchronous for half of its time.",
        ),
        Claim(
            "the degeneration is much more obvious on non-IID than on IID MNIST",
            non_iid_hurts_more,
            "what a heavy tail costs is mostly waiting, which is the same for any data; only AFBO's and ADBO's stale "
            "vectors can cost more where clients differ, and averages over all clients leave no bias.",
        ),
    )
    rounds = {
        "small": {"AFBO": 30, "ADBO": 7, "SDBO": 4, "FedNest": 5},
        "paper": {"AFBO": 150, "ADBO": 22, "SDBO": 16, "FedNest": 18},
    }

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        cleaning, covtype = (CLEANING_SMALL, COVTYPE_SMALL) if scale == "small" else (CLEANING_FULL, COVTYPE_FULL)
        tasks: dict[str, dict[str, Any]] = {
            "IID MNIST": {**CLEANING, **cleaning.keys},
            "non-IID MNIST": {**CLEANING, **cleaning.keys, **NON_IID},
            "Covertype": {**COVTYPE, **covtype.keys},
        }
        found = {}
        for task, keys in tasks.items():
            for name, rounds in self.rounds[scale].items():
                for model, delays in MODELS.items():
                    bound = {"algorithm.inner_bound": BOUND} if name == "AFBO" else {}
                    own = {**keys, **method(name, rounds), **bound, **delays}
                    steps = own.pop("algorithm.step_x")
                    if scale == "paper":
                        like = f"{name}, {task}, {EQUAL}" if model == HEAVY else ""
                        own["algorithm.step_x"] = Tuned(steps.values, like)
                    found[f"{name}, {task}, {model}"] = own
        return found

    def table(self, results: Results) -> Table:
        rows = []
        for task in TASKS:
            slower = slowdowns(results, task)
            marks = shared_levels(of_task(results, task, HEAVY), SHARES)
            for name in METHODS:
                equal, heavy = (
                    mean(passage(run, "accuracy", marks[-1]) for run in of_task(results, task, model)[name])
                    for model in (EQUAL, HEAVY)
                )
                rows.append([task, name, round(marks[-1], 3), equal, heavy, slower[name]])
        columns = ["task", "method", "accuracy", "equal delays (s)", "heavy tail (s)", "times slower"]
        notes = [
            "Seconds are to that accuracy; “times slower” is a mean over three accuracies that are reached under "
            "either model.",
            clock(results),
        ]
        return Table(columns, rows, notes)

    def order(self, results: Results) -> list[str]:
        return []  # of every task another

    def draw(self, figure: Any, results: Results) -> None:
        figure.set_size_inches(figure.get_figwidth(), 4.8)
        grid = figure.subplots(2, 3, height_ratios=(3, 2))
        for column, task in enumerate(TASKS):
            above, below = grid[0][column], grid[1][column]
            lines(above, of_task(results, task, HEAVY), "accuracy")
            above.set_title(f"{task}, heavy-tailed delays")
            above.set_ylabel("accuracy on test data" if not column else "")
            slower = slowdowns(results, task)
            bars(below, METHODS, {task: [slower[name] for name in METHODS]}, "")
            below.set_ylabel("times slower than\nwith equal delays" if not column else "")
            below.axhline(1.0, color=GREY, linewidth=0.8)
        legend(figure, grid[0][0], results)
