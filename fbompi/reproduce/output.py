"""What an experiment leaves: table.md and .json, figure.png and .svg, verdicts.json; and the same as text."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fbompi import __version__
from fbompi.destination import temporary
from fbompi.errors import UserError
from fbompi.launch import cores
from fbompi.reproduce.execution import Execution, verdicts
from fbompi.reproduce.experiment import Experiment, ScaleName, Table

FORMAT = "fbompi-reproduction"
FIGURES = ("figure.png", "figure.svg")


def write(experiment: Experiment, scale: ScaleName, ranks: int, done: Execution, directory: Path) -> dict[str, Any]:
    """All files but the runs'; what is in verdicts.json."""
    runs = [run for runs in done.results.values() for run in runs]
    table = experiment.table(done.results)
    chosen = {name: ", ".join(f"{key} = {value}" for key, value in keys.items()) for name, keys in done.chosen.items()}
    report = {
        "format": FORMAT, "name": experiment.name, "paper": experiment.paper, "figure": experiment.figure,
        "about": experiment.about, "scale": scale, "ranks": ranks,
        "command": f"fbompi reproduce {experiment.name}{_words(scale, ranks)}",
        "verdicts": verdicts(experiment, done.results), "order": experiment.order(done.results),
        "chosen": chosen, "pilot_seed": experiment.pilot,
        "seeds": sorted({run.seed for run in runs}), "runs": len(done.runs),
        "computing_seconds": sum(float(run["client_seconds"][-1] + run["server_seconds"][-1]) for run in runs),
        "data": sorted({str(run.config["problem"].get("data", "drawn")) for run in runs}),
        "instead_of": list(done.missing), "remarks": list(experiment.remarks), "machine": machine(),
        "versions": {"fbompi": __version__, "python": platform.python_version(), "numpy": runs[0].attributes["numpy"]},
        "mpi": runs[0].attributes["mpi"], "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "table": {"columns": list(table.columns), "rows": [[_plain(v) for v in row] for row in table.rows],
                  "cells": table.cells(), "notes": list(table.notes)},
    }  # fmt: skip
    _draw(experiment, done, directory)
    write_text(directory / "table.md", f"# {experiment.name}: {experiment.figure}\n\n{markdown(table)}")
    write_text(directory / "table.json", json.dumps(report["table"], indent=1))
    write_text(directory / "verdicts.json", json.dumps(report, indent=1, ensure_ascii=False))
    return report


def _words(scale: str, ranks: int) -> str:
    return ("" if scale == "small" else f" --scale {scale}") + (f" -n {ranks}" if ranks > 1 else "")


def _plain(value: Any) -> Any:
    """For JSON, which has no infinity: what is never reached is a text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "never"
    return value


def _draw(experiment: Experiment, done: Execution, directory: Path) -> None:
    from fbompi.plots.figure import PAGE, drawing, save

    with drawing(f"reproduce {experiment.name}") as figure_of:
        figure = figure_of(figsize=(PAGE, 3.4), layout="constrained")
        experiment.draw(figure, done.results)
        for name in FIGURES:
            save(figure, directory / name)


def write_text(path: Path, text: str) -> None:
    """A text, whole or not at all."""
    begun = temporary(path)
    try:
        begun.write_text(text, encoding="utf-8")
        os.replace(begun, path)
    except OSError as e:
        begun.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {e.strerror or e}") from None


def read(path: Path) -> dict[str, Any]:
    """A verdicts.json, or one clear line."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror or e}") from None
    except ValueError as e:
        raise UserError(f"{path}: is not JSON: {e}") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise UserError(f"{path}: was not written by fbompi reproduce")
    return report


def machine() -> str:
    """The processor and how many cores of it there are."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return f"{found[1] if found else platform.machine()}, {cores()} cores"


def markdown(table: Table) -> str:
    """A table as Markdown."""
    return _markdown(table.columns, table.cells(), table.notes)


def _markdown(columns: Sequence[str], cells: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    lines = [_row(columns), _row(["---"] * len(columns)), *map(_row, cells)]
    return "\n".join([*lines, *(f"\n{note}" for note in notes)]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def markdown_of(report: dict[str, Any]) -> str:
    """The table of a report as Markdown."""
    return _markdown(report["table"]["columns"], report["table"]["cells"], report["table"]["notes"])


def page(report: dict[str, Any]) -> str:
    """A report as text."""
    r, t = report, report["table"]
    widths = [max(map(len, column)) for column in zip(t["columns"], *t["cells"])]
    lines = [f"{r['name']}: {r['figure']} of {r['paper']}", r["about"], ""]
    if r["instead_of"]:
        lines[2:2] = [f"({', '.join(r['instead_of'])} is not imported: on {', '.join(r['data'])} instead)"]
    for row in [t["columns"], *t["cells"]]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("  " + "  ".join(cells))
    lines += [f"  {note}" for note in t["notes"]]
    lines += [f"  from the best to the worst: {', '.join(r['order'])}"] if r["order"] else []
    lines += [f"  {line}" for line in tuning(r)]
    for v in r["verdicts"]:
        lines += ["", f"{v['outcome'].upper()}: {v['claim']}", f"  {v['measured']}. {v['sentence']}"]
        lines += [f"  Why, probably: {v['reason']}"] if v["reason"] else []
    return "\n".join(lines)


def tuning(report: dict[str, Any]) -> list[str]:
    """How keys were chosen, in words."""
    if not report["chosen"]:
        return []
    told = "; ".join(f"{name}: {words}" for name, words in report["chosen"].items())
    return [f"chosen at seed {report['pilot_seed']} from the same values for every case: {told}"]
