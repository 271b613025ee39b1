"""Metrics against rounds, time, bytes or oracle calls."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.axes import along, label, scale, unit
from fbompi.comparison import grouped
from fbompi.errors import UserError
from fbompi.plots.figure import COLUMN, PAGE, line, plain
from fbompi.runs import Run

AGAINST = ("round", "time", "bytes", "calls")
ALIKE = (("accuracy", "balanced_accuracy", "auc"), ("x_error", "y_error"), ("upper", "lower"))
SPAN = 30  # the largest over the smallest: from there on logarithmic
FEW = 16  # rows that get a mark each
LEGEND = 0.17  # inches of a line of a legend


def metric_of(runs: Sequence[Run], asked: str = "") -> str:
    """The metric to show: the one asked for, or the most telling one that all runs know."""
    if asked:
        for run in runs:
            if asked not in run or run[asked].ndim > 1:
                raise UserError(f'{run.path}: has no metric "{asked}": it has {", ".join(run.metrics)}')
        return asked
    for name in runs[0].metrics:
        if all(name in run and np.isfinite(run[name]).any() for run in runs):
            return name
    raise UserError(f"{runs[0].path}: has no metric that could be shown and that all runs have")


def panel(axes: Any, runs: Sequence[Run], names: Sequence[str], metrics: Sequence[str], against: str) -> None:
    """Draw one metric of several runs, or several metrics of one."""
    factor, word = scale(unit(runs, against), max((along(r, against).max(initial=0) for r in runs), default=0))
    values = []
    told = list(enumerate(map(plain, metrics))) if len(metrics) > 1 else told_apart(runs, names)
    for (index, name), (run, metric) in zip(told, ((run, metric) for run in runs for metric in metrics)):
        known = np.isfinite(run[metric])
        values.append(run[metric][known])
        places, mark = along(run, against)[known] / factor, "o" if known.sum() <= FEW else ""
        axes.plot(places, values[-1], **line(index), marker=mark, label=name)
    if logarithmic(np.concatenate(values)):
        axes.set_yscale("log")
    axes.set_xlabel(label(against, word))
    axes.set_ylabel(plain(", ".join(metrics)) + _unit(runs[0], metrics[0]))
    stretch(axes, runs, against, factor)
    if len(metrics) > 1:
        axes.legend(loc="best", handlelength=3)


def told_apart(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[int, str]]:
    """The number of each run's line, by which it looks, and its words for the legend: runs that differ in their seed
    alone look alike, and the first speaks for all."""
    groups = grouped(runs)
    if all(len(group.runs) == 1 or len(set(group.seeds)) < len(group.runs) for group in groups):
        return [(index, plain(name)) for index, name in enumerate(names)]
    of = {id(run): (index, group) for index, group in enumerate(groups) for run in group.runs}
    return [(of[id(r)][0], plain(of[id(r)][1].title) if r is of[id(r)][1].runs[0] else "_") for r in runs]


def stretch(axes: Any, runs: Sequence[Run], against: str, factor: float) -> None:
    """The x axis from the first to the last recorded row, whether or not the metric is known there."""
    places = np.concatenate([along(run, against) for run in runs]) / factor
    places = places[np.isfinite(places)]
    first, last = places.min(initial=0.0), places.max(initial=0.0)
    if first == last:  # nothing but the start
        axes.set_xlim(first - 1, first + 1)
        axes.set_xticks([first])
        return
    axes.set_xlim(first - 0.02 * (last - first), last + 0.02 * (last - first))
    whole_numbers(axes, against)


def whole_numbers(axes: Any, against: str) -> None:
    """There are no half rounds."""
    if against in ("round", "communication"):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def titled(axes: Any, run: Run, metric: str) -> None:
    """Say above a panel what the metric is, in the file's words."""
    axes.set_title("\n".join(textwrap.wrap(plain(run.meaning(metric)), 44)[:3]))


def _unit(run: Run, metric: str) -> str:
    return f" ({plain(run.unit(metric))})" if run.unit(metric) else ""


def logarithmic(values: np.ndarray) -> bool:
    """Whether values are better seen on a logarithmic scale."""
    return bool(len(values)) and values.min() > 0 and values.max() > SPAN * values.min()


def beside(run: Run, metric: str) -> list[str]:
    """The metrics of a run that go into one panel with this one."""
    alike = next((names for names in ALIKE if metric in names), (metric,))
    return [name for name in alike if name in run and np.isfinite(run[name]).any()]


def legend(figure: Any, axes: Any, title: str = "") -> None:
    """One legend above all panels, which the figure grows by."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        width = max(map(len, labels))
        columns = int(np.clip(figure.get_figwidth() * 15 // (width + 5), 1, 6))
        figure.set_figheight(figure.get_figheight() + LEGEND * -(-len(labels) // columns))
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, handlelength=3, title=title or None)


def costs(runs: Sequence[Run]) -> list[str]:
    """What a metric is drawn against; no clock that stood still, and of a run that has just begun rounds alone."""
    return [name for name in AGAINST if name == "round" or any(along(run, name).max(initial=0) > 0 for run in runs)]


def costs_grid(figure_of: Any, count: int) -> tuple[Any, Any]:
    """A figure with so many panels that share their y axis, and those."""
    rows, columns = {1: (1, 1), 4: (2, 2)}.get(count, (1, count))
    figure = figure_of(figsize=(COLUMN if count == 1 else PAGE, 2.3 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, sharey=True, squeeze=False)


def metrics_figure(figure_of: Any, runs: Sequence[Run], names: Sequence[str], asked: str, against: str) -> Any:
    """Every metric in a panel of its own, or the one asked for."""
    chosen = [metric_of(runs, asked)] if asked else [
        name for name in runs[0].metrics if all(name in run and np.isfinite(run[name]).any() for run in runs)
    ]  # fmt: skip
    if not chosen:
        raise UserError(f"{runs[0].path}: has no metric that could be shown and that all runs have")
    columns = min(len(chosen), 2)
    rows = -(-len(chosen) // columns)
    figure = figure_of(figsize=((COLUMN, PAGE)[columns - 1], 2.4 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, metric in zip(grid, chosen):
        panel(axes, runs, names, [metric], against)
        titled(axes, runs[0], metric)
    for axes in grid[len(chosen) :]:
        axes.remove()
    legend(figure, grid[0])
    return figure


def costs_figure(figure_of: Any, runs: Sequence[Run], names: Sequence[str], asked: str) -> Any:
    """One metric against everything that a run costs."""
    metric = metric_of(runs, asked)
    chosen = costs(runs)
    figure, grid = costs_grid(figure_of, len(chosen))
    for axes, against in zip(grid.ravel(), chosen):
        panel(axes, runs, names, [metric], against)
    for axes in grid[:, 1:].ravel():
        axes.set_ylabel("")
    titled(grid[0, 0], runs[0], metric)
    legend(figure, grid[0, 0])
    return figure
