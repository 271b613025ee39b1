"""Looking until the run is over, and seldom enough not to be felt."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fbompi.errors import UserError
from fbompi.watch.look import DOUBT, Look, Watched
from fbompi.watch.screen import Plain

SHARE = 0.01  # of the time that looking may take: a file that is being written is copied for a look
AWAITING = 0.25  # seconds between two looks for a file that is not there yet


def follow(path: Path, every: float, once: bool, screen: Plain) -> int:
    """Show a run until its end; the exit status that says how it ended."""
    if not once:
        _await(path)
    watched = Watched(path, DOUBT) if once else Watched(path)
    while True:
        begin = time.perf_counter()
        look = watched.look()
        interval = max(every, (time.perf_counter() - begin) / SHARE)
        if look is not None and not (once and look.doubtful and not look.over):
            screen.show(look)
            if look.over or once:
                screen.end()
                if look.status in ("killed", "interrupted"):
                    print(f"fbompi: {path}: {look.status}; fbompi resume {path} goes on", file=sys.stderr)
                return look.exit_status
        screen.wait(max(DOUBT, interval) if once or _doubtful(look) else interval)


def _doubtful(look: Look | None) -> bool:
    return look is not None and look.doubtful


def _await(path: Path) -> None:
    """Until the file is there."""
    if path.exists():
        return
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no directory {path.parent}")
    print(f"fbompi: {path}: is not there yet; waiting for it", file=sys.stderr, flush=True)
    while not path.exists():
        time.sleep(AWAITING)
