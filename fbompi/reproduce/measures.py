"""Figures of runs that judges and tables are made of. What was not reached takes for ever; NaN is never counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fbompi.axes import AXES

Columns = Mapping[str, Any] | Any  # a run, or anything that has columns by name


def along(run: Columns, axis: str) -> np.ndarray:
    """A run's places on an axis, one per row."""
    columns = AXES[axis][1] if axis in AXES else (axis,)
    return np.sum([np.asarray(run[column], float) for column in columns], axis=0)


def known(run: Columns, metric: str, axis: str = "time") -> tuple[np.ndarray, np.ndarray]:
    """Places and values of the rows in which a metric is known."""
    values = np.asarray(run[metric], float)
    there = np.isfinite(values)
    return along(run, axis)[there], values[there]


def last(run: Columns, metric: str) -> float:
    """The value at the end."""
    values = known(run, metric)[1]
    return float(values[-1]) if len(values) else math.nan


def settled(run: Columns, metric: str, rows: int = 5) -> float:
    """The mean of the last few values."""
    values = known(run, metric)[1]
    return float(values[-rows:].mean()) if len(values) else math.nan


def best(run: Columns, metric: str, until: float = math.inf, axis: str = "time") -> float:
    """The largest value, up to a place on an axis."""
    places, values = known(run, metric, axis)
    return float(max(values[places <= until], default=math.nan))


def passage(run: Columns, metric: str, level: float, axis: str = "time", rising: bool = True) -> float:
    """Where on an axis a metric first has a level; inf: never."""
    places, values = known(run, metric, axis)
    rows = np.flatnonzero(values >= level if rising else values <= level)
    return float(places[rows[0]]) if len(rows) else math.inf


def value_at(run: Columns, metric: str, place: float, axis: str = "time") -> float:
    """The value in the last row up to a place; NaN where the run has not got there."""
    places, values = known(run, metric, axis)
    if not len(places) or along(run, axis)[-1] < place or places[0] > place:
        return math.nan
    return float(values[np.searchsorted(places, place, "right") - 1])


def average_until(run: Columns, metric: str, place: float, axis: str = "time") -> float:
    """The mean of a metric over an axis up to a place, each row's value standing until the next."""
    places, values = known(run, metric, axis)
    if not len(places) or place <= places[0]:
        return math.nan
    ends = np.minimum(np.append(places[1:], max(place, places[-1])), place)
    return float(values @ np.maximum(ends - np.minimum(places, place), 0) / (place - places[0]))


def mean(values: Iterable[float]) -> float:
    """The mean over seeds; inf if one is, NaN if one is."""
    found = [float(value) for value in values]
    return float(np.mean(found)) if found else math.nan


def end(runs: Iterable[Columns], axis: str = "time") -> float:
    """The place that all runs get to."""
    return min((float(along(run, axis)[-1]) for run in runs), default=math.nan)


def ratio(one: float, other: float) -> float:
    """one/other; NaN where neither is finite."""
    if not (math.isfinite(one) or math.isfinite(other)):
        return math.nan
    return math.inf if other == 0 else one / other


def levels(cases: Mapping[str, Sequence[Columns]], metric: str, count: int = 11, begin: float = 0.5) -> list[float]:
    """Levels from the share `begin` of the way to the highest that some case reaches with all its seeds, itself one.

    Only what is reached in the time that all runs have counts: who was run for longer may get further.
    """
    start = mean(known(run, metric)[1][0] for runs in cases.values() for run in runs)
    until = end(run for runs in cases.values() for run in runs)
    top = max(min(best(run, metric, until) for run in runs) for runs in cases.values())
    return [start + share * (top - start) for share in np.linspace(begin, 1.0, count)]
