"""Sums of values by place, with the same bits on every machine."""

from __future__ import annotations

import numpy as np

from fbompi.kernels import on_gpu
from fbompi.kernels.cuda.device import current
from fbompi.messages import Array


def sums(places: Array, values: Array, size: int) -> Array:
    """For each of `size` places the sum of the values that belong to it; a place named twice gets both."""
    if on_gpu(values):  # on the host: a GPU adds in any order, and the bits would change from run to run
        device = current()
        host = device.to_host(places) if on_gpu(places) else places
        return device.asarray(np.bincount(host, device.to_host(values), size))
    return np.bincount(places, values, size)
