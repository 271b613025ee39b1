"""Where looks are shown: a terminal that is drawn anew in place, plain blocks of lines, or JSON."""

from __future__ import annotations

import json
import os
import sys
import time

from fbompi.watch.look import Look
from fbompi.watch.page import block, page

WIDTH, WORST = 120, 3  # of a block of plain lines


def fancy() -> bool:
    """Whether the output can show more than ASCII."""
    try:
        "▁█–…".encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


class Plain:
    """One block of lines per change."""

    def show(self, look: Look) -> None:
        if look.changed:
            print("\n".join(block(look, WIDTH, WORST, fancy())), end="\n\n", flush=True)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def end(self) -> None:
        """Nothing is left open."""


class Json(Plain):
    """One object per look, in a line."""

    def show(self, look: Look) -> None:
        print(json.dumps(look.figures()), flush=True)


class Terminal(Plain):
    """The same place on the screen; no state of the terminal is changed that a kill would leave behind."""

    def __init__(self) -> None:
        self._last: Look | None = None
        self._size: tuple[int, int] = (0, 0)

    def show(self, look: Look) -> None:
        first, self._last = self._last is None, look
        width, height = self._size = self._measure()
        foot = "" if look.over else f"{time.strftime('%H:%M:%S')}  Ctrl-C ends watching, not the run"
        lines = [*page(look, width - 1, max(height - 2, 1), fancy()), foot[: width - 1]][: max(height - 1, 1)]
        drawn = "\n".join(f"{line}\x1b[K" for line in lines)
        sys.stdout.write(("\x1b[2J" if first else "") + f"\x1b[H{drawn}\x1b[J")
        sys.stdout.flush()

    def wait(self, seconds: float) -> None:
        """Drawn again when the terminal changes its size."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.25))
            if self._last is not None and self._measure() != self._size:
                self.show(self._last)

    def end(self) -> None:
        if self._last is not None:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _measure(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return 80, 24
        return (size.columns or 80), (size.lines or 24)


def screen(as_json: bool) -> Plain:
    """The one that fits the output."""
    if as_json:
        return Json()
    return Terminal() if sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb") else Plain()
