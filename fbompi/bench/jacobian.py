"""Finite-difference Jacobian coordinates: all copies together against one inner solve per coordinate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from fbompi.bench.regression import check
from fbompi.bench.timing import Case, in_turn
from fbompi.kernels import jacobian
from fbompi.kernels.regression import Regression

COORDINATES = 64
STEPS = 5
SHAPES = ((6_000, 784, 1), (6_000, 54, 1), (600, 784, 10), (6_000, 54, 7))  # rows, features, outputs


def cases(repeats: int, threads: int) -> list[Case]:
    """x has one weight per sample through a sigmoid, as in hyper-cleaning; float64."""
    return [case(*shape, repeats, threads) for shape in SHAPES]


def case(rows: int, features: int, outputs: int, repeats: int, threads: int) -> Case:
    rng = np.random.default_rng(0)
    loss: Literal["softmax", "logistic"] = "logistic" if outputs == 1 else "softmax"
    labels = rng.integers(0, max(outputs, 2), rows)
    X = rng.random((rows, features))
    X1 = np.hstack([X, np.ones((rows, 1))])
    targets = labels[:, None] if outputs == 1 else np.eye(outputs)[labels]
    data = Regression(X, labels, outputs, loss=loss, bias=True, threads=threads)
    x, y = 0.1 * rng.standard_normal(rows), np.zeros(outputs * (features + 1))
    w = rng.standard_normal(y.size)
    which = np.arange(COORDINATES)
    ridge, step_size = 0.01, 0.1

    def weights(x: np.ndarray) -> np.ndarray:
        return 1 / (rows * (1 + np.exp(-x)))

    def inner(xs: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        w = weights(xs)
        return lambda ys: data.gradients(ys, w).reshape(ys.shape) + ridge * ys

    def together() -> np.ndarray:
        return jacobian.coordinates(inner, x, y, which, STEPS, step_size, w)

    def inner_solve(x: np.ndarray) -> np.ndarray:
        z, at_x = y.copy(), weights(x)
        for _ in range(STEPS):
            z -= step_size * data.at(z).gradient(at_x, ridge).ravel()
        return z

    def one_by_one(solve: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        mu, base, result = jacobian.increments(x, which), solve(x), np.empty(COORDINATES)
        for p in which:
            ahead = x.copy()
            ahead[p] += mu[p]
            result[p] = (solve(ahead) - base) @ w / mu[p]
        return result

    def numpy_solve(x: np.ndarray) -> np.ndarray:
        Z, at_x = y.reshape(outputs, -1).copy(), weights(x)[:, None]
        for _ in range(STEPS):
            S = X1 @ Z.T
            P = 1 / (1 + np.exp(-S)) if outputs == 1 else np.exp(S - S.max(axis=1, keepdims=True))
            P = P if outputs == 1 else P / P.sum(axis=1, keepdims=True)
            Z -= step_size * ((at_x * (P - targets)).T @ X1 + ridge * Z)
        return Z.ravel()

    contestants: dict[str, Callable[[], np.ndarray]] = {
        "fbompi": together,
        "one solve per coordinate": lambda: one_by_one(inner_solve),
        "NumPy, one by one": lambda: one_by_one(numpy_solve),
    }
    for name, call in contestants.items():
        check(name, call(), together(), 1e-2)  # all are differences of rounded numbers
    seconds = in_turn(contestants, repeats)
    shape = f"{COORDINATES} coordinates, {STEPS} steps, {rows}x{features}, {loss}" + f" {outputs}" * (outputs > 1)
    return Case("finite-difference jacobian", shape, threads, seconds)
