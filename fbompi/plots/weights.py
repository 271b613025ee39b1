"""How a cleaning run tells clean samples from corrupted ones: their mean weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.axes import along, label, scale, unit
from fbompi.plots import curves
from fbompi.plots.figure import COLOURS, COLUMN, DASHES, PAGE, plain
from fbompi.runs import Run

COLUMNS = {"weight_clean": (COLOURS[0], "clean samples"), "weight_corrupted": (COLOURS[1], "corrupted samples")}


def missing(run: Run) -> str:
    """Why this cannot be drawn; empty, if it can."""
    return "" if all(name in run for name in COLUMNS) else "its problem does not weigh samples"


def panel(axes: Any, run: Run, against: str, legend: bool = False) -> None:
    """Mean weights of both kinds of samples."""
    places = along(run, against)
    factor, word = scale(unit([run], against), places.max(initial=0))
    for index, (name, (colour, words)) in enumerate(COLUMNS.items()):
        known = np.isfinite(run[name])
        mark = "o" if known.sum() <= curves.FEW else ""
        axes.plot(
            places[known] / factor, run[name][known], color=colour, linestyle=DASHES[index], marker=mark, label=words
        )
    axes.set_ylim(0, 1)
    axes.set_xlabel(label(against, word))
    axes.set_ylabel("mean weight")
    curves.stretch(axes, [run], against, factor)
    if legend:
        axes.legend(loc="best", handlelength=3)


def figure(figure_of: Any, runs: Sequence[Run], names: Sequence[str], against: str) -> Any:
    """A panel per run."""
    columns = min(len(runs), 2)
    rows = -(-len(runs) // columns)
    made = figure_of(figsize=((COLUMN, PAGE)[columns - 1], 2.4 * rows), layout="constrained")
    grid = made.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes, run, name in zip(grid, runs, names):
        panel(axes, run, against)
        axes.set_title(plain(name))
    for axes in grid[len(runs) :]:
        axes.remove()
    curves.legend(made, grid[0])
    return made
