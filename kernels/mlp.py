"""A network of two layers, split as in hyper-representation: x is the first layer, y the head.

    A = relu(X W1ᵀ + b1),   S = A W2ᵀ + b2,   L(x, y) = Σ_j w_j · CE(S_j, t_j) + ½·ridge·‖y‖²
    x = [W1, b1], hidden × (features + 1),   y = [W2, b2], classes × (hidden + 1): flat, the bias as the last column

So the head is a softmax regression on the activations A, and all that concerns y alone is left to it.

The ridge is on all of y, the bias too: that makes L(x, ·) strongly convex, which the lower problem needs. relu'(0) = 0;
second derivatives are those of the piece the point lies in, and hold where no pre-activation is exactly 0.

The first layer is dense multiplications, a block of rows at a time: only a block of X is ever gathered or converted. In
float32 only the sums within a block are float32; results are float64, and agree with float64 arithmetic to 1e-6
(60,000×784, 32 units) unless rounding takes a pre-activation across 0: three of eleven million were that close, and
∇_x of random labels, all cancellation, then differed by up to 8e-4.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from fbompi.kernels.regression import Array, Regression, Weights


class MLP:
    """The network on one shard of data.

    Parameters
    ----------
    X : n×features, float64, float32 or uint8, NumPy's or CuPy's
        Not copied; what the network sees is scale·X + shift.
    labels : n integers below `classes`
    dtype : float64 or float32, of the arithmetic
        X's own where it is a float, float64 for bytes.
    block : rows worked on at a time
    """

    def __init__(
        self,
        X: Array,
        labels: Array,
        hidden: int,
        classes: int,
        *,
        scale: float = 1.0,
        shift: float = 0.0,
        dtype: Any = None,
        block: int = 1024,
        backend: Literal["cpu", "cuda"] | None = None,
    ) -> None:
        if X.ndim != 2 or X.dtype not in (np.float64, np.float32, np.uint8):
            raise ValueError(f"X: expected a matrix of float64, float32 or uint8, got {X.ndim}-d {X.dtype}")
        if min(hidden, classes, block) < 1:
            raise ValueError(f"hidden, classes and block must be positive, got {hidden}, {classes} and {block}")
        self.real = np.dtype(dtype or (np.float64 if X.dtype == np.uint8 else X.dtype))
        if self.real not in (np.float64, np.float32):
            raise ValueError(f"dtype = {self.real}: expected float64 or float32")
        # Without features: it checks the labels, and every point puts its activations in their place.
        self.head = Regression(X[:, :0].astype(self.real), labels, classes, bias=True, backend=backend)
        self.xp, self.X, self.columns = self.head.xp, self.head.xp.asarray(X), None
        self.scale, self.shift, self.affine = scale, shift, (scale, shift) != (1, 0)
        self.block, self.labels = block, self.head.labels
        self.shape_x, self.shape_y = (hidden, X.shape[1] + 1), (classes, hidden + 1)

    @property
    def dim_x(self) -> int:
        return self.shape_x[0] * self.shape_x[1]

    @property
    def dim_y(self) -> int:
        return self.shape_y[0] * self.shape_y[1]

    def held(self, units: Array, features: Array | None = None) -> tuple[MLP, Array, Array]:
        """The submodel that holds these hidden units (of these features), and its coordinates in x and in y.

        The head's biases are in every submodel. What it computes costs in proportion to what it holds.
        """
        (hidden, width), xp, part = self.shape_x, self.xp, copy.copy(self)
        rows = _numbers("units", units, hidden, xp)
        columns = xp.arange(width - 1)
        if features is not None:
            columns = _numbers("features", features, width - 1, xp)
            part.columns = columns if self.columns is None else self.columns[columns]
        part.shape_x, part.shape_y = (len(rows), len(columns) + 1), (self.shape_y[0], len(rows) + 1)
        in_x = rows[:, None] * width + xp.append(columns, width - 1)
        in_y = xp.arange(self.shape_y[0])[:, None] * (hidden + 1) + xp.append(rows, hidden)
        return part, in_x.ravel(), in_y.ravel()

    def at(self, x: Array, y: Array, batch: Array | None = None) -> Point:
        """The point (x, y), for the whole shard or the rows of a batch; its activations are computed now."""
        if np.ndim(x) != 1 or np.ndim(y) != 1:
            raise ValueError(f"x and y: expected one vector each, got shapes {np.shape(x)} and {np.shape(y)}")
        return Point(self, self.matrices("x", x), self.matrices("y", y), self.head.rows(batch))

    def matrices(self, name: str, v: Array) -> Array:
        """One or several vectors in x (called x or u) or in y as layers, weights and bias, in float64."""
        shape = self.shape_x if name in ("x", "u") else self.shape_y
        v = self.xp.asarray(v, np.float64)
        if v.shape[-1:] != (shape[0] * shape[1],):
            raise ValueError(f"{name}: expected {shape[0]} × {shape[1]} numbers, flat, got shape {v.shape}")
        return v.reshape(*v.shape[:-1], *shape)

    def blocks(self, batch: Array | None) -> Iterator[tuple[slice, Array]]:
        """Where each block of rows lies in the batch, and its features as they are stored, in the working precision."""
        for start in range(0, self.head.count(batch), self.block):
            rows = slice(start, start + self.block)
            X = self.X[rows if batch is None else batch[rows]]
            yield rows, (X if self.columns is None else X.take(self.columns, axis=1)).astype(self.real, copy=False)

    def on_stored_features(self, layer: Array) -> tuple[Array, Array]:
        """Weights and biases that do to X what the layer does to scale·X + shift."""
        weights, bias = layer[..., :-1].astype(self.real), layer[..., None, :, -1]
        if self.affine:
            weights *= self.real.type(self.scale)
            bias = bias + self.shift * layer[..., :-1].sum(axis=-1)[..., None, :]
        return weights, bias.astype(self.real)


class Point:
    """The network at one (x, y) on one batch. Made by `MLP.at`.

    `weights` are one number per row of the batch; None stands for the mean, 1/n each. Directions are flat vectors, or k
    of them as the rows of an array, which cost less together than one by one.
    """

    def __init__(self, mlp: MLP, x: Array, y: Array, batch: Array | None) -> None:
        self.mlp, self.batch = mlp, batch
        self.labels = mlp.head.labels if batch is None else mlp.head.labels[batch]
        self.A = mlp.xp.empty((len(self.labels), len(x)), mlp.real)
        W, bias = mlp.on_stored_features(x)
        for rows, X in mlp.blocks(batch):
            A = self.A[rows]
            mlp.xp.matmul(X, W.T, out=A)
            A += bias
            mlp.xp.maximum(A, 0, out=A)
        self.head = mlp.head.with_rows(self.A, self.labels).at(y)

    @property
    def losses(self) -> Array:
        """The cross-entropy of every row."""
        return self.head.losses

    @property
    def probabilities(self) -> Array:
        """n × classes."""
        return self.head.probabilities

    def curvature(self) -> float:
        """A bound on the largest eigenvalue of ∇²_yy L at this x and any y, for weights of 1/n each and no ridge."""
        return self.head.data.curvature()

    def predict(self) -> Array:
        """The likeliest class of every row."""
        return self.head.guesses()

    def value(self, weights: Weights = None, ridge: float = 0.0) -> float:
        """L(x, y)."""
        return self.head.value(weights, ridge)

    def gradient_y(self, weights: Weights = None, ridge: float = 0.0) -> Array:
        """∇_y L, without X."""
        return self.head.gradient(weights, ridge).ravel()

    def hvp(self, v: Array, weights: Weights = None, ridge: float = 0.0) -> Array:
        """∇²_yy L · v, without X."""
        return self.head.hvp(self.mlp.matrices("v", v), weights, ridge).reshape(np.shape(v))

    def neumann(self, b: Array, terms: int, smoothness: float, weights: Weights = None, ridge: float = 0.0) -> Array:
        """(1/ℓ) Σ_{u<terms} (I − H/ℓ)^u b with H = ∇²_yy L and ℓ = smoothness: H⁻¹b for many terms."""
        return self.head.neumann(self.mlp.matrices("b", b), terms, smoothness, weights, ridge).reshape(np.shape(b))

    def fixed_point(
        self, v: Array | None, b: Array, step: float, steps: int = 1, weights: Weights = None, ridge: float = 0.0
    ) -> Array:
        """`steps` times v ← v − step·(∇²_yy L v − b), from v (None: from 0)."""
        start = None if v is None else self.mlp.matrices("v", v)
        return self.head.fixed_point(start, self.mlp.matrices("b", b), step, steps, weights, ridge).reshape(np.shape(b))

    def along(self, v: Array, u: Array | None = None) -> Array:
        """⟨∇_y CE_j, v⟩ (+ ⟨∇_x CE_j, u⟩) of every row j: what the cross product of the weights needs.

        k×n for k directions.
        """
        mlp, V = self.mlp, self.mlp.matrices("v", v)
        result = self.head.along(V)
        if u is None:
            return result
        U1, u1 = mlp.on_stored_features(mlp.matrices("u", u))
        R = self._residual(mlp.xp.ones(len(self.labels)))
        for rows, X in mlp.blocks(self.batch):
            D = R[rows] @ self.head.Y[:, :-1]
            D *= self.A[rows] > 0
            result[..., rows] += (D * (X @ U1.swapaxes(-1, -2) + u1)).sum(axis=-1)
        return result

    def gradient(self, weights: Weights = None, ridge: float = 0.0) -> tuple[Array, Array]:
        """(∇_x L, ∇_y L), in one pass over X."""
        in_y = self.gradient_y(weights, ridge)  # first, because it makes the probabilities on its way
        R, W2 = self._residual(weights), self.head.Y[:, :-1]
        in_x = self.mlp.xp.zeros(self.mlp.shape_x)
        for rows, X in self.mlp.blocks(self.batch):
            D = R[rows] @ W2
            D *= self.A[rows] > 0
            _add(D, X, in_x)
        return self._flat(in_x), in_y

    def cross(self, v: Array, weights: Weights = None) -> Array:
        """∇²_xy L · v: the derivative of ⟨∇_y L, v⟩ with respect to x, in one pass over X."""
        return self._products(None, self.mlp.matrices("v", v), weights)[0]

    def hessian(self, u: Array, v: Array, weights: Weights = None, ridge: float = 0.0) -> tuple[Array, Array]:
        """(∇²_xx L · u + ∇²_xy L · v, ∇²_yx L · u + ∇²_yy L · v), in one pass over X."""
        U, V = self.mlp.matrices("u", u), self.mlp.matrices("v", v)
        if U.shape[:-2] != V.shape[:-2]:
            raise ValueError(f"u and v: expected as many of one as of the other, got {np.shape(u)} and {np.shape(v)}")
        in_x, in_y = self._products(U, V, weights)
        return in_x, (in_y + ridge * V).reshape(np.shape(v))

    def _products(self, U: Array | None, V: Array, weights: Weights) -> tuple[Array, Array]:
        """The derivative of (∇_x L, ∇_y L) along (U, V), ridge apart; without U, of the first alone along (0, V).

        A dot is the derivative along (U, V):
            Ȧ = relu'·(X U1ᵀ + u1),   Ṡ = Ȧ W2ᵀ + A V2ᵀ + v2,   R = w (P − onehot),   Ṙ = w (diag(p) − ppᵀ) Ṡ,
            (R W2)˙ = Ṙ W2 + R V2,   (Rᵀ A)˙ = Ṙᵀ A + Rᵀ Ȧ.
        """
        mlp, R, W2 = self.mlp, self._residual(weights), self.head.Y[:, :-1]
        P, w = self.probabilities, self.head.data.real_weights(weights, len(R))[:, None]
        V2, v2 = V[..., :-1].astype(mlp.real), V[..., None, :, -1].astype(mlp.real)
        in_x, in_y = mlp.xp.zeros((*V.shape[:-2], *mlp.shape_x)), mlp.xp.zeros(V.shape)
        if U is not None:
            U1, u1 = mlp.on_stored_features(U)
        for rows, X in mlp.blocks(self.batch):
            A, p = self.A[rows], P[rows]
            on = A > 0
            S = A @ V2.swapaxes(-1, -2) + v2
            if U is not None:
                Adot = (X @ U1.swapaxes(-1, -2) + u1) * on
                S += Adot @ W2.T
            Rdot = w[rows] * p * (S - (p * S).sum(axis=-1, keepdims=True))
            D = Rdot @ W2 + R[rows] @ V2
            D *= on
            _add(D, X, in_x)
            if U is not None:
                _add(Rdot, A, in_y)
                in_y[..., :-1] += R[rows].T @ Adot
        return self._flat(in_x), in_y

    def _residual(self, weights: Weights) -> Array:
        """w (P − onehot), the derivative of the weighted loss with respect to the scores."""
        R = self.probabilities.copy()
        R[self.mlp.xp.arange(len(R)), self.labels] -= 1
        R *= self.head.data.real_weights(weights, len(R))[:, None]
        return R

    def _flat(self, in_x: Array) -> Array:
        """Sums over features as they are stored, as vectors in x."""
        if self.mlp.affine:
            in_x[..., :-1] = self.mlp.scale * in_x[..., :-1] + self.mlp.shift * in_x[..., -1:]
        return in_x.reshape(*in_x.shape[:-2], self.mlp.dim_x)


class Whole:
    """The network with both layers in one variable y = [W1, b1, W2, b2], in the manner of a `Regression`.

    No longer convex in y: a ridge makes the loss bounded below, and its Hessian has negative eigenvalues all the same.
    """

    def __init__(self, mlp: MLP) -> None:
        self.mlp, self.xp, self.labels = mlp, mlp.xp, mlp.head.labels
        self.head = slice(mlp.dim_x, mlp.dim_x + mlp.dim_y)  # where the head lies in y

    def at(self, y: Array, batch: Array | None = None) -> WholePoint:
        y = self.xp.asarray(y, np.float64)
        return WholePoint(self.mlp.at(y[: self.head.start], y[self.head], batch), y, self.head.start)


class WholePoint:
    """The network at one y on one batch; arguments and results as those of `fbompi.kernels.regression.Point`."""

    def __init__(self, point: Point, y: Array, first: int) -> None:
        self.point, self.y, self.first = point, y, first

    @property
    def losses(self) -> Array:
        return self.point.losses

    def guesses(self) -> Array:
        return self.point.predict()

    def value(self, weights: Weights = None, ridge: float = 0.0) -> float:
        return self.point.value(weights) + 0.5 * ridge * float(self.y @ self.y)

    def gradient(self, weights: Weights = None, ridge: float = 0.0) -> Array:
        return self.point.mlp.xp.concatenate(self.point.gradient(weights)) + ridge * self.y

    def hvp(self, v: Array, weights: Weights = None, ridge: float = 0.0) -> Array:
        products = self.point.hessian(v[: self.first], v[self.first :], weights)
        return self.point.mlp.xp.concatenate(products) + ridge * v

    def along(self, v: Array) -> Array:
        return self.point.along(v[self.first :], v[: self.first])


def _add(D: Array, X: Array, total: Array) -> None:
    """Add Dᵀ [X, 1], of one block, to a layer's worth of sums, in float64 whatever the block is in."""
    total[..., :-1] += D.swapaxes(-1, -2) @ X
    total[..., -1] += D.sum(axis=-2)


def _numbers(name: str, of: Array, end: int, xp: Any) -> Array:
    of = xp.asarray(of)
    if of.size and of.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected whole numbers, got {of.dtype}")
    of = of.astype(np.int64)
    if of.ndim != 1 or len(xp.unique(of)) < len(of) or (len(of) and not 0 <= int(of.min()) <= int(of.max()) < end):
        raise ValueError(f"{name}: expected numbers from 0 to {end - 1}, each once, got {of}")
    return of
