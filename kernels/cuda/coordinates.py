"""Held coordinates of a flat vector, and finite differences along them (RABO, RAFBO)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fbompi.kernels.cuda.device import current, threads_for

Array = Any
THREADS = 256
MOST_IN_Y = 65535  # blocks in the second dimension of a grid


def gather_coordinates(x: Array, held: Array) -> Array:
    """x[held]."""
    values = current().xp.empty(len(held), x.dtype)
    _each("gather_coordinates", x, held, (x, _indices(held), values))
    return values


def scatter_coordinates(x: Array, held: Array, values: Array) -> None:
    """x[held] = values; the held coordinates are all different."""
    _each("scatter_coordinates", x, held, (current().asarray(values, x.dtype), _indices(held), x))


def scatter_add(x: Array, held: Array, values: Array, factor: float = 1.0) -> None:
    """x[held] += factor·values; the held coordinates are all different."""
    args = (x.dtype.type(factor), current().asarray(values, x.dtype), _indices(held), x)
    _each("scatter_add", x, held, args)


def perturbed_copies(x: Array, index: Array, mu: Array) -> Array:
    """One copy of x per entry of `index`, with that coordinate moved by its mu."""
    device = current()
    copies = device.xp.empty((len(index), x.size), x.dtype)
    device.launch(
        "perturbed_copies", (x.dtype,), (-(-x.size // THREADS), min(len(index), MOST_IN_Y)), THREADS,
        (np.int64(len(index)), np.int64(x.size), x, _indices(index), device.asarray(mu, x.dtype), copies),
    )  # fmt: skip
    return copies


def difference_quotients(moved: Array, y: Array, w: Array, mu: Array) -> Array:
    """⟨w, moved[p] − y⟩ / mu[p] of every p."""
    device = current()
    quotients = device.xp.empty(len(moved), y.dtype)
    threads = threads_for(y.size)
    device.launch(
        "difference_quotients", (y.dtype,), (len(moved),), threads,
        (np.int64(y.size), moved, y, device.asarray(w, y.dtype), device.asarray(mu, y.dtype), quotients),
        shared=2 * (threads // 32) * y.dtype.itemsize,
    )  # fmt: skip
    return quotients


def _each(name: str, x: Array, held: Array, args: tuple) -> None:
    """One thread per held coordinate."""
    current().launch(name, (x.dtype,), (-(-len(held) // THREADS),), THREADS, (np.int64(len(held)), *args))


def _indices(held: Array) -> Array:
    return current().asarray(held, np.int64)
