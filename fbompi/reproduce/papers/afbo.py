"""What the experiments of the AFBO paper have in common: methods that race on a clock with heavy-tailed delays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fbompi.reproduce.drawing import legend, lines
from fbompi.reproduce.experiment import Experiment, Keys, Results, Scale, ScaleName, Table, Tuned, Verdict, judged
from fbompi.reproduce.measures import average_until, best, end, levels, mean, passage, ratio, value_at
from fbompi.runs import Run

PAPER = "Li, Zhu, Gong, Mao, Zhou: Anarchic Federated Bilevel Optimization"
METHODS = ("AFBO", "ADBO", "SDBO", "FedNest")
ASYNCHRONOUS, SYNCHRONOUS = ("AFBO", "ADBO"), ("SDBO", "FedNest")
SLIGHTLY, MUCH = 1.5, 2.0  # times slower: up to the first hardly matters, from the second on it does
BOUND = 10  # τ, and ρ where there are inner delays
# The slowest of 18 takes four times the mean. Pareto tails of 1.5 were tried: one answer can take half of a small run.
HEAVY: Keys = {"delays.model": "lognormal", "delays.sigma": 1.0}

CLEANING: Keys = {
    "run.problem": "hypercleaning", "problem.corruption": 0.5, "problem.ridge": 0.1, "problem.dtype": "float32",
    "clients.count": 18, "algorithm.smoothness": 3.0, "record.iterates": False, **HEAVY,
}  # fmt: skip
DIGITS: Keys = {"problem.data": "digits", "problem.train": 900, "problem.validation": 360, "problem.test": 500}
CLEANING_SMALL = Scale(
    {"problem.data": "mnist", "problem.train": 1800, "problem.validation": 540, "problem.test": 1000,
     "algorithm.step_x": Tuned(("auto", 300.0, 3000.0))},
    seeds=(1, 2), data=("mnist",), instead=DIGITS,
)  # fmt: skip
CLEANING_FULL = Scale(
    {"problem.data": "mnist", "problem.train": 20000, "problem.validation": 5000,
     "algorithm.step_x": Tuned(("auto", 3000.0, 30000.0))},
    seeds=(1, 2), data=("mnist",),
)  # fmt: skip
COVTYPE: Keys = {"run.problem": "regcoef", "clients.count": 18, "record.iterates": False, **HEAVY}
COVTYPE_SMALL = Scale(
    {"problem.data": "covtype", "problem.train": 5400, "problem.validation": 1800, "problem.test": 3000,
     "algorithm.step_x": Tuned(("auto", 100.0))},
    seeds=(1, 2), data=("covtype",), instead=DIGITS,
)  # fmt: skip
COVTYPE_FULL = Scale(
    {"problem.data": "covtype", "problem.train": 40000, "problem.validation": 10000, "problem.test": 20000,
     "algorithm.step_x": Tuned(("auto", 100.0))},
    seeds=(1, 2), data=("covtype",),
)  # fmt: skip
NON_IID: Keys = {"problem.partition": "classes", "problem.classes_per_client": 2}
REMARKS = (
    "The paper prints neither sizes, corruption rate, partition, step sizes nor the tail of the delays. Here: half of "
    "the labels are wrong, delays are log-normal with σ = 1 and mean 1 s, every message and its answer has one, "
    "τ = 10 bounds AFBO's outer ages and ADBO's, and time is virtual. All methods have the same ℓ and the same choice "
    "of steps on x; rounds and iterations per plane are such that cutting planes get to any accuracy soonest.",
    "The printed ridge, ‖ω‖², outweighs the data (69 % accuracy with any method); here it is 0.05‖ω‖².",
)


def method(name: str, rounds: int) -> dict[str, Any]:
    """The keys of one of the paper's methods.

    Cutting planes come soonest to any accuracy, and stay there best, with 5 rounds for φ and 10 iterations per plane;
    10 and 20 rounds, and 20 to 60 iterations, were tried.
    """
    own: dict[str, dict[str, Any]] = {
        "AFBO": {"algorithm.inner_rounds": 10, "algorithm.terms": 10, "algorithm.outer_bound": BOUND},
        "ADBO": {"algorithm.estimate_rounds": 5, "algorithm.iterations": 10, "algorithm.bound": BOUND},
        "SDBO": {"algorithm.estimate_rounds": 5, "algorithm.iterations": 10},
        "FedNest": {"algorithm.inner_rounds": 5, "algorithm.terms": 10},
        "AFL": {"algorithm.terms": 10, "algorithm.bound": BOUND},
    }
    every = max(1, rounds // 50)
    return {"run.algorithm": name.lower(), "run.rounds": rounds, "record.every": every, **own[name]}


class Race(Experiment):
    """Several methods, the accuracy against time: who reaches a level first."""

    paper = PAPER
    keys = CLEANING
    small = CLEANING_SMALL
    full = CLEANING_FULL
    remarks: ClassVar[Sequence[str]] = REMARKS
    on_ranks: ClassVar[Keys] = {"delays.inject": 0.02}
    horizon: ClassVar[float] = 350.0  # virtual seconds for which steps are chosen
    title: ClassVar[str]
    rounds: ClassVar[Mapping[ScaleName, Mapping[str, int]]] = {
        "small": {"AFBO": 60, "ADBO": 7, "SDBO": 4, "FedNest": 5},
        "paper": {"AFBO": 200, "ADBO": 22, "SDBO": 16, "FedNest": 18},
    }

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        return {name: method(name, rounds) for name, rounds in self.rounds[scale].items()}

    def score(self, run: Run) -> float:
        return average_until(run, "accuracy", min(self.horizon, float(run["time"][-1])))

    def table(self, results: Results) -> Table:
        marks, until = shared_levels(results), common_end(results)
        columns = ["method", *(f"to {level:.3f} (s)" for level in marks), "rounds", f"accuracy at {until:.3g} s",
                   "best accuracy"]  # fmt: skip
        rows = [
            [name, *(mean(passage(run, "accuracy", level) for run in runs) for level in marks), runs[0].rounds,
             mean(value_at(run, "accuracy", until) for run in runs),
             mean(best(run, "accuracy") for run in runs)]
            for name, runs in results.items()
        ]  # fmt: skip
        return Table(columns, rows, [clock(results)])

    def order(self, results: Results) -> list[str]:
        """By the time to a level of accuracy that all reach."""
        level = shared_levels(results)[-1]
        return sorted(results, key=lambda name: mean(passage(run, "accuracy", level) for run in results[name]))

    def draw(self, figure: Any, results: Results) -> None:
        axes = figure.subplots()
        lines(axes, results, "accuracy")
        axes.set_title(self.title)
        axes.set_ylabel("accuracy on test data")
        legend(figure, axes, results)


def clock(results: Results) -> str:
    """What the seconds of a table are."""
    link = next(run.link for runs in results.values() for run in runs)
    of = "of the virtual clock" if link == "virtual" else "real ones, on MPI with injected delays"
    return f"Seconds are {of}, means over seeds; the paper prints curves only."


def common_end(results: Results) -> float:
    """The time that all runs have passed."""
    return end(run for runs in results.values() for run in runs)


def shared_levels(results: Results, shares: Sequence[float] = (0.6, 0.75, 0.9)) -> list[float]:
    """Levels of accuracy: shares of the way from the start to the best of the method that gets least far."""
    runs = [run for some in results.values() for run in some]
    start = mean(run["accuracy"][0] for run in runs)
    least = min(min(best(run, "accuracy") for run in some) for some in results.values())
    return [start + share * (least - start) for share in shares]


def slowdown(before: Sequence[Any], after: Sequence[Any], marks: Sequence[float]) -> float:
    """How many times longer it takes to levels of accuracy, on average over levels that were reached before."""
    pairs = [[mean(passage(run, "accuracy", level) for run in runs) for runs in (before, after)] for level in marks]
    return mean(ratio(later, sooner) for sooner, later in pairs if math.isfinite(sooner))


def is_first(results: Results, who: str = "AFBO") -> Verdict:
    """Whether a method reaches every level of accuracy before all others, from half of the way on.

    In the time that all runs have: what comes later counts as never, and the highest level is the best of that time.
    """
    marks, until = levels(results, "accuracy"), common_end(results)
    times: dict[str, list[float]] = {}
    for name, runs in results.items():
        passed = [[passage(run, "accuracy", level) for run in runs] for level in marks]
        times[name] = [mean(seconds) if max(seconds) <= until else math.inf for seconds in passed]
    others = [min(times[name][i] for name in results if name != who) for i in range(len(marks))]
    first = [own < other for own, other in zip(times[who], others)]
    leads = [ratio(other, own) for own, other in zip(times[who], others) if math.isfinite(own)]
    finite = [lead for lead in leads if math.isfinite(lead)]
    alone = sum(math.isinf(lead) for lead in leads)
    lead = f"{min(finite):.2g} to {max(finite):.2g} times sooner than the next" if finite else "no level is shared"
    leaders = [min(times, key=lambda name: times[name][i]) for i in range(len(marks)) if not first[i]]
    measured = (
        f"first at {sum(first)} of {len(marks)} levels of accuracy from {marks[0]:.3f} to {marks[-1]:.3f}"
        + (f" (at the others {', '.join(sorted(set(leaders)))})" if leaders else "")
        + f"; {lead}"
    )
    sentence = f"{who} gets to the lowest of them in {times[who][0]:.3g} s, the next method in {others[0]:.3g} s" + (
        f"; at {alone} of them nobody else arrives in the time that all have." if alone else "."
    )
    return judged(first, measured, sentence)
