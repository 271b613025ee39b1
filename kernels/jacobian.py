"""Finite-difference coordinates of the Jacobian of an inner map (RAFBO, with the erratum's map).

    y_T(x):  y ← y − β ∇_y g(x, y), T times, from a given y
    J_p  =  [y_T(x + μ_p e_p) − y_T(x)] / μ_p  ≈  ∂y_T/∂x_p            result_p = ⟨w, J_p⟩

The unperturbed copy and the perturbed ones advance together: an inner step is one gradient of all of them, which for
`Regression.gradients` is one pass over the data. Only gradients are used, no second-order product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fbompi.kernels import library, on_gpu

Array = Any  # NumPy's or CuPy's

COPIES = 64  # advanced together; more would only take memory


def increments(x: Array, which: Array, dtype: Any = np.float64, scale: float = 1.0) -> Array:
    """The steps μ for these coordinates: √ε of the arithmetic, times the coordinate's size or `scale` if larger.

    √ε balances the rounding of the difference (ε/μ) and what it leaves out (μ); `scale` is the size of a change in x
    that matters: where y depends on coordinates of size 10⁶, give that, or the rounding of
    those hides the small ones. Each μ is one that x_p + μ − x_p gives back exactly.
    """
    xp = library(x)
    size = xp.maximum(xp.abs(x[which]), scale)
    return (x[which] + np.sqrt(np.finfo(dtype).eps) * size) - x[which]


def coordinates(
    inner: Callable[[Array], Callable[[Array], Array]],
    x: Array,
    y: Array,
    which: Array,
    steps: int,
    step_size: float,
    w: Array | None = None,
    mu: Array | None = None,
    dtype: Any = np.float64,
) -> Array:
    """⟨w, J_p⟩ for the coordinates `which` of x; without w the rows J_p themselves (coordinates × dim_y).

    Parameters
    ----------
    inner : k × dim_x -> (k × dim_y -> k × dim_y)
        Given the copies' x, the function that gives ∇_y g of every copy at its own y. What depends on x alone is
        computed once for all steps.
    which : indices, or a mask over x
    mu : increments, one per coordinate; `increments` where it is None
    dtype : of the arithmetic of the gradients
    """
    xp = library(x)
    x = xp.asarray(x, np.float64)  # μ would vanish in fewer digits
    which = xp.asarray(which)
    if which.dtype == bool:
        if which.shape != x.shape:
            raise ValueError(f"which: expected a mask of shape {x.shape}, as x has, got {which.shape}")
        which = xp.flatnonzero(which)
    which = which.astype(np.int64) if which.size == 0 else which
    if which.dtype.kind not in "iu" or (which.size and not 0 <= int(which.min()) <= int(which.max()) < x.size):
        raise ValueError(f"which: expected numbers from 0 to {x.size - 1}, or a mask, got {which}")
    mu = increments(x, which, dtype) if mu is None else mu
    result = xp.empty(len(which) if w is not None else (len(which), y.size))
    for begin in range(0, len(which), COPIES):
        part = slice(begin, begin + COPIES)
        # The first copy is the unperturbed one, in each group: sums must run in the same order to be subtracted.
        copies = _perturbed(xp, x, which[part], mu[part])
        gradients = inner(copies)
        Y = xp.repeat(xp.asarray(y, np.float64)[None], len(copies), axis=0)
        for _ in range(steps):
            Y -= step_size * gradients(Y)
        result[part] = _quotients(Y, mu[part], w)
    return result


def _perturbed(xp: Any, x: Array, which: Array, mu: Array) -> Array:
    """x, and below it copies with one coordinate each moved by its μ."""
    which, mu = (xp.concatenate([xp.zeros(1, part.dtype), part]) for part in (which, mu))
    if on_gpu(x):
        from fbompi.kernels.cuda.coordinates import perturbed_copies

        return perturbed_copies(x, which, mu)
    copies = np.repeat(x[None], len(which), axis=0)
    copies[np.arange(len(which)), which] += mu
    return copies


def _quotients(Y: Array, mu: Array, w: Array | None) -> Array:
    """The difference of each copy from the first over its μ; with w, its product with that."""
    if w is not None and on_gpu(Y):
        from fbompi.kernels.cuda.coordinates import difference_quotients

        return difference_quotients(Y[1:], Y[0], w, mu)
    quotients = (Y[1:] - Y[0]) / mu[:, None]
    return quotients if w is None else quotients @ w
