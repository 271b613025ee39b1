"""Every random number comes from a stream named by what it is for, so nothing depends on who draws first.

A stream is a function of (seed, purpose, two indices): there is no generator state to save, and a task
drawn again after a restart, on another rank or in a replay, sees the same numbers.
"""

from __future__ import annotations

import numpy as np

PURPOSES = (
    "problem", "start", "server", "client", "delay", "local steps", "stragglers", "partition", "corruption",
    "participation", "presence", "mask",
)  # fmt: skip


def stream(seed: int, purpose: str, first: int = 0, second: int = 0) -> np.random.Generator:
    """The generator for one purpose, e.g. ``stream(seed, "client", client, task_number)``."""
    return np.random.default_rng([seed, PURPOSES.index(purpose), first, second])


class Table:
    """Stateless random access to one random sequence per client, drawn in blocks because streams cost 20 µs."""

    BLOCK = 256

    def __init__(self, seed: int, purpose: str, draw) -> None:
        self._seed, self._purpose, self._draw = seed, purpose, draw
        self._blocks: dict[int, tuple[int, np.ndarray]] = {}

    def value(self, client: int, index: int) -> float:
        """The number with this index in the sequence of this client."""
        block, offset = divmod(index, self.BLOCK)
        held = self._blocks.get(client)
        if held is None or held[0] != block:
            held = block, self._draw(stream(self._seed, self._purpose, client, block), self.BLOCK)
            self._blocks[client] = held
        return held[1][offset]
