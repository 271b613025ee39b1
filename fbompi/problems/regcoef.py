"""Regularisation coefficients: how much to penalise each feature is learnt above, the classifier below (AFBO).

    f_i = mean over validation samples of CE(y)
    g_i = mean over training samples of CE(y) + Σ_j c_j(x) Σ_k y_kj²            c_j = exp(x_j), or x_j itself

x has one entry per feature, and one for the bias; y is logistic regression (one class against the others) or softmax
regression (k runs over its classes). x stays where every c_j lies between `smallest` and `largest`: that keeps g_i
strongly convex in y and its Hessian bounded.

The paper prints the penalty as Σ_j φ_j·ω_j, linear in the classifier ω. That is no regularisation: where |φ_j| is
larger than any slope of the loss along −sign(φ_j)·e_j, g_i falls for ever, and there is no lower solution; with softmax
any φ_j ≠ 0 will do, because what is added to all classes alike changes no loss. It is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.config import Above, AtLeast
from fbompi.data.samples import Samples, ScalingKey, TrainKey
from fbompi.errors import UserError
from fbompi.kernels.regression import Regression
from fbompi.messages import Array
from fbompi.problem import gather, spread
from fbompi.problems.scores import hits
from fbompi.problems.sums import sums


@dataclass
class Shard:
    """One client's samples."""

    train: Regression
    validation: Regression
    test: Regression
    held_x: Array | None = None  # of a submodel: its coordinates of x,
    columns: Array | None = None  # and to which feature each of y belongs


@dataclass(eq=False)
class RegularisationCoefficients(Samples):
    """One regularisation coefficient per feature above, logistic or softmax regression below."""

    name = "regcoef"
    convex = True
    metric_meanings = {
        "accuracy": "fraction of test samples classified correctly",
        "coefficient": "geometric mean of the coefficients",
    }

    train: TrainKey = 900
    scaling: ScalingKey = "standard"
    form: Annotated[Literal["exp", "plain", "linear"], "c = exp(x), or x; linear: the misprint, refused"] = "exp"
    smallest: Annotated[float, "least coefficient", Above(0)] = 1e-6
    largest: Annotated[float, "largest coefficient", Above(0)] = 1.0
    initial: Annotated[float, "coefficients at the start", Above(0)] = 0.01
    against: Annotated[int, "−1: all classes; otherwise this one (from 0) against the others", AtLeast(-1)] = -1
    backend: Annotated[Literal["cpu", "cuda"], "where clients compute"] = "cpu"

    def __post_init__(self) -> None:
        if self.form == "linear":
            raise UserError(
                'problem.form = "linear": a penalty φ·ω, linear in the classifier, is unbounded below: there is no '
                'lower solution; expected "exp" or "plain"'
            )
        if not self.smallest <= self.initial <= self.largest:
            raise UserError(
                f"problem.initial = {self.initial}: expected a number from problem.smallest = {self.smallest} "
                f"to problem.largest = {self.largest}"
            )
        super().__post_init__()
        if self.against >= self.set.classes:
            raise UserError(f"problem.against = {self.against}: {self.data} has classes 0 to {self.set.classes - 1}")
        self.outputs = self.classes if self.against < 0 else 1
        self.dim_x = self.features + 1
        self.dim_y = self.outputs * self.dim_x

    def shard(self, client: int, clients: int) -> Shard:
        part = self.parts(clients)[client]
        return Shard(
            train=self._regression(self.training_rows(part.train), self.labels[part.train]),
            validation=self._regression(self.training_rows(part.validation), self.labels[part.validation]),
            test=self._regression(self.test_rows(part.test), self.test_labels[part.test]),
        )

    def _regression(self, rows: Array, labels: Array) -> Regression:
        loss: Literal["softmax", "logistic"] = "softmax" if self.against < 0 else "logistic"
        targets = labels if self.against < 0 else labels == self.against
        return Regression(
            rows, targets, self.outputs, loss=loss, bias=True, dtype=self.dtype, backend=self.backend, **self.coding
        )

    def units(self) -> tuple[Array, Array]:
        """Features: a coefficient and its column of the classifier; the bias is held by all."""
        features = np.append(np.arange(self.features), -1)
        return features, np.tile(features, self.outputs)

    def submodel(self, shard: Shard, held_x: Array, held_y: Array) -> Shard:
        train, validation = shard.train.held(held_y), shard.validation.held(held_y)
        return Shard(train, validation, shard.test, held_x, held_y % self.dim_x)

    def size(self, shard: Shard) -> tuple[int, int]:
        return len(shard.validation.labels), len(shard.train.labels)

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        initial = np.log(self.initial) if self.form == "exp" else self.initial
        return np.full(self.dim_x, initial), np.zeros(self.dim_y)

    def project_x(self, x: Array) -> Array:
        ends = np.log([self.smallest, self.largest]) if self.form == "exp" else (self.smallest, self.largest)
        return np.clip(x, *ends)

    def coefficients(self, x: Array) -> tuple[Array, Array]:
        """c(x), and its derivative."""
        c = np.exp(x) if self.form == "exp" else x
        return c, c if self.form == "exp" else np.ones_like(x)

    def _ridge(self, shard: Shard, x: Array) -> Array:
        """2c(x), of each feature, or of each coordinate of y that a submodel holds; or that of several x."""
        if shard.held_x is None or shard.columns is None:
            return 2 * self.coefficients(x)[0]
        return 2 * gather(self.coefficients(spread(x, shard.held_x, self.dim_x))[0], shard.columns)

    def _by_feature(self, shard: Shard, values: Array) -> Array:
        """Sums over outputs of what is given for each coordinate of y."""
        if shard.held_x is None or shard.columns is None:
            return values.reshape(-1, self.dim_x).sum(axis=0)
        return gather(sums(shard.columns, values, self.dim_x), shard.held_x)

    def upper(self, shard, x, y, batch) -> float:
        return shard.validation.at(y, batch).value()

    def lower(self, shard, x, y, batch) -> float:
        return shard.train.at(y, batch).value(ridge=self._ridge(shard, x))

    def upper_grad(self, shard, x, y, batch) -> tuple[Array, Array]:
        return np.zeros_like(x), shard.validation.at(y, batch).gradient().ravel()

    def lower_grad(self, shard, x, y, batch) -> Array:
        return shard.train.at(y, batch).gradient(ridge=self._ridge(shard, x)).ravel()

    def lower_grads(self, shard, X, batch):
        ridge, train = self._ridge(shard, X), shard.train
        repeated = ridge if shard.held_x is not None else np.tile(ridge, self.outputs)
        return lambda Y: train.gradients(Y, None, batch).reshape(Y.shape) + repeated * Y

    def lower_grad_x(self, shard, x, y, batch) -> Array:
        return self.coefficients(x)[1] * self._by_feature(shard, y**2)

    def hvp(self, shard, x, y, v, batch) -> Array:
        return shard.train.at(y, batch).hvp(v, ridge=self._ridge(shard, x)).ravel()

    def cross(self, shard, x, y, v, batch) -> Array:
        return 2 * self.coefficients(x)[1] * self._by_feature(shard, y * v)

    def smoothness(self, shard: Shard) -> float:
        return shard.train.curvature() + 2 * self.largest

    def metrics(self, shard, x, y) -> dict[str, tuple[float, float]]:
        logs = np.log(self.coefficients(x)[0])
        return {"accuracy": hits(shard.test, y), "coefficient": (float(np.exp(logs.mean())), 1.0)}
