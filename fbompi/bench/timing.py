"""Contestants timed in turn, so that a slow moment of the machine falls on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

WARM_UPS = 2  # the first call compiles or plans
QUICK = 0.1  # seconds
REST = 0.02  # seconds, in which other libraries' threads go to sleep


@dataclass
class Case:
    """One kernel on one shape: the seconds of every contestant, one entry per repetition."""

    kernel: str
    shape: str
    threads: int
    seconds: dict[str, list[float]]
    limit: dict[str, float] = field(default_factory=dict)  # seconds that this machine needs at least, by what limits it

    def best(self, name: str) -> float:
        return min(self.seconds[name])

    def ratio(self, name: str, to: str) -> tuple[float, float, float]:
        """How many times faster `to` is than `name`: median over the repetitions, and the quartiles."""
        low, middle, high = np.percentile(np.array(self.seconds[name]) / np.array(self.seconds[to]), [25, 50, 75])
        return float(middle), float(low), float(high)


def in_turn(contestants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each contestant, `repeats` times, in turn.

    A quick one is called once more just before: what the one before it left in the caches, and the threads that it left
    spinning, are not its own doing.
    """
    quick = {}
    for name, call in contestants.items():
        for _ in range(WARM_UPS):
            quick[name] = _seconds(call) < QUICK
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, call in contestants.items():
            if quick[name]:
                time.sleep(REST)
                call()
            seconds[name].append(_seconds(call))
    return seconds


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
