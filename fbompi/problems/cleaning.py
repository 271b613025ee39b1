"""Weights for training samples whose labels may be wrong: what hyper-cleaning and data cleaning have in common.

    f_i = mean over validation samples of CE(y)
    g_i = mean over training samples of w_j(x)·CE_j(y) + ½·ridge·‖y‖²

x has one entry per training sample, owned by the client that holds the sample: only that block travels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np

from fbompi.config import Above
from fbompi.data.content import label_type
from fbompi.data.samples import Samples, TrainKey, ValidationKey
from fbompi.messages import Array
from fbompi.problems.network import Network
from fbompi.problems.scores import area_under_roc, hits
from fbompi.problems.sums import sums


@dataclass
class Shard:
    """One client's samples."""

    train: Any  # with labels as given, some of them wrong
    corrupted: Array  # which of them are wrong; used by metrics only
    validation: Any
    test: Any


@dataclass(eq=False)
class Cleaning(Samples, ABC):
    """Weights for noisy training samples above, a classifier below."""

    metric_meanings = {
        "accuracy": "fraction of test images classified correctly",
        "weight_clean": "mean weight of training samples whose label is right",
        "weight_corrupted": "mean weight of training samples whose label was changed",
    }
    exact_meanings = {"auc": "how often a right label's weight exceeds a changed label's, of all pairs"}

    train: TrainKey = 900
    validation: ValidationKey = 300
    ridge: Annotated[float, "ridge coefficient of the lower problem", Above(0)] = 0.01
    backend: Annotated[Literal["cpu", "cuda"], "where clients compute"] = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.network = Network(self, self.first_layer(), self.backend)
        self.convex = not self.network.hidden
        self.dim_x, self.dim_y = self.train, self.network.dim_y

    def first_layer(self) -> int:
        """Units of the classifier's first layer; 0: softmax regression, which has none."""
        return 0

    @abstractmethod
    def corrupt(self, labels: Array) -> Array:
        """The labels of training samples as they are given to clients."""

    def block(self, client: int, clients: int) -> slice:
        """Where this client's training samples lie in a vector with one entry per training sample."""
        ends = self._ends(clients)
        return slice(ends[client - 1] if client else 0, ends[client])

    @lru_cache(maxsize=2)  # noqa: B019  (a problem lives as long as its run)
    def _ends(self, clients: int) -> list[int]:
        return np.cumsum([len(part.train) for part in self.parts(clients)]).tolist()

    @lru_cache(maxsize=2)  # noqa: B019  (a problem lives as long as its run)
    def given_labels(self, clients: int) -> Array:
        """The labels of all samples drawn as clients see them: those of training samples corrupted."""
        given = self.labels.astype(label_type(self.classes))
        training = np.sort(np.concatenate([part.train for part in self.parts(clients)]))
        given[training] = self.corrupt(given[training])
        return given

    def shard(self, client: int, clients: int) -> Shard:
        part, given = self.parts(clients)[client], self.given_labels(clients)
        train = self.network.on(self.training_rows(part.train), given[part.train])
        return Shard(
            train=train,
            corrupted=train.xp.asarray(given[part.train] != self.labels[part.train]),
            validation=self.network.on(self.training_rows(part.validation), self.labels[part.validation]),
            test=self.network.on(self.test_rows(part.test), self.test_labels[part.test]),
        )

    def units(self) -> tuple[Array, Array]:
        """Parts of the classifier; weights of samples belong to those who hold the samples."""
        return np.full(self.dim_x, -1), self.network.units

    def submodel(self, shard: Shard, held_x: Array, held_y: Array) -> Shard | None:
        if len(held_x) < len(shard.train.labels):
            return None
        train, validation = (self.network.held(part, held_y) for part in (shard.train, shard.validation))
        return None if train is None else Shard(train, shard.corrupted, validation, shard.test)

    def size(self, shard: Shard) -> tuple[int, int]:
        return len(shard.validation.labels), len(shard.train.labels)

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        return np.zeros(self.dim_x), self.network.start(rng)

    def weights(self, x: Array) -> tuple[Array, Array]:
        """The weights of samples, and their derivatives."""
        sigma = 0.5 * (1 + np.tanh(0.5 * x))
        return sigma, sigma * (1 - sigma)

    def upper(self, shard, x, y, batch) -> float:
        return shard.validation.at(y, batch).value()

    def lower(self, shard, x, y, batch) -> float:
        return shard.train.at(y, batch).value(self._shares(x, batch)[0], self.ridge)

    def upper_grad(self, shard, x, y, batch) -> tuple[Array, Array]:
        return np.zeros_like(x), shard.validation.at(y, batch).gradient().ravel()

    def lower_grad(self, shard, x, y, batch) -> Array:
        return shard.train.at(y, batch).gradient(self._shares(x, batch)[0], self.ridge).ravel()

    def lower_grads(self, shard, X, batch):
        if self.first_layer():
            return None  # a network's first layer is all there is to share, and it is in y
        shares, train = self._shares(X, batch)[0], shard.train
        return lambda Y: train.gradients(Y, shares, batch).reshape(Y.shape) + self.ridge * Y

    def lower_grad_x(self, shard, x, y, batch) -> Array:
        return _put(self._shares(x, batch)[1] * shard.train.at(y, batch).losses, x.size, batch)

    def hvp(self, shard, x, y, v, batch) -> Array:
        return shard.train.at(y, batch).hvp(v, self._shares(x, batch)[0], self.ridge).ravel()

    def cross(self, shard, x, y, v, batch) -> Array:
        return _put(self._shares(x, batch)[1] * shard.train.at(y, batch).along(v), x.size, batch)

    def smoothness(self, shard: Shard) -> float:
        return self.network.curvature(shard.train) + self.ridge  # no weight exceeds 1

    def metrics(self, shard, x, y) -> dict[str, tuple[float, float]]:
        weights, wrong = self.weights(x)[0], shard.corrupted
        return {
            "accuracy": hits(shard.test, y),
            "weight_clean": (float(weights[~wrong].sum()), float((~wrong).sum())),
            "weight_corrupted": (float(weights[wrong].sum()), float(wrong.sum())),
        }

    def exact(self, x: Array, y: Array, clients: int) -> dict[str, float]:
        held = np.concatenate([part.train for part in self.parts(clients)])
        right = self.given_labels(clients)[held] == self.labels[held]
        return {"auc": area_under_roc(x, right)}

    def _shares(self, x: Array, batch: Array | None) -> tuple[Array, Array]:
        """The weights of a batch or of all as shares of a mean, and their derivatives; or those of several x."""
        weights, slopes = self.weights(x if batch is None else x[..., batch])
        return weights / weights.shape[-1], slopes / weights.shape[-1]


def _put(values: Array, size: int, batch: Array | None) -> Array:
    """Values of a batch at their places in the whole block; a sample drawn twice counts twice."""
    return values if batch is None else sums(batch, values, size)
