"""Figures 7 and 8 of the AFBO paper: AFBO against AFL, which has no distributed hypergradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fbompi.reproduce.drawing import legend, lines
from fbompi.reproduce.experiment import Claim, Keys, Results, Scale, ScaleName, Table, Tuned, Verdict, judged
from fbompi.reproduce.measures import best, last, mean, settled
from fbompi.reproduce.papers.afbo import (
    BOUND,
    CLEANING_FULL,
    CLEANING_SMALL,
    DIGITS,
    NON_IID,
    REMARKS,
    Race,
    method,
)

PARTITIONS = ("IID", "non-IID")
POINT = 0.005  # of accuracy: less is no difference
LITTLE = 0.02  # of accuracy


def accuracies(results: Results) -> dict[str, float]:
    """Where each case has settled: the claim is about what is reached, not how soon."""
    return {name: mean(settled(run, "accuracy") for run in runs) for name, runs in results.items()}


def afl_is_worse(results: Results) -> Verdict:
    """Whether AFL's accuracy is lower on either partition."""
    found = accuracies(results)
    gaps = {part: found[f"AFBO, {part}"] - found[f"AFL, {part}"] for part in PARTITIONS}
    measured = "; ".join(f"{p}: AFBO {found[f'AFBO, {p}']:.3f}, AFL {found[f'AFL, {p}']:.3f}" for p in PARTITIONS)
    losses = {name: mean(last(run, "upper") for run in runs) for name, runs in results.items()}
    told = "; ".join(f"{p} {losses[f'AFBO, {p}']:.3f} and {losses[f'AFL, {p}']:.3f}" for p in PARTITIONS)
    sentence = f"Lower by {POINT:g} at least counts. The validation loss, which both minimise, ends at: {told}."
    return judged([gap >= POINT for gap in gaps.values()], measured, sentence)


def heterogeneity_is_the_reason(results: Results) -> Verdict:
    """Whether AFL falls behind further where clients differ: only there the two hypergradients do."""
    found = accuracies(results)
    iid, other = (found[f"AFBO, {part}"] - found[f"AFL, {part}"] for part in PARTITIONS)
    sentence = "Of samples dealt out at random, local and global hypergradients differ by chance alone."
    return judged([other > iid + POINT], f"AFL is {iid:+.3f} behind on IID, {other:+.3f} on non-IID", sentence)


def little_degeneration(results: Results) -> Verdict:
    """Whether either method loses little accuracy where samples are not IID."""
    found = accuracies(results)
    lost = {name: found[f"{name}, IID"] - found[f"{name}, non-IID"] for name in ("AFBO", "AFL")}
    measured = ", ".join(f"{name} {-loss:+.3f}" for name, loss in lost.items())
    sentence = (
        f"Changes of accuracy from IID to two digits per client; a loss of {LITTLE:g} at most is taken as little."
    )
    learnt = {
        n: last(results[f"{n}, non-IID"][0], "accuracy") > results[f"{n}, non-IID"][0]["accuracy"][0] for n in lost
    }
    return judged([loss <= LITTLE and learnt[name] for name, loss in lost.items()], measured, sentence)


class AfboAfl(Race):
    """Whether a mean of local hypergradients will do."""

    name = "afbo-afl"
    figure = "Figures 7 and 8"
    about = "Hyper-cleaning of MNIST by AFBO and by AFL, which averages local hypergradients: accuracy against time."
    small = Scale({**CLEANING_SMALL.keys, "algorithm.step_x": Tuned(("auto", 3000.0))}, (1,), ("mnist",), DIGITS)
    full = CLEANING_FULL
    remarks = (*REMARKS, "How AFL trains y is not told; here every answer has a gradient and a local hypergradient.")
    claims = (
        Claim(
            "AFL's accuracy is lower than AFBO's, on IID and on non-IID data",
            afl_is_worse,
            "on clients with two digits a changed label is mostly one that the client has no clean sample of, and it "
            "gives itself away to the client's own validation samples; on IID data few validation samples of all ten "
            "digits cannot tell.",
        ),
        Claim(
            "the lack of a distributed hypergradient is what AFL's lower accuracy comes from",
            heterogeneity_is_the_reason,
            "shards are small, so that local hypergradients are wrong on IID data as well, and on two digits per "
            "client they are no worse a guide to wrong labels.",
        ),
        Claim("there is little degeneration of AFBO and AFL as data become non-IID", little_degeneration),
    )

    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        rounds = {"AFBO": 50, "AFL": 250} if scale == "small" else {"AFBO": 200, "AFL": 4000}
        found: dict[str, Keys] = {}
        for part in PARTITIONS:
            for name, number in rounds.items():
                bounds = {"algorithm.inner_bound": BOUND} if name == "AFBO" else {}
                own = NON_IID if part == "non-IID" else {}
                found[f"{name}, {part}"] = {**method(name, number), **bounds, **own}
        return found

    def table(self, results: Results) -> Table:
        found = accuracies(results)
        columns = ["method, data", "accuracy (last 5 rows)", "best accuracy", "validation loss", "weights: AUC"]
        rows = [
            [name, found[name], mean(best(run, "accuracy") for run in runs), mean(last(run, "upper") for run in runs),
             mean(last(run, "auc") for run in runs)]
            for name, runs in results.items()
        ]  # fmt: skip
        notes = ["AUC: how often a right label has more weight than a wrong one. The paper prints curves only."]
        return Table(columns, rows, notes)

    def order(self, results: Results) -> list[str]:
        found = accuracies(results)
        return sorted(results, key=lambda name: -found[name])

    def draw(self, figure: Any, results: Results) -> None:
        both = figure.subplots(1, 2, sharey=True)
        titles = ("IID: samples dealt out at random", "non-IID: two digits per client")
        for axes, part, title in zip(both, PARTITIONS, titles):
            lines(axes, {name: results[f"{name}, {part}"] for name in ("AFBO", "AFL")}, "accuracy", common=False)
            axes.set_title(f"hyper-cleaning, {title}")
            axes.set_ylabel("")
        both[0].set_ylabel("accuracy on test data")
        legend(figure, both[0], results)
