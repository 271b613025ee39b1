"""Finite differences along coordinates of a flat vector (RAFBO)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fbompi.kernels.cuda.device import current, threads_for

Array = Any
THREADS = 256
MOST_IN_Y = 65535  # blocks in the second dimension of a grid


def perturbed_copies(x: Array, index: Array, mu: Array) -> Array:
    """One copy of x per entry of `index`, with that coordinate moved by its mu."""
    device = current()
    index, mu = device.asarray(index, np.int64), device.asarray(mu, x.dtype)
    copies = device.xp.empty((len(index), x.size), x.dtype)
    device.launch(
        "perturbed_copies", (x.dtype,), (-(-x.size // THREADS), min(len(index), MOST_IN_Y)), THREADS,
        (np.int64(len(index)), np.int64(x.size), x, index, mu, copies),
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
