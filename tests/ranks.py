"""A job on MPI that goes on beside the test: its ranks can be found, signalled, and waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import ROOT, Result

RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")


class Job:
    """``fbompi ARGUMENTS`` under way; as a context it leaves no process behind."""

    def __init__(self, *arguments: Any, cwd: Path, python: str = sys.executable, **env: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
        words = [python, "-m", "fbompi", *map(str, arguments)]
        self.cwd, self.begin = cwd, time.monotonic()
        self.process = subprocess.Popen(
            words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.ranks: dict[int, int] = {}  # process numbers

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exception: object) -> None:
        for pid in {self.process.pid, *descendants(self.process.pid), *self.alive()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def started(self, ranks: int, seconds: float = 60) -> Job:
        """When all ranks are there."""
        end = time.monotonic() + seconds
        while len(self.ranks) < ranks:
            assert self.process.poll() is None and time.monotonic() < end, self.result()
            time.sleep(0.02)
            for pid in descendants(self.process.pid):
                rank = rank_of(pid)
                if rank is not None and pid not in self.ranks.values():
                    self.ranks[rank] = pid
        return self

    def running(self, ranks: int, path: Path, seconds: float = 60) -> Job:
        """When all ranks are there, and their run file."""
        self.started(ranks, seconds)
        end = time.monotonic() + seconds
        while not path.exists():
            assert self.process.poll() is None and time.monotonic() < end, self.result()
            time.sleep(0.02)
        return self

    def kill(self, *ranks: int, by: signal.Signals = signal.SIGKILL) -> None:
        for rank in ranks:
            os.kill(self.ranks[rank], by)

    def alive(self) -> list[int]:
        """Of the ranks' processes those that have not ended."""
        return [pid for rank, pid in self.ranks.items() if rank_of(pid) == rank and self._is_here(pid)]

    def _is_here(self, pid: int) -> bool:
        """Whether a process is one of this job's, and not another that was given its number."""
        try:
            return Path(f"/proc/{pid}/cwd").readlink() == self.cwd.resolve()
        except OSError:
            return False

    def result(self, seconds: float = 60) -> Result:
        """How it ended; that it has not ended after so long is an error that shows what it said."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as e:
            self.__exit__()
            raise AssertionError(f"still running after {seconds} s: {e.stdout!r} {e.stderr!r}") from None
        return Result(subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err))


def descendants(pid: int) -> Iterator[int]:
    """The processes that this one has started, and theirs."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from descendants(child)


def rank_of(pid: int) -> int | None:
    """The rank of a process that a launcher started; none, if it is another process, or has ended."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = dict(word.split(b"=", 1) for word in environment if b"=" in word)
    return next((int(found[name]) for name in RANK_VARIABLES if found.get(name, b"").isdigit()), None)
