"""The map of clients and classes: the area of a disc is the number of samples."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.plots.figure import COLOURS, plain
from fbompi.runs import Run

MOST_CLASSES = 20  # that get a number each


def missing(run: Run) -> str:
    """Why this cannot be drawn; empty, if it can."""
    return "" if any(table.ndim > 1 for table in run.partition.values()) else "its problem has no classes to deal out"


def first(tables: dict[str, Any]) -> tuple[str, np.ndarray] | None:
    """The name and the table of the first part that is told by class; the training part, where there is one."""
    by_class = {name: np.asarray(table) for name, table in tables.items() if np.ndim(table) > 1}
    name = "train" if "train" in by_class else next(iter(by_class), "")
    return (name, by_class[name]) if name else None


def size(table: np.ndarray) -> tuple[float, float]:
    """Inches that a map of its own should have."""
    return float(np.clip(0.14 * len(table) + 1, 3.5, 14)), float(np.clip(0.22 * table.shape[1] + 0.8, 2.5, 8))


def panel(axes: Any, rule: str, part: str, table: np.ndarray, inches: tuple[float, float], width: int = 60) -> None:
    """Draw a table with a row per client and a column per class into axes of this size."""
    from matplotlib.ticker import MaxNLocator

    wide, tall = inches
    clients, classes = np.nonzero(table)
    cell = 72 * min(0.8 * wide / len(table), 0.7 * tall / table.shape[1])  # points
    largest = max(int(table.max(initial=0)), 1)
    axes.scatter(clients, classes, s=table[clients, classes] / largest * cell**2, color=COLOURS[0], linewidths=0)
    axes.set_xlim(-0.7, len(table) - 0.3)
    axes.set_ylim(-0.7, table.shape[1] - 0.3)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    if table.shape[1] <= MOST_CLASSES:
        axes.set_yticks(range(table.shape[1]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(False)
    title = "\n".join(textwrap.wrap(plain(rule), width)[:2])
    axes.set_title(f"{title}\narea: {plain(part)} samples, largest {largest:,}")


def figure(figure_of: Any, runs: Sequence[Run], names: Sequence[str]) -> Any:
    """A map per run, one below the other."""
    found = [(run, *(first(run.partition) or ("", np.zeros((1, 1))))) for run in runs]
    sizes = [size(table) for _, _, table in found]
    wide, tall = max(w for w, _ in sizes), [h for _, h in sizes]
    made = figure_of(figsize=(wide, sum(tall)), layout="constrained")
    grid = made.subplots(len(runs), 1, squeeze=False, height_ratios=tall).ravel()
    for axes, (run, part, table), height, name in zip(grid, found, tall, names):
        rule = run.partition_rule if len(runs) == 1 else f"{name}: {run.partition_rule}"
        panel(axes, rule, part, table, (wide, height), int(14 * wide))
    return made
