"""Hyper-representation: the first layer of a network is learnt above, its head below (FedNest, FedMBO, MemFBO).

    f_i = mean over validation samples of CE(x, y)
    g_i = mean over training samples of CE(x, y) + ½·ridge·‖y‖²

x = [W1, b1] of a first layer with ReLU, y = [W2, b2] of a softmax head; the ridge makes g_i strongly convex in y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.config import Above, AtLeast
from fbompi.data.samples import Samples, ScalingKey, TrainKey
from fbompi.kernels.mlp import MLP
from fbompi.messages import Array
from fbompi.problems.network import random_layer, whole_units
from fbompi.randomness import stream


@dataclass
class Shard:
    """One client's samples."""

    train: MLP
    validation: MLP
    test: MLP


@dataclass(eq=False)
class HyperRepresentation(Samples):
    """The first layer of a two-layer network above, its head below."""

    name = "hyperrep"
    convex = True
    metric_meanings = {"accuracy": "fraction of test images classified correctly"}

    train: TrainKey = 900
    scaling: ScalingKey = "standard"
    hidden: Annotated[int, "units of the first layer", AtLeast(1)] = 32
    ridge: Annotated[float, "ridge coefficient of the lower problem", Above(0)] = 0.001
    backend: Annotated[Literal["cpu", "cuda"], "where clients compute"] = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dim_x = self.hidden * (self.features + 1)
        self.dim_y = self.classes * (self.hidden + 1)

    def shard(self, client: int, clients: int) -> Shard:
        part = self.parts(clients)[client]
        return Shard(
            train=self._network(self.training_rows(part.train), self.labels[part.train]),
            validation=self._network(self.training_rows(part.validation), self.labels[part.validation]),
            test=self._network(self.test_rows(part.test), self.test_labels[part.test]),
        )

    def _network(self, rows: Array, labels: Array) -> MLP:
        return MLP(rows, labels, self.hidden, self.classes, dtype=self.dtype, backend=self.backend, **self.coding)

    def units(self) -> tuple[Array, Array]:
        """Hidden units: their weights and biases in x, their columns of the head in y; the head's biases are all's."""
        units = np.arange(self.hidden)
        return np.repeat(units, self.features + 1), np.tile(np.append(units, -1), self.classes)

    def submodel(self, shard: Shard, held_x: Array, held_y: Array) -> Shard | None:
        """Of whole hidden units; None of anything else."""
        units = whole_units(self.units(), held_x, held_y)
        if units is None:
            return None
        return Shard(shard.train.held(units)[0], shard.validation.held(units)[0], shard.test)

    def size(self, shard: Shard) -> tuple[int, int]:
        return len(shard.validation.labels), len(shard.train.labels)

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        return random_layer(self.hidden, self.features, rng), np.zeros(self.dim_y)

    def upper(self, shard, x, y, batch) -> float:
        return shard.validation.at(x, y, batch).value()

    def lower(self, shard, x, y, batch) -> float:
        return shard.train.at(x, y, batch).value(ridge=self.ridge)

    def upper_grad(self, shard, x, y, batch) -> tuple[Array, Array]:
        return shard.validation.at(x, y, batch).gradient()

    def lower_grad(self, shard, x, y, batch) -> Array:
        return shard.train.at(x, y, batch).gradient_y(ridge=self.ridge)

    def lower_grads(self, shard, X, batch):
        """Activations are computed once for every copy."""
        xp = shard.train.xp
        zero = xp.zeros(shard.train.dim_y)
        heads = [shard.train.at(x, zero, batch).head.data for x in X]
        return lambda Y: xp.stack([head.at(y).gradient(ridge=self.ridge).ravel() for head, y in zip(heads, Y)])

    def lower_grad_x(self, shard, x, y, batch) -> Array:
        return shard.train.at(x, y, batch).gradient()[0]

    def hvp(self, shard, x, y, v, batch) -> Array:
        return shard.train.at(x, y, batch).hvp(v, ridge=self.ridge)

    def cross(self, shard, x, y, v, batch) -> Array:
        return shard.train.at(x, y, batch).cross(v)

    def smoothness(self, shard: Shard) -> float:
        """On activations of a first layer like the one that a run begins with; training makes them larger."""
        x = random_layer(self.hidden, self.features, stream(self.seed, "start"))
        return shard.train.at(x, np.zeros(self.dim_y)).curvature() + self.ridge

    def metrics(self, shard, x, y) -> dict[str, tuple[float, float]]:
        guesses = shard.test.at(x, y).predict()
        return {"accuracy": (float((guesses == shard.test.labels).sum()), len(guesses))}
