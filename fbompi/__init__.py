"""Federated bilevel optimization, run for real on MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what reads run files is loaded when one is opened
    from pathlib import Path

    from fbompi.runs import Run

__version__ = "0.1.0"


def open(path: str | Path) -> Run:
    """A run file as arrays and tables: ``fbompi.open("run.h5")["accuracy"]``; see `fbompi.runs.Run`."""
    from fbompi.runs import Run

    return Run(path)
