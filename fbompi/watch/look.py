"""Looking at a run file again and again while another process writes it."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fbompi.config import tomllib
from fbompi.errors import UserError
from fbompi.journal import is_being_written, journal_of
from fbompi.record import reading
from fbompi.runs import TELLING
from fbompi.status import COMPLETE, FAILED, LOSSES, RESUMABLE
from fbompi.summary import records

RECENT = 30.0  # seconds of which the rate is told
DOUBT = 1.0  # seconds without lock and change until a run counts as killed
DOUBT_ELSEWHERE = 60.0  # the same of a run on another host, whose locks may not reach us
LOST = ("rank lost", "rank silent")  # incidents that a complete run has had losses by
FAILURES = 5  # looks in a row that may fail while the file is being written: above 1 GB it is not copied


@dataclass
class Clients:
    """All clients, an entry each; times are those of the run's clock."""

    state: np.ndarray  # names
    rank: np.ndarray
    tasks: np.ndarray
    rejected: np.ndarray
    heard: np.ndarray  # when the last answer came; NaN: none yet
    age: np.ndarray  # of the last answer, in rounds of communication
    mean_age: np.ndarray
    oldest: int = 0  # age of any answer

    def worst(self, now: float, most: int) -> np.ndarray:
        """Those to look at first: lost, adopted, with rejected answers, silent for long."""
        if len(self.state) <= most:
            return np.arange(len(self.state))
        silence = np.nan_to_num(now - self.heard, nan=np.inf)
        keys = (-silence, -self.rejected, self.state != "adopted", self.state != "lost")
        return np.lexsort(keys)[:most]


@dataclass
class Look:
    """A run as it was at one moment."""

    file: str
    status: str  # as the file has it, or killed
    algorithm: str
    problem: str
    rounds: int  # done, as far as they are recorded
    all_rounds: int
    time: float
    unit: str
    rate: float | None  # rounds per second of real time
    courses: dict[str, np.ndarray]
    clients: Clients
    incidents: list[dict[str, Any]] = field(default_factory=list)  # all
    new: list[dict[str, Any]] = field(default_factory=list)  # those that the look before did not have
    changed: bool = True
    doubtful: bool = False  # says running, but nobody holds its lock

    @property
    def over(self) -> bool:
        return self.status != "running"

    @property
    def left(self) -> float | None:
        """Seconds until the last round, if it goes on like this."""
        return (self.all_rounds - self.rounds) / self.rate if self.rate and not self.over else None

    @property
    def exit_status(self) -> int:
        """What the run's own command leaves with; one that goes on counts as well."""
        harmed = bool((self.clients.state != "alive").any()) or any(i["what"] in LOST for i in self.incidents)
        ends = {"running": COMPLETE, "complete": LOSSES if harmed else COMPLETE, "failed": FAILED}
        return ends.get(self.status, RESUMABLE)

    def figures(self) -> dict[str, Any]:
        """For machines; incidents are those since the last look."""
        c, now = self.clients, self.time
        silence = now - c.heard[np.isfinite(c.heard)]
        return {
            "file": self.file, "status": self.status, "algorithm": self.algorithm, "problem": self.problem,
            "round": self.rounds, "rounds": self.all_rounds, "time": now, "unit": self.unit, "rate": self.rate,
            "seconds_left": self.left,
            "metrics": {name: _ends(course) for name, course in self.courses.items()},
            "clients": {
                "count": len(c.state),
                "states": {str(name): int(n) for name, n in zip(*np.unique(c.state, return_counts=True))},
                "rejected": int(c.rejected.sum()),
                "tasks_done": {"min": int(c.tasks.min()), "max": int(c.tasks.max())},
                "oldest_answer": c.oldest,
                "silence": {"median": float(np.median(silence)), "max": float(silence.max())} if len(silence) else {},
                "worst": [
                    {"client": int(i), "state": str(c.state[i]), "rank": int(c.rank[i]), "tasks_done": int(c.tasks[i]),
                     "rejected": int(c.rejected[i]), "heard": _known(c.heard[i]), "age": _known(c.age[i]),
                     "mean_age": _known(c.mean_age[i])}
                    for i in c.worst(now, 10)
                ],
            },
            "incidents": self.new,
        }  # fmt: skip


class Watched:
    """A run file that is looked at again and again: of the log, which only grows, what is new is read."""

    def __init__(self, path: Path, doubt_elsewhere: float = DOUBT_ELSEWHERE) -> None:
        self.path, self._doubt_elsewhere = path, doubt_elsewhere
        self._last: Look | None = None
        self._mark: tuple | None = None  # of the file's content at the last look
        self._doubt: tuple[tuple, float] | None = None  # since when nobody has held the lock or changed anything
        self._known: int | None = None  # the file whose whole content was checked: it grows by its own run since
        self._config: tuple[str, dict[str, Any]] = "", {}  # its text, and what that says of the run
        self._failures = 0
        self._pace: deque[tuple[float, int]] = deque()  # moments and rounds
        self._begin("")

    def _begin(self, run: str) -> None:
        """Of a file that was not seen before, or begins anew."""
        self._run, self._events = run, 0
        self._incidents: list[dict[str, Any]] = []
        self._last_event = b""
        self._heard = self._age = self._ages = self._counts = np.empty(0)
        self._oldest = 0

    def look(self) -> Look | None:
        """The run now; None, where it cannot be read just now. What has not changed is not read again."""
        if self.path.is_dir():
            raise UserError(f"{self.path}: is a directory, not a run file")
        written, mark = is_being_written(self.path), _mark(self.path)
        known = written and bool(mark) and mark[0] == self._known
        if self._last is not None and written and mark == self._mark:
            self._last.changed, self._last.new = False, []
            return self._last
        try:
            with reading(self.path, known) as file:
                look = self._read(file)
                host = str(file.attrs["host"])
        except UserError:
            self._failures += 1
            if self._failures >= FAILURES or not is_being_written(self.path):
                raise
            return None
        self._failures, self._mark, self._known = 0, mark, mark[0] if mark else None
        if look.status == "running":
            self._judge(look, host)
        last = self._last
        look.changed = last is None or bool(look.new) or any(
            getattr(last, name) != getattr(look, name) for name in ("rounds", "time", "status")
        )  # fmt: skip
        self._last = look
        return look

    def _judge(self, look: Look, host: str) -> None:
        """Whether a run that says it is running has been killed: no lock, and for a while no change."""
        moment = time.monotonic()
        if is_being_written(self.path):
            self._doubt = None
            return
        mark = (_mark(self.path), _mark(journal_of(self.path)))
        if self._doubt is None or self._doubt[0] != mark:
            self._doubt = mark, moment
        look.doubtful = True
        if moment - self._doubt[1] >= (DOUBT if host == socket.gethostname() else self._doubt_elsewhere):
            look.status = "killed"

    def _read(self, file: h5py.File) -> Look:
        if (text := file.attrs["config"]) != self._config[0]:
            self._config = text, tomllib.loads(text)["run"]
        run = self._config[1]
        trajectory, events = file["trajectory"], file["events"]
        self._follow(file)
        telling = [name for name in TELLING if name in trajectory][:2]
        told = [trajectory[name] for name in ("round", "time", *telling, "upper", "lower") if name in trajectory]
        rows = min(map(len, told))
        rounds = int(trajectory["round"][rows - 1]) if rows else 0
        moment = float(trajectory["time"][rows - 1]) if rows else 0.0
        if len(events):
            moment = float(np.nanmax([moment, events[-1]["time_arrived"]]))
        courses = {name: trajectory[name][:rows] for name in (*telling, "upper", "lower") if name in trajectory}
        new = records(file["incidents"][len(self._incidents) :]) if "incidents" in file else []
        self._incidents = [*self._incidents, *new]
        return Look(
            str(self.path), str(file.attrs["status"]), str(run["algorithm"]), str(run["problem"]), rounds,
            int(run["rounds"]), moment, "s" if file.attrs["link"] == "mpi" else "virtual s", self._rate(file, rounds),
            courses, self._clients(file), self._incidents, new,
        )  # fmt: skip

    def _follow(self, file: h5py.File) -> None:
        """Take in what has arrived since the last look; from the beginning, where the file is not the one it was."""
        events, count = file["events"], len(file["clients"])
        run, last = str(file.attrs.get("run", "")), self._last_event
        known = self._events
        same = run == self._run and len(events) >= known and len(self._heard) == count
        same = same and len(file.get("incidents", ())) >= len(self._incidents)
        if not same or (known and events[known - 1].tobytes() != last):
            self._begin(run)
            self._heard, self._age = np.full(count, np.nan), np.full(count, np.nan)
            self._ages, self._counts = np.zeros(count), np.zeros(count)
        new = events[self._events :]
        if len(new):
            self._last_event, self._events = new[-1].tobytes(), len(events)
            new = new[(new["client"] >= 0) & (new["client"] < count)]
            who = new["client"]
            self._heard[who], self._age[who] = new["time_arrived"], new["age"]  # of several, the last stands
            self._ages += np.bincount(who, new["age"], count)
            self._counts += np.bincount(who, minlength=count)
            self._oldest = max(self._oldest, int(new["age"].max(initial=0)))

    def _clients(self, file: h5py.File) -> Clients:
        table = file["clients"][:]
        if not len(table):
            raise ValueError("it has no clients")
        names = {code: name for name, code in (h5py.check_enum_dtype(table.dtype["state"]) or {}).items()}
        state = np.array([names.get(code, "?") for code in table["state"].tolist()])
        rejected = table["rejected"] if "rejected" in table.dtype.names else np.zeros(len(table), np.int64)
        with np.errstate(invalid="ignore"):
            mean = self._ages / self._counts
        return Clients(state, table["rank"], table["tasks_done"], rejected, self._heard.copy(), self._age.copy(),
                       mean, self._oldest)  # fmt: skip

    def _rate(self, file: h5py.File, rounds: int) -> float | None:
        """Rounds per second: of late, or where that is not known since the process that writes began."""
        changed = self.path.stat().st_mtime
        if not self._pace or self._pace[-1][1] < rounds:
            self._pace.append((changed, rounds))
        elif self._pace[-1][1] > rounds:
            self._pace = deque([(changed, rounds)])
        while len(self._pace) > 2 and self._pace[-1][0] - self._pace[1][0] > RECENT:
            self._pace.popleft()
        (begin, first), (end, last) = self._pace[0], self._pace[-1]
        if end - begin < 3 and "starts" in file and len(file["starts"]):
            start = records(file["starts"][-1:])[0]
            begin, first = datetime.fromisoformat(start["created"]).timestamp(), int(start["round"])
            end, last = changed, rounds
        return (last - first) / (end - begin) if last > first and end - begin > 0.1 else None


def _mark(path: Path) -> tuple:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _ends(course: np.ndarray) -> dict[str, float | None]:
    known = course[np.isfinite(course)]
    return {"first": float(known[0]), "last": float(known[-1])} if len(known) else {"first": None, "last": None}
