"""docs/reproduction.md, generated from what experiments have left."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fbompi.errors import UserError
from fbompi.reproduce.output import markdown_of, read, tuning, write_text

HEAD = """# The papers' claims, run again

This page is generated: `fbompi reproduce --docs docs/reproduction.md DIR...` makes it from what `fbompi reproduce`
has left in these directories. Verdicts are computed from the runs by the functions in `fbompi/reproduce/papers/`,
never written by hand: a claim *holds*, *holds in part* or *does not hold*, with the figure that says so. `small` is
what the tests run, in a minute or so; `paper` has the paper's sizes. Reasons, where a claim is not found here, are
our guesses. Where keys are tuned, every case is offered the same values, at a seed that is not among those shown.
"""


def document(directories: Sequence[Path], out: Path) -> int:
    """Write the page, with figures in a directory beside it; how many experiments there are on it."""
    reports = []
    for directory in directories:
        found = sorted(directory.rglob("verdicts.json"))
        if not found:
            raise UserError(f"{directory}: holds no verdicts.json: expected what fbompi reproduce has written")
        reports += [(read(path), path.parent) for path in found]
    reports.sort(key=lambda pair: (pair[0]["name"], pair[0]["ranks"], pair[0]["scale"]))
    figures = out.with_suffix("")
    try:
        figures.mkdir(parents=True, exist_ok=True)
        for report, place in reports:
            shutil.copyfile(place / "figure.svg", figures / f"{_label(report)}.svg")
    except OSError as e:
        raise UserError(f"{figures}: cannot be written: {e.strerror or e}") from None
    every = [report for report, _ in reports]
    sections = [_section(report, f"{figures.name}/{_label(report)}.svg", every) for report in every]
    write_text(out, "\n".join([HEAD, *_overview(every), "", *sections]))
    return len(reports)


def _label(report: dict[str, Any]) -> str:
    return f"{report['name']}-{report['scale']}" + (f"-{report['ranks']}-ranks" if report["ranks"] > 1 else "")


def _overview(reports: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| experiment | of | at | claim | verdict | measured |", "|---|---|---|---|---|---|"]
    for r in reports:
        at = f"{r['scale']}, {r['ranks']} ranks" if r["ranks"] > 1 else r["scale"]
        lines += [
            f"| [{r['name']}](#{_anchor(r)}) | {r['figure']} | {at} | {v['claim']} | **{v['outcome']}** | "
            f"{v['measured']} |"
            for v in r["verdicts"]
        ]
    return lines


def _title(report: dict[str, Any]) -> str:
    ranks = f", on {report['ranks']} ranks" if report["ranks"] > 1 else ""
    return f"{report['name']} ({report['scale']}{ranks})"


def _anchor(report: dict[str, Any]) -> str:
    """As GitHub makes it of the title."""
    kept = "".join(c for c in _title(report).lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _confirmed(report: dict[str, Any], every: Sequence[dict[str, Any]]) -> str:
    """Of a report on ranks, whether the order of its cases is that of the same experiment in one process."""
    for other in every:
        same = all(other[key] == report[key] for key in ("name", "scale", "data"))
        if report["ranks"] > 1 and report["order"] and other["ranks"] == 1 and same:
            words = "the same" if report["order"] == other["order"] else "not the same"
            return (
                f"From the best to the worst: {', '.join(report['order'])} on {report['ranks']} ranks with injected "
                "delays, "
                f"{', '.join(other['order'])} on the virtual clock: the order is **{words}**.\n"
            )
    return ""


def _section(report: dict[str, Any], figure: str, every: Sequence[dict[str, Any]]) -> str:
    r = report
    lines = [
        f"## {_title(r)}",
        "",
        f"{r['figure']} of {r['paper']}. {r['about']}",
        "",
        f"![{r['about']}]({figure})",
        "",
    ]
    for v in r["verdicts"]:
        reason = f" Why, probably: {v['reason']}" if v["reason"] else ""
        lines += [f"- “{v['claim']}” **{v['outcome'].capitalize()}**: {v['measured']}. {v['sentence']}{reason}"]
    lines += ["", markdown_of(r), *filter(None, [_confirmed(r, every)])]
    lines += [f"{line[0].upper()}{line[1:]}.\n" for line in tuning(r)]
    lines += [f"{remark}\n" for remark in r["remarks"]]
    if r["instead_of"]:
        lines += [f"On {', '.join(r['data'])}, because {', '.join(r['instead_of'])} was not imported.\n"]
    seeds = ", ".join(map(str, r["seeds"]))
    lines += [
        f"`{r['command']}`: {r['runs']} runs, seeds {seeds}, data {', '.join(r['data'])}, "
        f"{r['computing_seconds']:.0f} s of computing, {r['date']}, on {r['machine']}, "
        f"Python {r['versions']['python']}, NumPy {r['versions']['numpy']}"
        f"{', ' + r['mpi'] if r['mpi'] else ''}.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)
