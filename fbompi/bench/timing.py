"""Contestants timed in turn, so that a slow moment of the machine falls on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

WARM_UPS = 2  # the first call compiles or plans, the second finds the caches as the others will


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
    """Seconds of each contestant, `repeats` times, in turn."""
    for call in contestants.values():
        for _ in range(WARM_UPS):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, call in contestants.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    return seconds
