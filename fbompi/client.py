"""A client: a shard, its oracles, and the pure function that turns a task into an answer.

Nothing survives from one task to the next: the answer depends on the shard and the task alone, and its
randomness on (seed, client, task number). That is what allows a task to be sent again, elsewhere or later.
"""

from __future__ import annotations

import copy
import math
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.kernels import on_gpu
from fbompi.messages import NO_COSTS, Array, TaskFunction, task, unpack_mask
from fbompi.problem import Oracles
from fbompi.randomness import stream

GRADIENTS, HVPS, CROSSES, WORK, MEMORY = range(5)  # places in `Client.costs`, in the order of `messages.COSTS`
FRESH: Any = object()  # in the place of a batch: draw one


class Client:
    """The oracles of one shard, as one task sees them: minibatches drawn afresh at every call, costs counted.

    `costs` tells after a task what it took: samples on which gradients (values count as these), Hessian products and
    cross products were evaluated; the work, which is samples times the coordinates that the oracle was given; and the
    peak of memory in bytes, the shard apart and a GPU's not counted. Memory is traced once for every kind of task (not
    at its first time, when kernels are still being loaded) and whenever one has more local steps than any before.

    `curvature` is the largest that the task has met of the lower objective: ‖Hv‖/‖v‖ of its Hessian products, and on
    whole shards ‖∇_y g(y) − ∇_y g(y')‖/‖y − y'‖ of gradients one after the other. It never exceeds the true ℓ of the
    batches and points that were seen, so that a method can trust it where it exceeds a bound made beforehand.

    With a `device` (`fbompi.kernels.cuda.device`), arrays and minibatches are put there before an oracle sees them.
    """

    def __init__(self, oracles: Oracles, index: int, seed: int, batch: int, device: Any = None) -> None:
        self.oracles, self.index, self.seed, self.batch, self.device = oracles, index, seed, batch, device
        self.number, self.local_steps, self.costs, self.seconds = 0, 1, list(NO_COSTS), 0.0
        self._curvature = [0.0]
        self._gradient: tuple[Array, Array, Array] | None = None  # the last x, y and ∇_y g on the whole shard
        self._rng: np.random.Generator | None = None
        # Kinds of tasks seen, and the most local steps whose memory is known
        self._traced: dict[TaskFunction, int] = {}

    def answer(
        self, function: TaskFunction, number: int, local_steps: int, arrays: Sequence[Array]
    ) -> tuple[Array, ...]:
        """Run a task function from a clean slate; `costs` and `seconds` tell afterwards what it took."""
        self.number, self.local_steps, self.costs, self._rng = number, local_steps, list(NO_COSTS), None
        self._curvature, self._gradient = [0.0], None
        begin = time.perf_counter()
        result = self._run(function, arrays)
        self.seconds = time.perf_counter() - begin
        if local_steps > self._traced.get(function, -1):
            self._trace(function, local_steps, arrays)
        return result

    def _trace(self, function: TaskFunction, local_steps: int, arrays: Sequence[Array]) -> None:
        """Run the task once more for its memory, which takes longer: its answer and its costs are known."""
        if function not in self._traced or tracemalloc.is_tracing():
            self._traced.setdefault(function, 0)
            return
        self._traced[function] = local_steps
        costs, curvature = self.costs, self._curvature
        self.costs, self._curvature, self._rng, self._gradient = list(NO_COSTS), [0.0], None, None
        self.oracles.forget()
        tracemalloc.start()
        try:
            self._run(function, arrays)
            costs[MEMORY] = tracemalloc.get_traced_memory()[1] + sum(array.nbytes for array in arrays)
        finally:
            tracemalloc.stop()
            self.costs, self._curvature = costs, curvature

    def _run(self, function: TaskFunction, arrays: Sequence[Array]) -> tuple[Array, ...]:
        if self.device is not None:
            arrays = [self.device.asarray(array) for array in arrays]
        result = function(self, *arrays)
        if self.device is not None:
            self.device.synchronize()  # whoever takes the time wants that of computing, not of asking for it
        return result if isinstance(result, tuple) else (result,)

    @property
    def curvature(self) -> float:
        """The largest that this task has met."""
        return self._curvature[0]

    def _meet(self, curvature: float) -> None:
        if self._curvature[0] < curvature < np.inf:
            self._curvature[0] = curvature

    @property
    def rng(self) -> np.random.Generator:
        """This task's own randomness."""
        if self._rng is None:
            self._rng = stream(self.seed, "client", self.index, self.number)
        return self._rng

    def held(self, mask_x: Array, mask_y: Array) -> Client:
        """This client with a submodel: its oracles take and give the coordinates of these masks, as they travel."""
        part, oracles = copy.copy(self), self.oracles
        part._rng = self.rng  # one randomness; costs and curvature are shared lists, so one account
        if self.device is not None:  # which coordinates are held is known on the host, where submodels are made
            mask_x, mask_y = self.device.to_host(mask_x), self.device.to_host(mask_y)
        held_x = unpack_mask(mask_x, oracles.size_x)
        part.oracles = oracles.held(held_x, unpack_mask(mask_y, oracles.problem.dim_y))
        return part

    def project_x(self, x: Array) -> Array:
        """The projection of x, for local steps; where a client owns only a block there is none but the server's."""
        whole = self.oracles.size_x == self.oracles.problem.dim_x
        return self.oracles.problem.project_x(x) if whole and hasattr(self.oracles.problem, "project_x") else x

    def draw(self) -> Array | None:
        """A minibatch for the lower oracles, with replacement, where several calls must see the same; None: all."""
        return self._draw(self.oracles.lower_size)

    def draw_upper(self) -> Array | None:
        """The same for the upper oracles."""
        return self._draw(self.oracles.upper_size)

    def _draw(self, size: int) -> Array | None:
        if not 0 < self.batch < size:
            return None
        drawn = self.rng.integers(size, size=self.batch)
        return drawn if self.device is None else self.device.asarray(drawn)

    def _count(self, oracle: int, batch: Array | None, size: int, x: Array, y: Array) -> Array | None:
        """The batch, drawn now where none is given; its samples are counted as calls of the oracle."""
        if batch is FRESH:
            batch = self._draw(size)
        samples = size if batch is None else len(batch)
        self.costs[oracle] += samples
        self.costs[WORK] += samples * self.oracles.computed(x, y)
        return batch

    def upper_grad(self, x: Array, y: Array, batch: Array | None = FRESH) -> tuple[Array, Array]:
        batch = self._count(GRADIENTS, batch, self.oracles.upper_size, x, y)
        grad_x, grad_y = self.oracles.upper_grad(x, y, batch)
        return self._checked(grad_x, x, "upper_grad (∇_x f)"), self._checked(grad_y, y, "upper_grad (∇_y f)")

    def lower_grad(self, x: Array, y: Array, batch: Array | None = FRESH) -> Array:
        batch = self._count(GRADIENTS, batch, self.oracles.lower_size, x, y)
        gradient = self._checked(self.oracles.lower_grad(x, y, batch), y, "lower_grad")
        if batch is None:
            self._compare(x, y, gradient)
        return gradient

    def _compare(self, x: Array, y: Array, gradient: Array) -> None:
        """Note the curvature between this point and the last one at the same x, unless they are too close to tell."""
        last, self._gradient = self._gradient, (x, y, gradient.copy())  # whoever asked may change what it was given
        if last is None or last[0] is not x:
            return
        moved = _norm(y - last[1])
        if moved > 1e-4 * _norm(y):
            self._meet(_norm(gradient - last[2]) / moved)

    def lower_grad_x(self, x: Array, y: Array, batch: Array | None = FRESH) -> Array:
        batch = self._count(GRADIENTS, batch, self.oracles.lower_size, x, y)
        return self._checked(self.oracles.lower_grad_x(x, y, batch), x, "lower_grad_x")

    def hvp(self, x: Array, y: Array, v: Array, batch: Array | None = FRESH) -> Array:
        batch = self._count(HVPS, batch, self.oracles.lower_size, x, y)
        product = self._checked(self.oracles.hvp(x, y, v, batch), y, "hvp")
        if (length := _norm(v)) > 0:
            self._meet(_norm(product) / length)
        return product

    def cross(self, x: Array, y: Array, v: Array, batch: Array | None = FRESH) -> Array:
        batch = self._count(CROSSES, batch, self.oracles.lower_size, x, y)
        return self._checked(self.oracles.cross(x, y, v, batch), x, "cross")

    def sweep(self, x: Array, gamma: float, shift: Any, order: Array | None = None) -> Array:
        """Where one sweep over the components of a nonsmooth problem, or over those of an `order`, ends."""
        self._count(GRADIENTS, order, self.oracles.lower_size, x, x[:0])
        return self._checked(self.oracles.problem.sweep(self.oracles.shard, x, gamma, shift, order), x, "sweep")

    def fresh_sweep(self, x: Array, gamma: float, weight: float) -> Array:
        """Where a sweep over all components ends that takes `weight` times the outer subgradient anew at every step."""
        self._count(GRADIENTS, None, self.oracles.lower_size, x, x[:0])
        return self._checked(self.oracles.problem.fresh_sweep(self.oracles.shard, x, gamma, weight), x, "sweep")

    def value(self, x: Array) -> float:
        """The sum of the components of a nonsmooth problem."""
        self._count(GRADIENTS, None, self.oracles.lower_size, x, x[:0])
        return float(self.oracles.problem.value(self.oracles.shard, x))

    def _checked(self, result: Array, like: Array, oracle: str) -> Array:
        """The result as float64 of the right shape: a vector of one entry would otherwise spread over all."""
        result = result.astype(np.float64, copy=False) if on_gpu(result) else np.asarray(result, np.float64)
        if result.shape != like.shape:
            name = type(self.oracles.problem).__name__
            raise ValueError(f"{name}.{oracle} of client {self.index}: shape {result.shape}, expected {like.shape}")
        return result


def _norm(v: Array) -> float:
    """Also of an array on a GPU."""
    return math.sqrt(float(v @ v))


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
