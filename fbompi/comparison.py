"""Runs side by side: those that differ only in their seed are one group, with means and 95 % intervals over seeds."""

from __future__ import annotations

import json
import math
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fbompi.axes import AXES, along, scale, unit
from fbompi.errors import UserError
from fbompi.runs import Run

APART = {("run", "seed"), ("run", "out")}  # keys that do not make another group
COSTS = ("round", "communication", "time", "bytes", "calls")
WIDTH = 120  # of a page that goes to no terminal
# 97.5 % points of Student's t for 1, 2, ... degrees of freedom; beyond, an expansion in their inverse is exact enough
_T = (
    12.7062047, 4.3026527, 3.1824463, 2.7764451, 2.5705818, 2.4469119, 2.3646243, 2.3060041, 2.2621572, 2.2281389,
    2.2009852, 2.1788128, 2.1603687, 2.1447867, 2.1314495, 2.1199053, 2.1098156, 2.1009220, 2.0930241, 2.0859634,
)  # fmt: skip
_Z = 1.959963985


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with half the width of its 95 % interval; None for a single seed."""

    mean: float
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Mean | None:
        """The mean of what is known."""
        known = np.asarray(values, float)
        known = known[np.isfinite(known)]
        if not len(known) or not np.isfinite(known.mean()):
            return None
        spread = known.std(ddof=1) / np.sqrt(len(known)) * t_quantile(len(known) - 1) if len(known) > 1 else None
        if spread is not None and np.ptp(known) == 0:
            spread = 0.0  # not what rounding leaves of it
        half = float(spread) if spread is not None and np.isfinite(spread) else None
        return cls(float(known.mean()), half, len(known))

    def figures(self) -> dict[str, Any]:
        """For machines."""
        low, high = (None, None) if self.half is None else (self.mean - self.half, self.mean + self.half)
        return {"mean": self.mean, "low": low, "high": high, "count": self.count}


def t_quantile(freedom: int) -> float:
    """The 97.5 % point of Student's t."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z, n = _Z, float(freedom)
    terms = (
        (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )  # fmt: skip
    return z + sum(term / n**power for power, term in enumerate(terms, 1))


@dataclass(frozen=True)
class Target:
    """A value that a metric is to reach: from below, or from above."""

    metric: str
    value: float
    rising: bool

    def __str__(self) -> str:
        return f"{self.metric} {'>=' if self.rising else '<='} {self.value:.6g}"

    def reached(self, run: Run) -> int | None:
        """The first recorded row in which a run has it."""
        values = run[self.metric]
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(values >= self.value if self.rising else values <= self.value)
        return int(rows[0]) if len(rows) else None


@dataclass
class Group:
    """Runs that differ only in their seed."""

    runs: list[Run]
    label: str = ""
    keys: dict[str, Any] = field(default_factory=dict)  # the configuration, flat

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def title(self) -> str:
        """What to call it in a legend."""
        return f"{self.label} ({len(self.runs)} run{'s' * (len(self.runs) > 1)})"


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The groups of runs, in the order in which they are met, with labels that tell them apart."""
    groups: dict[str, Group] = {}
    for run in runs:
        keys = _flat(run)
        groups.setdefault(json.dumps(keys, sort_keys=True), Group([], keys=keys)).runs.append(run)
    found = list(groups.values())
    _name(found)
    return found


def _flat(run: Run) -> dict[str, Any]:
    """A run's configuration as section.key: value, with the link and the ranks that it really had."""
    keys = {f"{s}.{k}": v for s, table in run.config.items() for k, v in table.items() if (s, k) not in APART}
    keys.pop("run.link", None)
    return {**keys, "link": run.link, "ranks": run.ranks}


def differences(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Keys in which the groups' configurations differ, with the value of each group; None where it has no such key."""
    names = dict.fromkeys(name for group in groups for name in group.keys)
    values = {name: [group.keys.get(name) for group in groups] for name in names}
    return {name: found for name, found in values.items() if any(v != found[0] for v in found)}


def common(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Those differences that are no method's or problem's own keys."""
    return {name: values for name, values in found.items() if None not in values}


def _name(groups: list[Group]) -> None:
    """Labels: the method, and where that does not tell them apart, the keys that do."""
    for group in groups:
        group.label = str(group.keys.get("run.algorithm", "run"))
    for name in dict.fromkeys(group.label for group in groups):
        alike = [group for group in groups if group.label == name]
        found = common(differences(alike))
        for index, group in enumerate(alike):
            words = [f"{key.split('.')[-1]}={_short(values[index])}" for key, values in found.items()]
            group.label = ", ".join([name, *words])
    labels = [group.label for group in groups]
    for number, group in enumerate(groups, 1):
        if labels.count(group.label) > 1 or len(group.label) > 60:
            group.label = f"{group.label[:56]} #{number}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def target_of(text: str, runs: Sequence[Run]) -> Target:
    """A target as it is written: accuracy=0.9, accuracy>=0.9 or x_error<=0.01."""
    match = re.fullmatch(r"\s*(\w+)\s*(<=|>=|=)\s*(\S+)\s*", text)
    try:
        name, relation, value = match.groups() if match else ("", "", "")
        level = float(value)
    except ValueError:
        raise UserError(
            f"--target {text}: expected a metric and a number, such as accuracy=0.9 or x_error<=0.01"
        ) from None
    for run in runs:
        if name not in run.metrics:
            raise UserError(f'--target {text}: {run.path} has no metric "{name}": it has {", ".join(run.metrics)}')
    if not np.isfinite(level):
        raise UserError(f"--target {text}: expected a finite number")
    if relation == "=":  # reached from where runs begin
        begin = next((float(v) for run in runs for v in run[name] if np.isfinite(v)), level)
        relation = ">=" if begin <= level else "<="
    return Target(name, level, relation == ">=")


def own_target(runs: Sequence[Run]) -> Target | None:
    """The level of the most telling metric that all runs reach; None if they do not move in one direction, or are of
    several problems."""
    if len({run.config["run"].get("problem") for run in runs}) > 1:
        return None
    for name in runs[0].metrics:
        if name == "grad_norm" or not all(name in run for run in runs):
            continue
        known = [run[name][np.isfinite(run[name])] for run in runs]
        if any(len(values) < 2 for values in known):
            continue
        moves = {bool(values[-1] > values[0]) for values in known}
        if len(moves) == 1 and all(values[-1] != values[0] for values in known):
            rising = moves.pop()
            best = [float(values.max() if rising else values.min()) for values in known]
            return Target(name, min(best) if rising else max(best), rising)
    return None


def compare(runs: Sequence[Run], target: str = "") -> dict[str, Any]:
    """All figures of a comparison."""
    groups = grouped(runs)
    aim = target_of(target, runs) if target else own_target(runs)
    rows = [_row(group, aim) for group in groups]
    for row in rows:
        row["speedup"] = _speedup(rows[0], row)
    found = differences(groups)
    same = {name: value for name, value in groups[0].keys.items() if name not in found}
    return {
        "target": None if aim is None else {"metric": aim.metric, "value": aim.value, "rising": aim.rising,
                                            "text": str(aim), "given": bool(target)},
        "groups": rows,
        "differences": found,
        "same": {name: same[name] for name in ("run.algorithm", "run.problem", "clients.count") if name in same},
        "units": {name: unit(runs, name) for name in COSTS},
    }  # fmt: skip


def _row(group: Group, aim: Target | None) -> dict[str, Any]:
    runs = group.runs
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    ends = {name: Mean.of([_last(run, name) for run in runs]) for name in names}
    row: dict[str, Any] = {
        "label": group.label, "files": [str(run.path) for run in runs], "seeds": group.seeds,
        "unfinished": [str(run.path) for run in runs if run.status != "complete"],
        "final": {name: mean.figures() for name, mean in ends.items() if mean},
        "costs": {}, "to_target": {}, "reached": 0,
    }  # fmt: skip
    places = [aim.reached(run) if aim else None for run in runs]
    row["reached"] = sum(place is not None for place in places)
    for cost in COSTS:
        ways = [along(run, cost) for run in runs]
        total = Mean.of([way[-1] for way in ways if len(way)])
        spent = Mean.of([way[place] for way, place in zip(ways, places) if place is not None])
        row["costs"][cost] = total.figures() if total else None
        row["to_target"][cost] = spent.figures() if spent else None
    return row


def _last(run: Run, name: str) -> float:
    known = run[name][np.isfinite(run[name])] if name in run else np.empty(0)
    return float(known[-1]) if len(known) else np.nan


def _speedup(first: dict[str, Any], row: dict[str, Any]) -> dict[str, float | None]:
    """How many times less than the first group's mean it takes to the target, where all runs of both reach it."""
    if any(r["reached"] < len(r["seeds"]) for r in (first, row)):
        return dict.fromkeys(COSTS)
    pairs = {cost: (first["to_target"][cost]["mean"], row["to_target"][cost]["mean"]) for cost in COSTS}
    return {cost: one / other if other > 0 and one > 0 else None for cost, (one, other) in pairs.items()}


# For people


def page(figures: dict[str, Any], width: int = 0) -> str:
    """A comparison as text that fits a terminal: tables that are too wide go on below."""
    width = width or shutil.get_terminal_size((WIDTH, 24)).columns
    rows, aim = figures["groups"], figures["target"]
    count, same = sum(len(row["seeds"]) for row in rows), figures["same"]
    alike = ", ".join(f"{name.split('.')[-1]} {value}" for name, value in same.items() if name != "clients.count")
    names = list(dict.fromkeys(name for row in rows for name in row["final"]))
    ends = [["", "runs", *names], *(
        [row["label"], str(len(row["seeds"])), *(_words(row["final"].get(name)) for name in names)] for row in rows
    )]  # fmt: skip
    within = f" ({alike})" if alike else ""
    parts = [
        _wrapped(f"{count} runs in {len(rows)} groups{within}; mean ± half the 95 % interval over seeds", width),
        ["at the end", *_aligned(ends, width)],
        ["what it took", *_aligned(_costs(figures, "costs"), width)],
    ]
    if aim:
        why = "" if aim["given"] else ", which all runs reach (--target sets another)"
        faster = [["", *map(_title, COSTS)], *(
            [row["label"], *("–" if row["speedup"][c] is None else f"{row['speedup'][c]:.3g}" for c in COSTS)]
            for row in rows
        )]  # fmt: skip
        parts += [
            [*_wrapped(f"to {aim['text']}{why}, at recorded rows", width),
             *_aligned(_costs(figures, "to_target"), width)],
            [f"speed-up: times less to the target than {rows[0]['label']}", *_aligned(faster, width)],
        ]  # fmt: skip
    notes = _differing(figures, width)
    for row in rows:
        if row["unfinished"]:
            notes += _wrapped(f"{row['label']}: not complete: {', '.join(row['unfinished'])}", width)
        if len(set(row["seeds"])) < len(row["seeds"]):
            words = f"{row['label']}: seeds {row['seeds']}: some are there more than once, the interval is too narrow"
            notes += _wrapped(words, width)
    return "\n\n".join("\n".join(part) for part in (*parts, notes))


def _wrapped(words: str, width: int) -> list[str]:
    return textwrap.wrap(words, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _costs(figures: dict[str, Any], which: str) -> list[list[str]]:
    rows, table, reached = figures["groups"], [], which == "to_target"
    scales = {}
    for cost in COSTS:
        means = [row[which][cost]["mean"] for row in rows if row[which][cost]]
        scales[cost] = scale(figures["units"][cost], max(means, default=0.0))
    table.append(["", *(["reached"] if reached else []), *(_title(c, scales[c][1]) for c in COSTS)])
    for row in rows:
        cells = [_words(row[which][cost], scales[cost][0]) for cost in COSTS]
        table.append([row["label"], *([f"{row['reached']} of {len(row['seeds'])}"] if reached else []), *cells])
    return table


def _title(cost: str, unit: str = "rounds") -> str:
    words = {"round": "rounds", "communication": "communication"}.get(cost) or AXES[cost][0]
    return words if unit == "rounds" else f"{words} ({unit})"


def _words(mean: dict[str, Any] | None, factor: float = 1.0) -> str:
    """A mean with its interval, both to two digits of the latter."""
    if mean is None:
        return "–"
    middle = mean["mean"] / factor
    if mean["low"] is None:
        return f"{middle:.4g}"
    half = (mean["high"] - mean["low"]) / 2 / factor
    if not half:
        return f"{middle:.6g} ± 0"
    digits = 1 - math.floor(math.log10(half))
    if digits > 6 or abs(middle) >= 1e6:
        return f"{middle:.3g} ± {half:.2g}"
    return f"{round(middle, digits):.{max(digits, 0)}f} ± {round(half, digits):.{max(digits, 0)}f}"


def _aligned(table: list[list[str]], width: int) -> list[str]:
    """A table in lines; columns that do not fit stand below, with the first column again."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    blocks: list[list[int]] = []
    used = width
    for column, wide in enumerate(widths[1:], 1):
        if used + 2 + wide > width:
            blocks.append([])
            used = 2 + widths[0]
        blocks[-1].append(column)
        used += 2 + wide
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *(row[c].rjust(widths[c]) for c in block)])
        for block in blocks
        for row in table
    ]


def _differing(figures: dict[str, Any], width: int) -> list[str]:
    """What differs between the groups' configurations; keys that only some methods have are counted."""
    found, labels = figures["differences"], [row["label"] for row in figures["groups"]]
    if not found:
        return ["the runs differ in nothing but their seeds"]
    shown = {name: values for name, values in found.items() if None not in values}
    lines = ["what differs", *_aligned([["", *labels], *([n, *map(_short, v)] for n, v in shown.items())], width)]
    others = len(found) - len(shown)
    if others:
        lines.append(f"  and {others} keys that only some methods or problems have (--json has them)")
    return lines
