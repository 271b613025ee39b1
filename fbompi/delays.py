"""How long a task takes on a clock of our own: communication drawn from a distribution, computing counted apart.

Every draw belongs to (seed, client, how many tasks the client was sent before), so a delay does not depend on
the order in which anything happened, and there is no stream to save.
"""

from __future__ import annotations

import numpy as np

from fbompi.config import Delays
from fbompi.errors import UserError
from fbompi.randomness import Table, stream
from fbompi.rows import read_rows


class DelayModel:
    """The seconds of communication and of computing for each task of each client."""

    def __init__(self, settings: Delays, clients: int, seed: int) -> None:
        if settings.stragglers > clients:
            raise UserError(f"delays.stragglers = {settings.stragglers}: there are only {clients} clients")
        self.settings = settings
        self.factor = np.ones(clients)
        slow = stream(seed, "stragglers").permutation(clients)[: settings.stragglers]
        self.factor[slow] = settings.factor
        self._draws = Table(seed, "delay", self._draw)
        self._trace = _read_trace(settings.trace) if settings.model == "trace" else None

    def communication(self, client: int, index: int) -> float:
        """Seconds on the way, both directions together, of the client's task number `index`."""
        if self._trace is not None:
            row = self._trace[client % len(self._trace)]
            return float(self.factor[client] * row[index % len(row)])
        if self.settings.model == "none":
            return 0.0
        return float(self.factor[client] * self._draws.value(client, index))

    def computing(self, client: int, local_steps: int) -> float:
        """Seconds of computing for a task with so many local steps."""
        return float(self.factor[client] * self.settings.compute * local_steps)

    def _draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        s = self.settings
        if s.model == "exponential":
            return s.mean * rng.standard_exponential(size)
        if s.model == "lognormal":  # E exp(σZ) = exp(σ²/2)
            return s.mean * np.exp(s.sigma * rng.standard_normal(size) - s.sigma**2 / 2)
        return s.mean * (s.tail - 1) / s.tail * (1 + rng.pareto(s.tail, size))  # classical Pareto with this mean


def _read_trace(path: str) -> list[np.ndarray]:
    """One row of seconds per client; rows may differ in length."""
    if not path:
        raise UserError('delays.trace = "": model "trace" needs a CSV file of seconds, one row per client')
    rows = []
    for number, seconds in read_rows(path, "delays.trace", "seconds", float):
        row = np.array(seconds)
        if not np.all(np.isfinite(row)) or np.any(row < 0):
            raise UserError(f"{path}, line {number}: seconds must be finite and not negative")
        rows.append(row)
    if not rows:
        raise UserError(f"{path}: holds no row of seconds")
    return rows
