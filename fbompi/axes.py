"""What a run is looked at against: rounds, time, bytes or oracle calls, with their units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fbompi.errors import UserError
from fbompi.runs import Run

AXES = {  # name: in words, and the columns whose sum it is
    "round": ("outer round", ("round",)),
    "communication": ("rounds of communication", ("communication",)),
    "time": ("time", ("time",)),
    "bytes": ("bytes moved", ("bytes_down", "bytes_up")),
    "calls": ("oracle calls", ("gradients", "hvps", "crosses")),
}
_STEPS = {
    "bytes": [(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")],
    "samples": [(1e9, "10⁹ samples"), (1e6, "10⁶ samples"), (1e3, "10³ samples"), (1.0, "samples")],
    "seconds": [(3600.0, "hours"), (1.0, "seconds")],
    "virtual seconds": [(3600.0, "virtual hours"), (1.0, "virtual seconds")],
}
_FROM = 5  # so many of a larger unit before it is used


def along(run: Run, name: str) -> np.ndarray:
    """A run's places on an axis, one per recorded row."""
    columns = AXES[name][1]
    if missing := [column for column in columns if column not in run]:
        raise UserError(f"{run.path}: was recorded by an earlier fbompi, without {', '.join(missing)}")
    return np.sum([run[column] for column in columns], axis=0, dtype=float)


def unit(runs: Sequence[Run], name: str) -> str:
    """The unit of an axis; of time, that of the clocks that these runs had."""
    units = {run.unit(AXES[name][1][0]) for run in runs}
    return " or ".join(sorted(units))


def scale(unit: str, largest: float) -> tuple[float, str]:
    """By what to divide for numbers that can be read, and the unit then."""
    for factor, word in _STEPS.get(unit, []):
        if largest >= _FROM * factor or factor == 1.0:
            return factor, word
    return 1.0, unit


def label(name: str, unit: str) -> str:
    """An axis in words, with its unit where it says more."""
    words = AXES[name][0]
    return words if not unit or unit == "rounds" else f"{words} ({unit})"
