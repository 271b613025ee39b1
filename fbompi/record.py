"""The run file: HDF5 that anyone can read with h5py or HDFView, and that a killed writer leaves readable.

The file is complete under a temporary name before it gets its own, and every row is committed through a journal
(`fbompi.journal`), so that a kill costs at most what came after the last row, whatever it falls on.
"""

from __future__ import annotations

import io
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import fbompi
from fbompi import checkpoint
from fbompi.checkpoint import Checkpoint
from fbompi.errors import UserError
from fbompi.hdf5 import contained, created
from fbompi.journal import Journaled, Lock, image, is_being_written, pending, recover
from fbompi.links.link import EVENT, Script, Step
from fbompi.messages import COSTS

FORMAT, FORMAT_VERSION = "fbompi-run", 2
ATTRIBUTES = ("status", "config", "fbompi_version", "created", "host", "mpi", "ranks", "seed", "link")
TEXTS = ("status", "config", "fbompi_version", "created", "host", "mpi", "link")  # of these
STATES = {"alive": 0, "lost": 1, "adopted": 2}

IN_SCRIPTS = ("client left out", "answer rejected")  # incidents that happen again where rounds are gone through again
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
            if out and is_being_written(path):
                raise UserError(f'run.out = "{out}": is being written by another run; choose another name')
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


class Unwritable(UserError):
    """The disk is full, or refuses for another reason; what was committed stands."""


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


def create(destination: Destination, layout: Layout) -> RunFile:
    """A new run file, at its destination and open for writing."""
    path = destination.path
    temporary = _temporary(path)
    lock = None if destination.stem else Lock(path)
    try:
        with created(temporary) as file:
            layout.lay_out(file)
        if lock is not None and path.exists():
            recover(path)  # of what is about to be replaced: a kill before that leaves it whole
        path = destination.publish(temporary)
        checkpoint.remove(path)
        return RunFile(path, lock or Lock(path))
    except OSError as e:
        temporary.unlink(missing_ok=True)
        if lock is not None:
            lock.release()
        raise UserError(f'run.out = "{path}": cannot be written: {e.strerror or e}') from None


class RunFile:
    """Writes a run, row by row."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self.path, self._lock = path, lock
        try:
            self._journaled = Journaled(path, lock)
        except OSError as e:
            lock.release()
            raise Unwritable(f"{path}: cannot be written: {e.strerror or e}") from None
        try:
            self.file = h5py.File(self._journaled, "r+")
            self.id = str(self.file.attrs["run"])
            self.columns = [name for name in self.file["trajectory"] if name not in ("x", "y")]
        except Exception as e:  # HDF5 and h5py raise almost anything on damaged bytes
            lock.release()
            raise UserError(f"{path}: is damaged: {type(e).__name__}: {e}") from None

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
        self._extend("events", rows)

    def append_incidents(self, incidents: list) -> None:
        self._extend("incidents", np.array(incidents, INCIDENT))

    def begin(self, attributes: dict[str, Any], round_: int) -> None:
        """Note that a process begins, or goes on, to write this file."""
        self.file.attrs.update(status="running", fbompi_version=fbompi.__version__, host=socket.gethostname(),
                               **attributes)  # fmt: skip
        row = _now(), socket.gethostname(), attributes["mpi"], attributes["ranks"], round_
        self._extend("starts", np.array([row], START))
        if "final" in self.file:
            del self.file["final"]
        self.flush()

    def _extend(self, name: str, rows: np.ndarray) -> None:
        table = self.file[name]
        table.resize(len(table) + len(rows), axis=0)
        table[len(table) - len(rows) :] = rows.astype(table.dtype)

    def tell_clients(self, **columns: np.ndarray) -> None:
        """Bring the table of clients up to date."""
        table = self.file["clients"]
        rows = table[:]
        for name, values in columns.items():
            rows[name] = values
        table[:] = rows

    # What an earlier process has written

    def check(self, like: h5py.File) -> None:
        """Refuse to go on with a file that is not laid out as a new one of this run would be."""
        for name, new in _datasets(like):
            old = self.file.get(name)
            if not isinstance(old, h5py.Dataset) or old.dtype != new.dtype or old.maxshape != new.maxshape:
                raise UserError(f"{self.path}: cannot be gone on with: {name} is not as this fbompi writes it")
        rounds = self.file["trajectory/round"][:]
        columns = self.file["trajectory"].values()
        if any(len(column) != len(rounds) for column in columns) or rounds.min(initial=0) < 0:
            raise UserError(f"{self.path}: is damaged: columns of the trajectory differ in length")
        if (np.diff(rounds) <= 0).any():
            raise UserError(f"{self.path}: is damaged: rounds of the trajectory are not in order")

    @property
    def rows(self) -> int:
        return len(self.file["trajectory/round"])

    @property
    def events(self) -> int:
        return len(self.file["events"])

    def row(self, index: int) -> dict[str, Any]:
        """One row of the trajectory, iterates included."""
        return {name: column[index] for name, column in self.file["trajectory"].items()}

    def holds(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint that is not of this file, or was taken later than it ends."""
        if checkpoint.run != self.id:
            raise ValueError("it belongs to another run")
        if not 0 <= checkpoint.rows <= self.rows or not 0 <= checkpoint.events <= self.events:
            raise ValueError("it is newer than the run file")
        if len(checkpoint.ages) != 2 or checkpoint.state.round < 0:
            raise ValueError("its rounds or ages cannot be")
        if not set(checkpoint.link.evaluations) <= set(self.file["trajectory/round"][:].tolist()):
            raise ValueError("it evaluates rounds that the run file does not have")

    def cut(self, rows: int, events: int, takes: int) -> None:
        """Forget what comes after so many rows, events and steps."""
        for column in self.file["trajectory"].values():
            column.resize(rows, axis=0)
        self.file["events"].resize(events, axis=0)
        incidents = self.file["incidents"]
        before = incidents[:][incidents["take"] < takes]
        incidents.resize(len(before), axis=0)
        incidents[:] = before

    def flush(self, durable: bool = False) -> None:
        """Let what was written take effect; from then on a kill cannot undo it."""
        try:
            self.file.flush()
            self._journaled.commit(durable)
        except OSError as e:
            raise Unwritable(f"{self.path}: cannot be written any more: {e.strerror or e}") from None

    def finish(self, status: str, final: dict[str, tuple[np.ndarray, str]], last: Checkpoint | None = None) -> None:
        """Say how the run ended, keep the last iterate and what else the method gives (with meanings), and close."""
        group = self.file.require_group("final")
        group.attrs["meaning"] = "the last iterate, and what else the method gives at the end"
        for name, (array, meaning) in final.items():
            if name in group:
                del group[name]
            group.create_dataset(name, data=array).attrs["meaning"] = meaning
        if last is not None:
            if "checkpoint" in self.file:
                del self.file["checkpoint"]
            checkpoint.pack(self.file, "checkpoint", last)
            self.file["checkpoint"].attrs["meaning"] = "the server's state at the end, for fbompi resume"
        self.file.attrs["status"] = status
        self.flush(durable=True)
        if last is not None:
            checkpoint.remove(self.path)
        self.close()

    def close(self) -> None:
        """Let go of the file as it was at the last flush."""
        self.file.close()
        self._journaled.close()
        self._lock.release()


def reopen(path: Path, lock: Lock, layout: Layout) -> RunFile:
    """A run file to be gone on with, or one clear line."""
    with reading(path):  # refuses what is no run file
        pass
    with h5py.File(io.BytesIO(), "w") as like:
        layout.lay_out(like)
        file = RunFile(path, lock)
        try:
            file.check(like)
        except Exception as e:
            file.close()
            if isinstance(e, UserError):
                raise
            raise UserError(f"{path}: is damaged: {type(e).__name__}: {e}") from None
    return file


def mark(path: Path, status: str) -> None:
    """Say how a run ended whose file could not be written; where that does not succeed either, it says `running`."""
    try:
        file = RunFile(path, Lock(path))
        file.file.attrs["status"] = status
        try:
            file.flush()
        finally:
            file.close()
    except (OSError, UserError):
        return


def _lay_out(file: h5py.File, attributes: dict, kinds: list[str], clients: np.ndarray,
             columns: dict[str, tuple[str, str]], dims: tuple[int, int] | None) -> None:  # fmt: skip
    """Everything that a run file has, with no rows yet."""
    file.attrs.update(
        format=FORMAT, format_version=FORMAT_VERSION, status="running", run=uuid.uuid4().hex,
        fbompi_version=fbompi.__version__, created=_now(), host=socket.gethostname(),
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


def _datasets(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Those that are written row by row."""
    for name in ("events", "clients", "starts", "incidents"):
        yield name, file[name]
    for name, column in file["trajectory"].items():
        yield f"trajectory/{name}", column


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


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
    _mend(Path(path))
    try:
        file = _opened(image(Path(path)))
    except Exception as e:  # HDF5 and h5py raise almost anything on damaged bytes
        raise UserError(f"{path}: cannot be opened as HDF5: {(str(e).splitlines() or [repr(e)])[0]}") from None
    try:
        with file:
            _check(file, path)
            yield file
    except UserError:
        raise
    except Exception as e:
        raise UserError(f"{path}: is damaged: {type(e).__name__}: {e}") from None


def _opened(content: Any) -> h5py.File:
    """A file opened without a lock; where this process has it open with one, as h5py does by default, likewise."""
    try:
        return h5py.File(content, "r", locking=False)
    except OSError as e:
        if "locking flag" not in str(e):
            raise
        return h5py.File(content, "r")


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
    for name in TEXTS:
        if not isinstance(file.attrs[name], str):
            raise UserError(f"{path}: is damaged: its {name} is not a text")
    contained(file)


def _mend(path: Path) -> None:
    """Where a writer was killed in a commit, complete it: then the file opens with plain h5py too."""
    if pending(path) and not is_being_written(path) and os.access(path, os.W_OK):
        try:
            lock = Lock(path)
        except (OSError, UserError):
            return  # nobody may write here, or somebody does again: reading is possible all the same
        with suppress(OSError):  # the disk is full, or fails
            recover(path)
        lock.release()


def script_of(path: str | Path, file: h5py.File, events: int, takes: int) -> Script:
    """What arrived, and who was left out, after so many events and steps."""
    script: Script = {}
    log = file["events"]
    if "take" not in log.dtype.names:
        raise UserError(f"{path}: was recorded by an earlier fbompi, whose log of arrivals does not say enough")
    for row in log[events:][["task", "take", "rejected"]].tolist():
        script.setdefault(row[1], Step()).answers[row[0]] = bool(row[2])
    for row in file["incidents"][:]:
        if row["what"] == b"client left out" and row["take"] >= takes:
            script.setdefault(int(row["take"]), Step()).leaving.append(int(row["client"]))
    return script


class Recorder:
    """Watches a run and writes it down; evaluation is asked for here and never waited for.

    Of a run that goes on, the rounds between its checkpoint and the end of its file are gone through again: what they
    give is there already and is only compared.
    """

    def __init__(self, file: RunFile, driver: Any, progress: Any, resumed: Checkpoint | None = None) -> None:
        self.file, self.driver, self.progress = file, driver, progress
        config = driver.parts.config
        self.settings, self.rounds = config.record, config.run.rounds
        rounds = file.file["trajectory/round"][:].tolist()
        self._row_of = {round_: row for row, round_ in enumerate(rounds)}
        self._known = rounds[-1] if rounds else -1  # the last round that was recorded before
        self._repeated = file.events - (resumed.events if resumed else 0)  # events that come again
        self._ages = list(resumed.ages) if resumed else [0.0, 0.0]
        self._last_row = max(0, len(rounds) - 1)
        self._count()
        self._memory = file.file["clients"]["peak_memory"].astype(np.int64)
        self._last_checkpoint, self._cost, self._kept = time.perf_counter(), 0.0, -1  # when, how long it took, of what
        self._warned = False

    def _count(self) -> None:
        """Sum up what the file has."""
        events, incidents = self.file.file["events"][:], self.file.file["incidents"][:]
        repeated = [int(row["take"]) for row in incidents if row["what"].decode() in IN_SCRIPTS]
        self._counted = {name: float(events[name].sum()) for name in (*COSTS[:-1], "bytes", "bytes_up", "seconds")}
        self._steps = 1 + max([-1, *events["take"][-1:], *repeated[-1:]])  # known already
        times = self.file.file["trajectory/time"][-1:], events["time_arrived"][-1:]
        self._recorded = float(max([0.0, *times[0], *times[1]]))  # the last moment

    @property
    def behind(self) -> bool:
        """Whether rounds are gone through again."""
        return self.driver.state.round <= self._known

    def see(self, state: Any, link: Any) -> None:
        """Called before the first round and after each."""
        if self.behind:
            link.stand_at(self._recorded)
        self.progress.show(state.round, link.now)
        self.fetch(link)
        self._note_ages(link)
        if not (state.round in self._row_of and self._same(state, link)):
            if self._row_due(state):
                self._write_row(state, link)
            elif len(link.events) > EVENTS_AT_ONCE:
                self._write_events(link)
        if self._checkpoint_due(state):
            self.keep(state, link)

    def _row_due(self, state: Any) -> bool:
        """Whether this round gets a row; between those that are there it is too late for one."""
        return not self.behind and (state.round % self.settings.every == 0 or self.driver.over)

    def _note_ages(self, link: Any) -> None:
        new = link.events[self._aged :]
        self._ages[0] += sum(event[5] for event in new)
        self._ages[1] += len(new)
        self._aged += len(new)

    _aged = 0  # of the events in memory, those whose ages are summed

    def _same(self, state: Any, link: Any) -> bool:
        """Whether the round that was gone through again gave what was recorded; if not, the file ends before it."""
        index = self._row_of[state.round]
        row = self.file.row(index)
        pairs = [(row["grad_norm"], state.gradient_norm)]
        pairs += [(row[name], getattr(state, name)) for name in ("x", "y") if name in row]
        self._write_events(link)
        if all(np.array_equal(old, new, equal_nan=True) for old, new in pairs):
            self._ages = [0.0, 0.0]
            self._last_row = index
            self.driver.server_seconds = float(row["server_seconds"])  # what was measured then stands
            if np.isnan(row["upper"]):
                self._evaluate(state, link)
            return True
        print(
            f"fbompi: round {state.round} gave other bits than were recorded (another machine or library?): what the "
            "file has from there on is replaced", file=sys.stderr,
        )  # fmt: skip
        self.file.cut(index, self.file.events - self._repeated, link.takes)
        self._row_of = {round_: row for round_, row in self._row_of.items() if row < index}
        self._known, self._repeated, link.script = state.round - 1, 0, None
        self._count()
        return False

    def _write_row(self, state: Any, link: Any) -> None:
        problem, clients = self.driver.parts.problem, self.driver.parts.clients
        total, count = self._ages
        self._write_events(link)
        self._ages = [0.0, 0.0]
        figures = self.driver.method.figures(state)
        row = {"round": state.round, "time": link.now, "grad_norm": state.gradient_norm,
               "age": total / count if count else 0.0, "smoothness": self.driver.method.ell,
               **self._counters(link), **figures}  # fmt: skip
        if unknown := set(figures) - set(self.driver.method.figure_meanings):
            raise UserError(f"method: figures gives {', '.join(unknown)}, which figure_meanings does not explain")
        if hasattr(problem, "exact"):
            row.update(problem.exact(state.x, state.y, clients))
            if unknown := set(row) - set(self.file.columns):
                raise UserError(f"problem: exact gives {', '.join(unknown)}, which exact_meanings does not explain")
            self.progress.note(row)
        self._last_row = self.file.append(row, (state.x, state.y) if "x" in self.file.file["trajectory"] else None)
        self._row_of[state.round] = self._last_row
        self.file.flush()
        self._evaluate(state, link)

    def _evaluate(self, state: Any, link: Any) -> None:
        if self.settings.metrics:
            link.evaluate(state.round, state.x, state.y)

    def finish(self, link: Any) -> None:
        """Wait for the evaluations under way, and write down what else arrived meanwhile."""
        link.finish_evaluations()
        self.fetch(link)
        self._note_ages(link)
        self._write_events(link)
        self.file.fill(self._last_row, self._counters(link))
        self.file.flush()

    # Checkpoints

    def _checkpoint_due(self, state: Any) -> bool:
        every = self.settings.checkpoint_every
        if self.driver.over or not state.round:
            return False
        if every != "auto":
            return bool(every) and state.round % every == 0
        since = time.perf_counter() - self._last_checkpoint
        return since > max(checkpoint.AT_LEAST, self._cost / checkpoint.SHARE)

    def keep(self, state: Any, link: Any) -> bool:
        """Have a checkpoint of this round beside the run file; whether there is one. If not, the last one stands."""
        if state.round == self._kept:
            return True
        begin = time.perf_counter()
        self._write_events(link, durable=True)
        try:
            checkpoint.write(self.file.path, self.taken(state, link))
            self._kept = state.round
            return True
        except OSError as e:
            if not self._warned:
                print(f"fbompi: no checkpoint could be written: {e.strerror or e}; the last stands", file=sys.stderr)
            self._warned = True
            return False
        finally:
            self._last_checkpoint = time.perf_counter()
            self._cost = self._last_checkpoint - begin

    def taken(self, state: Any, link: Any) -> Checkpoint:
        """The run as it is now."""
        rows = sum(round_ <= state.round for round_ in self._row_of) if self.behind else self.file.rows
        events = self.file.events - self._repeated
        return Checkpoint(
            self.file.id, rows, events, self._ages, self.driver.server_seconds, state, link.saved()
        )  # fmt: skip

    # The parts of a row

    def _counters(self, link: Any) -> dict[str, float]:
        """The costs so far."""
        c = self._counted
        return {
            "communication": link.round, "bytes_down": c["bytes"] - c["bytes_up"], "bytes_up": c["bytes_up"],
            "client_seconds": c["seconds"], "server_seconds": self.driver.server_seconds,
            **{name: c[name] for name in COSTS[:-1]},
        }  # fmt: skip

    def _write_events(self, link: Any, durable: bool = False) -> None:
        again = min(self._repeated, len(link.events))
        if len(link.events) > again:
            rows = np.array(link.events[again:], EVENT)
            for name in self._counted:
                self._counted[name] += float(rows[name].sum())
            np.maximum.at(self._memory, rows["client"], rows["memory"])
            self.file.append_events(rows)
        self._repeated -= again
        link.events.clear()
        self._aged = 0
        new = [
            incident for incident in link.incidents if incident.take >= self._steps or incident.what not in IN_SCRIPTS
        ]
        if new:
            self.file.append_incidents(new)
        link.incidents.clear()
        self.file.tell_clients(tasks_done=link.tasks_done, peak_memory=self._memory, rejected=link.rejected,
                               state=link.client_state, **link.places())  # fmt: skip
        self.file.flush(durable)

    def fetch(self, link: Any) -> None:
        """Complete the rows whose evaluation has come in."""
        for round_, parts in link.evaluated:
            if round_ in self._row_of:  # else it was replaced meanwhile
                row = self.driver.row(parts)
                self.file.fill(self._row_of[round_], row)
                self.progress.note(row)
        if link.evaluated:
            link.evaluated.clear()
            self.file.flush()
