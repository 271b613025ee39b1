"""Metrics against rounds, time, bytes or oracle calls."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.axes import along, label, scale, unit
from fbompi.errors import UserError
from fbompi.plots.figure import COLUMN, PAGE, line, plain
from fbompi.runs import Run

AGAINST = ("round", "time", "bytes", "calls")
ALIKE = (("accuracy", "balanced_accuracy", "auc"), ("x_error", "y_error"), ("upper", "lower"))
SPAN = 30  # the largest over the smallest: from there on logarithmic
FEW = 16  # rows that get a mark each


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
    for index, (run, metric) in enumerate((run, metric) for run in runs for metric in metrics):
        known = np.isfinite(run[metric])
        values.append(run[metric][known])
        places, mark = along(run, against)[known] / factor, "o" if known.sum() <= FEW else ""
        name = metric if len(metrics) > 1 else names[index]
        axes.plot(places, values[-1], **line(index), marker=mark, label=plain(name))
    if logarithmic(np.concatenate(values)):
        axes.set_yscale("log")
    axes.set_xlabel(label(against, word))
    axes.set_ylabel(plain(", ".join(metrics)) + _unit(runs[0], metrics[0]))
    axes.margins(x=0.02)
    whole_numbers(axes, against)
    if len(metrics) > 1:
        axes.legend(loc="best", handlelength=1.5)


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


def legend(figure: Any, axes: Any) -> None:
    """One legend above all panels."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        width = max(map(len, labels))
        columns = int(np.clip(figure.get_figwidth() * 15 // (width + 5), 1, 6))
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, handlelength=2)


def metrics_figure(figure_of: Any, runs: Sequence[Run], names: Sequence[str], asked: str, against: str) -> Any:
    """Every metric in a panel of its own, or the one asked for."""
    chosen = [metric_of(runs, asked)] if asked else [
        name for name in runs[0].metrics if all(name in run and np.isfinite(run[name]).any() for run in runs)
    ]  # fmt: skip
    if not chosen:
        raise UserError(f"{runs[0].path}: has no metric that could be shown and that all runs have")
    columns = min(len(chosen), 2)
    rows = -(-len(chosen) // columns)
    figure = figure_of(figsize=((COLUMN, PAGE)[columns - 1], 2.4 * rows + 0.3), layout="constrained")
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
    figure = figure_of(figsize=(PAGE, 4.6), layout="constrained")
    grid = figure.subplots(2, 2, sharey=True).ravel()
    for axes, against in zip(grid, AGAINST):
        panel(axes, runs, names, [metric], against)
    for axes in grid[1::2]:
        axes.set_ylabel("")
    titled(grid[0], runs[0], metric)
    legend(figure, grid[0])
    return figure
