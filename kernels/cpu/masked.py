"""One pass over the rows for a submodel: only the held coordinates of the model are multiplied.

A block of rows is turned on its side, so that each held coordinate is a run of vector operations over the rows,
wherever it lies: the cost is that of the coordinates held, whether they form rows, columns or nothing at all.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from fbompi.kernels.cpu.compiling import kernel
from fbompi.kernels.cpu.regression import (
    JACOBIAN,
    KEPT,
    RESIDUAL,
    Engine,
    chunk_rows,
    given,
    place,
    row_by_row,
    share_out,
)
from fbompi.kernels.cpu.tiles import MASKED_VECTORS, VECTOR_BYTES, feature, masked_column, masked_sums

Array = np.ndarray


def _signature(feature: Any, real: Any) -> Any:
    number, ints = types.intp, given(types.int64, 1)
    return types.void(
        number, given(feature, 2, "A"), ints, ints, types.boolean, real, real, ints, ints, ints,
        given(real, 2), number, given(real, 2), real[:, :, ::1], types.boolean, types.float64[:, ::1],
        real[:, :, ::1], number, number, number,
    )  # fmt: skip


@kernel(_signature)
def masked_pass(
    mode, X, index, labels, logistic, scale, shift, features, starts, positions,
    V, n, weights, P, keep, out, sums, chunk, first_chunk, last_chunk,
):  # fmt: skip
    """As `regression_pass`. `features` are those that any output holds (X.shape[1] stands for the bias); coordinates
    starts[c]…starts[c+1] belong to output c, at features[positions[h]]; V is copies × held coordinates."""
    block = MASKED_VECTORS * VECTOR_BYTES // V.itemsize
    copies, outputs = V.shape[0], starts.size - 1
    offsets = np.empty(block + 1, np.int64)
    turned = np.zeros((features.size, block), V.dtype)
    flat = np.zeros((copies * outputs, block), V.dtype)
    work = np.zeros((block, copies * outputs), V.dtype)
    for number in range(first_chunk, last_chunk):
        if mode in (RESIDUAL, KEPT, JACOBIAN):
            sums[number] = 0
        for at in range(number * chunk, min((number + 1) * chunk, n), block):
            rows = min(block, min((number + 1) * chunk, n) - at)
            _turn(turned, X, index, at, rows, features, scale, shift, offsets)
            if mode != KEPT:
                for q in range(copies):
                    for c in range(outputs):
                        masked_column(turned, positions, V[q], starts[c], starts[c + 1], flat, q * outputs + c)
                for i in range(rows):
                    for j in range(copies * outputs):
                        work[i, j] = flat[j, i]
            row_by_row(mode, work[:rows], at, copies, outputs, index, labels, logistic, weights, P, keep, out)
            if mode in (RESIDUAL, KEPT, JACOBIAN):
                for i in range(block):
                    for j in range(copies * outputs):
                        flat[j, i] = work[i, j] if i < rows else work.dtype.type(0)
                for q in range(copies):
                    for c in range(outputs):
                        masked_sums(turned, positions, starts[c], starts[c + 1], flat, q * outputs + c, sums[number, q])


@numba.njit(error_model="numpy", fastmath={"contract"})
def _turn(turned, X, index, at, rows, features, scale, shift, offsets):
    """turned[u, i] = the u-th held feature of the i-th row, as a number."""
    place(offsets, X, index, at, rows, at + rows)
    for u in range(features.size):
        if features[u] == X.shape[1]:
            turned[u, :rows] = 1
        else:
            for i in range(rows):
                turned[u, i] = feature(X, offsets[i], features[u], scale) * scale + shift


@kernel(lambda real: types.void(real[:, :, ::1], types.float64[:, ::1]))
def add_masked_chunks(sums, total):
    """total = Σ of the chunks' sums, in order, in float64."""
    total[:] = 0
    for number in range(sums.shape[0]):
        for q in range(total.shape[0]):
            for h in range(total.shape[1]):
                total[q, h] += sums[number, q, h]


def _pass(data: Any, mode: int, batch: Any, V: Array, weights: Array, P: Array, keep: bool, out: Array) -> Array:
    n, real = data.count(batch), data.real
    chunk = chunk_rows(n, MASKED_VECTORS * VECTOR_BYTES // real.itemsize)
    chunks = max(-(-n // chunk), 1)
    summing = mode in (RESIDUAL, KEPT, JACOBIAN)
    sums = np.empty((chunks, *V.shape) if summing else (1, 1, 1), real)
    run = masked_pass[data.X.dtype, real]
    arguments = (
        mode, data.X, data.everything if batch is None else batch, data.labels, data.logistic, data.scale, data.shift,
        data.features_held, data.starts, data.positions, V, n, weights, P, keep, out, sums, chunk,
    )  # fmt: skip
    share_out(lambda begin, end: run(*arguments, begin, end), chunks, data.threads)
    total = np.empty(V.shape if summing else 0)
    if summing:
        add_masked_chunks[real](sums, total)
    return total


engine = Engine(_pass, masked_pass, add_masked_chunks)
