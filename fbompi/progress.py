"""How a run is going: one line that moves on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time

from fbompi import kernels

SHOWN = ("accuracy", "x_error", "upper", "lower")
TERMINAL = "FBOMPI_TERMINAL"  # set for the ranks by `fbompi run -n` when its own output is a terminal


class Progress:
    """Progress of the server, on standard error."""

    def __init__(self, rounds: int, unit: str, quiet: bool = False) -> None:
        self.rounds, self.unit, self.quiet = rounds, unit, quiet
        self.live = sys.stderr.isatty() or os.environ.get(TERMINAL) == "1"
        self.interval = 0.1 if self.live else 5.0
        self._begin = self._last = time.monotonic()
        self._row: dict[str, float] = {}
        self._open = False

    def note(self, row: dict[str, float]) -> None:
        """Figures to show from now on."""
        self._row.update({k: v for k, v in row.items() if k in SHOWN})

    def show(self, done: int, now: float) -> None:
        """After each round; writes only when it is time to."""
        moment = time.monotonic()
        if self.quiet or moment - self._last < self.interval:
            return
        self._last = moment
        left = (moment - self._begin) * (self.rounds - done) / max(done, 1)
        figures = "  ".join(f"{k} {v:.4g}" for k in SHOWN if (v := self._row.get(k)) is not None)
        clock = f"  {now:.1f} {self.unit}" if self.unit else ""
        line = f"round {done}/{self.rounds}{clock}  {figures}"
        line += f"  {left:.0f} s left" if 0 < done < self.rounds else ""
        self._write(line)

    def count(self, done: int, rounds: int) -> None:
        """The same, where there is nothing to tell but the rounds."""
        self.rounds = rounds
        self.show(done, 0.0)

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r{line}\x1b[K" if self.live else f"{line}\n")
        sys.stderr.flush()
        self._open = self.live

    def end(self) -> None:
        """Leave the line."""
        if self._open:
            sys.stderr.write("\n")
            self._open = False


def announce_compiling() -> None:
    """Say so, once, when kernels have to be compiled: of all the ranks that need them, one compiles."""

    def tell(name: str) -> None:
        kernels.before_compiling.remove(tell)
        sys.stderr.write("compiling kernels for this CPU: once, they are kept (fbompi doctor says where)\n")
        sys.stderr.flush()

    kernels.before_compiling.append(tell)
