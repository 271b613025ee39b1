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
    """Draw the map of clients and classes into a file."""
    from fbompi.plots import partition
    from fbompi.plots.figure import drawing, ending, save

    ending(path)
    with drawing(f"--plot {path}") as figure_of:
        found = partition.first(shown["tables"])
        if found is None:
            raise UserError(f"--plot {path}: {shown['problem']} has no classes to plot by client")
        part, table = found
        inches = partition.size(table)
        figure = figure_of(figsize=inches, layout="constrained")
        partition.panel(figure.subplots(), shown["rule"], part, table, inches, int(14 * inches[0]))
        save(figure, path)
