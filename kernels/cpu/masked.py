"""One pass over the rows for a submodel: only the held coordinates of the model are multiplied.

Blocks of rows are turned on their sides, so that each held coordinate is a run of vector operations over the rows,
wherever it lies: the arithmetic is that of the coordinates held, whether they form rows, columns or nothing at all; the
features of which any is held are read. A shard
is turned once, at the first pass: a copy of the held features, in the type they have. Batches are turned every time.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from fbompi.kernels.cpu.compiling import given, kernel
from fbompi.kernels.cpu.regression import (
    JACOBIAN,
    KEPT,
    RESIDUAL,
    Engine,
    chunk_rows,
    place,
    row_by_row,
    share_out,
)
from fbompi.kernels.cpu.tiles import MASKED_VECTORS, VECTOR_BYTES, feature, masked_column, masked_sums

Array = np.ndarray

_njit = numba.njit(error_model="numpy", fastmath={"contract"})


@_njit
def _turn(turned, X, index, at, rows, features, offsets):
    """turned[u, i] = the u-th held feature of the i-th row; zeros for the bias, and for rows that are not there."""
    block = turned.shape[1]
    place(offsets, X, index, at, rows, at + rows)
    for u in range(features.size):
        if features[u] < X.shape[1]:
            for i in range(rows):
                turned[u, i] = feature(X, offsets[i], features[u])
            for i in range(rows, block):
                turned[u, i] = 0
        else:
            for i in range(block):
                turned[u, i] = 0


@kernel(
    lambda stored: types.void(given(stored, 2, "A"), given(types.int64, 1), given(types.int64, 1), stored[:, :, ::1])
)
def turn_shard(X, everything, features, turned):
    """All blocks of a shard."""
    block = turned.shape[2]
    offsets = np.empty(block + 1, np.int64)
    for number in range(turned.shape[0]):
        at = number * block
        _turn(turned[number], X, everything, at, min(block, X.shape[0] - at), features, offsets)


def _signature(feature: Any, real: Any) -> Any:
    number, ints = types.intp, given(types.int64, 1)
    return types.void(
        number, given(feature, 2, "A"), ints, ints, types.boolean, real, real, ints, ints, ints, feature[:, :, ::1],
        given(real, 2), number, given(real, 2), real[:, :, ::1], types.boolean, types.float64[:, ::1],
        real[:, :, ::1], number, number, number,
    )  # fmt: skip


@kernel(_signature)
def masked_pass(
    mode, X, index, labels, logistic, scale, shift, features, starts, positions, shard,
    V, n, weights, P, keep, out, sums, chunk, first_chunk, last_chunk,
):  # fmt: skip
    """As `regression_pass`. `features` are those that any output holds (X.shape[1] stands for the bias); coordinates
    starts[c]…starts[c+1] belong to output c, at features[positions[h]]; V is copies × held coordinates. `shard` are
    the turned blocks of the whole shard, or none with a batch."""
    block = MASKED_VECTORS * VECTOR_BYTES // V.itemsize
    copies, outputs = V.shape[0], starts.size - 1
    columns = copies * outputs
    summing = mode in (RESIDUAL, KEPT, JACOBIAN)
    model, constants = _for_stored_features(V, features, starts, positions, X.shape[1], scale, shift)
    offsets = np.empty(block + 1, np.int64)
    own = np.empty((features.size if shard.shape[0] == 0 else 0, block), X.dtype)
    flat, work = np.zeros((columns, block), V.dtype), np.zeros((block, columns), V.dtype)
    lanes = np.empty((V.shape[0], V.shape[1], VECTOR_BYTES // V.itemsize), V.dtype)
    totals = np.empty(columns, V.dtype)
    for number in range(first_chunk, last_chunk):
        lanes[:], totals[:] = 0, 0
        for at in range(number * chunk, min((number + 1) * chunk, n), block):
            rows = min(block, min((number + 1) * chunk, n) - at)
            if shard.shape[0] == 0:
                _turn(own, X, index, at, rows, features, offsets)
                turned = own
            else:
                turned = shard[at // block]
            if mode != KEPT:
                for j in range(columns):
                    q, c = j // outputs, j % outputs
                    masked_column(turned, positions, model[q], starts[c], starts[c + 1], flat, j)
                for i in range(rows):
                    for j in range(columns):
                        work[i, j] = flat[j, i] + constants[j]
            row_by_row(mode, work[:rows], at, copies, outputs, index, labels, logistic, weights, P, keep, out)
            if summing:
                for i in range(block):
                    for j in range(columns):
                        flat[j, i] = work[i, j] if i < rows else work.dtype.type(0)
                        totals[j] += flat[j, i]
                for j in range(columns):
                    q, c = j // outputs, j % outputs
                    masked_sums(turned, positions, starts[c], starts[c + 1], flat, j, lanes[q])
        if summing:
            _finish(sums[number], lanes, totals, features, starts, positions, X.shape[1], scale, shift)


@_njit
def _for_stored_features(V, features, starts, positions, d, scale, shift):
    """Models that do to features as they are stored what V does to scale·feature + shift; and what they leave out."""
    copies, outputs = V.shape[0], starts.size - 1
    model, constants = np.zeros(V.shape, V.dtype), np.zeros(copies * outputs, V.dtype)
    for q in range(copies):
        for c in range(outputs):
            for h in range(starts[c], starts[c + 1]):
                if features[positions[h]] < d:
                    model[q, h] = scale * V[q, h]
                    constants[q * outputs + c] += shift * V[q, h]
                else:
                    constants[q * outputs + c] += V[q, h]
    return model, constants


@_njit
def _finish(sums, lanes, totals, features, starts, positions, d, scale, shift):
    """Sums over features as stored, lane by lane, to sums over features as meant; and those of the bias."""
    copies, outputs = lanes.shape[0], starts.size - 1
    for q in range(copies):
        for c in range(outputs):
            total = totals[q * outputs + c]
            for h in range(starts[c], starts[c + 1]):
                if features[positions[h]] < d:
                    sums[q, h] = scale * lanes[q, h].sum() + shift * total
                else:
                    sums[q, h] = total


@kernel(lambda real: types.void(real[:, :, ::1], types.float64[:, ::1]))
def add_masked_chunks(sums, total):
    """total = Σ of the chunks' sums, in order, in float64."""
    total[:] = 0
    for number in range(sums.shape[0]):
        for q in range(total.shape[0]):
            for h in range(total.shape[1]):
                total[q, h] += sums[number, q, h]


def _turned_shard(data: Any) -> Array:
    """The turned blocks of the whole shard, made once."""
    found = data.__dict__.get("turned")
    if found is None:
        block = MASKED_VECTORS * VECTOR_BYTES // data.real.itemsize
        found = np.empty((-(-len(data.X) // block), data.features_held.size, block), data.X.dtype)
        turn_shard[data.X.dtype](data.X, data.everything, data.features_held, found)
        data.turned = found
    return found


def _pass(data: Any, mode: int, batch: Any, V: Array, weights: Array, P: Array, keep: bool, out: Array) -> Array:
    n, real = data.count(batch), data.real
    chunk = chunk_rows(n, MASKED_VECTORS * VECTOR_BYTES // real.itemsize)
    chunks = max(-(-n // chunk), 1)
    summing = mode in (RESIDUAL, KEPT, JACOBIAN)
    sums = np.empty((chunks, *V.shape) if summing else (1, 1, 1), real)
    shard = _turned_shard(data) if batch is None else np.empty((0, 0, 0), data.X.dtype)
    run = masked_pass[data.X.dtype, real]
    arguments = (
        mode, data.X, data.everything if batch is None else batch, data.labels, data.logistic, data.scale, data.shift,
        data.features_held, data.starts, data.positions, shard, V, n, weights, P, keep, out, sums, chunk,
    )  # fmt: skip
    share_out(lambda begin, end: run(*arguments, begin, end), chunks, data.threads)
    total = np.empty(V.shape if summing else 0)
    if summing:
        add_masked_chunks[real](sums, total)
    return total


engine = Engine(_pass, masked_pass, add_masked_chunks)
