"""What figures of experiments have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.axes import label, scale, unit
from fbompi.plots.curves import whole_numbers
from fbompi.plots.figure import line, plain
from fbompi.reproduce.experiment import Results
from fbompi.reproduce.measures import end, known, value_at


def lines(axes: Any, results: Results, metric: str, against: str = "time", first: int = 0, common: bool = True) -> None:
    """One line per case, the mean over its seeds, with their range; as far as all cases have got, or each (`common`).

    On a clock a row's value stands until the next row, and a mean is of what stands; by rounds, of which not all have
    a row, lines are straight between rows. Colours are counted from `first` on.
    """
    everything = [run for runs in results.values() for run in runs]
    until = end(everything, against) if common else max(end(runs, against) for runs in results.values())
    factor, word = scale(unit(everything, against), until)
    places = np.linspace(0, until, 200)
    for index, (name, runs) in enumerate(results.items(), first):
        values = np.array([_course(run, metric, places, against) for run in runs])
        axes.plot(places / factor, values.mean(axis=0), **line(index), label=plain(name))
        if len(runs) > 1:
            low, high = values.min(axis=0), values.max(axis=0)
            axes.fill_between(places / factor, low, high, color=line(index)["color"], alpha=0.15, linewidth=0)
    axes.set_xlim(0, until / factor)
    axes.set_xlabel(label(against, word))
    axes.set_ylabel(plain(metric))
    whole_numbers(axes, against)


def _course(run: Any, metric: str, places: np.ndarray, against: str) -> np.ndarray:
    """A metric at places on an axis; NaN beyond the end of the run."""
    if against in ("round", "communication"):
        return np.interp(places, *known(run, metric, against), right=np.nan)
    return np.array([value_at(run, metric, place, against) for place in places])


def legend(figure: Any, axes: Any, results: Results) -> None:
    """One legend above all panels, which says what lines and bands are."""
    handles, labels = axes.get_legend_handles_labels()
    seeds = min(len(runs) for runs in results.values())
    title = f"mean over {seeds} seeds, and their range" if seeds > 1 else "one seed"
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6), title=title)


def bars(axes: Any, names: Sequence[str], series: dict[str, Sequence[float]], unit: str) -> None:
    """Groups of bars: one group per name, one bar per series, or one colour per name where there is one series.

    What is not finite is left out and marked.
    """
    width = 0.8 / len(series)
    for index, (title, values) in enumerate(series.items()):
        places = np.arange(len(names)) + (index - (len(series) - 1) / 2) * width
        heights = np.asarray(values, float)
        finite = np.isfinite(heights)
        colours = [line(i if len(series) == 1 else index)["color"] for i in np.flatnonzero(finite).tolist()]
        axes.bar(places[finite], heights[finite], width, color=colours, label=plain(title))
        for place in places[~finite]:
            axes.text(place, 0, "never", rotation=90, ha="center", va="bottom", fontsize=6)
    axes.set_xticks(range(len(names)), [plain(name) for name in names])
    axes.set_ylabel(plain(unit))
