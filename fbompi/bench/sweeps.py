"""Incremental sweeps beside reading their rows, beside plain loops and beside NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numba import types

from fbompi.bench.timing import Case, in_turn
from fbompi.kernels.cpu.compiling import kernel
from fbompi.kernels.sweeps import Array, location_sweep, logistic_sweep

LOGISTIC_SHAPE = 11_000, 784  # digits 0 and 1 of MNIST, 69 MB: more than the caches hold
CACHED = 40  # rows, which the second-level cache holds
LOCATION_SIZES = 10, 50, 100
BALLS = 10_000
HERE = Path(__file__).read_text()  # part of the key under which the kernels below are kept


def cases(repeats: int) -> list[Case]:
    """The logistic sweep of FISM on the shape of MNIST's 0 and 1, and the location sweep in three dimensions."""
    return [logistic(repeats), *(location(n, repeats) for n in LOCATION_SIZES)]


def logistic(repeats: int) -> Case:
    rng = np.random.default_rng(0)
    rows, features = LOGISTIC_SHAPE
    X, t = rng.random((rows, features)), rng.choice([-1.0, 1.0], rows)
    x, shift = 0.01 * rng.standard_normal(features), 1e-6 * rng.choice([-1.0, 1.0], features)
    gamma, box, again = 1e-3, (-100.0, 100.0), np.arange(rows) % CACHED
    contestants: dict[str, Callable[[], object]] = {
        "fbompi": lambda: logistic_sweep(X, t, x, gamma, shift, box=box),
        "reading the rows": lambda: read[np.float64](X),
        "fbompi, rows in the cache": lambda: logistic_sweep(X[:CACHED], t[:CACHED], x, gamma, shift, again, box),
        "plain two passes": lambda: two_passes[np.float64](X, t, x.copy(), shift, gamma, *box),
        "NumPy, in place": lambda: numpy_logistic(X, t, x, gamma, shift, box),
    }
    return Case("logistic sweep", f"{rows}x{features} float64", 1, in_turn(contestants, repeats))


def location(n: int, repeats: int) -> Case:
    rng = np.random.default_rng(0)
    centres, radii = rng.uniform(-10, 10, (BALLS, n)), rng.random(BALLS)
    x, shift = rng.uniform(-10, 10, n), 1e-5 * rng.standard_normal(n)
    gamma, box = 0.1, (-10.0, 10.0)
    contestants: dict[str, Callable[[], object]] = {
        "fbompi": lambda: location_sweep(centres, radii, x, gamma, shift, box=box),
        "NumPy": lambda: plain_location(centres, radii, x, gamma, shift, box),
        "NumPy, in place": lambda: numpy_location(centres, radii, x, gamma, shift, box),
    }
    return Case("location sweep", f"{BALLS}x{n} float64", 1, in_turn(contestants, repeats))


@kernel(lambda real: real(real[:, ::1]), fastmath={"reassoc"}, sources=HERE)
def read(X):
    """The sum of all rows, in as many accumulators as LLVM likes: software prefetching made it slower."""
    total = X.dtype.type(0)
    for i in range(X.shape[0]):
        for k in range(X.shape[1]):
            total += X[i, k]
    return total


@kernel(
    lambda real: types.void(real[:, ::1], real[::1], real[::1], real[::1], real, real, real),
    fastmath={"reassoc", "contract"},
    sources=HERE,
)
def two_passes(X, t, x, shift, gamma, lo, hi):
    """Every step as it is written down: first the inner product, then the move."""
    for j in range(X.shape[0]):
        product = X.dtype.type(0)
        for k in range(x.size):
            product += X[j, k] * x[k]
        size = -gamma * t[j] / (1.0 + math.exp(t[j] * product))
        for k in range(x.size):
            new = x[k] - size * X[j, k] - shift[k]
            new = hi if new > hi else new
            x[k] = lo if new < lo else new


def numpy_logistic(X: Array, t: Array, x: Array, gamma: float, shift: Array, box: tuple[float, float]) -> Array:
    for a, label in zip(X, t):
        x = x + (gamma * label / (1.0 + math.exp(label * (a @ x)))) * a - shift
        np.minimum(np.maximum(x, box[0], out=x), box[1], out=x)
    return x


def plain_location(
    centres: Array, radii: Array, x: Array, gamma: float, shift: Array, box: tuple[float, float]
) -> Array:
    """As it is written down."""
    for centre, radius in zip(centres, radii):
        distance = np.linalg.norm(x - centre)
        subgradient = (x - centre) / distance if distance > radius else np.zeros_like(x)
        x = np.clip(x - gamma * subgradient - shift, *box)
    return x


def numpy_location(
    centres: Array, radii: Array, x: Array, gamma: float, shift: Array, box: tuple[float, float]
) -> Array:
    for centre, radius in zip(centres, radii):
        away = x - centre
        distance = math.sqrt(away @ away)
        x = x - shift
        if distance > radius:
            x -= (gamma / distance) * away
        np.minimum(np.maximum(x, box[0], out=x), box[1], out=x)
    return x
