"""How old answers were when they arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.plots.curves import legend, told_apart
from fbompi.plots.figure import COLUMN, GREY, PALE, line, plain
from fbompi.runs import Run

BINS = 50


def missing(run: Run) -> str:
    """Why this cannot be drawn; empty, if it can."""
    return "" if len(run.arrivals) else "no answer has arrived"


def edges(ages: np.ndarray) -> np.ndarray:
    """Bins of one, or several, whole ages each."""
    largest = int(ages.max(initial=0))
    width = max(1, -(-(largest + 1) // BINS))
    return np.arange(0, largest + width + 1, width) - 0.5


def panel(axes: Any, runs: Sequence[Run], names: Sequence[str]) -> None:
    """A histogram by kind of task for one run, outlines for several."""
    ages = [run.arrivals["age"] for run in runs]
    bins = edges(np.concatenate(ages))
    if not any(age.any() for age in ages):
        axes.bar(range(len(runs)), [len(age) for age in ages], 0.5, color=PALE)
        axes.set_xticks(range(len(runs)), [plain(name) if len(runs) > 1 else "0" for name in names])
        axes.set_xlim(-1, len(runs))
        axes.set_xlabel("age of an answer\n(rounds of communication)" if len(runs) == 1 else "")
        axes.set_ylabel("answers" if len(runs) == 1 else "answers, all of age 0")
        axes.grid(False, axis="x")
        return
    if len(runs) == 1:
        kinds = [code for code in runs[0].kinds if (runs[0].arrivals["kind"] == code).any()]
        axes.stairs(np.histogram(ages[0], bins)[0], bins, fill=True, color=PALE, label="all")
        for index, code in enumerate(kinds if len(kinds) > 1 else []):
            counts = np.histogram(ages[0][runs[0].arrivals["kind"] == code], bins)[0]
            axes.stairs(counts, bins, **line(index), linewidth=1, label=plain(runs[0].kinds[code]))
        mean, late = float(ages[0].mean()), float(np.percentile(ages[0], 95))
        axes.axvline(mean, color="black", linewidth=1, linestyle=(0, (4, 2)), label=f"mean {mean:.3g}")
        axes.axvline(late, color=GREY, linewidth=1, linestyle=(0, (1, 1)), label=f"95 % at most {late:.3g}")
        axes.legend(loc="upper right", handlelength=1.4)
    else:
        for age, (index, name) in zip(ages, told_apart(runs, names)):
            axes.stairs(np.histogram(age, bins)[0] / len(age), bins, **line(index), linewidth=1.2, label=name)
    if bins[-1] > 8:
        axes.set_yscale("log")
    axes.set_xlabel("age of an answer\n(rounds of communication)")
    axes.set_ylabel("answers" if len(runs) == 1 else "fraction of answers")


def figure(figure_of: Any, runs: Sequence[Run], names: Sequence[str]) -> Any:
    """One histogram of all runs."""
    made = figure_of(figsize=(COLUMN * (1 if len(runs) == 1 else 1.3), 2.6), layout="constrained")
    axes = made.subplots()
    panel(axes, runs, names)
    if len(runs) > 1:
        legend(made, axes)
    return made
