"""SIGKILL to every process of a job, at any moment: the file opens, no row that was seen is lost, the run goes on.

Each method of the papers on the virtual link, and some on ranks; FBOMPI_TEST_KILLS=200 has each on each link, and kills
so many jobs in all, resumed ones among them; what fell where is printed (-rP).
"""

from __future__ import annotations

import collections
import itertools
import math
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import ROOT, needs_mpi, options
from test_methods import PAPERS, problem_for
from test_record import MEASURED, same
from test_resume import same_steps

from fbompi import registry
from fbompi.checkpoint import beside, verify
from fbompi.errors import UserError
from fbompi.journal import is_being_written, journal_of, pending
from fbompi.record import reading
from fbompi.replay import replay
from fbompi.summary import page, summary

KILLS = int(os.environ.get("FBOMPI_TEST_KILLS", 11))
ROUNDS = 80
RANKS = 4
IN_A_ROW = 6  # kills of one run before it is left to end
MARK = "FBOMPI_TEST_JOB"


class Job:
    """``fbompi ARGUMENTS`` with all that it starts, known by a mark in their environment."""

    def __init__(self, folder: Path, *arguments: Any) -> None:
        self.mark = uuid.uuid4().hex
        # What Open MPI leaves behind when it is killed goes with the test.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), MARK: self.mark, "TMPDIR": str(folder)}
        words = [sys.executable, "-m", "fbompi", *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def ended(self, seconds: float) -> bool:
        """Whether it ends within this time."""
        try:
            self.process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def kill(self) -> None:
        """All of it, and what it has started meanwhile; memory that Open MPI shares would stay for ever."""
        shared: set[str] = set()
        while processes := self.processes():
            for process in processes:
                shared |= shared_memory(process)
            for process in processes:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.poll()
        self.process.communicate()
        for path in shared:
            Path(path).unlink(missing_ok=True)

    def processes(self) -> list[int]:
        """Those that live, the launcher first."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return sorted(found)

    def said(self) -> str:
        """What it had to say, after its end."""
        return "\n".join(self.process.communicate())


def shared_memory(process: int) -> set[str]:
    """Files in /dev/shm that a process has in its memory."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split()[-1] for line in lines if "/dev/shm/" in line and not line.endswith("(deleted)")}


class Rows:
    """What a run file has recorded, for whoever looks at it now."""

    def __init__(self, path: Path) -> None:
        with reading(path) as file:
            self.columns = {name: column[:] for name, column in file["trajectory"].items()}
            self.events = file["events"][:]
            self.status = str(file.attrs["status"])
        self.count = min(map(len, self.columns.values()))

    @classmethod
    def of_running(cls, path: Path) -> Rows | None:
        """While it is written: none, where there is no file yet, or a commit came in between."""
        try:
            return cls(path)
        except UserError:
            return None

    def are_in(self, later: Rows) -> None:
        """Nothing of these is lost or another; metrics may have come in, and the costs of the very last row too."""
        assert self.count <= later.count and len(self.events) <= len(later.events)
        for name, column in self.columns.items():
            old, new = column[: self.count], later.columns[name][: self.count]
            known = ~np.isnan(old) if old.ndim == 1 else np.ones(len(old), bool)
            if name in MEASURED:
                known[-1:] = False
            assert old[known].tobytes() == new[known].tobytes(), name
        assert self.events.tobytes() == later.events[: len(self.events)].tobytes()


class Case:
    """A method on a link: how it runs, how long that takes, and when a finished run is right."""

    def __init__(self, name: str, link: str, mode: str, folder: Path) -> None:
        method = registry.algorithm(name)
        self.ranks = RANKS if link == "mpi" else 1
        self.asynchronous = method.facts["communication"] == "asynchronous" or mode == "asynchronous"
        keys = {"run_algorithm": name, "run_rounds": ROUNDS, "record_every": 1, "record_checkpoint_every": 3,
                "clients_count": 6, "run_seed": 5, "clients_participation": 0.7}  # fmt: skip
        if "batch" in method.client_keys:
            keys |= {"clients_batch": 4, "problem_noise": 0.3}
        if "local_steps" in method.client_keys:
            keys |= {"clients_local_steps": "[1,5]"}
        if mode:
            keys |= {"algorithm_mode": mode}
        if link == "mpi" and self.asynchronous:
            keys |= {"delays_inject": 0.001, "delays_stragglers": 2}
        self.keys = [*options(**keys), *problem_for(name)]
        self.whole = folder / "whole.h5"
        begin = time.monotonic()
        job = Job(folder, *self.words("run"), *self.keys, "--out", self.whole)
        while not self.whole.exists() and not job.ended(0.01):
            continue
        self.start_seconds = time.monotonic() - begin
        assert job.ended(120) and job.process.returncode == 0, job.said()
        job.said()
        self.seconds = time.monotonic() - begin - self.start_seconds

    def words(self, verb: str, ranks: int = 0) -> list[Any]:
        return [verb, "--quiet", *(["-n", ranks or self.ranks] if self.ranks > 1 else [])]

    def begin(self, folder: Path) -> Job:
        return Job(folder, *self.words("run"), *self.keys, "--out", "run.h5")

    def resume(self, folder: Path, ranks: int) -> Job:
        return Job(folder, *self.words("resume", ranks), "run.h5")

    def wait(self, job: Job, path: Path, chance: random.Random, resumed: bool) -> None:
        """Until a moment to kill it: a fifth of the kills fall on its start, the others on when it writes its file."""
        if chance.random() < 0.2:
            job.ended(chance.uniform(0, self.start_seconds))
            return
        while not is_being_written(path) and not job.ended(0.01):
            continue
        job.ended(chance.uniform(0, (0.5 if resumed else 1.0) * self.seconds))  # less is left to do

    def check(self, path: Path) -> None:
        """A finished run has the bits of the one that nobody killed, or at least those of its own log."""
        assert summary(path)["status"] == "complete"
        if self.ranks == 1:
            same(self.whole, path)
        elif not self.asynchronous:
            same_steps(self.whole, path)
        else:
            found = replay(path)
            assert found.comparison.rounds == ROUNDS + 1 and found.comparison.different == 0, found.comparison
            assert found.state.round == ROUNDS


def stage(path: Path, resumed: bool) -> str:
    """Where a kill fell, from what it left."""
    begun = "resumed, " if resumed else ""
    if not path.exists():
        return begun + "no file yet"
    if pending(path):
        return begun + "in a commit"
    if path.with_name(path.name + ".checkpoint.new").exists():
        return begun + "in a checkpoint"
    with h5py.File(path) as file:
        rounds = file["trajectory/round"][:]
        begun = "resumed, " if len(file["starts"]) > 1 else begun and "resuming, "
        if file.attrs["status"] == "complete":
            return begun + "complete"
    if not journal_of(path).exists():
        return begun + "not begun to write"
    return begun + ("in the run" if len(rounds) else "no row yet")


def opens(path: Path) -> Rows:
    """A killed run's file and its checkpoints can be read, with plain h5py too; its rows."""
    rows = Rows(path)
    assert page(summary(path)) and rows.status in ("running", "complete")
    assert np.array_equal(rows.columns["round"], np.arange(rows.count))
    assert len({len(column) for column in rows.columns.values()}) == 1
    assert np.all(np.diff(rows.columns["time"]) >= 0) and np.all(np.diff(rows.events["take"]) >= 0)
    assert len(set(rows.events["task"])) == len(rows.events)
    with h5py.File(path) as file:
        assert file["trajectory/round"][:].tolist() == rows.columns["round"].tolist()
    for checkpoint in filter(Path.exists, beside(path)):
        verify(checkpoint)
        with h5py.File(checkpoint) as file:
            assert 0 < file["checkpoint/state"].attrs["round"] <= ROUNDS
    return rows


def chain(case: Case, folder: Path, chance: random.Random, most: int, note: Callable[[str], object]) -> int:
    """One run, killed up to so many times, then left to end; how often it was killed."""
    path, kills, resumed = folder / "run.h5", 0, False
    job, before, seen = case.begin(folder), None, None
    while True:
        if kills == most:
            assert job.ended(180), "it hangs"
        else:
            case.wait(job, path, chance, resumed)
            seen = Rows.of_running(path) or seen
        if job.process.poll() is not None:
            assert job.process.returncode == 0, job.said()
            job.said()
            assert not any(checkpoint.exists() for checkpoint in beside(path))
            break
        job.kill()
        kills += 1
        note(stage(path, resumed))
        if not path.exists():
            job = case.begin(folder)
            continue
        now = opens(path)
        for earlier in filter(None, (before, seen)):
            earlier.are_in(now)
        before, resumed = now, True
        if now.status == "complete":
            break
        job = case.resume(folder, chance.choice([2, 3, 4, 5]))
    final = Rows(path)
    if before is not None:
        before.are_in(final)
    case.check(path)
    return kills


def test_who_looks_at_a_run_while_it_is_written_sees_whole_rows(tmp_path):
    """A commit takes a moment in which the file is neither as before nor as after it."""
    path = tmp_path / "run.h5"
    keys = options(run_problem="quadratic", run_rounds=10**6, record_every=1, clients_count=3)
    job, seen = Job(tmp_path, "run", "--quiet", *keys, "--out", path), []
    try:
        while not path.exists():
            assert not job.ended(0.01), job.said()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            rows = Rows(path)
            assert {len(column) for column in rows.columns.values()} == {rows.count}
            seen.append(rows)
    finally:
        job.kill()
    for earlier, later in itertools.pairwise(seen):
        earlier.are_in(later)
    assert len(seen) > 10 and seen[-1].count > seen[0].count


# On ranks, a few: what a state needs to go on is known from the virtual link, and here the processes are killed.
ON_RANKS = ("afbo", "memfbo", "irig") if KILLS < 14 else PAPERS
CASES = [(name, "virtual", "") for name in PAPERS] + [(name, "mpi", "") for name in ON_RANKS]
CASES += [("fism", "mpi", "asynchronous")]


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(("name", "link", "mode"), CASES, ids=lambda word: word or "paper's")
def test_a_job_that_is_killed_as_a_whole_goes_on(tmp_path, name, link, mode):
    case = Case(name, link, mode, tmp_path)
    seed = random.randrange(1 << 32)
    chance, stages = random.Random(seed), collections.Counter[str]()
    kills = runs = 0
    wanted = math.ceil(KILLS / len(CASES))
    while kills < wanted:
        folder = tmp_path / str(runs)
        folder.mkdir()
        most = min(wanted - kills, chance.randint(1, IN_A_ROW))
        kills += chain(case, folder, chance, most, lambda where: stages.update([where]))
        runs += 1
    told = ", ".join(f"{count} {where}" for where, count in sorted(stages.items()))
    print(f"KILLS {name} {link} {mode}: {kills} kills, {runs} runs completed, seed {seed}; {told}")
