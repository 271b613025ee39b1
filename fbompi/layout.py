"""What is in a run file: datasets, their columns, types and meanings. docs/layout.md has the same for people."""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import h5py
import numpy as np

import fbompi
from fbompi.links.link import EVENT

FORMAT, FORMAT_VERSION = "fbompi-run", 2
ATTRIBUTES = ("status", "config", "fbompi_version", "created", "host", "mpi", "ranks", "seed", "link")
TEXTS = ("status", "config", "fbompi_version", "created", "host", "mpi", "link")  # of these
STATES = {"alive": 0, "lost": 1, "adopted": 2}

CLIENT = np.dtype(
    [
        ("shard_size", "<i8"),
        ("capacity", "<f8"),
        ("rank", "<i4"),
        ("delay_factor", "<f8"),
        ("tasks_done", "<i8"),
        ("state", "<u1"),
        ("peak_memory", "<i8"),
        ("rejected", "<i8"),
    ]
)
TEXT = h5py.string_dtype()
START = np.dtype([("created", TEXT), ("host", TEXT), ("mpi", TEXT), ("ranks", "<i4"), ("round", "<i8")])
INCIDENT = np.dtype(
    [
        ("time", "<f8"), ("round", "<i8"), ("take", "<i8"), ("what", TEXT), ("client", "<i4"), ("rank", "<i4"),
        ("text", TEXT),
    ]
)  # fmt: skip

COLUMNS = {
    "round": ("outer round after which the row was taken", "rounds"),
    "time": ("time since the first task was sent", "seconds; virtual seconds on the virtual link"),
    "upper": ("mean over clients of f_i(x, y)", ""),
    "lower": ("mean over clients of g_i(x, y)", ""),
    "grad_norm": ("norm of the hypergradient estimate with which the method took its last step", ""),
    "age": ("mean age of the answers since the last row", "rounds of communication"),
    "smoothness": ("ℓ in use: as given, or the clients' bound, or 1.5 times the largest curvature met", ""),
}
# Costs, the same for all methods and counted from the beginning of the run; docs/methods.md explains each.
COUNTERS = {
    "communication": ("how often the server had what it waited for: rounds of communication", "rounds"),
    "bytes_down": ("from the server to clients, headers included", "bytes"),
    "bytes_up": ("from clients to the server, headers included", "bytes"),
    "gradients": ("samples on which gradients were evaluated; values count as gradients", "samples"),
    "hvps": ("samples on which Hessian products were evaluated", "samples"),
    "crosses": ("samples on which cross products were evaluated", "samples"),
    "work": ("samples times the coordinates of x and y that an oracle was given", "samples × coordinates"),
    "client_seconds": ("real time that clients computed, all together", "seconds"),
    "server_seconds": ("real time that the server computed, waiting apart", "seconds"),
}


@dataclass
class Layout:
    """What a run file has before its first row."""

    attributes: dict[str, Any]
    kinds: list[str]
    clients: np.ndarray
    columns: dict[str, tuple[str, str]]  # beside those that every run has
    dims: tuple[int, int] | None  # of x and y, where they are kept
    dealing: tuple[str, dict[str, np.ndarray]] | None = None

    def lay_out(self, file: h5py.File) -> None:
        """Put it into an empty file."""
        columns = {**COLUMNS, **COUNTERS, **self.columns}
        _lay_out(file, self.attributes, self.kinds, self.clients, columns, self.dims)
        if self.dealing:
            _lay_out_partition(file, *self.dealing)


def _lay_out(file: h5py.File, attributes: dict, kinds: list[str], clients: np.ndarray,
             columns: dict[str, tuple[str, str]], dims: tuple[int, int] | None) -> None:  # fmt: skip
    """Everything that a run file has, with no rows yet."""
    file.attrs.update(
        format=FORMAT, format_version=FORMAT_VERSION, status="running", run=uuid.uuid4().hex,
        fbompi_version=fbompi.__version__, created=now(), host=socket.gethostname(),
        python=sys.version.split()[0], numpy=np.__version__, **attributes,
    )  # fmt: skip
    trajectory = file.create_group("trajectory")
    for name, (meaning, unit) in columns.items():
        dtype = np.int64 if name == "round" else np.float64
        column = trajectory.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(512,))
        column.attrs.update(meaning=meaning, unit=unit)
    if dims:
        for name, dim in zip(("x", "y"), dims, strict=True):
            if not dim:  # the nonsmooth family has no y
                continue
            rows = max(1, (1 << 16) // (8 * dim))
            chunks, maxshape = (rows, dim), (None, dim)
            iterate = trajectory.create_dataset(name, (0, dim), np.float64, maxshape=maxshape, chunks=chunks)
            iterate.attrs.update(meaning=f"the {'upper' if name == 'x' else 'lower'} variable", unit="")
    kind = h5py.enum_dtype({name: code for code, name in enumerate(kinds)}, basetype="u1")
    fields = [(name, kind if name == "kind" else EVENT[name]) for name in EVENT.names or ()]
    events = file.create_dataset("events", (0,), np.dtype(fields), maxshape=(None,), chunks=(1024,))
    events.attrs.update(
        meaning="one row per answer, in the order in which the server took them: that of arrival, but for the first "
        "answers of a kind, which wait until it is known what is usual",
        age="rounds of communication between the task and its answer: arrived_round - sent_round",
        time_sent="seconds", time_arrived="seconds", compute="seconds the client computed",
        step="an asynchronous method's own count of steps of this kind when the task was sent: what the delays ρ "
        "and τ of AFBO are counted in; 0 for synchronous methods",
        bytes="task and answer together, headers included", bytes_up="of these, the answer's",
        gradients="samples on which gradients were evaluated (likewise hvps, crosses)",
        work="samples times the coordinates of x and y that an oracle was given",
        memory="bytes of the task's arrays and working memory at their peak, the shard apart; 0: not traced",
        seconds="real seconds the client computed; compute is in seconds of the link's clock",
        take="the server's step, counted from 0, in which it took the answer: those of one step were taken together",
        rejected="1: not finite, of absurd length, or not plausible; not used, and the client asked again",
    )  # fmt: skip
    state = h5py.enum_dtype(STATES, basetype="u1")
    fields = [(name, state if name == "state" else CLIENT[name]) for name in CLIENT.names or ()]
    table = file.create_dataset("clients", data=clients.astype(np.dtype(fields)))
    table.attrs.update(
        meaning="one row per client", rank="the rank that hosts it; 0 on the virtual link",
        capacity="fraction of the model that it can hold",
        peak_memory="bytes that a task took at most, the shard apart; 0: never traced",
        state="alive; lost: left out since it, or its rank, failed; adopted: its rank was lost, another one hosts it",
        rejected="answers that were not used",
    )  # fmt: skip
    starts = file.create_dataset("starts", (0,), START, maxshape=(None,), chunks=(16,))
    starts.attrs["meaning"] = "one row per process that wrote this file: the run's beginning, and when it was resumed"
    incidents = file.create_dataset("incidents", (0,), INCIDENT, maxshape=(None,), chunks=(64,))
    incidents.attrs.update(
        meaning="what befell ranks and clients, in order", round="round of communication",
        take="the server's step before which it happened, or which it was", client="−1: none", rank="−1: none",
    )  # fmt: skip


def _lay_out_partition(file: h5py.File, rule: str, tables: dict[str, np.ndarray]) -> None:
    """How many samples each client holds, as a problem tells it."""
    group = file.create_group("partition")
    group.attrs.update(meaning="how samples were dealt out to clients", rule=rule)
    for name, table in tables.items():
        columns = ", one column per class" if table.ndim > 1 else ""
        group.create_dataset(name, data=table).attrs["meaning"] = (
            f"how many ({name}) each client has, one row each{columns}"
        )


def tables(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """The datasets that are written row by row, by their names."""
    for name in ("events", "clients", "starts", "incidents"):
        yield name, file[name]
    for name, column in file["trajectory"].items():
        yield f"trajectory/{name}", column


def now() -> str:
    """This moment, as run files have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
