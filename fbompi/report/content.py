"""What a report's scripts draw, as JSON: curves, and who did what when."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.activity import Activity, activity
from fbompi.axes import AXES, along, label, unit
from fbompi.plots.curves import told_apart
from fbompi.plots.staleness import edges
from fbompi.runs import Run

MOST_ROWS = 2000  # of a curve
MOST_EVENTS = 100_000  # of a timeline; rejected answers are always there
MOST_CLIENTS = 60


def content(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    """All that is drawn."""
    metrics = dict.fromkeys(name for run in runs for name in run.metrics)
    known = {n: next(run for run in runs if n in run.metrics) for n in metrics}
    return {
        "axes": [{"name": name, "label": label(name, unit(runs, name))} for name in AXES],
        "metrics": [{"name": n, "meaning": run.meaning(n), "unit": run.unit(n)} for n, run in known.items()],
        "runs": [_run(run, name, look) for run, name, look in zip(runs, names, looks(runs, names))],
    }


def looks(runs: Sequence[Run], names: Sequence[str]) -> list[int]:
    """By what number each run's line looks; those that differ in their seed look alike."""
    return [index for index, _ in told_apart(runs, names)]


def _run(run: Run, name: str, look: int) -> dict[str, Any]:
    rows = np.unique(np.linspace(0, max(len(run) - 1, 0), min(len(run), MOST_ROWS)).round().astype(int))
    return {
        "name": name,
        "look": look,
        "axes": {axis: numbers(along(run, axis)[rows]) for axis in AXES},
        "metrics": {metric: numbers(run[metric][rows]) for metric in run.metrics},
        "timeline": _timeline(run) if len(run.arrivals) else None,
        "ages": _ages(run) if len(run.arrivals) else None,
    }


def numbers(values: np.ndarray) -> list[float | None]:
    """Numbers as JSON has them, to seven digits: what is not finite is null there."""
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values.tolist()]


def _timeline(run: Run) -> dict[str, Any]:
    a = activity(run)
    lanes = a.shown(MOST_CLIENTS)
    chosen = np.flatnonzero(np.isin(a.client, lanes))
    first = chosen[:MOST_EVENTS]
    kept = np.union1d(first, chosen[a.rejected[chosen]])
    place = np.full(a.clients, 0, np.uint16)
    place[lanes] = np.arange(len(lanes))
    return {
        "unit": run.unit("time"), "end": a.end, "clients": a.clients, "lanes": lanes.tolist(), "answers": len(a.client),
        "until": float(a.arrived[first].max()) if len(first) < len(chosen) else a.end,
        "slow": [c for c in a.slow if c in set(lanes.tolist())], "kinds": run.kinds,
        "left": _of(a.left, lanes), "adopted": _of(a.adopted, lanes),
        "lane": packed(place[a.client[kept]], "<u2"), "sent": packed(a.sent[kept], "<f4"),
        "arrived": packed(a.arrived[kept], "<f4"), "begun": packed(a.begun[kept], "<f4"),
        "compute": packed(a.compute[kept], "<f4"), "age": packed(a.age[kept], "<u4"),
        "kind": packed(a.kind[kept], "<u1"), "rejected": packed(a.rejected[kept], "<u1"),
        "stretches": [_stretches(a, c) for c in lanes.tolist()],
    }  # fmt: skip


def _of(times: dict[int, float], lanes: np.ndarray) -> list[list[float]]:
    """Pairs of lane and time."""
    place = {client: lane for lane, client in enumerate(lanes.tolist())}
    return [[place[client], when] for client, when in times.items() if client in place]


def _stretches(a: Activity, client: int) -> str:
    """When a client had a task: begins and ends in turn, those closer than nothing that can be seen joined."""
    found = a.under_way(client)
    if len(found) > 1:
        near = found[1:, 0] - found[:-1, 1] < a.end * 1e-6
        first, last = np.concatenate([[True], ~near]), np.concatenate([~near, [True]])
        found = np.stack([found[first, 0], found[last, 1]], axis=1)
    return packed(found.ravel(), "<f4")


def packed(values: np.ndarray, kind: str) -> str:
    """Numbers as text: their bytes, the least significant first, in base 64."""
    return base64.b64encode(np.ascontiguousarray(values).astype(kind).tobytes()).decode()


def _ages(run: Run) -> dict[str, Any]:
    ages = run.arrivals["age"]
    bins = edges(ages)
    return {
        "from": (bins[:-1] + 0.5).astype(int).tolist(), "width": int(bins[1] - bins[0]),
        "counts": np.histogram(ages, bins)[0].tolist(), "mean": float(ages.mean()),
        "late": float(np.percentile(ages, 95)), "oldest": int(ages.max()),
    }  # fmt: skip


def script_safe(found: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(found, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
