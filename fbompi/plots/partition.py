"""The map of clients and classes: the area of a disc is the number of samples; of many clients, how dark it is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.plots.figure import COLOURS, PAGE, plain
from fbompi.runs import Run

MOST_CLASSES = 20  # that get a number each
SMALL = 3.5  # points: discs in smaller cells cannot be told apart


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
    return float(np.clip(0.14 * len(table) + 1, 3.5, PAGE)), float(np.clip(0.22 * table.shape[1] + 0.8, 2.5, 8))


def panel(axes: Any, rule: str, part: str, table: np.ndarray, inches: tuple[float, float], width: int = 60) -> None:
    """Draw a table with a row per client and a column per class into axes of this size."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    wide, tall = inches
    cell = 72 * min(0.8 * wide / len(table), 0.7 * tall / table.shape[1])  # points
    largest = max(int(table.max(initial=0)), 1)
    if cell >= SMALL:
        clients, classes = np.nonzero(table)
        axes.scatter(clients, classes, s=table[clients, classes] / largest * cell**2, color=COLOURS[0], linewidths=0)
    else:
        shades = LinearSegmentedColormap.from_list("samples", ["#ffffff", COLOURS[0], "#001a2b"])
        axes.imshow(table.T, cmap=shades, vmin=0, vmax=largest, aspect="auto", interpolation="nearest")
    axes.set_xlim(-0.7, len(table) - 0.3)
    axes.set_ylim(-0.7, table.shape[1] - 0.3)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    if table.shape[1] <= MOST_CLASSES:
        axes.set_yticks(range(table.shape[1]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(False)
    title = "\n".join(textwrap.wrap(plain(rule), width)[:2])
    means = "area" if cell >= SMALL else "the darker, the more"
    axes.set_title(f"{title}\n{means}: {plain(part)} samples, largest {largest:,}")


def figure(figure_of: Any, runs: Sequence[Run], names: Sequence[str]) -> Any:
    """A map per partition, one below the other; runs that share theirs share a map."""
    found: list[tuple[list[str], Run, str, np.ndarray]] = []
    for run, name in zip(runs, names):
        part, table = first(run.partition) or ("", np.zeros((1, 1)))
        for others, other, same, known in found:
            if (other.partition_rule, same) == (run.partition_rule, part) and np.array_equal(known, table):
                others.append(name)
                break
        else:
            found.append(([name], run, part, table))
    sizes = [size(table) for *_, table in found]
    wide, tall = max(w for w, _ in sizes), [h for _, h in sizes]
    made = figure_of(figsize=(wide, sum(tall)), layout="constrained")
    grid = made.subplots(len(found), 1, squeeze=False, height_ratios=tall).ravel()
    for axes, (called, run, part, table), height in zip(grid, found, tall):
        who = called[0] if len(called) == 1 else f"{called[0]} and {len(called) - 1} more"
        rule = run.partition_rule if len(found) == 1 else f"{who}: {run.partition_rule}"
        panel(axes, rule, part, table, (wide, height), int(14 * wide))
    return made
