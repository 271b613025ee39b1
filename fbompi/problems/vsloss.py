"""Tuning a loss on imbalanced data: the vector-scaling loss's parameters above, the classifier below (RABO).

    VS_j(x, y) = −w_t log( e^{Δ_t s_t + l_t} / Σ_c e^{Δ_c s_c + l_c} )        t the label of sample j, s its scores at y
    g_i = mean over training samples of VS_j(x, y) + ½·ridge·‖y‖²
    f_i = class-balanced cross-entropy on validation samples: every class weighs the same over all clients

x = [w, l, Δ], one of each per class, w and Δ within [1/bound, bound], l within ±5·log(bound). Training and validation
data are long-tailed: class i keeps n_i·μ^i of its samples; the test is on others. y is softmax regression or a network
of two layers.

The paper prints the VS loss at x for f as well. Then x lowers f without any better classifier: its w goes to the least
allowed (0, were it allowed, makes f = 0). `objective = "printed"` does that, with a warning; the default is a
validation loss that x does not enter, as where such losses were first tuned (AutoBalance: Li, Zhang, Thrampoulidis,
Chen, Oymak 2021). The VS loss is that of Kini, Paraskevas, Oymak, Thrampoulidis (2021).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np

from fbompi.config import Above, AtLeast, AtMost
from fbompi.data.corruption import long_tail
from fbompi.data.samples import Samples, TrainKey, ValidationKey
from fbompi.messages import Array
from fbompi.problems.network import Network
from fbompi.randomness import stream


@dataclass
class Shard:
    """One client's samples."""

    train: Any
    validation: Any
    balance: Array  # of every validation sample, so that the mean over all clients weighs classes alike
    test: Any
    test_balance: Array


@dataclass(eq=False)
class VsLoss(Samples):
    """Weights, shifts and scales of classes in the VS loss above, a classifier on long-tailed data below."""

    name = "vsloss"
    metric_meanings = {
        "accuracy": "fraction of test images classified correctly",
        "balanced_accuracy": "mean over classes of the fraction of their test images classified correctly",
    }

    train: TrainKey = 400
    validation: ValidationKey = 100
    tail: Annotated[float, "μ: class i keeps n·μ^i of its samples", Above(0), AtMost(1)] = 0.8
    objective: Annotated[Literal["balanced", "printed"], "class-balanced loss; the paper's, degenerate"] = "balanced"
    bound: Annotated[float, "w and Δ stay within [1/bound, bound]", Above(1)] = 2.0
    ridge: Annotated[float, "ridge coefficient of the lower problem", Above(0)] = 0.01
    model: Annotated[Literal["linear", "mlp"], "the classifier"] = "linear"
    hidden: Annotated[int, "model mlp: units of the first layer", AtLeast(1)] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.network = Network(self, self.hidden if self.model == "mlp" else 0)
        self.convex = not self.network.hidden
        self.dim_x, self.dim_y = 3 * self.classes, self.network.dim_y

    def kept(self, labels: Array) -> Array:
        return long_tail(labels, self.tail, stream(self.seed, "corruption"))

    def shard(self, client: int, clients: int) -> Shard:
        part = self.parts(clients)[client]
        share = clients * len(part.validation)
        return Shard(
            train=self.network.on(self.training_rows(part.train), self.labels[part.train]),
            validation=self.network.on(self.training_rows(part.validation), self.labels[part.validation]),
            balance=share * self._validation_balance(clients)[self.labels[part.validation]],
            test=self.network.on(self.test_rows(part.test), self.test_labels[part.test]),
            test_balance=_balance(self.test_labels, self.classes)[self.test_labels[part.test]],
        )

    @lru_cache(maxsize=2)  # noqa: B019  (a problem lives as long as its run)
    def _validation_balance(self, clients: int) -> Array:
        return _balance(self.labels[np.concatenate([part.validation for part in self.parts(clients)])], self.classes)

    def units(self) -> tuple[Array, Array]:
        """Parts of the classifier; the parameters of the loss are held by all, as the paper has it."""
        return np.full(self.dim_x, -1), self.network.units

    def submodel(self, shard: Shard, held_x: Array, held_y: Array) -> Shard | None:
        if len(held_x) < self.dim_x:
            return None
        train, validation = (self.network.held(part, held_y) for part in (shard.train, shard.validation))
        if train is None:
            return None
        return Shard(train, validation, shard.balance, shard.test, shard.test_balance)

    def size(self, shard: Shard) -> tuple[int, int]:
        return len(shard.validation.labels), len(shard.train.labels)

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        if self.objective == "printed":  # told here, where only the server comes
            warnings.warn("the VS loss as the upper objective is lowered by smaller weights alone", stacklevel=2)
        return np.repeat([1.0, 0.0, 1.0], self.classes), self.network.start(rng)

    def project_x(self, x: Array) -> Array:
        w, l, scale = x.reshape(3, -1)
        most = 5 * math.log(self.bound)
        within = 1 / self.bound, self.bound
        return np.concatenate([np.clip(w, *within), np.clip(l, -most, most), np.clip(scale, *within)])

    def upper(self, shard, x, y, batch) -> float:
        if self.objective == "printed":
            return Tuned(self, shard.validation, x, y, batch).value()
        return shard.validation.at(y, batch).value(_shares(shard.balance, batch))

    def upper_grad(self, shard, x, y, batch) -> tuple[Array, Array]:
        if self.objective == "printed":
            return Tuned(self, shard.validation, x, y, batch).gradient()
        return np.zeros_like(x), shard.validation.at(y, batch).gradient(_shares(shard.balance, batch)).ravel()

    def lower(self, shard, x, y, batch) -> float:
        return Tuned(self, shard.train, x, y, batch).value() + 0.5 * self.ridge * float(y @ y)

    def lower_grad(self, shard, x, y, batch) -> Array:
        return Tuned(self, shard.train, x, y, batch).gradient_y() + self.ridge * y

    def lower_grads(self, shard, X, batch):
        """Of regressions, in one pass over the samples."""
        if self.network.hidden:
            return None
        train, (w, l, scale) = shard.train, X.reshape(len(X), 3, -1).swapaxes(0, 1)
        labels = train.labels if batch is None else train.labels[batch]
        weights, scale = w[:, labels] / len(labels), scale[:, :, None]

        def gradients(Y: Array) -> Array:
            tuned = scale * Y.reshape(len(Y), self.classes, -1)
            tuned[:, :, -1] += l
            G = train.gradients(tuned.reshape(Y.shape), weights, batch).reshape(tuned.shape)
            return (scale * G).reshape(Y.shape) + self.ridge * Y

        return gradients

    def lower_grad_x(self, shard, x, y, batch) -> Array:
        return Tuned(self, shard.train, x, y, batch).gradient()[0]

    def hvp(self, shard, x, y, v, batch) -> Array:
        return Tuned(self, shard.train, x, y, batch).hvp(v) + self.ridge * v

    def cross(self, shard, x, y, v, batch) -> Array:
        return Tuned(self, shard.train, x, y, batch).cross(v)

    def smoothness(self, shard: Shard) -> float:
        """No weight exceeds `bound`, and scales enter the Hessian as their product; for a network, an estimate."""
        return self.bound**3 * self.network.curvature(shard.train) + self.ridge

    def metrics(self, shard, x, y) -> dict[str, tuple[float, float]]:
        right = shard.test.at(y).guesses() == shard.test.labels
        return {
            "accuracy": (float(right.sum()), float(len(right))),
            "balanced_accuracy": (float(shard.test_balance @ right), float(shard.test_balance.sum())),
        }


class Tuned:
    """The mean VS loss at (x, y), ridge apart: the loss of a classifier whose head is scaled by Δ and shifted by l."""

    def __init__(self, problem: VsLoss, classifier: Any, x: Array, y: Array, batch: Array | None) -> None:
        self.head = classifier.head if problem.network.hidden else slice(0, y.size)
        self.shape = problem.classes, -1
        self.w, self.l, self.scale = x.reshape(3, -1)
        self.y, self.labels = y, classifier.labels if batch is None else classifier.labels[batch]
        tuned = self._scaled(y)
        tuned[self.head].reshape(self.shape)[:, -1] += self.l  # a view: the bias is the last column
        self.point = classifier.at(tuned, batch)
        self.weights = self.w[self.labels] / len(self.labels)

    def _scaled(self, v: Array) -> Array:
        """A copy of a vector in y, the head's rows multiplied by Δ: the derivative of the tuned model along it."""
        v = v.copy()
        v[self.head].reshape(self.shape)[:] *= self.scale[:, None]
        return v

    def _rows(self, v: Array) -> Array:
        return v[self.head].reshape(self.shape)

    def _by_class(self, values: Array) -> Array:
        return np.bincount(self.labels, values, len(self.w)) / len(self.labels)

    def value(self) -> float:
        return self.point.value(self.weights)

    def gradient_y(self) -> Array:
        return self._scaled(self.point.gradient(self.weights).ravel())

    def gradient(self) -> tuple[Array, Array]:
        G = self.point.gradient(self.weights).ravel()
        in_l, in_scale = self._rows(G)[:, -1], (self._rows(self.y) * self._rows(G)).sum(axis=1)
        return np.concatenate([self._by_class(self.point.losses), in_l, in_scale]), self._scaled(G)

    def hvp(self, v: Array) -> Array:
        return self._scaled(self.point.hvp(self._scaled(v), self.weights).ravel())

    def cross(self, v: Array) -> Array:
        """The derivative of ⟨∇_y, v⟩ = ⟨G, Δv⟩ with respect to w, l and Δ; G itself depends on all three."""
        moved = self._scaled(v)
        G, HV = self.point.gradient(self.weights).ravel(), self.point.hvp(moved, self.weights).ravel()
        in_scale = (self._rows(v) * self._rows(G) + self._rows(self.y) * self._rows(HV)).sum(axis=1)
        return np.concatenate([self._by_class(self.point.along(moved)), self._rows(HV)[:, -1], in_scale])


def _balance(labels: Array, classes: int) -> Array:
    """For every class, what a sample must weigh so that all classes which occur weigh the same, 1 together."""
    held = np.bincount(labels, minlength=classes)
    return 1 / (np.maximum(held, 1) * max(np.count_nonzero(held), 1))


def _shares(weights: Array, batch: Array | None) -> Array:
    weights = weights if batch is None else weights[batch]
    return weights / len(weights)
