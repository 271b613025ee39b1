"""Groups of runs: means over seeds with 95 % bands, against everything that a run costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fbompi.axes import along, label, scale, unit
from fbompi.comparison import Group, grouped, t_quantile
from fbompi.plots import curves
from fbompi.plots.figure import GREY, drawing, ending, line, plain, save
from fbompi.runs import Run

POINTS = 200


def plot(runs: Sequence[Run], figures: dict[str, Any], metric: str, out: Path) -> None:
    """Draw a comparison into a file."""
    ending(out)
    aim = figures["target"]
    with drawing(f"compare -o {out}") as figure_of:
        name = curves.metric_of(runs, metric or (aim["metric"] if aim else ""))
        groups, chosen = grouped(runs), curves.costs(runs)
        made, grid = curves.costs_grid(figure_of, len(chosen))
        for axes, against in zip(grid.ravel(), chosen):
            _panel(axes, groups, runs, name, against)
            if aim and aim["metric"] == name:
                words = plain(f"{name} {'≥' if aim['rising'] else '≤'} {aim['value']:.4g}")
                axes.axhline(aim["value"], color=GREY, linewidth=0.8, label=words)
        for axes in grid[:, 0]:
            axes.set_ylabel(plain(name))
        curves.titled(grid[0, 0], runs[0], name)
        several = any(len(group.runs) > 1 for group in groups)
        curves.legend(made, grid[0, 0], "mean over seeds with 95 % interval" if several else "")
        save(made, out)


def _panel(axes: Any, groups: Sequence[Group], runs: Sequence[Run], metric: str, against: str) -> None:
    factor, word = scale(unit(runs, against), max(along(run, against).max(initial=0) for run in runs))
    everything = []
    for index, group in enumerate(groups):
        places, mean, half = band(group, metric, against)
        everything.append(mean)
        axes.plot(places / factor, mean, **line(index), label=plain(group.title))
        if half is not None:
            axes.fill_between(
                places / factor, mean - half, mean + half, color=line(index)["color"], alpha=0.2, linewidth=0
            )
    if curves.logarithmic(np.concatenate(everything)):
        axes.set_yscale("log")
    axes.set_xlabel(label(against, word))
    curves.stretch(axes, runs, against, factor)


def band(group: Group, metric: str, against: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Places that all runs of a group have passed, the mean there, and half the width of the 95 % interval."""
    ways = [(along(run, against), run[metric]) for run in group.runs]
    ways = [(way[np.isfinite(values)], values[np.isfinite(values)]) for way, values in ways]
    ways = [(way, values) for way, values in ways if len(way)]
    if not ways:
        return np.empty(0), np.empty(0), None
    begin, end = max(way[0] for way, _ in ways), min(way[-1] for way, _ in ways)
    same = all(np.array_equal(way, ways[0][0]) for way, _ in ways)
    places = ways[0][0] if same else np.linspace(begin, max(begin, end), POINTS)
    values = np.array([np.interp(places, way, found) for way, found in ways])
    if len(values) < 2:
        return places, values[0], None
    return places, values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values)) * t_quantile(len(values) - 1)
