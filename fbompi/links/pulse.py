"""A thread beside a rank's main thread, for what cannot wait until that has computed or comes back from MPI."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable

END = 0  # no signal has this number
PATIENCE = 5.0  # seconds for the thread to end: it may be inside MPI


class Pulse:
    """Calls `beat` every so many seconds, and `told` with the number of every signal that has a Python handler.

    Python runs a signal's handler in the main thread, between two of its own instructions: never while that is blocked
    inside MPI. What the signal itself writes to a pipe (`signal.set_wakeup_fd`) this thread sees at once.
    """

    def __init__(self, every: float, beat: Callable[[], None], told: Callable[[int], None]) -> None:
        self._every, self._beat, self._told = every, beat, told
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """From the main thread."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread.start()

    def end(self) -> None:
        """From the main thread; afterwards the thread calls nothing any more. Once is enough."""
        if not self._thread.is_alive():
            return
        signal.set_wakeup_fd(self._before)
        os.write(self._write, bytes([END]))
        self._thread.join(PATIENCE)
        if not self._thread.is_alive():
            os.close(self._read)
            os.close(self._write)

    def _run(self) -> None:
        due = time.monotonic() + self._every
        while True:
            ready, _, _ = select.select([self._read], [], [], max(0.0, due - time.monotonic()))
            for number in os.read(self._read, 512) if ready else b"":
                if number == END:
                    return
                self._told(number)
            if time.monotonic() >= due:
                self._beat()
                due = time.monotonic() + self._every
