"""Incremental projected subgradient sweeps, the local work of FISM and IR-IG, and the values they lower.

    min H(x)  over the minimisers in the box X = [lo, hi]ⁿ of  Σ_j f_j(x)

A sweep goes through components in a given order, one step each (Algorithm 1, line 9, of "Federated Incremental
Subgradient Method for Convex Bilevel Optimization Problems"):

    x ← P_X[x − γ g_j − (γλ/M) 𝓗],        g_j ∈ ∂f_j(x),  M components over all clients

In FISM the server sends one 𝓗 ∈ ∂H(x_k), which stays the same during the sweep: `shift` is the array (γλ/M)·𝓗.
In IR-IG 𝓗 ∈ ∂H(x) is taken anew at every step: `shift` is a `Fresh`.

Arithmetic is that of x, float64 or float32; features may be float64, float32 or uint8, converted as they are read.
Rows must be contiguous in memory, one after another or with gaps; anything else is copied first. The order of summation
is fixed by the number of features alone. NaN in the data becomes NaN in x: the box does not hide it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from fbompi.kernels import LINE, on_gpu

Array = Any  # NumPy's; for sweeps and values also CuPy's, all of them then

EVERYWHERE = (-np.inf, np.inf)
_REALS = (np.dtype(np.float64), np.dtype(np.float32))
_FEATURES = (*_REALS, np.dtype(np.uint8))


@dataclass(frozen=True)
class Fresh:
    """H(x) = l1‖x‖₁ + ½·l2‖x − anchor‖², whose subgradient every step takes where it is, times `weight` = γλ/M.

    The subgradient of |x| at 0 is 0. Without an anchor the ball is around the origin.
    """

    weight: float
    l1: float = 0.0
    l2: float = 0.0
    anchor: Array | None = None


def logistic_sweep(
    X: Array,
    t: Array,
    x: Array,
    gamma: float,
    shift: Array | Fresh | None = None,
    order: Array | None = None,
    box: tuple[float, float] = EVERYWHERE,
    scale: float = 1.0,
    offset: float = 0.0,
) -> Array:
    """One sweep over f_j(x) = log(1 + exp(−t_j⟨a_j, x⟩)), where ∇f_j(x) = −t_j a_j / (1 + exp(t_j⟨a_j, x⟩)).

    Parameters
    ----------
    X
        The rows a_j, m×n; those of uint8 stand for scale·X + offset.
    t
        The labels, −1 or +1.
    x
        Where the sweep begins; not modified.
    gamma
        The step γ.
    shift
        The outer term: (γλ/M)·𝓗 as an array, a `Fresh`, or None for none.
    order
        Rows in the order of the steps, repetitions allowed; None is 0, 1, …, m − 1.
    box
        Bounds (lo, hi) of every coordinate.

    Returns
    -------
    The point after the last step, a new array; a copy of x if there are no steps.
    """
    if on_gpu(x):
        return _cuda().logistic_sweep(X, t, x, gamma, shift, order, box, scale, offset)
    call = _Sweep(X, t, x, shift, order, box, scale, offset, names=("X", "t"))
    done = call.run(_cpu().logistic_sweep, gamma)
    if done < call.order.size:
        row = call.order[done]
        raise ValueError(f"t: got {t[row]} for row {row}, expected -1 or +1")
    return call.result


def location_sweep(
    centres: Array,
    radii: Array,
    x: Array,
    gamma: float,
    shift: Array | Fresh | None = None,
    order: Array | None = None,
    box: tuple[float, float] = EVERYWHERE,
) -> Array:
    """One sweep over f_j(x) = dist(x, ball(c_j, r_j)) = max(‖x − c_j‖ − r_j, 0).

    The subgradient is (x − c_j)/‖x − c_j‖ outside the ball and 0 in it and on its surface. `centres` is m×n; the other
    arguments and the result are as in `logistic_sweep`.
    """
    if on_gpu(x):
        return _cuda().location_sweep(centres, radii, x, gamma, shift, order, box)
    call = _Sweep(centres, radii, x, shift, order, box, 1.0, 0.0, names=("centres", "radii"))
    done = call.run(_cpu().location_sweep, gamma)
    if done < call.order.size:
        row = call.order[done]
        raise ValueError(f"radii: got {radii[row]} for row {row}, expected at least 0")
    return call.result


def logistic_value(X: Array, t: Array, x: Array, scale: float = 1.0, offset: float = 0.0) -> float:
    """Σ_j log(1 + exp(−t_j⟨a_j, x⟩)) over all rows, summed in float64; arguments as in `logistic_sweep`."""
    if on_gpu(x):
        return _cuda().logistic_value(X, t, x, scale, offset)
    return _value(_cpu().logistic_value, X, t, x, scale, offset, ("X", "t"))


def location_value(centres: Array, radii: Array, x: Array) -> float:
    """Σ_j max(‖x − c_j‖ − r_j, 0) over all balls, summed in float64."""
    if on_gpu(x):
        return _cuda().location_value(centres, radii, x)
    return _value(_cpu().location_value, centres, radii, x, 1.0, 0.0, ("centres", "radii"))


def own_sweep(component: Callable) -> Callable[..., Array]:
    """A sweep over components of your own.

    Parameters
    ----------
    component
        A function compiled with `numba.njit`, called as `component(data, j, x, out)`: it writes every coordinate of a
        subgradient of component j at x into `out`, and leaves x alone. `data` is a tuple of arrays.

    Returns
    -------
    `sweep(data, count, x, gamma, shift=None, order=None, box=…)`, where `count` is the number of components and the
    rest is as in `logistic_sweep`. It is compiled in each process at its first call, which takes about a second, and
    is not kept on disk: hold on to it.
    """
    if not hasattr(component, "py_func"):
        raise ValueError(f"component: got {type(component).__name__}, expected a function compiled with numba.njit")
    compiled = _cpu().own_sweep(component)

    def sweep(
        data: tuple,
        count: int,
        x: Array,
        gamma: float,
        shift: Array | Fresh | None = None,
        order: Array | None = None,
        box: tuple[float, float] = EVERYWHERE,
    ) -> Array:
        lo, hi = bounds_of(box)
        result = _padded(_point(x))
        outer, l1, l2 = _outer(shift, result)
        compiled(data, checked_order(order, count), result, outer, float(gamma), l1, l2, lo, hi)
        return result

    return sweep


class _Sweep:
    """The checked arguments of a sweep as its kernel wants them."""

    def __init__(
        self, X: Array, per_row: Array, x: Array, shift: Any, order: Any, box: Any, scale: float, offset: float,
        names: tuple[str, str],
    ) -> None:  # fmt: skip
        self.coding = coding_of(X, scale, offset)
        self.X, self.per_row = _rows(X, per_row, _point(x), names)
        self.order = checked_order(order, len(X))
        self.box = bounds_of(box)
        lead = _lead(self.X, x)
        self.result = _padded(x, lead)
        self.outer = _outer(shift, self.result, lead)

    def run(self, kernel: Any, gamma: float) -> int:
        if not (self.order.size and self.result.size):
            return self.order.size
        shift, l1, l2 = self.outer
        compiled = kernel[self.X.dtype, self.result.dtype]
        return compiled(
            self.X, self.per_row, self.order, self.result, shift, float(gamma), l1, l2, *self.box, *self.coding,
        )  # fmt: skip


def _value(kernel: Any, X: Array, per_row: Array, x: Array, scale: float, offset: float, names: tuple) -> float:
    coding = coding_of(X, scale, offset)
    rows, per_row = _rows(X, per_row, _point(x), names)
    return kernel[rows.dtype, x.dtype](rows, per_row, _padded(x, _lead(rows, x)), *coding)


def _cpu() -> ModuleType:
    """The compiled kernels; here, as importing Numba takes a while and few commands need it."""
    from fbompi.kernels.cpu import sweeps

    return sweeps


def _cuda() -> ModuleType:
    from fbompi.kernels.cuda import sweeps

    return sweeps


def _point(x: Array) -> Array:
    if not isinstance(x, np.ndarray) or x.dtype not in _REALS or x.ndim != 1:
        raise ValueError(f"x: got {_kind(x)}, expected a float64 or float32 array with one axis")
    return x


def _rows(X: Array, per_row: Array, x: Array, names: tuple[str, str]) -> tuple[Array, Array]:
    """X as contiguous rows, longer than x where there are gaps between them, and what goes with each row."""
    if not isinstance(X, np.ndarray) or X.dtype not in _FEATURES or X.ndim != 2 or X.shape[1] != x.size:
        raise ValueError(f"{names[0]}: got {_kind(X)}, expected float64, float32 or uint8 of shape (rows, {x.size})")
    if np.shape(per_row) != (len(X),):
        raise ValueError(f"{names[1]}: got shape {np.shape(per_row)}, expected ({len(X)},)")
    per_row = np.ascontiguousarray(per_row, dtype=np.float64)
    if X.flags.c_contiguous and X.flags.aligned:
        return X, per_row
    step, width = X.strides
    if width != X.itemsize or step < x.size * width or step % width or not X.flags.aligned:
        return np.array(X, order="C"), per_row
    return np.lib.stride_tricks.as_strided(X, (len(X), step // width), writeable=False), per_row


def coding_of(X: Array, scale: float, offset: float) -> tuple[float, float]:
    if (scale, offset) != (1.0, 0.0) and getattr(X, "dtype", None) != np.uint8:
        raise ValueError(f"scale, offset: got {scale}, {offset} with {_kind(X)}, expected them with uint8 only")
    return float(scale), float(offset)


def checked_order(order: Array | None, count: int) -> Array:
    if order is None:
        return _natural(count)
    order = np.asarray(order)
    if order.ndim != 1 or (order.size and order.dtype.kind not in "iu"):
        raise ValueError(f"order: got {_kind(order)}, expected integers with one axis")
    if order.size and not 0 <= order.min() <= order.max() < count:
        raise ValueError(f"order: got {order.min()} to {order.max()}, expected 0 to {count - 1}")
    return np.ascontiguousarray(order, dtype=np.intp)


@lru_cache(maxsize=4)  # making it anew, in fresh memory, takes a third of a short sweep
def _natural(count: int) -> Array:
    order = np.arange(count, dtype=np.intp)
    order.flags.writeable = False
    return order


def bounds_of(box: tuple[float, float]) -> tuple[float, float]:
    lo, hi = map(float, box)
    if not lo <= hi:
        raise ValueError(f"box: got ({lo}, {hi}), expected lo <= hi")
    return lo, hi


def _outer(shift: Array | Fresh | None, x: Array, lead: int = 0) -> tuple[Array, float, float]:
    """The vector that every step subtracts, and the multiples of sign(x) and of x."""
    if shift is None:
        return _padded(np.zeros_like(x), lead), 0.0, 0.0
    if isinstance(shift, Fresh):
        l1, l2 = float(shift.weight * shift.l1), float(shift.weight * shift.l2)
        anchor = np.zeros_like(x) if shift.anchor is None else np.asarray(shift.anchor)
        if anchor.shape != x.shape:
            raise ValueError(f"shift.anchor: got shape {anchor.shape}, expected {x.shape}")
        return _padded((-l2 * anchor).astype(x.dtype), lead), l1, l2
    if np.shape(shift) != x.shape:
        raise ValueError(f"shift: got shape {np.shape(shift)}, expected {x.shape}")
    return _padded(np.asarray(shift, dtype=x.dtype), lead), 0.0, 0.0


def _lead(X: Array, x: Array) -> int:
    """Elements between the beginning of a cache line and that of a row, if that is the same for all rows."""
    return X.ctypes.data % LINE // X.itemsize if X.dtype == x.dtype and X.strides[0] % LINE == 0 else 0


def _padded(x: Array, lead: int = 0) -> Array:
    """A copy that begins `lead` elements into a cache line; zeros fill the rest of its first and last lines."""
    size = -(-(lead * x.itemsize + x.nbytes) // LINE) * LINE
    memory = np.zeros(size + LINE, dtype=np.uint8)
    begin = -memory.ctypes.data % LINE
    copy = memory[begin : begin + size].view(x.dtype)[lead : lead + x.size]
    copy[:] = x
    return copy


def _kind(value: Any) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
