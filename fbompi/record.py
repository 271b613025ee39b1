"""The run file: HDF5 that anyone can read with h5py or HDFView, and that a killed writer leaves readable.

The file is complete under a temporary name before it gets its own, and every row is committed through a journal
(`fbompi.journal`), so that a kill costs at most what came after the last row, whatever it falls on.
"""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import fbompi
from fbompi import checkpoint
from fbompi.checkpoint import Checkpoint
from fbompi.destination import Destination, temporary
from fbompi.errors import UserError
from fbompi.hdf5 import contained, created, keep_names
from fbompi.journal import Journaled, Lock, image, is_being_written, pending, recover
from fbompi.layout import ATTRIBUTES, FORMAT, FORMAT_VERSION, INCIDENT, START, TEXTS, Layout, now, tables
from fbompi.links.link import Script, Step


class Unwritable(UserError):
    """The disk is full, or refuses for another reason; what was committed stands."""


def create(destination: Destination, layout: Layout) -> RunFile:
    """A new run file, at its destination and open for writing."""
    path = destination.path
    made = temporary(path)
    lock = None if destination.stem else Lock(path)
    try:
        with created(made) as file:
            layout.lay_out(file)
        if lock is not None and path.exists():
            recover(path)  # of what is about to be replaced: a kill before that leaves it whole
        path = destination.publish(made)
        keep_names(path.parent)
        checkpoint.remove(path)
        return RunFile(path, lock or Lock(path))
    except OSError as e:
        made.unlink(missing_ok=True)
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
        row = now(), socket.gethostname(), attributes["mpi"], attributes["ranks"], round_
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
        for name, new in tables(like):
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


@contextmanager
def reading(path: str | Path, known: bool = False) -> Iterator[h5py.File]:
    """A run file opened for reading, also while it is being written, or one clear line; one that is known to hold
    nothing but its own content is not searched for other."""
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
            if not known:
                contained(file)
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
