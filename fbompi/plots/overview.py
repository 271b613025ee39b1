"""One figure of what matters in a run, or in several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fbompi.activity import activity
from fbompi.errors import UserError
from fbompi.plots import curves, partition, staleness, timeline, weights
from fbompi.plots.figure import PAGE, plain
from fbompi.runs import Run
from fbompi.summary import page

ROW = 2.15  # inches
LANES = 20  # clients in the timeline, so that the figure fits on a page
Panel = Callable[[Any], None]


def figure(figure_of: Any, runs: Sequence[Run], names: Sequence[str], asked: str, against: str) -> Any:
    """The panels that apply: curves, weights, staleness, partition and, of a single run, its clients' timeline."""
    if not any(len(run) for run in runs):
        raise UserError(f"{runs[0].path}: nothing is recorded yet")
    runs, names = zip(*((run, name) for run, name in zip(runs, names) if len(run)))
    panels = _single(runs[0], asked, against) if len(runs) == 1 else _several(runs, names, asked, against)
    timed = len(runs) == 1 and not timeline.missing(runs[0])
    rows = [panels[i : i + 3] for i in range(0, len(panels), 3)]
    if len(rows) > 1 and len(rows[-1]) == 1:  # 2 and 2 rather than 3 and 1
        rows[-2:] = [rows[-2][:2], [rows[-2][2], *rows[-1]]]
    heights = [ROW] * len(rows)
    if timed:
        a = activity(runs[0])
        lanes, span = a.shown(LANES), timeline.window(a)
        heights.append(timeline.LANE * len(lanes) + 0.8)
    made = figure_of(figsize=(PAGE, sum(heights) + 0.45), layout="constrained")
    grid = made.add_gridspec(len(heights), 6, height_ratios=heights)
    first = None
    for row, members in enumerate(rows):
        width = 6 // len(members)
        for column, draw in enumerate(members):
            axes = made.add_subplot(grid[row, column * width : (column + 1) * width])
            draw(axes)
            first = first or axes
    if timed:
        axes = made.add_subplot(grid[len(rows), :])
        timeline.detail(axes, runs[0], a, lanes, span)
        timeline.legend(axes, a)
        shown = timeline.note(runs[0], a, lanes, span)
        axes.set_title(shown, loc="right", fontsize=7)
    if len(runs) > 1 and first is not None:
        curves.legend(made, first)
    else:
        made.suptitle(plain(page(runs[0].summary).splitlines()[0]), x=0.01, ha="left")
    return made


def _single(run: Run, asked: str, against: str) -> list[Panel]:
    panels: list[Panel] = []
    metrics = [] if not run.metrics else [curves.beside(run, curves.metric_of([run], asked))]
    if not asked and "upper" in run and np.isfinite(run["upper"]).any() and metrics != [curves.beside(run, "upper")]:
        metrics.append(curves.beside(run, "upper"))
    if not asked and len(metrics) == 1:
        others = [name for name in run.metrics if name not in metrics[0] and np.isfinite(run[name]).any()]
        metrics += [curves.beside(run, name) for name in others[:1]]
    for chosen in metrics:
        panels.append(partial(curves.panel, runs=[run], names=[""], metrics=chosen, against=against))
    if not weights.missing(run):
        panels.append(partial(weights.panel, run=run, against=against, legend=True))
    if not staleness.missing(run) and run.arrivals["age"].any():
        panels.append(lambda axes: staleness.panel(axes, [run], [""]))
    if not partition.missing(run):
        part, table = partition.first(run.partition) or ("", np.zeros((1, 1)))
        panels.append(lambda axes: partition.panel(axes, run.partition_rule, part, table, (3.2, 1.5), 42))
    return panels


def _several(runs: Sequence[Run], names: Sequence[str], asked: str, against: str) -> list[Panel]:
    metric = curves.metric_of(runs, asked)
    panels: list[Panel] = [
        partial(curves.panel, runs=runs, names=names, metrics=[metric], against=axis) for axis in curves.costs(runs)
    ]
    if metric != "upper" and all(np.isfinite(run["upper"]).any() for run in runs):
        panels.append(lambda axes: curves.panel(axes, runs, names, ["upper"], against))
    if not any(staleness.missing(run) for run in runs):
        panels.append(lambda axes: staleness.panel(axes, runs, names))
    return panels
