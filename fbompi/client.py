"""A client: a shard, its oracles, and the pure function that turns a task into an answer.

Nothing survives from one task to the next: the answer depends on the shard and the task alone, and its
randomness on (seed, client, task number). That is what allows a task to be sent again, elsewhere or later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.kernels import on_gpu
from fbompi.messages import NO_CALLS, Array, TaskFunction, task
from fbompi.problem import Oracles
from fbompi.randomness import stream

GRADIENTS, HVPS, CROSSES = range(3)  # places in `Client.calls`


class Client:
    """The oracles of one shard, as one task sees them: minibatches drawn afresh at every call, calls counted.

    With a `device` (`fbompi.kernels.cuda.device`), arrays and minibatches are put there before an oracle sees them.
    """

    def __init__(self, oracles: Oracles, index: int, seed: int, batch: int, device: Any = None) -> None:
        self.oracles, self.index, self.seed, self.batch, self.device = oracles, index, seed, batch, device
        self.number, self.local_steps, self.calls = 0, 1, list(NO_CALLS)
        self._rng: np.random.Generator | None = None

    def answer(
        self, function: TaskFunction, number: int, local_steps: int, arrays: Sequence[Array]
    ) -> tuple[Array, ...]:
        """Run a task function from a clean slate; `calls` tells afterwards what it took."""
        self.number, self.local_steps, self.calls, self._rng = number, local_steps, list(NO_CALLS), None
        if self.device is not None:
            arrays = [self.device.asarray(array) for array in arrays]
        result = function(self, *arrays)
        if self.device is not None:
            self.device.synchronize()  # whoever takes the time wants that of computing, not of asking for it
        return result if isinstance(result, tuple) else (result,)

    @property
    def rng(self) -> np.random.Generator:
        """This task's own randomness."""
        if self._rng is None:
            self._rng = stream(self.seed, "client", self.index, self.number)
        return self._rng

    def _draw(self, oracle: int, size: int) -> Array | None:
        """A fresh minibatch, with replacement; its samples are counted as calls of the oracle."""
        if not 0 < self.batch < size:
            self.calls[oracle] += size
            return None
        self.calls[oracle] += self.batch
        drawn = self.rng.integers(size, size=self.batch)
        return drawn if self.device is None else self.device.asarray(drawn)

    def upper_grad(self, x: Array, y: Array) -> tuple[Array, Array]:
        grad_x, grad_y = self.oracles.upper_grad(x, y, self._draw(GRADIENTS, self.oracles.upper_size))
        return self._checked(grad_x, x, "upper_grad (∇_x f)"), self._checked(grad_y, y, "upper_grad (∇_y f)")

    def lower_grad(self, x: Array, y: Array) -> Array:
        batch = self._draw(GRADIENTS, self.oracles.lower_size)
        return self._checked(self.oracles.lower_grad(x, y, batch), y, "lower_grad")

    def hvp(self, x: Array, y: Array, v: Array) -> Array:
        batch = self._draw(HVPS, self.oracles.lower_size)
        return self._checked(self.oracles.hvp(x, y, v, batch), y, "hvp")

    def cross(self, x: Array, y: Array, v: Array) -> Array:
        batch = self._draw(CROSSES, self.oracles.lower_size)
        return self._checked(self.oracles.cross(x, y, v, batch), x, "cross")

    def sweep(self, x: Array, gamma: float, shift: Array) -> Array:
        """Where one sweep over the components of a nonsmooth problem ends."""
        self.calls[GRADIENTS] += self.oracles.lower_size
        return self._checked(self.oracles.problem.sweep(self.oracles.shard, x, gamma, shift, None), x, "sweep")

    def _checked(self, result: Array, like: Array, oracle: str) -> Array:
        """The result as float64 of the right shape: a vector of one entry would otherwise spread over all."""
        result = result.astype(np.float64, copy=False) if on_gpu(result) else np.asarray(result, np.float64)
        if result.shape != like.shape:
            name = type(self.oracles.problem).__name__
            raise ValueError(f"{name}.{oracle} of client {self.index}: shape {result.shape}, expected {like.shape}")
        return result


@task(takes="x y", gives="1 1")
def hello(client: Client, x: Array, y: Array) -> tuple[Array, Array]:
    """What the server must know of a shard before the first round: its size and its ℓ."""
    return np.array([float(client.oracles.lower_size)]), np.array([client.oracles.smoothness(x, y)])


@task(takes="x y", gives="metrics")
def evaluate(client: Client, x: Array, y: Array) -> Array:
    """This client's part of an evaluation: f_i, g_i, then (sum, weight) of each metric of the problem."""
    oracles, problem = client.oracles, client.oracles.problem
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
