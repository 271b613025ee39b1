"""What `fbompi inspect` says of a run file, as figures and as a page of ten lines or so."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fbompi.config import tomllib
from fbompi.journal import is_being_written
from fbompi.layout import COUNTERS
from fbompi.record import reading

NOT_METRICS = {"round", "time", "age", "smoothness", "x", "y", *COUNTERS}
A_FEW = 6  # lines of a page for what may be many


def summary(path: str | Path) -> dict[str, Any]:
    """The figures of a run."""
    with reading(path) as file:
        attributes = {k: _plain(v) for k, v in file.attrs.items()}
        config = _plain(tomllib.loads(attributes.pop("config")))
        if missing := {"algorithm", "problem", "rounds", "seed"} - set(config["run"]):
            raise ValueError(f"its configuration lacks run.{min(missing)}")
        trajectory, events, clients = file["trajectory"], file["events"][:], file["clients"][:]
        if not len(clients):
            raise ValueError("it has no clients")
        if not all(isinstance(name, str) for name in trajectory):
            raise ValueError("a column of the trajectory without a name")
        rounds = trajectory["round"][:]
        return {
            "file": str(path),
            **attributes,
            "being_written": is_being_written(Path(path)),
            "config": config,
            "starts": _table(file, "starts"),
            "incidents": _table(file, "incidents"),
            "partition": str(file["partition"].attrs["rule"]) if "partition" in file else "",
            "rounds": int(rounds[-1]) if len(rounds) else 0,
            "rows": len(rounds),
            "time": float(trajectory["time"][-1]) if len(rounds) else 0.0,
            "metrics": {k: _course(trajectory[k]) for k in trajectory if k not in NOT_METRICS},
            "costs": {k: _last(trajectory, k) for k in COUNTERS},
            "peak_memory": int(clients["peak_memory"].max(initial=0)) if "peak_memory" in clients.dtype.names else 0,
            "communication_rounds": int(events["arrived_round"].max()) + 1 if len(events) else 0,
            "answers": len(events),
            "age": _spread(events["age"]),
            "age_by_kind": {
                kind: _spread(events["age"][events["kind"] == code])
                for kind, code in h5py.check_enum_dtype(file["events"].dtype["kind"]).items()
                if (events["kind"] == code).any()
            },
            "bytes": int(events["bytes"].sum()),
            "compute_seconds": float(events["compute"].sum()),
            "oracle_calls": {k: int(events[k].sum()) for k in ("gradients", "hvps", "crosses")},
            "clients": {
                "count": len(clients),
                "ranks": len(set(clients["rank"].tolist())),
                "samples": int(clients["shard_size"].sum()),
                "tasks_done": _spread(clients["tasks_done"]),
                "states": {
                    name: int((clients["state"] == code).sum())
                    for name, code in h5py.check_enum_dtype(file["clients"].dtype["state"]).items()
                },
                "rejected": int(clients["rejected"].sum()) if "rejected" in clients.dtype.names else 0,
            },
        }


def _table(file: h5py.File, name: str) -> list[dict[str, Any]]:
    """The rows of a table; none, where the file is of a format that did not have it."""
    return records(file[name][:]) if name in file else []


def records(rows: np.ndarray) -> list[dict[str, Any]]:
    """Rows of a table, each by the names of its columns."""
    names = rows.dtype.names or ()
    texts = [k for k in names if h5py.check_string_dtype(rows.dtype[k])]
    columns = {k: rows[k].tolist() for k in names}
    columns |= {k: [text.decode(errors="replace") for text in columns[k]] for k in texts}
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _plain(value: Any) -> Any:
    """A value that JSON has: what is not finite is null there, what it does not know is a text."""
    if isinstance(value, dict):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _last(trajectory: h5py.Group, name: str) -> float | None:
    """The last entry of a column, where the file has it."""
    return _plain(float(trajectory[name][-1])) if name in trajectory and len(trajectory[name]) else None


def _course(column: h5py.Dataset) -> dict[str, Any]:
    """First, last and best known values of a column."""
    values = column[:]
    known = values[np.isfinite(values)]
    first, last = (float(known[0]), float(known[-1])) if len(known) else (None, None)
    return {"first": first, "last": last, "meaning": str(column.attrs["meaning"])}


def _spread(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    low, median, high = np.percentile(values, [0, 50, 100])
    return {"mean": float(values.mean()), "min": float(low), "median": float(median),
            "p95": float(np.percentile(values, 95)), "max": float(high)}  # fmt: skip


def page(s: dict[str, Any]) -> str:
    """A summary for people."""
    run, clients = s["config"]["run"], s["clients"]
    where = f"{s['ranks']} ranks of {s['mpi']}, rank 0 the server" if s["link"] == "mpi" else "the virtual link"
    unit = "s" if s["link"] == "mpi" else "virtual s"
    status = f"{s['status']},"
    if s["status"] == "running" and not s["being_written"]:
        status = "killed while it ran" + ("; fbompi resume goes on." if "run" in s else ",")
    lines = [
        f"{run['algorithm']} on {run['problem']}: {status} {s['rounds']} of {run['rounds']} rounds, "
        f"{s['time']:.4g} {unit}, seed {run['seed']}",
        f"{clients['count']} clients with {clients['samples']} samples on {where}; {s['host']}, {s['created']}, "
        f"fbompi {s['fbompi_version']}",
    ]
    if s["partition"]:
        lines.append(f"data: {s['partition']}")
    width = max(map(len, s["metrics"]), default=0)
    for name in sorted(s["metrics"], key=lambda k: (k in ("upper", "lower", "grad_norm"), k)):
        m = s["metrics"][name]
        if m["last"] is not None:
            lines.append(f"  {name:<{width}}  {m['first']:.4g} → {m['last']:.4g}   {m['meaning']}")
    if s["answers"]:
        a = s["age"]
        lines.append(
            f"staleness: an answer was {a['mean']:.1f} rounds old on average, 95 % at most {a['p95']:.0f}, "
            f"the oldest {a['max']:.0f} (of {s['communication_rounds']} rounds of communication)"
        )
        done, calls = clients["tasks_done"], s["oracle_calls"]
        lines.append(
            f"work: {s['answers']} answers, {done['min']:.0f} to {done['max']:.0f} per client; "
            f"{s['bytes'] / 1e6:.1f} MB moved; per-sample calls: {calls['gradients']:,} gradients, "
            f"{calls['hvps']:,} Hessian products, {calls['crosses']:,} cross products"
        )
    cost = s["costs"]
    if None not in cost.values():
        lines.append(
            f"costs: {cost['bytes_down'] / 1e6:.1f} MB to clients, {cost['bytes_up'] / 1e6:.1f} MB back; clients "
            f"computed {cost['client_seconds']:.3g} s, the server {cost['server_seconds']:.3g} s; "
            f"a client's tasks took at most {s['peak_memory'] / 1e3:,.0f} kB beside its data"
        )
    lines += few([f"resumed in round {start['round']} on {_many(start['ranks'], 'rank')}, {start['created']}"
                   for start in s["starts"][1:]])  # fmt: skip
    bad = {k: n for k, n in clients["states"].items() if n and k != "alive"}
    if bad:
        lines.append("clients: " + ", ".join(f"{n} {k}" for k, n in bad.items()))
    lines += [f"  {line}" for line in few(incident_lines(s["incidents"], unit))]
    return printable("\n".join(lines))


def incident_lines(incidents: list[dict[str, Any]], unit: str) -> list[str]:
    """What befell ranks and clients: those that fared alike at the same moment in one line, rejected answers in one."""
    alike: dict[tuple, list[dict[str, Any]]] = {}
    for i in incidents:
        moment = () if i["what"] == "answer rejected" else (i["take"], i["text"])
        alike.setdefault((i["what"], *moment), []).append(i)
    return [_incident_line(what, group, unit) for (what, *_), group in alike.items()]


def _incident_line(what: str, group: list[dict[str, Any]], unit: str) -> str:
    first = group[0]
    when, text = f"{first['time']:.4g} {unit}", first["text"]
    clients, ranks = (sorted({i[key] for i in group if i[key] >= 0}) for key in ("client", "rank"))
    if what == "answer rejected":
        return f"{_many(len(group), 'answer')} of {_named('client', clients)} rejected, the first at {when}: {text}"
    words = f"{_named('client', clients)} {what.removeprefix('client ')}" if clients else _named("rank", ranks)
    if clients and ranks:
        words += f" by {_named('rank', ranks)}"
    elif ranks:
        words += f" {what.removeprefix('rank ')}"
    return f"{when}: {words}" + (f": {text}" if text else "")


def _named(noun: str, numbers: list[int]) -> str:
    """ "clients 3, 4", with no more than a few of the numbers."""
    shown = ", ".join(map(str, numbers[:A_FEW])) + (f" and {len(numbers) - A_FEW} more" if numbers[A_FEW:] else "")
    return f"{noun}{'s' * (len(numbers) > 1)} {shown}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def few(lines: list[str]) -> list[str]:
    return lines if len(lines) <= A_FEW else [*lines[:A_FEW], f"… and {len(lines) - A_FEW} more"]


def printable(text: str) -> str:
    """Without characters that this terminal cannot show."""
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "replace").decode(encoding)
