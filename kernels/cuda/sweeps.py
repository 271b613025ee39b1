"""Incremental projected subgradient sweeps on a GPU: those of `kernels/sweeps.py`, for many clients at once.

A block of the GPU sweeps for one client, so a single client keeps little of it busy. The rows of all clients lie in one
array: with `bounds`, client i takes steps bounds[i] to bounds[i+1] of the order. Then x and shift may be one vector for
all or one row per client, gamma and the weight of a `Fresh` one number or one per client, and the result has a row per
client. Without `bounds` all is as in `kernels/sweeps.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fbompi.kernels import on_gpu
from fbompi.kernels.cuda.device import SHARED_BYTES, current, threads_for
from fbompi.kernels.sweeps import EVERYWHERE, Fresh, bounds_of, checked_order, coding_of

Array = Any
BLOCK_ROWS = 1 << 14  # converted at a time


def logistic_sweep(
    X: Array,
    t: Array,
    x: Array,
    gamma: Any,
    shift: Array | Fresh | None = None,
    order: Array | None = None,
    box: tuple[float, float] = EVERYWHERE,
    scale: float = 1.0,
    offset: float = 0.0,
    bounds: Any = None,
) -> Array:
    """One sweep of each client over f_j(x) = log(1 + exp(−t_j⟨a_j, x⟩)), in the precision of x."""
    t = current().asarray(t, x.dtype)
    if not bool((abs(t) == 1).all()):
        raise ValueError("t: expected -1 or +1 for every row")
    return _Sweep(X, t, x, gamma, shift, order, box, bounds).run("logistic_sweep", *coding_of(X, scale, offset))


def location_sweep(
    centres: Array,
    radii: Array,
    x: Array,
    gamma: Any,
    shift: Array | Fresh | None = None,
    order: Array | None = None,
    box: tuple[float, float] = EVERYWHERE,
    bounds: Any = None,
) -> Array:
    """One sweep of each client over f_j(x) = max(‖x − c_j‖ − r_j, 0), in the precision of x."""
    radii = current().asarray(radii, x.dtype)
    if bool((radii < 0).any()):
        raise ValueError("radii: expected at least 0 for every row")
    return _Sweep(centres, radii, x, gamma, shift, order, box, bounds).run("location_sweep")


def logistic_value(X: Array, t: Array, x: Array, scale: float = 1.0, offset: float = 0.0) -> float:
    """Σ_j log(1 + exp(−t_j⟨a_j, x⟩)), summed in float64."""
    xp, total = current().xp, 0.0
    for rows in _blocks(X):
        margins = -t[rows] * (scale * (X[rows].astype(x.dtype) @ x) + offset * x.sum())
        total += float(xp.logaddexp(0.0, margins.astype(np.float64)).sum())
    return total


def location_value(centres: Array, radii: Array, x: Array) -> float:
    """Σ_j max(‖x − c_j‖ − r_j, 0), summed in float64."""
    xp, total = current().xp, 0.0
    for rows in _blocks(centres):
        away = (x - centres[rows]).astype(np.float64)
        total += float(xp.maximum(xp.sqrt((away * away).sum(axis=1)) - radii[rows], 0.0).sum())
    return total


def _blocks(X: Array) -> Iterator[slice]:
    return (slice(first, first + BLOCK_ROWS) for first in range(0, len(X), BLOCK_ROWS))


class _Sweep:
    """The arguments that both sweeps have in common, as the kernels want them."""

    def __init__(
        self, rows: Array, numbers: Array, x: Array, gamma: Any, shift: Any, order: Any, box: Any, bounds: Any
    ) -> None:
        if numbers.shape != rows.shape[:1]:
            raise ValueError(f"got {numbers.shape} numbers for {len(rows)} rows, expected one each")
        self.rows, self.numbers = current().asarray(rows), numbers
        self.features, self.real = rows.shape[1], np.dtype(x.dtype)
        self.alone = bounds is None
        steps = len(rows) if order is None else len(order)
        bounds = np.array([0, steps] if bounds is None else bounds, np.int64)
        if bounds[0] < 0 or bounds[-1] > steps or (np.diff(bounds) < 0).any():
            raise ValueError(f"bounds: got {bounds.tolist()}, expected increasing numbers from 0 to {steps}")
        if order is not None and not on_gpu(order):  # one that is there is trusted: looking would mean waiting for it
            order = checked_order(order, len(rows))
        self.clients = len(bounds) - 1

        device = current()
        vector, l1, l2 = self._outer(shift)
        self.steps = (device.asarray(bounds), None if order is None else device.asarray(order, np.int64))
        self.moves = (self._each(gamma), *self._vectors("shift", vector), self._each(l1), self._each(l2))
        self.box = tuple(map(self.real.type, bounds_of(box)))
        self.start = self._vectors("x", x)

    def _outer(self, shift: Any) -> tuple[Array | None, Any, Any]:
        """The vector that every step subtracts, and the multiples of sign(x) and of x."""
        if not isinstance(shift, Fresh):
            return shift, 0.0, 0.0
        l1, l2 = (np.multiply(shift.weight, factor) for factor in (shift.l1, shift.l2))
        if shift.anchor is None:
            return None, l1, l2
        xp = current().xp
        return -xp.asarray(l2)[..., None] * xp.asarray(shift.anchor) if l2.ndim else -float(l2) * shift.anchor, l1, l2

    def _each(self, number: Any) -> Array:
        """One number per client."""
        xp = current().xp
        return current().asarray(xp.broadcast_to(xp.asarray(number, self.real), (self.clients,)))

    def _vectors(self, name: str, given: Array | None) -> tuple[Array | None, np.int64]:
        """A vector for all clients or one for each, and how far apart those are."""
        if given is None:
            return None, np.int64(0)
        if given.shape not in ((self.features,), (self.clients, self.features)):
            expected = f"{self.features} or {self.clients} × {self.features}"
            raise ValueError(f"{name}: got shape {given.shape}, expected {expected}")
        return current().asarray(given, self.real), np.int64(self.features if given.ndim == 2 else 0)

    def run(self, name: str, scale: float = 1.0, offset: float = 0.0) -> Array:
        device, real = current(), self.real.type
        threads = threads_for(self.features)
        sums = 2 * (threads // 32)
        in_shared = (sums + self.features) * self.real.itemsize <= SHARED_BYTES
        shared = (sums + self.features * in_shared) * self.real.itemsize
        result = device.xp.empty((self.clients, self.features), self.real)
        rows = self.rows, real(scale), real(offset), self.numbers
        args = (np.int64(self.features), *rows, *self.steps, *self.moves, *self.box, *self.start)
        dtypes = self.real, self.rows.dtype
        device.launch(name, dtypes, (self.clients,), threads, (*args, np.int32(in_shared), result), shared)
        return result[0] if self.alone else result
