"""The kinds of pictures by name, and the way from run files to a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fbompi.errors import UserError
from fbompi.plots import curves, overview, partition, staleness, timeline, weights
from fbompi.plots.figure import drawing, ending, names, save
from fbompi.runs import Run

KINDS = {
    "overview": "one figure with what applies to the run",
    "metrics": "every metric against one axis",
    "costs": "one metric against rounds, time, bytes and oracle calls",
    "staleness": "how old answers were",
    "timeline": "who computed, who waited, when answers arrived; stragglers, rejected answers, lost clients",
    "weights": "mean weights of clean and of corrupted samples",
    "partition": "the map of clients and classes",
}
_PARTS = {"staleness": staleness, "timeline": timeline, "weights": weights, "partition": partition}


def plot(paths: Sequence[str | Path], kind: str, against: str, metric: str, out: Path) -> None:
    """Draw runs into a file."""
    ending(out)
    with drawing(f"plot {out}") as figure_of:
        runs = [Run(path) for path in paths]
        called = names([run.path for run in runs])
        if kind in _PARTS:
            for run in runs:
                if why := _PARTS[kind].missing(run):
                    raise UserError(f"{run.path}: has nothing to show as {kind}: {why}")
        if kind == "metrics":
            made = curves.metrics_figure(figure_of, runs, called, metric, against)
        elif kind == "costs":
            made = curves.costs_figure(figure_of, runs, called, metric)
        elif kind == "staleness":
            made = staleness.figure(figure_of, runs, called)
        elif kind == "timeline":
            made = timeline.figure(figure_of, runs, called)
        elif kind == "weights":
            made = weights.figure(figure_of, runs, called, against)
        elif kind == "partition":
            made = partition.figure(figure_of, runs, called)
        else:
            made = overview.figure(figure_of, runs, called, metric, against)
        save(made, out)
