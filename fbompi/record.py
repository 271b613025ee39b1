"""The run file: HDF5 that anyone can read with h5py or HDFView, and that a killed writer leaves readable.

The file is complete under a temporary name before it gets its own, and every row is flushed, so that a kill costs
at most what came after the last row.
"""

from __future__ import annotations

import io
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import fbompi
from fbompi.errors import UserError
from fbompi.links.link import EVENT
from fbompi.messages import COSTS

FORMAT, FORMAT_VERSION = "fbompi-run", 1
ATTRIBUTES = ("status", "config", "fbompi_version", "created", "host", "mpi", "ranks", "seed", "link")
STATES = {"alive": 0, "lost": 1, "adopted": 2}

EVENTS_AT_ONCE = 50_000  # events kept in memory between two rows of the trajectory

CLIENT = np.dtype(
    [
        ("shard_size", "<i8"),
        ("capacity", "<f8"),
        ("rank", "<i4"),
        ("delay_factor", "<f8"),
        ("tasks_done", "<i8"),
        ("state", "<u1"),
        ("peak_memory", "<i8"),
    ]
)

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


@dataclass(frozen=True)
class Destination:
    """Where a run file goes: to a path, or to the first free number behind a stem."""

    path: Path
    stem: str
    overwrite: bool

    @classmethod
    def choose(cls, out: str, stem: str, overwrite: bool) -> Destination:
        """A destination that can be written, or one clear line."""
        path = Path(out or f"{stem}-1.h5")
        try:
            if "\0" in out:
                raise UserError(f'run.out = "{out}": a file name cannot hold a zero character')
            if out and path.is_dir():
                raise UserError(f'run.out = "{out}": is a directory; expected the name of a file')
            if out and path.exists() and not overwrite:
                raise UserError(f'run.out = "{out}": exists already; choose another name or add --overwrite')
            if not path.parent.is_dir():
                raise UserError(f'run.out = "{out}": there is no directory {path.parent}')
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise UserError(
                    f'run.out = "{path}": cannot be written: no permission to write in {path.parent.resolve()}'
                )
            os.close(os.open(_temporary(path), os.O_CREAT | os.O_WRONLY))  # rather now than after set-up
            _temporary(path).unlink()
        except (OSError, ValueError) as e:
            raise UserError(f'run.out = "{path}": cannot be written: {getattr(e, "strerror", None) or e}') from None
        return cls(path, "" if out else stem, overwrite)

    def publish(self, temporary: Path) -> Path:
        """Give a finished file its name, taking no other run's."""
        if self.overwrite and not self.stem:
            os.replace(temporary, self.path)
            return self.path
        path, number = self.path, 1
        while True:
            try:
                os.link(temporary, path)
                break
            except FileExistsError:
                if not self.stem:
                    raise
                number += 1
                path = Path(f"{self.stem}-{number}.h5")
            except OSError:  # a file system without hard links: take the name, then the file
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                os.replace(temporary, path)
                return path
        temporary.unlink()
        return path


def _temporary(path: Path) -> Path:
    """The name under which this process writes a run file until it is complete."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}.partial")


class RunFile:
    """Writes a run, row by row."""

    def __init__(self, destination: Destination, attributes: dict[str, Any], kinds: list[str], clients: np.ndarray,
                 columns: dict[str, tuple[str, str]], dims: tuple[int, int] | None,
                 dealing: tuple[str, dict[str, np.ndarray]] | None = None) -> None:  # fmt: skip
        path = destination.path
        self.columns = {**COLUMNS, **COUNTERS, **columns}
        temporary = _temporary(path)
        try:
            with h5py.File(temporary, "w") as file:
                self._lay_out(file, attributes, kinds, clients, dims)
                if dealing:
                    _lay_out_partition(file, *dealing)
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            self.path = destination.publish(temporary)
            self.file = h5py.File(self.path, "r+")
        except OSError as e:
            temporary.unlink(missing_ok=True)
            raise UserError(f'run.out = "{path}": cannot be written: {e.strerror or e}') from None

    def _lay_out(self, file: h5py.File, attributes: dict, kinds: list[str], clients: np.ndarray,
                 dims: tuple[int, int] | None) -> None:  # fmt: skip
        file.attrs.update(
            format=FORMAT, format_version=FORMAT_VERSION, status="running", fbompi_version=fbompi.__version__,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"), host=socket.gethostname(),
            python=sys.version.split()[0], numpy=np.__version__, **attributes,
        )  # fmt: skip
        trajectory = file.create_group("trajectory")
        for name, (meaning, unit) in self.columns.items():
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
            meaning="one row per answer that arrived, in order of arrival",
            age="rounds of communication between the task and its answer: arrived_round - sent_round",
            time_sent="seconds", time_arrived="seconds", compute="seconds the client computed",
            step="an asynchronous method's own count of steps of this kind when the task was sent: what the delays ρ "
            "and τ of AFBO are counted in; 0 for synchronous methods",
            bytes="task and answer together, headers included", bytes_up="of these, the answer's",
            gradients="samples on which gradients were evaluated (likewise hvps, crosses)",
            work="samples times the coordinates of x and y that an oracle was given",
            memory="bytes of the task's arrays and working memory at their peak, the shard apart; 0: not traced",
            seconds="real seconds the client computed; compute is in seconds of the link's clock",
        )  # fmt: skip
        state = h5py.enum_dtype(STATES, basetype="u1")
        fields = [(name, state if name == "state" else CLIENT[name]) for name in CLIENT.names or ()]
        table = file.create_dataset("clients", data=clients.astype(np.dtype(fields)))
        table.attrs.update(
            meaning="one row per client", rank="the rank that hosts it; 0 on the virtual link",
            capacity="fraction of the model that it can hold",
            peak_memory="bytes that a task took at most, the shard apart; 0: never traced",
        )  # fmt: skip

    def append(self, row: dict[str, float], iterates: tuple[np.ndarray, np.ndarray] | None) -> int:
        """Add a row; its index. Columns not given are NaN until `fill`."""
        trajectory = self.file["trajectory"]
        index = len(trajectory["round"])
        values: dict[str, Any] = {name: row.get(name, np.nan) for name in self.columns}
        if iterates:
            values.update({name: z for name, z in zip(("x", "y"), iterates, strict=True) if z.size})
        for name, value in values.items():
            trajectory[name].resize(index + 1, axis=0)
            trajectory[name][index] = value
        return index

    def fill(self, index: int, row: dict[str, float]) -> None:
        """Complete a row."""
        for name, value in row.items():
            self.file["trajectory"][name][index] = value

    def append_events(self, rows: np.ndarray) -> None:
        table = self.file["events"]
        table.resize(len(table) + len(rows), axis=0)
        table[len(table) - len(rows) :] = rows.astype(table.dtype)

    def count_tasks(self, done: np.ndarray, memory: np.ndarray) -> None:
        table = self.file["clients"]
        rows = table[:]
        rows["tasks_done"], rows["peak_memory"] = done, memory
        table[:] = rows

    def flush(self) -> None:
        self.file.flush()

    def finish(self, status: str, final: dict[str, tuple[np.ndarray, str]]) -> None:
        """Say how the run ended, keep the last iterate and what else the method gives (with meanings), and close."""
        group = self.file.require_group("final")
        group.attrs["meaning"] = "the last iterate, and what else the method gives at the end"
        for name, (array, meaning) in final.items():
            group.create_dataset(name, data=array).attrs["meaning"] = meaning
        self.file.attrs["status"] = status
        self.file.close()


def _lay_out_partition(file: h5py.File, rule: str, tables: dict[str, np.ndarray]) -> None:
    """How many samples each client holds, as a problem tells it."""
    group = file.create_group("partition")
    group.attrs.update(meaning="how samples were dealt out to clients", rule=rule)
    for name, table in tables.items():
        columns = ", one column per class" if table.ndim > 1 else ""
        group.create_dataset(name, data=table).attrs["meaning"] = (
            f"how many ({name}) each client has, one row each{columns}"
        )


@contextmanager
def reading(path: str | Path) -> Iterator[h5py.File]:
    """A run file opened for reading, also while it is being written, or one clear line."""
    if not Path(path).is_file():
        why = "is a directory, not a run file" if Path(path).is_dir() else "there is no such file"
        raise UserError(f"{path}: {why}")
    try:
        file = h5py.File(_whole(Path(path)), "r", locking=False)
    except (OSError, ValueError) as e:
        raise UserError(f"{path}: cannot be opened as HDF5: {str(e).splitlines()[0]}") from None
    try:
        with file:
            _check(file, path)
            yield file
    except UserError:
        raise
    except Exception as e:  # HDF5 and h5py raise almost anything on damaged bytes
        raise UserError(f"{path}: is damaged: {type(e).__name__}: {e}") from None


def _check(file: h5py.File, path: str | Path) -> None:
    """Refuse what is not a run file, or one of a later format."""
    if file.attrs.get("format") != FORMAT:
        raise UserError(f"{path}: is an HDF5 file, but not a run file of fbompi")
    version = int(file.attrs["format_version"])
    if version > FORMAT_VERSION:
        raise UserError(
            f"{path}: has run-file format {version}, this fbompi reads up to {FORMAT_VERSION}: install a newer fbompi"
        )
    missing = [name for name in ATTRIBUTES if name not in file.attrs]
    if missing:
        raise UserError(f"{path}: is damaged: it lacks {', '.join(missing)}")


def _whole(path: Path) -> Any:
    """The file, or where its writer was killed while the file grew, an image of it that says how long it is.

    HDF5 tells the new end of the file (bytes 40 to 47 of a version-0 superblock) after it has used the space.
    """
    with open(path, "rb") as file:
        head = file.read(48)
        size = os.fstat(file.fileno()).st_size
        if head[:8] != b"\x89HDF\r\n\x1a\n" or head[8:9] != b"\0" or int.from_bytes(head[40:48], "little") >= size:
            return path
        image = bytearray(head + file.read())
    image[40:48] = len(image).to_bytes(8, "little")
    return io.BytesIO(image)


class Recorder:
    """Watches a run and writes it down; evaluation is asked for here and never waited for."""

    def __init__(self, file: RunFile, driver: Any, progress: Any) -> None:
        self.file, self.driver, self.progress = file, driver, progress
        config = driver.parts.config
        self.settings, self.rounds = config.record, config.run.rounds
        self._row_of: dict[int, int] = {}  # round -> row, of evaluations under way
        self._last_row = 0
        # Sums over all events so far
        self._counted = dict.fromkeys((*COSTS[:-1], "bytes", "bytes_up", "seconds"), 0.0)
        self._memory = np.zeros(driver.parts.clients, np.int64)

    def see(self, state: Any, link: Any) -> None:
        """Called before the first round and after each."""
        self.progress.show(state.round, link.now)
        self.fetch(link)
        if state.round % self.settings.every and not self.driver.over:
            if len(link.events) > EVENTS_AT_ONCE:
                self._write_events(link)
            return
        problem, clients = self.driver.parts.problem, self.driver.parts.clients
        ages = [event[5] for event in link.events]
        self._write_events(link)
        figures = self.driver.method.figures(state)
        row = {"round": state.round, "time": link.now, "grad_norm": state.gradient_norm,
               "age": float(np.mean(ages)) if ages else 0.0, "smoothness": self.driver.method.ell,
               **self._counters(link), **figures}  # fmt: skip
        if unknown := set(figures) - set(self.driver.method.figure_meanings):
            raise UserError(f"method: figures gives {', '.join(unknown)}, which figure_meanings does not explain")
        if hasattr(problem, "exact"):
            row.update(problem.exact(state.x, state.y, clients))
            if unknown := set(row) - set(self.file.columns):
                raise UserError(f"problem: exact gives {', '.join(unknown)}, which exact_meanings does not explain")
            self.progress.note(row)
        self._last_row = self.file.append(row, (state.x, state.y) if self.settings.iterates else None)
        self._row_of[state.round] = self._last_row
        self.file.flush()
        if self.settings.metrics:
            link.evaluate(state.round, state.x, state.y)

    def finish(self, link: Any) -> None:
        """Wait for the evaluations under way, and write down what else arrived meanwhile."""
        link.finish_evaluations()
        self.fetch(link)
        self._write_events(link)
        self.file.fill(self._last_row, self._counters(link))
        self.file.flush()

    def _counters(self, link: Any) -> dict[str, float]:
        """The costs so far."""
        c = self._counted
        return {
            "communication": link.round, "bytes_down": c["bytes"] - c["bytes_up"], "bytes_up": c["bytes_up"],
            "client_seconds": c["seconds"], "server_seconds": self.driver.server_seconds,
            **{name: c[name] for name in COSTS[:-1]},
        }  # fmt: skip

    def _write_events(self, link: Any) -> None:
        if link.events:
            rows = np.array(link.events, EVENT)
            for name in self._counted:
                self._counted[name] += float(rows[name].sum())
            np.maximum.at(self._memory, rows["client"], rows["memory"])
            self.file.append_events(rows)
            link.events.clear()
        self.file.count_tasks(link.tasks_done, self._memory)
        self.file.flush()

    def fetch(self, link: Any) -> None:
        """Complete the rows whose evaluation has come in."""
        for round_, parts in link.evaluated:
            row = self.driver.row(parts)
            self.file.fill(self._row_of.pop(round_), row)
            self.progress.note(row)
        if link.evaluated:
            link.evaluated.clear()
            self.file.flush()
