"""Figures 4 and 6 of the RABO paper: what an iteration costs with submodels, and with whole models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fbompi.reproduce.drawing import bars
from fbompi.reproduce.experiment import Claim, Experiment, Keys, Results, Scale, ScaleName, Table, Verdict, judged
from fbompi.reproduce.measures import Columns, along, mean
from fbompi.reproduce.papers.rabo import (
    BACKBONE,
    CAPACITIES,
    FEDMBO,
    FEWSHOT,
    FEWSHOT_FULL,
    FEWSHOT_SMALL,
    FORMULAS,
    PAPER,
    two_levels,
)
from fbompi.reproduce.papers.rabo_vsloss import RaboVsLoss

TASKS = ("few-shot", "loss tuning")
METHODS = ("FedMBO", "RABO", "RAFBO, 1 coordinate", "RAFBO, 8 coordinates")
COSTS = {"computation": "work", "communication": "bytes"}
PRINTED = {  # per cent of FedMBO's
    ("few-shot", "RABO", "computation"): 26.7, ("few-shot", "RAFBO", "computation"): 17.8,
    ("few-shot", "RABO", "communication"): 26.7, ("few-shot", "RAFBO", "communication"): 26.7,
    ("loss tuning", "RABO", "computation"): 50.0, ("loss tuning", "RAFBO", "computation"): 25.0,
    ("loss tuning", "RABO", "communication"): 25.0, ("loss tuning", "RAFBO", "communication"): 25.0,
}  # fmt: skip


def name(method: str, task: str) -> str:
    return f"{method}, {task}"


def cost(run: Columns, what: str) -> float:
    """Of one outer round."""
    return float(along(run, COSTS[what])[-1] / run["round"][-1])


def share(results: Results, method: str, task: str, what: str) -> float:
    """A method's cost in per cent of FedMBO's."""
    own, whole = (mean(cost(run, what) for run in results[name(m, task)]) for m in (method, "FedMBO"))
    return 100 * own / whole


def printed(method: str, task: str, what: str) -> float | None:
    return PRINTED.get((task, method.partition(",")[0], what))


def saved(results: Results, task: str, what: str, least: Mapping[str, float]) -> Verdict:
    """Whether RABO, and RAFBO at its cheapest, have the cost that a factor leaves; a third more is near enough."""
    shares = {method: share(results, method, task, what) for method in METHODS[1:]}
    parts = [shares[method] <= 1.33 * 100 / least[method.partition(",")[0]] for method in METHODS[1:3]]
    told = ", ".join(f"{method} {value:.0f} % ({100 / value:.2g}×)" for method, value in shares.items())
    wanted = ", ".join(f"{method} {printed(method, task, what):g} %" for method in least)
    return judged(parts, f"of FedMBO's {what}: {told}", f"The paper has {wanted}.")


class RaboCost(Experiment):
    """What submodels save."""

    name = "rabo-cost"
    paper = PAPER
    figure = "Figures 4 and 6"
    about = (
        "Computation and communication of a global iteration, as shares of FedMBO's with whole models, in both tasks."
    )
    keys = {"clients.count": 10, "delays.model": "none", "record.iterates": False, "algorithm.step_x": "auto"}
    small = Scale({"run.rounds": 6, "record.every": 6}, seeds=(1,), data=("omniglot", "cifar10"))
    full = Scale({"run.rounds": 30, "record.every": 30}, seeds=(1,), data=("omniglot", "cifar10"))
    remarks = (
        BACKBONE,
        FORMULAS,
        "Computation is samples times coordinates that oracles were given (column work), communication all bytes of "
        "messages, both per outer round and over all clients. All methods take five steps on y per iteration; "
        "FedMBO's chains have up to five factors, RABO's sum five terms, RAFBO's map five steps. Capacities are 1 to "
        "1/16 in the few-shot task, 1/2 of y in the other.",
    )
    claims = (
        Claim(
            "Few-shot: computation falls fivefold (to 26.7 % with RABO, 17.8 % with RAFBO)",
            lambda results: saved(results, "few-shot", "computation", {"RABO": 100 / 26.7, "RAFBO": 100 / 17.8}),
            "the mean capacity is 39 %, and RABO takes as many products per iteration as FedMBO or more; RAFBO takes "
            "(coordinates + 2) × T gradients once J is what it must be, and not the difference of two gradients",
        ),
        Claim(
            "Few-shot: communication falls fourfold (to 26.7 %)",
            lambda results: saved(results, "few-shot", "communication", {"RABO": 100 / 26.7, "RAFBO": 100 / 26.7}),
            "messages are large beside what submodels save",
        ),
        Claim(
            "Loss tuning: computation falls twofold with RABO, fourfold with RAFBO",
            lambda results: saved(results, "loss tuning", "computation", {"RABO": 2, "RAFBO": 4}),
            "half models halve the work of an oracle, but RABO asks for more products per iteration than FedMBO's "
            "chains, which have two or three factors on average, and RAFBO for (coordinates + 2) × T gradients",
        ),
        Claim(
            "Loss tuning: communication falls to a quarter",
            lambda results: saved(results, "loss tuning", "communication", {"RABO": 4, "RAFBO": 4}),
            "messages are large beside what submodels save",
        ),
    )

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        few = {**FEWSHOT, **(FEWSHOT_SMALL if scale == "small" else FEWSHOT_FULL), "clients.capacity": CAPACITIES}
        tail = {**RaboVsLoss.keys, **RaboVsLoss().scale(scale).keys, **self.scale(scale).keys,
                "clients.capacity": 0.5, "algorithm.masked": "y"}  # fmt: skip
        tail = {key: value for key, value in tail.items() if key != "algorithm.step_x"}
        methods: dict[str, Keys] = {
            "FedMBO": FEDMBO, "RABO": two_levels("RABO"),
            "RAFBO, 1 coordinate": two_levels("RAFBO", 1), "RAFBO, 8 coordinates": two_levels("RAFBO", 8),
        }  # fmt: skip
        cases: dict[str, Keys] = {}
        for task, common in zip(TASKS, (few, tail)):
            for method, keys in methods.items():
                own = {**common, **keys}
                if method == "FedMBO":
                    own = {k: v for k, v in own.items() if k not in ("clients.capacity", "algorithm.masked")}
                cases[name(method, task)] = own
        return cases

    def table(self, results: Results) -> Table:
        columns = ["task", "method"] + [f"{what} (%){p}" for what in COSTS for p in ("", " printed")] + [
            "work a round (1e6)", "MB a round", "client seconds a round"]  # fmt: skip
        rows: list[list[Any]] = []
        for task in TASKS:
            for method in METHODS:
                runs = results[name(method, task)]
                shares = [cell for what in COSTS for cell in (
                    share(results, method, task, what), printed(method, task, what) or 100.0)]  # fmt: skip
                rows.append([task, method, *shares, mean(cost(run, "computation") for run in runs) / 1e6,
                             mean(cost(run, "communication") for run in runs) / 1e6,
                             mean(run["client_seconds"][-1] / run["round"][-1] for run in runs)])  # fmt: skip
        return Table(columns, rows, ["Per cent: of FedMBO's with whole models, in the same task."])

    def draw(self, figure: Any, results: Results) -> None:
        for axes, task in zip(figure.subplots(1, 2), TASKS):
            series: dict[str, Sequence[float]] = {}
            for what in COSTS:
                series[f"{what}, here"] = [share(results, method, task, what) for method in METHODS]
                series[f"{what}, printed"] = [printed(method, task, what) or 100.0 for method in METHODS]
            bars(axes, METHODS, series, "% of FedMBO's")
            axes.set_xticks(range(len(METHODS)), [method.replace(", ", "\n") for method in METHODS])
            axes.axhline(100, color="black", linewidth=0.6, linestyle=":")
            axes.set_title(f"{task}: cost of a global iteration")
        figure.axes[0].legend(loc="upper left", fontsize=6)
