"""The largest eigenvalue of a symmetric operator that is known by its products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # NumPy's or CuPy's


def largest_eigenvalue(
    apply: Callable[[Array], Array], v: Array, least: int = 20, most: int = 100, margin: float = 1.1
) -> float:
    """By power iteration from v, at most `most` products; it approaches from below, hence the margin."""
    value = 0.0
    for k in range(most):
        v = v / np.linalg.norm(v)
        product = apply(v)
        previous, value = value, float(np.linalg.norm(product))
        if value == 0.0 or (k >= least and abs(value - previous) <= 1e-3 * value):
            break
        v = product
    return max(margin * value, np.finfo(np.float64).tiny)
