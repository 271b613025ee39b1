"""One pass over the rows of a softmax or logistic regression, in blocks that stay in the cache.

For each block of rows: the scores X Yᵀ (or X Vᵀ), what happens to each row, and Xᵀ times the result. A block is read
from memory once; while it is multiplied the second time, the next one is being fetched.

Softmax does not change when a number is added to all scores of a row, and the columns of what comes back sum to zero.
So scores are taken relative to the last class, whose column is left out of both multiplications.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numba import types

from fbompi.kernels.compact import CompactEngine
from fbompi.kernels.cpu.compiling import Kernel, given, kernel
from fbompi.kernels.cpu.exponential import exponentials
from fbompi.kernels.cpu.tiles import VECTOR_BYTES, address, dots, group_size, outer

Array = np.ndarray

# What a pass computes, row by row.
FORWARD, RESIDUAL, KEPT, JACOBIAN, ALONG = range(5)  # KEPT: a gradient from probabilities that are known

BLOCK_BYTES = 110_000  # a fifth of a second-level cache of 512 kB: block, next block, model and gradient fit
CHUNK_ROWS = 2048  # rows summed in the working precision; longer sums are of these, in float64
MOST_CHUNKS = 64
DENSE_ENOUGH = 0.3  # of the coordinates of held features: from here on dense products of those are faster
FEATURE_BLOCK_BYTES = 3200  # of a row: five columns of it and two rows stay in the first-level cache

_njit = numba.njit(error_model="numpy", fastmath={"contract"})


def _signature(feature: Any, real: Any) -> Any:
    number, flag = types.intp, types.boolean
    return types.void(
        number, given(feature, 2, "A"), given(types.int64, 1), given(types.int64, 1), flag, flag, real, real,
        given(real, 2), number, number, given(real, 2), real[:, :, ::1], flag, types.float64[:, ::1],
        real[:, :, ::1], number, number, number, number,
    )  # fmt: skip


@kernel(_signature)
def regression_pass(
    mode, X, index, labels, logistic, bias, scale, shift,
    V, copies, n, weights, P, keep, out, sums, chunk, first_chunk, last_chunk, block,
):  # fmt: skip
    """Chunks first_chunk…last_chunk−1 of a pass; `V` holds the columns of all copies below one another.

    With softmax the last class of each copy is left out of `sums`: `add_chunks` makes it from the others.
    """
    d = X.shape[1]
    outputs = V.shape[0] // copies
    computed = outputs if logistic else outputs - 1
    columns = copies * computed
    model, constants = relative_model(V if mode != KEPT else V[:0], d, outputs, computed, scale, shift)
    affine = shift != 0 or scale != 1
    summing = mode in (RESIDUAL, KEPT, JACOBIAN)
    # Where all rows lie alike in their cache lines, vectors of features begin so that no load touches two lines.
    lanes = VECTOR_BYTES // V.itemsize
    aligned = -address(X) % 64 // X.itemsize % lanes if X.strides[0] % 64 == 0 else 0
    aligned = aligned if aligned + lanes <= d else 0
    block = min(block, max(n, 1))
    work = np.empty((block + 1, columns), V.dtype)
    totals = np.empty(columns, V.dtype)
    offsets, next_offsets = np.empty(block + 1, np.int64), np.empty(block + 1, np.int64)
    for number in range(first_chunk, last_chunk):
        begin, end = number * chunk, min((number + 1) * chunk, n)
        G = sums[number if summing else 0]
        for j in range(columns if summing else 0):
            totals[j] = 0
            for k in range(G.shape[1]):
                G[j, k] = 0
        for at in range(begin, end, block):
            rows = min(block, end - at)
            place(offsets, X, index, at, rows, n)
            place(next_offsets, X, index, at + block, rows, n)
            if mode != KEPT:
                _scores(X, offsets, rows, model, constants, d, work)
            row_by_row(mode, work[:rows], at, copies, outputs, index, labels, logistic, weights, P, keep, out)
            if summing:
                done = 0
                while done < columns:
                    group = group_size(columns - done)
                    outer(group, X, offsets, rows, work, done, aligned, d, G, next_offsets)
                    done += group
                for i in range(rows if bias or affine else 0):
                    for j in range(columns):
                        totals[j] += work[i, j]
        if summing:
            finish_sums(G, totals, d, bias, affine, scale, shift)


@_njit
def relative_model(V, d, outputs, computed, scale, shift):
    """The computed columns of all copies, relative to their last class, for features as they are stored.

    Σ_k V_k (scale·X_k + shift) + bias = Σ_k (scale·V_k) X_k + constant, and the constant is the second result. Columns
    are whole lines of the cache apart.
    """
    line = 64 // V.itemsize
    columns = V.shape[0] // outputs * computed
    model = np.empty((columns, (d + line - 1) // line * line), V.dtype)
    constants = np.empty(columns, V.dtype)
    for j in range(columns):
        constants[j] = 0
        row, last = j // computed * outputs + j % computed, (j // computed + 1) * outputs - 1
        for k in range(V.shape[1]):
            v = V[row, k] - V[last, k] if computed < outputs else V[row, k]
            if k < d:
                model[j, k] = scale * v
                constants[j] += shift * v
            else:
                constants[j] += v
    return model, constants


@_njit
def finish_sums(G, totals, d, bias, affine, scale, shift):
    """Sums over features as stored, to sums over features as meant; and those of the bias."""
    for j in range(totals.size):
        if affine:
            for k in range(d):
                G[j, k] = scale * G[j, k] + shift * totals[j]
        if bias:
            G[j, d] = totals[j]


@_njit
def place(offsets, X, index, at, rows, n):
    """Byte offsets of `rows` rows from position `at`; past the end, and once more behind, the last row again."""
    for i in range(rows + 1):
        position = min(at + min(i, rows - 1), n - 1)
        offsets[i] = (position if index.size == 0 else index[position]) * X.strides[0]


@_njit
def _scores(X, offsets, rows, model, constants, d, work):
    """work = X·modelᵀ + constants for a block; part of the features at a time, while the columns' part stays close."""
    columns = model.shape[0]
    part = max(FEATURE_BLOCK_BYTES // model.itemsize, 1)
    for begin in range(0, max(d, 1), part):
        end = min(begin + part, d)
        done = 0
        while done < columns:
            group = group_size(columns - done)
            for i in range(0, rows, 2):
                dots(group, X, offsets, i, model, done, begin, end, work, begin == 0)
            done += group
    for i in range(rows):
        for j in range(columns):
            work[i, j] += constants[j]


@_njit
def row_by_row(mode, work, at, copies, outputs, index, labels, logistic, weights, P, keep, out):
    """What happens to the scores of a block, by the mode; `work` has the copies' computed columns side by side."""
    if mode in (FORWARD, RESIDUAL):
        if logistic:
            _logistic_rows(work, at, index, labels, weights, P, keep, out, mode == RESIDUAL)
        else:
            _softmax_rows(work, at, copies, outputs, index, labels, weights, P, keep, out, mode == RESIDUAL)
    elif mode == KEPT:
        _kept_rows(work, at, logistic, index, labels, weights, P)
    elif mode == JACOBIAN:
        _jacobian_rows(work, at, copies, logistic, weights, P)
    else:
        _along_rows(work, at, copies, logistic, index, labels, P, out)


@_njit
def _label(labels, index, position):
    return labels[position if index.size == 0 else index[position]]


@_njit
def _softmax_rows(work, at, copies, outputs, index, labels, weights, P, keep, out, residual):
    """Scores to probabilities p and parts of the losses, if they are to be kept; for gradients, then to w (p − onehot).

    Where the last class is not computed its score is 0.
    """
    rows, columns = work.shape
    computed = columns // copies
    lasts = np.empty((rows, copies), work.dtype)
    for i in range(rows):
        label = _label(labels, index, at + i)
        for q in range(copies):
            row = work[i, q * computed : (q + 1) * computed]
            top = row[0] if computed == outputs else work.dtype.type(0)
            for c in range(computed):
                top = row[c] if row[c] > top else top
            for c in range(computed):
                row[c] -= top
            lasts[i, q] = -top
            if keep:
                out[q, at + i] = -row[label] if label < computed else top
    exponentials(work.reshape(-1), rows * columns)
    exponentials(lasts.reshape(-1), rows * copies)
    for i in range(rows):
        label = _label(labels, index, at + i)
        for q in range(copies):
            row = work[i, q * computed : (q + 1) * computed]
            total = lasts[i, q] if computed < outputs else work.dtype.type(0)
            for c in range(computed):
                total += row[c]
            share = work.dtype.type(1) / total
            for c in range(computed):
                row[c] *= share
            if keep:
                out[copies + q, at + i] = total
                for c in range(computed):
                    P[q, at + i, c] = row[c]
                if computed < outputs:
                    P[q, at + i, computed] = lasts[i, q] * share
            if residual:
                w = weights[q if weights.shape[0] > 1 else 0, at + i]
                if label < computed:
                    row[label] -= work.dtype.type(1)
                for c in range(computed):
                    row[c] *= w


@_njit
def _logistic_rows(work, at, index, labels, weights, P, keep, out, residual):
    """The same for one score per copy and labels 0 or 1: p = 1/(1 + exp(−s))."""
    one = work.dtype.type(1)
    rows, copies = work.shape
    scores = np.empty((rows, copies), work.dtype)
    for i in range(rows):
        for q in range(copies):
            scores[i, q] = work[i, q]
            work[i, q] = -abs(work[i, q])
    exponentials(work.reshape(-1), rows * copies)
    for i in range(rows):
        label = _label(labels, index, at + i)
        for q in range(copies):
            s, small = scores[i, q], work[i, q]
            p = one / (one + small)
            p = p if s >= 0 else small * p
            if keep:
                out[q, at + i] = (max(s, 0) if s == s else s) - label * s
                out[copies + q, at + i] = small
                P[q, at + i, 0] = p
            work[i, q] = p
            if residual:
                w = weights[q if weights.shape[0] > 1 else 0, at + i]
                work[i, q] = (p - work.dtype.type(label)) * w


@_njit
def _kept_rows(work, at, logistic, index, labels, weights, P):
    """w (p − onehot) from known probabilities, as the passes above leave it."""
    for i in range(work.shape[0]):
        label, w = _label(labels, index, at + i), weights[0, at + i]
        for c in range(work.shape[1]):
            hit = label if logistic else 1 if c == label else 0
            work[i, c] = (P[0, at + i, c] - work.dtype.type(hit)) * w


@_njit
def _jacobian_rows(work, at, copies, logistic, weights, P):
    """u = X Vᵀ to w (diag(p) − p pᵀ) u; for logistic regression to w p (1 − p) u."""
    computed = work.shape[1] // copies
    for i in range(work.shape[0]):
        p, w = P[0, at + i], weights[0, at + i]
        for q in range(copies):
            row = work[i, q * computed : (q + 1) * computed]
            if logistic:
                row[0] *= w * p[0] * (work.dtype.type(1) - p[0])
            else:
                mean = work.dtype.type(0)
                for c in range(computed):
                    mean += p[c] * row[c]
                for c in range(computed):
                    row[c] = w * p[c] * (row[c] - mean)


@_njit
def _along_rows(work, at, copies, logistic, index, labels, P, out):
    """⟨p − onehot, u⟩ of every row: the derivative of its loss along V."""
    computed = work.shape[1] // copies
    for i in range(work.shape[0]):
        label = _label(labels, index, at + i)
        p = P[0, at + i]
        for q in range(copies):
            row = work[i, q * computed : (q + 1) * computed]
            if logistic:
                out[q, at + i] = (p[0] - label) * row[0]
            else:
                total = -np.float64(row[label]) if label < computed else 0.0
                for c in range(computed):
                    total += p[c] * row[c]
                out[q, at + i] = total


@kernel(lambda real: types.void(real[:, :, ::1], types.boolean, types.float64[:, :, ::1]))
def add_chunks(sums, logistic, total):
    """total = Σ of the chunks' sums, in order, in float64; with softmax, the last class is minus the others."""
    copies, outputs, width = total.shape
    computed = outputs if logistic else outputs - 1
    total[:] = 0
    for number in range(sums.shape[0]):
        for q in range(copies):
            for c in range(computed):
                for k in range(width):
                    total[q, c, k] += sums[number, q * computed + c, k]
    for q in range(copies):
        for c in range(computed if computed < outputs else 0):
            for k in range(width):
                total[q, outputs - 1, k] -= total[q, c, k]


class Engine:
    """What `fbompi.kernels.regression` asks of a backend; the other one is in kernels/cuda.

    Parameters
    ----------
    run : carries a pass out: (data, mode, batch, V, weights, P, keep, out) -> the sums, where the mode has any
    passes, sums : the kernels that it uses, compiled before the first pass
    """

    def __init__(self, run: Callable[..., Array], passes: Kernel, sums: Kernel) -> None:
        self.run, self.passes, self.sums = run, passes, sums

    def masked(self, data: Any) -> Engine | CompactEngine:
        """The engine for a submodel: dense on the features it holds, unless it holds few coordinates of each."""
        if len(data.coordinates) >= DENSE_ENOUGH * data.outputs * len(data.features_held):
            return CompactEngine(self)
        from fbompi.kernels.cpu.masked import engine

        return engine

    def prepare(self, data: Any) -> None:
        """Compile or load what this shard will need, so that no clock is running when it happens."""
        self.passes[data.X.dtype, data.real], self.sums[data.real]

    def forward(self, data: Any, batch: Array | None, Y: Array) -> tuple[Array, Array]:
        """Probabilities (n × outputs) and what `losses` needs, at Y."""
        n = data.count(batch)
        P, parts = np.empty((1, n, data.outputs), data.real), np.empty((2, n))
        self.run(data, FORWARD, batch, Y[None], data.no_weights, P, True, parts)
        return P[0], parts

    def losses(self, data: Any, parts: Array) -> Array:
        """The loss of every sample. Its logarithm is left until somebody asks: gradients do not, and it takes time."""
        return parts[0] + (np.log1p(parts[1]) if data.logistic else np.log(parts[1]))

    def residual_pass(self, data: Any, batch: Array | None, Y: Array, weights: Array) -> tuple[Array, Array, Array]:
        """Probabilities, what `losses` needs, and the gradient of Σ w_j·loss_j at Y; no ridge."""
        n = data.count(batch)
        P, parts = np.empty((1, n, data.outputs), data.real), np.empty((2, n))
        G = self.run(data, RESIDUAL, batch, Y[None], weights[None], P, True, parts)
        return P[0], parts, G[0]

    def gradients(self, data: Any, batch: Array | None, Y: Array, weights: Array) -> Array:
        """The gradients of Σ w_qj·loss_j at each of the copies Y[q]; weights are copies × n, or 1 × n for all."""
        return self.run(data, RESIDUAL, batch, Y, weights, np.empty((1, 1, 1), data.real), False, _NOTHING)

    def kept_residual_pass(self, data: Any, batch: Array | None, P: Array, weights: Array) -> Array:
        """The gradient of Σ w_j·loss_j where the probabilities are known: the same bits in half the work."""
        model = np.empty((1, *data.shape), data.real)  # not read: its shape says how many columns there are
        return self.run(data, KEPT, batch, model, weights[None], P[None], False, _NOTHING)[0]

    def jacobian_pass(self, data: Any, batch: Array | None, P: Array, weights: Array, V: Array) -> Array:
        """The Hessian of Σ w_j·loss_j times each of the V[q]; no ridge."""
        return self.run(data, JACOBIAN, batch, V, weights[None], P[None], False, _NOTHING)

    def along(self, data: Any, batch: Array | None, P: Array, V: Array) -> Array:
        """⟨∇_Y loss_j, V[q]⟩, copies × n."""
        out = np.empty((len(V), data.count(batch)))
        self.run(data, ALONG, batch, V, data.no_weights, P[None], False, out)
        return out


_NOTHING = np.empty((1, 1))  # stands where a pass neither reads nor writes


def _pass(data: Any, mode: int, batch: Any, V: Array, weights: Array, P: Array, keep: bool, out: Array) -> Array:
    n, real = data.count(batch), data.real
    copies, outputs, width = V.shape
    columns = copies * outputs
    block = _block_rows(data.X.shape[1], real.itemsize)
    chunk = chunk_rows(n, block)
    chunks = max(-(-n // chunk), 1)
    summing = mode in (RESIDUAL, KEPT, JACOBIAN)
    computed = copies * (outputs if data.logistic else outputs - 1)
    sums = np.empty((chunks, computed, width) if summing else (1, 1, 1), real)
    run = regression_pass[data.X.dtype, real]
    arguments = (
        mode, data.X, data.everything if batch is None else batch, data.labels, data.logistic, data.bias,
        data.scale, data.shift, V.reshape(columns, width), copies, n, weights, P, keep, out, sums, chunk,
    )  # fmt: skip
    share_out(lambda begin, end: run(*arguments, begin, end, block), chunks, data.threads)
    total = np.empty(V.shape if summing else 0)
    if summing:
        add_chunks[real](sums, data.logistic, total)
    return total


engine = Engine(_pass, regression_pass, add_chunks)


def chunk_rows(n: int, block: int) -> int:
    """Rows of a chunk: whole blocks, and a function of the shape alone, so that threads do not change results."""
    return max(CHUNK_ROWS, -(-n // MOST_CHUNKS // block) * block)


def share_out(work: Callable[[int, int], None], chunks: int, threads: int) -> None:
    """Call work(begin, end) for all chunks, split among the threads; the kernels let go of Python's lock.

    This thread takes a share itself: a woken thread then finds its own core, not this one's.
    """
    shares = [*pairwise(chunks * t // threads for t in range(threads + 1))] if chunks > 1 else [(0, chunks)]
    jobs = [_pool(threads - 1).submit(work, *share) for share in shares[1:]]
    work(*shares[0])
    for job in jobs:
        job.result()


@lru_cache(maxsize=64)
def _block_rows(features: int, itemsize: int) -> int:
    """The power of two of rows that fills the block's share of the cache."""
    rows = BLOCK_BYTES // max(features * itemsize, 1)
    return 1 << min(max(rows, 8), 256).bit_length() - 1


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "fbompi-kernels")


os.register_at_fork(after_in_child=_pool.cache_clear)  # the threads stay with the parent
