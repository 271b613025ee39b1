"""A client: a shard, its oracles, and the pure function that turns a task into an answer.

Nothing survives from one task to the next: the answer depends on the shard and the task alone, and its
randomness on (seed, client, task number). That is what allows a task to be sent again, elsewhere or later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fbompi.messages import Array, Counts, task
from fbompi.problem import Oracles
from fbompi.randomness import stream


class Client:
    """The oracles of one shard, as one task sees them: minibatches drawn afresh at every call, calls counted."""

    def __init__(self, oracles: Oracles, index: int, seed: int, batch: int) -> None:
        self.oracles, self.index, self.seed, self.batch = oracles, index, seed, batch
        self._begin(0, 1)

    def answer(self, function: Callable, number: int, local_steps: int, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """Run a task function from a clean slate."""
        self._begin(number, local_steps)
        result = function(self, *arrays)
        return result if isinstance(result, tuple) else (result,)

    def _begin(self, number: int, local_steps: int) -> None:
        self.number, self.local_steps = number, local_steps
        self.counts = Counts()
        self.__dict__.pop("rng", None)

    @cached_property
    def rng(self) -> np.random.Generator:
        """This task's own randomness."""
        return stream(self.seed, "client", self.index, self.number)

    def _draw(self, size: int) -> tuple[Array | None, int]:
        """A fresh minibatch, with replacement, and the number of samples it touches."""
        if not 0 < self.batch < size:
            return None, size
        return self.rng.integers(size, size=self.batch), self.batch

    def upper_grad(self, x: Array, y: Array) -> tuple[Array, Array]:
        batch, touched = self._draw(self.oracles.upper_size)
        self.counts.gradients += touched
        return self.oracles.upper_grad(x, y, batch)

    def lower_grad(self, x: Array, y: Array) -> Array:
        batch, touched = self._draw(self.oracles.lower_size)
        self.counts.gradients += touched
        return self.oracles.lower_grad(x, y, batch)

    def hvp(self, x: Array, y: Array, v: Array) -> Array:
        batch, touched = self._draw(self.oracles.lower_size)
        self.counts.hvps += touched
        return self.oracles.hvp(x, y, v, batch)

    def cross(self, x: Array, y: Array, v: Array) -> Array:
        batch, touched = self._draw(self.oracles.lower_size)
        self.counts.crosses += touched
        return self.oracles.cross(x, y, v, batch)


@task(takes="x y", gives="1 1")
def hello(client: Client, x: Array, y: Array) -> tuple[Array, Array]:
    """What the server must know of a shard before the first round: its size and its ℓ."""
    return np.array([float(client.oracles.lower_size)]), np.array([client.oracles.smoothness(x, y)])


@task(takes="x y", gives="metrics")
def evaluate(client: Client, x: Array, y: Array) -> Array:
    """This client's part of an evaluation: f_i, g_i, then (sum, weight) of each metric of the problem."""
    oracles, problem = client.oracles, client.oracles.problem
    client.counts.values += oracles.upper_size + oracles.lower_size
    parts = [oracles.upper(x, y), oracles.lower(x, y)]
    if metric_names(problem):
        measured = problem.metrics(oracles.shard, x, y)
        for name in metric_names(problem):
            parts.extend(measured[name])
    return np.array(parts)


def metric_names(problem: Any) -> list[str]:
    """The metrics that clients measure, in the order in which they travel."""
    return list(getattr(problem, "metric_meanings", {}))


def combine(parts: Array, problem: Any) -> dict[str, float]:
    """One row of the trajectory from the parts of all clients (one row each, in client order)."""
    row = {"upper": float(parts[:, 0].mean()), "lower": float(parts[:, 1].mean())}
    for k, name in enumerate(metric_names(problem)):
        total, weight = parts[:, 2 + 2 * k].sum(), parts[:, 3 + 2 * k].sum()
        row[name] = float(total / weight) if weight else float("nan")
    return row
