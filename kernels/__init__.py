"""Numerical kernels, by what they compute.

    regression   softmax and logistic regression: values, gradients, Hessian products, Neumann sums, submodels
    mlp          the two-layer network of hyper-representation
    sweeps       projected subgradient sweeps
    jacobian     finite-difference coordinates of the Jacobian of an inner map

Each chooses by the type of its arrays: NumPy's go to `cpu` (Numba), CuPy's to `cuda`. Neither is imported before it is
needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

LINE = 64  # bytes of a cache line

# Called with the name of a kernel that is about to be compiled; not when it is loaded from the cache.
before_compiling: list[Callable[[str], None]] = []


def threads() -> int:
    """Threads that a kernel may use: OMP_NUM_THREADS, as for everything else in a job; 1 where it is not set."""
    first = os.environ.get("OMP_NUM_THREADS", "1").split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else 1


def on_gpu(array: Any) -> bool:
    """Whether an array lies in a GPU's memory."""
    return hasattr(array, "__cuda_array_interface__")


def library(array: Any) -> Any:
    """The array library that an array belongs to: NumPy or CuPy."""
    if on_gpu(array):
        from fbompi.kernels.cuda.device import current

        return current().xp
    import numpy

    return numpy
