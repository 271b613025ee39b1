"""What `fbompi data show` shows: how the samples of a configuration are dealt out to its clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fbompi.errors import UserError
from fbompi.run import DEFAULT_CLIENTS, dealing, make_problem

if TYPE_CHECKING:
    from fbompi.config import Config

MOST_CLASSES = 20  # that are printed one by one
MOST_CLIENTS = 40


def figures(config: Config) -> dict[str, Any]:
    """The partition of a configuration."""
    count = config.clients.count
    clients = DEFAULT_CLIENTS if count == "auto" else int(count)
    dealt = dealing(make_problem(config), config.run.problem, clients)
    if dealt is None:
        raise UserError(f'run.problem = "{config.run.problem}": makes its data itself, client by client')
    rule, tables = dealt
    return {"problem": config.run.problem, "clients": clients, "rule": rule,
            "tables": {name: table.tolist() for name, table in tables.items()}}  # fmt: skip


def page(shown: dict[str, Any]) -> str:
    """The same for people: sizes of every part by client, and what the first part has of each class."""
    tables = {name: np.array(table) for name, table in shown["tables"].items()}
    totals = {name: table.sum(axis=1) if table.ndim > 1 else table for name, table in tables.items()}
    name, first = next(iter(tables.items()))
    by_class = first if first.ndim > 1 else np.empty((len(first), 0), int)
    several = 0 < by_class.shape[1] <= MOST_CLASSES
    width = len(str(by_class.max(initial=0)))
    head = ["client", *totals, "classes" if by_class.size else "", f"{name} by class" if several else ""]
    rows = [head]
    for client in range(min(shown["clients"], MOST_CLIENTS)):
        held = by_class[client]
        numbers = " ".join(str(n or ".").rjust(width) for n in held) if several else ""
        rows.append([str(client), *(f"{total[client]:,}" for total in totals.values()),
                     str(np.count_nonzero(held)) if held.size else "", numbers])  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [f"{shown['problem']}, {shown['clients']} clients; {shown['rule']}"]
    for row in rows:
        cells = [word.rjust(width) for word, width in zip(row[:-1], widths)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    if shown["clients"] > MOST_CLIENTS:
        lines.append(f"... and {shown['clients'] - MOST_CLIENTS} more (--json has all)")
    spans = [f"{name} {total.sum():,} ({total.min():,} to {total.max():,} a client)" for name, total in totals.items()]
    return "\n".join([*lines, "in all: " + ", ".join(spans)])


def plot(shown: dict[str, Any], path: Path) -> None:
    """The map of clients and classes: the area of a disc is the number of samples."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise UserError(f"--plot {path}: needs matplotlib: pip install 'fbompi[plot]'") from None
    tables = {name: np.array(table) for name, table in shown["tables"].items() if np.ndim(table) > 1}
    if not tables:
        raise UserError(f"--plot {path}: {shown['problem']} has no classes to plot by client")
    name, table = next(iter(tables.items()))
    clients, classes = np.nonzero(table)
    sizes = table[clients, classes] / table.max()
    wide = float(np.clip(0.12 * len(table), 4.5, 14))
    tall = float(np.clip(0.28 * table.shape[1], 2.5, 8))
    figure = Figure(figsize=(wide, tall), dpi=150, layout="constrained")
    axes = figure.subplots()
    cell = 72 * min(0.8 * wide / len(table), 0.7 * tall / table.shape[1])  # points
    axes.scatter(clients, classes, s=sizes * cell**2, color="#0072B2", linewidths=0)
    axes.set_xlim(-0.7, len(table) - 0.3)
    axes.set_ylim(-0.7, table.shape[1] - 0.3)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    if table.shape[1] <= MOST_CLASSES:
        axes.set_yticks(range(table.shape[1]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"{shown['rule']}\narea: {name} samples, largest {table.max():,}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as e:
        raise UserError(f"--plot {path}: cannot be written: {getattr(e, 'strerror', None) or e}") from None
