"""Problems that send a signal at a given oracle call: an interruption that falls on a moment which can be named.

FBOMPI_TEST_SIGNAL=SIGTERM@40 has the 40th gradient or sweep of this process send it SIGTERM; with @2 behind that, only
where this process is rank 2; several are separated by commas. Without the variable these are the problems that they
are made from.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from fbompi.links.mpi import launched_rank
from fbompi.problems import location, quadratic

VARIABLE = "FBOMPI_TEST_SIGNAL"


class Alarm:
    """Counts calls."""

    def __init__(self) -> None:
        self.calls, self.signals = 0, {}
        for entry in filter(None, os.environ.get(VARIABLE, "").split(",")):
            name, call, *rank = entry.split("@")
            if not rank or int(rank[0]) == launched_rank():
                self.signals[int(call)] = signal.Signals[name]

    def tick(self) -> None:
        self.calls += 1
        if self.calls in self.signals:
            os.kill(os.getpid(), self.signals[self.calls])


class Quadratic(quadratic.Quadratic):
    """The quadratic, with an alarm."""

    alarm: Alarm

    def shard(self, client: int, clients: int) -> Any:
        if not hasattr(self, "alarm"):
            self.alarm = Alarm()
        return super().shard(client, clients)

    def lower_grad(self, *arguments: Any) -> Any:
        self.alarm.tick()
        return super().lower_grad(*arguments)

    def upper_grad(self, *arguments: Any) -> Any:
        self.alarm.tick()
        return super().upper_grad(*arguments)


class Location(location.Location):
    """The location problem, with an alarm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alarm = Alarm()

    def sweep(self, *arguments: Any) -> Any:
        self.alarm.tick()
        return super().sweep(*arguments)
