"""Weighted, ridge-regularised softmax regression: value, gradient and second-order products.

    L(Y) = Σ_j w_j · CE(X_j Y, t_j) + ½·ridge·‖Y‖²          X: n×d,  Y: d×c,  w: n,  t: labels

The caller divides weights by the number of samples where it wants a mean.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def probabilities(X: Array, Y: Array) -> Array:
    """The class probabilities of every row, n×c."""
    scores = X @ Y
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def losses(X: Array, t: Array, Y: Array) -> Array:
    """The cross-entropy of every row."""
    scores = X @ Y
    top = scores.max(axis=1)
    return np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top - scores[np.arange(len(t)), t]


def gradient(X: Array, t: Array, w: Array, Y: Array, ridge: float) -> Array:
    """∇L, d×c."""
    residual = probabilities(X, Y)
    residual[np.arange(len(t)), t] -= 1.0
    residual *= w[:, None]
    return X.T @ residual + ridge * Y


def hvp(X: Array, w: Array, Y: Array, V: Array, ridge: float) -> Array:
    """∇²L · V, d×c: row by row w (diag(P) − PPᵀ) X V."""
    P = probabilities(X, Y)
    R = P * (X @ V)
    R -= P * R.sum(axis=1, keepdims=True)
    R *= w[:, None]
    return X.T @ R + ridge * V


def along(X: Array, t: Array, Y: Array, V: Array) -> Array:
    """⟨∇_Y CE(X_j Y, t_j), V⟩ of every row: what the weights' cross product needs."""
    XV = X @ V
    return (probabilities(X, Y) * XV).sum(axis=1) - XV[np.arange(len(t)), t]
