"""Going through a sweep: a process of its own for every run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fbompi.attendance import Attendance
from fbompi.status import COMPLETE, FAILED, LOSSES, RESUMABLE
from fbompi.sweep.plan import Planned, state

OUTCOMES = {COMPLETE: "complete", LOSSES: "complete with losses", RESUMABLE: "stopped"}
STEPS = {"missing": "run", "complete": "skip", "being written": "leave"}  # all else is resumed


@dataclass
class Outcome:
    """How it went with one run."""

    run: Planned
    step: str  # run, resume, skip or leave
    words: str = "not begun"
    status: int | None = None
    seconds: float = 0.0

    @classmethod
    def ahead(cls, run: Planned, ranks: int) -> Outcome:
        """What is to be done about a run, by what there is of it."""
        return cls(run, STEPS.get(state(run, ranks), "resume"))

    def figures(self) -> dict[str, Any]:
        """For machines."""
        return {"file": str(self.run.path), "options": list(self.run.options), "step": self.step,
                "outcome": self.words, "exit_status": self.status, "seconds": self.seconds}  # fmt: skip


def execute(
    config: str | None, outcomes: Sequence[Outcome], ranks: int, quiet: bool, tell: Callable[[int, Outcome], None]
) -> bool:
    """Run what is to be run, one after another; whether somebody asked to stop."""
    with Attendance() as attendance:
        for number, outcome in enumerate(outcomes, 1):
            if outcome.step == "skip":
                outcome.words = "complete already"
            elif outcome.step == "leave":
                outcome.words = "being written by another run"
            elif not attendance.asked:
                begin = time.monotonic()
                words = command(config, outcome.run, outcome.step, ranks, quiet)
                outcome.status = attendance.status_of(words, dict(os.environ), stdout=subprocess.DEVNULL)
                outcome.seconds = time.monotonic() - begin
                asked = bool(attendance.asked) and outcome.status > 128  # before it could take the signal
                outcome.words = "stopped" if asked else OUTCOMES.get(outcome.status, f"failed, status {outcome.status}")
            tell(number, outcome)
        return bool(attendance.asked)


def command(config: str | None, run: Planned, step: str, ranks: int, quiet: bool) -> list[str]:
    """The command line of one run."""
    words = [sys.executable, "-m", "fbompi", step]
    if step == "run":
        words += [*([config] if config else []), *(word for option in run.options for word in ("-o", option))]
        words += ["--out", str(run.path)]
    else:
        words.append(str(run.path))
    return [*words, *(["-n", str(ranks)] if ranks > 1 else []), *(["--quiet"] if quiet else [])]


def exit_status(outcomes: Sequence[Outcome], asked: bool) -> int:
    """Of the whole sweep."""
    if not asked and any(outcome.words.startswith("failed") for outcome in outcomes):
        return FAILED
    if asked and all(outcome.words.startswith("complete") for outcome in outcomes):
        asked = False  # it was the last one
    if asked or any(outcome.words.startswith(("stopped", "being", "not")) for outcome in outcomes):
        return RESUMABLE
    return LOSSES if any(outcome.status == LOSSES for outcome in outcomes) else COMPLETE
