"""Data hyper-cleaning: learn which training labels are wrong, from a small clean validation set.

    f_i = mean over validation samples of CE(y)
    g_i = mean over training samples of σ(x_j)·CE_j(y) + ½·ridge·‖y‖²

x has one entry per training sample, owned by the client that holds the sample: only that block travels. Labels of
training samples are changed to another class at a rate; y is softmax regression with a bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Literal

import numpy as np

from fbompi.config import Above, AtLeast, AtMost
from fbompi.data import digits
from fbompi.data.partition import partition
from fbompi.errors import UserError
from fbompi.kernels import on_gpu
from fbompi.kernels.cuda.device import current
from fbompi.kernels.regression import Regression
from fbompi.messages import Array
from fbompi.randomness import stream

CLASSES = 10
BRIGHTEST = 16.0
MEAN_PIXEL = 0.3  # of the digits; without it the largest eigenvalue of the Hessian is four times as large


@dataclass
class Shard:
    """One client's samples."""

    train: Regression  # with labels as given, some of them wrong
    corrupted: Array  # which of them are wrong; used by metrics only
    validation: Regression
    test: Regression


class HyperCleaning:
    """Weights for noisy training samples above, ridge softmax regression below."""

    name = "hypercleaning"
    metric_meanings = {
        "accuracy": "fraction of test images classified correctly",
        "weight_clean": "mean weight σ(x) of training samples whose label is right",
        "weight_corrupted": "mean weight σ(x) of training samples whose label was changed",
    }

    def __init__(
        self,
        data: Annotated[Literal["digits"], "data set"] = "digits",
        corruption: Annotated[float, "fraction of training labels changed", AtLeast(0), AtMost(1)] = 0.4,
        ridge: Annotated[float, "ridge coefficient of the lower problem", Above(0)] = 0.01,
        train: Annotated[int, "training samples", AtLeast(1)] = 900,
        validation: Annotated[int, "clean validation samples", AtLeast(1)] = 300,
        partition: Annotated[Literal["iid", "sorted"], "how samples are dealt out to clients"] = "iid",
        backend: Annotated[Literal["cpu", "cuda"], "where clients compute"] = "cpu",
        seed: Annotated[int, "seed of splitting, dealing out and corruption", AtLeast(0)] = 0,
    ) -> None:
        self.corruption, self.ridge, self.partition, self.seed = corruption, ridge, partition, seed
        self.backend = backend
        self.images, self.labels = digits.load()
        if train + validation >= len(self.labels):
            raise UserError(
                f"problem.train + problem.validation = {train + validation}: {data} has {len(self.labels)} samples, "
                "and some must be left for the test"
            )
        order = stream(seed, "problem").permutation(len(self.labels))
        self.train, self.validation, self.test = np.split(order, [train, train + validation])
        self.dim_x = train
        self.dim_y = CLASSES * (self.images.shape[1] + 1)

    @cached_property
    def given_labels(self) -> Array:
        """The labels of the training samples, in their order, after corruption."""
        rng = stream(self.seed, "corruption")
        labels = self.labels[self.train].astype(np.int64)
        wrong = rng.permutation(len(labels))[: round(self.corruption * len(labels))]
        labels[wrong] = (labels[wrong] + rng.integers(1, CLASSES, len(wrong))) % CLASSES
        return labels

    @lru_cache(maxsize=2)  # noqa: B019  (a problem lives as long as its run)
    def parts(self, clients: int) -> list[tuple[Array, Array, Array]]:
        """Positions in the training, validation and test samples of every client."""
        return list(
            zip(
                partition(self.partition, self.labels[self.train], clients, self.seed, "training"),
                partition(self.partition, self.labels[self.validation], clients, self.seed, "validation"),
                partition("iid", self.labels[self.test], clients, self.seed, "test"),
                strict=True,
            )
        )

    def block(self, client: int, clients: int) -> slice:
        sizes = [len(train) for train, _, _ in self.parts(clients)]
        begin = sum(sizes[:client])
        return slice(begin, begin + sizes[client])

    def shard(self, client: int, clients: int) -> Shard:
        train, validation, test = self.parts(clients)[client]
        given = self.given_labels[train]
        samples = self._regression(self.train[train], given)
        return Shard(
            train=samples,
            corrupted=samples.xp.asarray(given != self.labels[self.train[train]]),
            validation=self._regression(self.validation[validation]),
            test=self._regression(self.test[test]),
        )

    def _regression(self, which: Array, labels: Array | None = None) -> Regression:
        """Softmax regression with a bias on these samples; the pixels stay bytes."""
        labels = self.labels[which] if labels is None else labels
        scale, shift = 1 / BRIGHTEST, -MEAN_PIXEL
        return Regression(
            self.images[which], labels, CLASSES, bias=True, scale=scale, shift=shift, backend=self.backend
        )

    def size(self, shard: Shard) -> tuple[int, int]:
        return len(shard.validation.labels), len(shard.train.labels)

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        return np.zeros(self.dim_x), np.zeros(self.dim_y)

    def upper(self, shard, x, y, batch) -> float:
        return shard.validation.at(y, batch).value()

    def lower(self, shard, x, y, batch) -> float:
        return shard.train.at(y, batch).value(_weights(x, batch)[0], self.ridge)

    def upper_grad(self, shard, x, y, batch) -> tuple[Array, Array]:
        return np.zeros_like(x), shard.validation.at(y, batch).gradient().ravel()

    def lower_grad(self, shard, x, y, batch) -> Array:
        return shard.train.at(y, batch).gradient(_weights(x, batch)[0], self.ridge).ravel()

    def lower_grad_x(self, shard, x, y, batch) -> Array:
        return _put(_weights(x, batch)[1] * shard.train.at(y, batch).losses, x.size, batch)

    def hvp(self, shard, x, y, v, batch) -> Array:
        return shard.train.at(y, batch).hvp(v, _weights(x, batch)[0], self.ridge).ravel()

    def cross(self, shard, x, y, v, batch) -> Array:
        return _put(_weights(x, batch)[1] * shard.train.at(y, batch).along(v), x.size, batch)

    def smoothness(self, shard: Shard) -> float:
        """diag(P) − PPᵀ has no eigenvalue above ½ and no weight exceeds 1."""
        X = shard.train.features()
        return 0.5 * float(np.linalg.norm(X, 2) ** 2) / len(X) + self.ridge

    def metrics(self, shard, x, y) -> dict[str, tuple[float, float]]:
        weights, wrong = _sigmoid(x), shard.corrupted
        guesses = shard.test.at(y).guesses()
        return {
            "accuracy": (float((guesses == shard.test.labels).sum()), len(guesses)),
            "weight_clean": (float(weights[~wrong].sum()), float((~wrong).sum())),
            "weight_corrupted": (float(weights[wrong].sum()), float(wrong.sum())),
        }


def _weights(x: Array, batch: Array | None) -> tuple[Array, Array]:
    """The weights σ(x)/n of a batch or of all, and their derivatives."""
    sigma = _sigmoid(x if batch is None else x[batch])
    return sigma / len(sigma), sigma * (1 - sigma) / len(sigma)


def _put(values: Array, size: int, batch: Array | None) -> Array:
    """Values of a batch at their places in the whole block; a sample drawn twice counts twice."""
    if batch is None:
        return values
    if on_gpu(values):  # on the host: a GPU adds in any order, and the bits would change from run to run
        device = current()
        return device.asarray(np.bincount(device.to_host(batch), device.to_host(values), size))
    return np.bincount(batch, values, size)


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))
