"""Processes that end when this one does, and hear of its signals."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from types import FrameType
from typing import Any

from fbompi.errors import UserError
from fbompi.signals import STOPPING, Hearing

PR_SET_PDEATHSIG = 1  # of prctl: the signal that a process gets when its parent dies


class Attendance(Hearing):
    """While it is entered, signals that ask to stop are passed on to the process that is attended.

    Open MPI's mpirun answers SIGTERM and Ctrl-C by killing all ranks a quarter of a second later, but passes SIGUSR1 on
    and waits. So the first signal reaches the process as SIGUSR1; the second ends it at once. It is in a process
    group of its own, or a terminal's Ctrl-C would go to it too.
    """

    def __init__(self) -> None:
        self.asked = 0  # signals so far
        self._process: subprocess.Popen | None = None

    def status_of(self, words: list[str], environment: dict[str, str], **streams: Any) -> int:
        """Run a command to its end; its exit status as a shell has it."""
        prctl = getattr(ctypes.CDLL(None), "prctl", None)

        def prepare() -> None:
            os.setpgid(0, 0)
            if prctl is not None:  # Linux
                prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # what is blocked here would stay so there

        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # until there is somebody to pass them on to
        try:
            self._process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, preexec_fn=prepare, **streams
            )
            if self.asked:  # just before
                self._process.send_signal(signal.SIGUSR1)
        except OSError as e:
            raise UserError(f"{words[0]}: cannot be started: {e.strerror}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        status = self._process.wait()
        self._process = None
        return status if status >= 0 else 128 - status

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1 if self.asked == 1 else signal.SIGTERM)
