"""Weighted, ridge-regularised softmax and logistic regression: values, gradients and second-order products.

    L(Y) = Σ_j w_j · loss(Y x_j, t_j) + ½ Σ ridge·Y²            Y: outputs × (features, and one more with a bias)

softmax: outputs ≥ 1 classes, t_j a class;  logistic: outputs = 1, t_j ∈ {0, 1}.

A `Regression` is the data of one shard; `at(Y)` makes a `Point`, which keeps the probabilities there. Every product at
a point is one pass over the features: N Neumann terms read them N times and compute no exponential. Features may be
float64, float32 or uint8 (taken as scale·byte + shift, converted in the cache: the shard stays as small as it is), and
a batch is an array of row numbers: rows are never copied out.

NumPy arrays are worked on by Numba, CuPy arrays by CUDA (`kernels/cuda`), with the same results to rounding.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fbompi import kernels
from fbompi.kernels.spectrum import largest_eigenvalue
from fbompi.messages import read_only

Array = Any  # NumPy's or CuPy's
Weights = Any  # one per sample of the batch, or None: each 1/n


class Regression:
    """The samples of one shard."""

    def __init__(
        self,
        X: Array,
        labels: Array,
        outputs: int,
        *,
        loss: Literal["softmax", "logistic"] = "softmax",
        bias: bool = False,
        scale: float = 1.0,
        shift: float = 0.0,
        dtype: Any = None,
        threads: int | None = None,
        backend: Literal["cpu", "cuda"] | None = None,
    ) -> None:
        if X.ndim != 2 or X.dtype not in (np.float64, np.float32, np.uint8):
            raise ValueError(f"X: expected a matrix of float64, float32 or uint8, got {X.ndim}-d {X.dtype}")
        if loss not in ("softmax", "logistic"):
            raise ValueError(f'loss = "{loss}": expected softmax or logistic')
        if backend not in (None, "cpu", "cuda"):
            raise ValueError(f'backend = "{backend}": expected cpu or cuda')
        for name, number in (("outputs", outputs), ("threads", threads)):
            if number is not None and number < 1:
                raise ValueError(f"{name} = {number}: expected at least 1")
        if loss == "logistic" and outputs != 1:
            raise ValueError(f"outputs = {outputs}: logistic regression has one")
        self.engine, self.xp, X = _engine(backend, X)
        self.real = np.dtype(dtype or (np.float32 if X.dtype == np.float32 else np.float64))
        if self.real not in (np.float64, np.float32) or (X.dtype == np.float64 and self.real == np.float32):
            raise ValueError(f"dtype = {self.real}: expected float64, or float32 with features of at most that size")
        if X.dtype != np.uint8 and (scale, shift) != (1.0, 0.0):
            raise ValueError("scale and shift are for uint8 features; multiply others yourself")
        # Rows may be any distance apart; within a row the kernels want neighbours.
        self.X = X if X.shape[1] <= 1 or X.strides[1] == X.itemsize else self.xp.asarray(X, order="C")
        self.labels = self.xp.asarray(labels, np.int64, order="C")
        most = 2 if loss == "logistic" else outputs
        if self.labels.shape != X.shape[:1]:
            raise ValueError(f"labels: expected {len(X)}, one per row of X, got shape {self.labels.shape}")
        if len(labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < most:
            raise ValueError(f"labels: expected 0 to {most - 1}, got {self.labels.min()} to {self.labels.max()}")
        self.outputs, self.logistic, self.bias = outputs, loss == "logistic", bias
        self.scale, self.shift = self.real.type(scale), self.real.type(shift)
        self.threads = threads or kernels.threads()
        self.shape: tuple[int, ...] = (outputs, X.shape[1] + bias)
        self.last: tuple[bytes, Point] | None = None
        self.remembers = True
        self.everything = self.xp.empty(0, np.int64)
        self.no_weights = self.xp.empty((1, 1), self.real)
        self.engine.prepare(self)

    def at(self, Y: Array, batch: Array | None = None) -> Point:
        """The point Y (flat or outputs × width), for the whole shard or the rows of a batch.

        The last point of the whole shard is remembered: asking for it again computes nothing.
        """
        Y = self.real_model(Y)
        if batch is not None or not self.remembers:
            return Point(self, Y.copy(), self.rows(batch))
        content = Y.tobytes()
        if self.last is None or self.last[0] != content:
            self.last = content, Point(self, Y.copy(), None)
        return self.last[1]

    def with_rows(self, X: Array, labels: Array) -> Regression:
        """The same regression on other rows, taken as they are: for features that every step makes anew.

        It does not remember its last point: a point and its rows would keep each other until the garbage is collected.
        """
        other, shape = Regression.__new__(Regression), (self.outputs, X.shape[1] + self.bias)
        other.__dict__.update(self.__dict__, X=X, labels=labels, shape=shape, last=None, remembers=False)
        return other

    def features(self) -> Array:
        """All features as numbers, with the bias's column of ones: a copy, for what is done once."""
        X = self.X.astype(self.real) * self.scale + self.shift
        return self.xp.hstack([X, self.xp.ones((len(X), 1), self.real)]) if self.bias else X

    def curvature(self) -> float:
        """A bound on the Hessian's largest eigenvalue at any model, for weights of 1/n each and no ridge.

        With M the mean of x xᵀ it is ¼λ(M) for logistic regression and ½λ(M) for softmax, because diag(p) − ppᵀ has no
        eigenvalue above ½. The Hessian at Y = 0 has ¼λ(M) and λ(M)/outputs: λ comes from power iteration there.
        """
        start = self.xp.asarray(np.random.default_rng(0).standard_normal(math.prod(self.shape)))
        zero = self.at(self.xp.zeros_like(start))
        largest = largest_eigenvalue(lambda v: zero.hvp(v).ravel(), start)
        return largest if self.logistic else largest * self.outputs / 2

    def count(self, batch: Array | None) -> int:
        return len(self.X) if batch is None else len(batch)

    def rows(self, batch: Array | None) -> Array | None:
        """A copy of a batch as the kernels take it; row numbers are checked, because the kernels do not."""
        if batch is None:
            return None
        given = self.xp.asarray(batch)
        if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
            raise ValueError(f"batch: expected a vector of row numbers, got {given.ndim}-d {given.dtype}")
        batch = given.astype(np.int64, order="C")
        if len(batch) == 0:
            return batch
        if int(batch.min()) < 0 or int(batch.max()) >= len(self.X):
            raise ValueError(f"batch: expected row numbers 0 to {len(self.X) - 1}, got {batch.min()} to {batch.max()}")
        return batch

    def real_model(self, Y: Array) -> Array:
        """A model, or several of them, in the working precision: (…, outputs, width)."""
        Y = self.xp.asarray(Y, self.real, order="C")
        if Y.shape[-len(self.shape) :] == self.shape:
            return Y
        if Y.shape[-1:] != (math.prod(self.shape),):
            raise ValueError(f"expected a model of {' × '.join(map(str, self.shape))} numbers, got shape {Y.shape}")
        return Y.reshape(*Y.shape[:-1], *self.shape)

    def several(self, Y: Array) -> Array:
        """Models of the working precision one after another, whatever axes there are before theirs."""
        return Y.reshape(math.prod(Y.shape[: -len(self.shape)]), *self.shape)

    def real_weights(self, weights: Weights, n: int, copies: int | None = None) -> Array:
        if weights is None:
            return self.xp.full(n, 1 / max(n, 1), self.real)
        weights = self.xp.asarray(weights, self.real, order="C")
        if weights.shape not in ((n,), (copies, n)):
            raise ValueError(f"weights: expected {n}, one per sample, got shape {weights.shape}")
        return weights

    def held(self, coordinates: Array) -> Masked:
        """The submodel that holds these coordinates of the flat model."""
        return Masked(self, coordinates)

    def gradients(self, Y: Array, weights: Array, batch: Array | None = None) -> Array:
        """Gradients at many models Y[q] with weights[q] (or one set for all), in one pass; no ridge."""
        Y, batch = self.several(self.real_model(Y)), self.rows(batch)
        weights = self.xp.atleast_2d(self.real_weights(weights, self.count(batch), len(Y)))
        return self.engine.gradients(self, batch, Y, weights)


class Masked(Regression):
    """The same samples for a submodel: a vector of the coordinates held, every other one being absent (zero).

    A point of it has all products in held coordinates. The cost is that of the features held times the outputs, or,
    where few coordinates of each are held, of the coordinates and of reading those features. Their places in the flat
    full model are `coordinates`: a vector is gathered by Y.ravel()[coordinates], and put back by assignment.
    """

    def __init__(self, whole: Regression, held: Array) -> None:
        self.__dict__.update(whole.__dict__)
        self.whole = whole
        held = whole.xp.asarray(held)
        if held.size and held.dtype.kind not in "iu":
            raise ValueError(f"held: expected whole numbers, got {held.dtype}")
        held = self.coordinates = whole.xp.asarray(held, np.int64, order="C")
        size, width = whole.shape[0] * whole.shape[1], whole.shape[1]
        rising = held.ndim == 1 and not (held[1:] <= held[:-1]).any()
        if not rising or (len(held) and not 0 <= int(held[0]) <= int(held[-1]) < size):
            raise ValueError(f"held: expected coordinates 0 to {size - 1} in rising order, each once")
        self.last, self.shape = None, held.shape
        self.features_held, self.positions = whole.xp.unique(held % width, return_inverse=True)
        self.starts = whole.xp.searchsorted(held, whole.xp.arange(whole.shape[0] + 1) * width)
        self.engine = whole.engine.masked(self)
        self.engine.prepare(self)

    def held(self, coordinates: Array) -> Masked:
        """The part of this submodel that holds these of its coordinates."""
        return Masked(self.whole, self.coordinates[self.xp.asarray(coordinates)])

    def with_rows(self, X: Array, labels: Array) -> Regression:
        return Masked(self.whole.with_rows(X, labels), self.coordinates)


class Point:
    """A model on a batch, with its probabilities: computed when first needed, then kept."""

    def __init__(self, data: Regression, Y: Array, batch: Array | None) -> None:
        self.data, self.Y, self.batch = data, Y, batch
        self.n = data.count(batch)

    @cached_property
    def _forward(self) -> tuple[Array, Array]:
        return self.data.engine.forward(self.data, self.batch, self.Y)

    @property
    def probabilities(self) -> Array:
        """n × outputs (of label 1, for logistic regression); kept, so not to be written to."""
        return _guarded(self._forward[0])

    @cached_property
    def losses(self) -> Array:
        """The loss of every sample, without weights or ridge."""
        return _guarded(self.data.engine.losses(self.data, self._forward[1]))

    def guesses(self) -> Array:
        """The most probable label of every sample."""
        P = self.probabilities
        return (P[:, 0] > 0.5).astype(np.int64) if self.data.logistic else P.argmax(axis=1)

    def value(self, weights: Weights = None, ridge: Any = 0.0) -> float:
        w = self.data.real_weights(weights, self.n)
        return float(w @ self.losses) + 0.5 * float((ridge * self.Y.astype(np.float64) ** 2).sum())

    def gradient(self, weights: Weights = None, ridge: Any = 0.0) -> Array:
        """∇L, outputs × width. The first one at a point is also its forward pass."""
        data, known = self.data, self.__dict__.get("_forward")
        w = data.real_weights(weights, self.n)
        if known is not None:
            return self._with_ridge(data.engine.kept_residual_pass(data, self.batch, known[0], w), ridge, self.Y)
        P, parts, G = data.engine.residual_pass(data, self.batch, self.Y, w)
        self.__dict__["_forward"] = P, parts
        return self._with_ridge(G, ridge, self.Y)

    def hvp(self, V: Array, weights: Weights = None, ridge: Any = 0.0) -> Array:
        """∇²L · V for one V (flat or outputs × width) or several of them (k × …), in one pass."""
        data = self.data
        shaped = data.real_model(V)
        w = data.real_weights(weights, self.n)
        G = data.engine.jacobian_pass(data, self.batch, self._forward[0], w, data.several(shaped))
        return self._with_ridge(G.reshape(shaped.shape), ridge, shaped)

    def along(self, V: Array) -> Array:
        """⟨∇ loss_j, V⟩ of every sample: what the cross product with samples' weights needs."""
        data = self.data
        shaped = data.real_model(V)
        result = data.engine.along(data, self.batch, self._forward[0], data.several(shaped))
        return result.reshape(*shaped.shape[: -len(data.shape)], self.n)

    def neumann(self, b: Array, terms: int, smoothness: float, weights: Weights = None, ridge: Any = 0.0) -> Array:
        """(1/ℓ) Σ_{u<terms} (I − H/ℓ)^u b ≈ H⁻¹ b."""
        return self.fixed_point(None, b, 1 / smoothness, terms, weights, ridge)

    def fixed_point(
        self, v: Array | None, b: Array, step: float, steps: int = 1, weights: Weights = None, ridge: Any = 0.0
    ) -> Array:
        """`steps` times v ← v − step·(H v − b), from v (None: from 0, where the first step needs no product)."""
        xp = self.data.xp
        b = self._shaped64(b)
        v = xp.zeros_like(b) if v is None else self._shaped64(v)
        w = self.data.real_weights(weights, self.n)
        for _ in range(steps):
            v = v + step * b if not v.any() else v - step * (self.hvp(v, w, ridge) - b)
        return v

    def _shaped64(self, v: Array) -> Array:
        v = self.data.xp.asarray(v, np.float64)
        return v.reshape(self.data.real_model(v).shape)

    def _with_ridge(self, G: Array, ridge: Any, V: Array) -> Array:
        if np.isscalar(ridge) and ridge == 0.0:
            return G
        G += ridge * V
        return G


def _guarded(array: Array) -> Array:
    """A view that is not written to by accident; CuPy has no such thing."""
    return array if kernels.on_gpu(array) else read_only(array)


def _engine(backend: str | None, X: Array) -> tuple[Any, Any, Array]:
    """The functions that compute, the array library that goes with them, and X where they can reach it."""
    if backend == "cuda" or (backend is None and kernels.on_gpu(X)):
        from fbompi.kernels.cuda import regression as engine

        xp = engine.array_library()
        return engine, xp, xp.asarray(X)
    from fbompi.kernels.cpu.regression import engine as numba_engine

    return numba_engine, np, np.asarray(X)
