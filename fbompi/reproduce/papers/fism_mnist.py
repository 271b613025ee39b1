"""Figures 2 and 3 of the FISM paper: a sparse classifier of the digits 0 and 1, by IR-IG and by FISM."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from fbompi.plots.figure import line
from fbompi.reproduce.experiment import Claim, Experiment, Keys, Results, Scale, ScaleName, Table, Verdict, judged
from fbompi.reproduce.measures import along, end, mean, passage, ratio, value_at
from fbompi.reproduce.papers.fism import CLOCK, IRIG, METHODS, PAPER, iteration_seconds

TRAIN = 11_000  # of Figure 3
SAMPLES: Mapping[ScaleName, tuple[int, ...]] = {
    "small": (2000, TRAIN),
    "paper": (1000, 3000, 5000, 7000, 9000, TRAIN),
}
ITERATIONS = 200  # whose seconds Figure 2 shows
MANY = ("S = 4", "S = 8")
BUDGETS = (0.2, 0.4, 0.6, 0.8, 1.0)  # parts of the time in which the fastest has done all its iterations


def label(m: int, method: str) -> str:
    """The name of a case."""
    return f"m = {m}, {method}"


def of_size(results: Results, m: int) -> dict[str, list[Any]]:
    """The runs on m samples, by method."""
    return {name: list(results[label(m, name)]) for name in METHODS}


def seconds(results: Results) -> dict[int, dict[str, float]]:
    """Of Figure 2's number of iterations, by samples and method; the mean over seeds."""
    sizes = sorted({int(name.removeprefix("m = ").split(", ")[0]) for name in results})
    return {
        m: {name: ITERATIONS * mean(map(iteration_seconds, runs)) for name, runs in of_size(results, m).items()}
        for m in sizes
    }


def timed(run: Any) -> dict[str, np.ndarray]:
    """Figure 3's columns: accuracy and training loss with the seconds of a machine per client."""
    rounds, clients = along(run, "round"), len(np.unique(run.events["client"]))
    loss = clients * np.asarray(run["lower"])  # of all samples; recorded is the mean over clients
    return {"round": rounds, "time": rounds * iteration_seconds(run), "accuracy": np.asarray(run["accuracy"]),
            "loss": loss}  # fmt: skip


def curves(results: Results) -> dict[str, list[dict[str, np.ndarray]]]:
    """The same of all runs of Figure 3, by method."""
    return {name: [timed(run) for run in runs] for name, runs in of_size(results, TRAIN).items()}


def time_falls(results: Results) -> Verdict:
    """Whether FISM is faster than IR-IG, and the faster the more clients there are."""
    parts, told = [], []
    for m, row in seconds(results).items():
        order = [row[name] for name in METHODS]
        parts += [later < before for before, later in itertools.pairwise(order)]
        told.append(f"m = {m}: " + ", ".join(f"{value:.3g}" for value in order) + " s")
    largest = seconds(results)[TRAIN]
    return judged(
        parts,
        f"{sum(parts)} of {len(parts)} steps from IR-IG to S = 1, 2, 4, 8 are faster than the last ({'; '.join(told)})",
        f"At m = {TRAIN} eight clients are {ratio(largest[IRIG], largest['S = 8']):.1f} times as fast as IR-IG, one is "
        f"{ratio(largest[IRIG], largest['S = 1']):.2f} times as fast.",
    )


def at_budget(runs: list[dict[str, np.ndarray]], metric: str, budget: float) -> float:
    return mean(value_at(run, metric, budget) for run in runs)


def many_are_best(results: Results) -> Verdict:
    """Whether four and eight clients are ahead of all others in accuracy and loss, whatever the time given."""
    found = curves(results)
    until = end([run for runs in found.values() for run in runs])
    parts: dict[str, list[bool]] = {"accuracy": [], "loss": []}
    for share in BUDGETS:
        for metric, sign in (("accuracy", 1), ("loss", -1)):
            values = {name: sign * at_budget(runs, metric, share * until) for name, runs in found.items()}
            others = [value for name, value in values.items() if name not in MANY]
            parts[metric].append(all(values[name] > max(others) for name in MANY))
    final = {name: at_budget(runs, "accuracy", until) for name, runs in found.items()}
    losses = {name: at_budget(runs, "loss", until) for name, runs in found.items()}
    return judged(
        parts["accuracy"] + parts["loss"],
        f"in {len(BUDGETS)} budgets of up to {until:.2g} s both are ahead {sum(parts['accuracy'])} times in accuracy "
        f"and {sum(parts['loss'])} times in loss; then accuracy is "
        + ", ".join(f"{value:.4f} ({name})" for name, value in final.items()),
        "Losses then: " + ", ".join(f"{value:.3g} ({name})" for name, value in losses.items()) + ".",
    )


def one_is_worse(results: Results) -> Verdict:
    """Whether one client of FISM is behind IR-IG after as many iterations, for every seed and in either figure."""
    found = curves(results)
    parts, gaps = [], {}
    for metric, sign in (("accuracy", -1), ("loss", 1)):
        means = [[mean(run[metric][1:]) for run in found[name]] for name in ("S = 1", IRIG)]
        parts += [sign * (one - other) > 0 for one, other in zip(*means)]
        gaps[metric] = mean(means[0]), mean(means[1])
    late = [mean(mean(run["loss"][len(run["loss"]) // 2 :]) for run in found[name]) for name in ("S = 1", IRIG)]
    return judged(
        parts,
        f"worse in {sum(parts)} of {len(parts)} comparisons (accuracy and loss, each seed, mean over iterations): "
        f"accuracy {gaps['accuracy'][0]:.5f} and {gaps['accuracy'][1]:.5f}, loss {gaps['loss'][0]:.4g} and "
        f"{gaps['loss'][1]:.4g}",
        f"The first of each pair is FISM with one client, the second IR-IG; in the second half of the iterations their "
        f"losses are {late[0]:.3g} and {late[1]:.3g}.",
    )


class FismMnist(Experiment):
    """Digits 0 and 1: seconds against samples, accuracy and loss against seconds."""

    name = "fism-mnist"
    paper = PAPER
    figure = "Figures 2 and 3"
    about = (
        "A sparse classifier of small norm for MNIST's digits 0 and 1: time by samples and clients, accuracy by time."
    )
    keys = {
        "run.problem": "sparse-logistic", "problem.data": "mnist", "delays.model": "none", "record.iterates": False,
        "algorithm.step": 10.0, "algorithm.step_power": 0.8, "algorithm.weight": 1.0, "algorithm.weight_power": 0.1,
    }  # fmt: skip
    small = Scale({"run.rounds": 50, "record.every": 1}, seeds=(1, 2), data=("mnist",))
    full = Scale({"run.rounds": ITERATIONS, "record.every": 2}, seeds=(1, 2, 3), data=("mnist",))
    remarks = (
        CLOCK,
        "The paper tunes γ and λ for IR-IG, 10/k^0.8 and 1/k^0.1, and gives them to all; so do we. It averages ten "
        "runs; here seeds are starts, samples and their order are drawn once. It prints no numbers.",
    )
    claims = (
        Claim(
            "Time falls with the number of clients, and FISM is faster than IR-IG for every S",
            time_falls,
            "one client of FISM does the same sweep as IR-IG, but for the subgradient of H, which costs little in "
            "compiled code.",
        ),
        Claim(
            "FISM with S = 4 and S = 8 has higher accuracy and lower loss in a given time than S = 1, S = 2 and IR-IG",
            many_are_best,
            "the digits 0 and 1 are told apart after one or two passes, and what is left are a few of 2,115 test "
            "images, on which the least loss is not the least error.",
        ),
        Claim(
            "FISM with S = 1 is worse than IR-IG after as many iterations",
            one_is_worse,
            "a pass takes one step γ_k λ_k along a subgradient of H at its start, which overshoots while γ_k λ_k > 2, "
            "in the first five iterations; after them the two are alike.",
        ),
    )

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        return {
            label(m, name): {**keys, "problem.train": m, "record.metrics": m == TRAIN}
            for m in SAMPLES[scale]
            for name, keys in METHODS.items()
        }

    def table(self, results: Results) -> Table:
        times, found = seconds(results), curves(results)
        until = end([run for runs in found.values() for run in runs])
        columns = ["method", *(f"{ITERATIONS} iterations, m = {m} (s)" for m in times), "to accuracy 0.998 (s)",
                   "to accuracy 0.998 (iterations)", f"accuracy at {until:.2g} s", f"loss at {until:.2g} s",
                   "accuracy at the end", "loss at the end"]  # fmt: skip
        rows = [
            [name, *(times[m][name] for m in times),
             *(mean(passage(run, "accuracy", 0.998, axis) for run in runs) for axis in ("time", "round")),
             *(at_budget(runs, metric, until) for metric in ("accuracy", "loss")),
             *(mean(run[metric][-1] for run in runs) for metric in ("accuracy", "loss"))]
            for name, runs in found.items()
        ]  # fmt: skip
        iterations = round(next(iter(found.values()))[0]["round"][-1])
        notes = [
            f"m = {TRAIN} where it is not said; the end is after {iterations} iterations; the loss is F, the sum over "
            "all training samples. The paper prints curves only."
        ]
        return Table(columns, rows, notes)

    def draw(self, figure: Any, results: Results) -> None:
        times, found = seconds(results), curves(results)
        until = end([run for runs in found.values() for run in runs])
        factor, unit = (1.0, "seconds") if until > 1 else (1e-3, "milliseconds")
        figure.set_size_inches(figure.get_figwidth(), 5.2)
        (by_size, by_round), (accuracy, loss) = figure.subplots(2, 2)
        names = {name: name if name == IRIG else f"FISM, {name}" for name in METHODS}
        for index, (name, runs) in enumerate(found.items()):
            style = line(index)
            by_size.plot(list(times), [row[name] for row in times.values()], marker="o", label=names[name], **style)
            for axes, metric, against in ((accuracy, "accuracy", "time"), (loss, "loss", "time"),
                                          (by_round, "loss", "round")):  # fmt: skip
                last = until if against == "time" else runs[0]["round"][-1]
                places = np.linspace(0, last, 500)
                values = np.mean([[value_at(run, metric, p, against) for p in places] for run in runs], axis=0)
                places = places / factor if against == "time" else places
                axes.plot(places, 1 - values if metric == "accuracy" else values, **style)
        by_size.set_title(f"Figure 2: seconds of {ITERATIONS} iterations")
        by_size.set_xlabel("training samples m")
        by_size.set_ylabel("seconds")
        by_size.set_ylim(0)
        by_round.set_title(f"Loss by iterations, m = {TRAIN:,}")
        by_round.set_xlabel("iterations")
        accuracy.set_title(f"Figure 3: test error by time, m = {TRAIN:,}")
        accuracy.set_ylabel("part of test images mistaken")
        loss.set_title(f"Figure 3: training loss by time, m = {TRAIN:,}")
        for axes in (accuracy, loss):
            axes.set_xlabel(f"{unit}, a machine per client")
            axes.set_xlim(0, until / factor)
        for axes in (accuracy, loss, by_round):
            axes.set_yscale("log")
        for axes in (loss, by_round):
            axes.set_ylabel("training loss, sum of all samples")
        figure.legend(*by_size.get_legend_handles_labels(), loc="outside upper center", ncols=5)
