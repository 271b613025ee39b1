"""The passes of a softmax or logistic regression on a GPU: two matrix products and a kernel between them.

The same functions as the engine in `kernels/cpu/regression.py`; `data` is a `kernels.regression.Regression`. Where the
features are REAL numbers already and the batch is the whole shard, the products read them in place. Else they go
through a block of converted rows: bytes stay bytes, and a batch is never copied as a whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from fbompi.kernels.compact import CompactEngine
from fbompi.kernels.cuda.device import KERNELS, current, threads_for

Array = Any

# Of converted rows and their scores: far more than a GPU needs to be busy, far less than it has.
BLOCK_BYTES = 64 << 20
SUMMED_ROWS = 1 << 14  # whose sums may be in the working precision; those of blocks are added in float64

ROWS_PER_BLOCK = 128


def array_library() -> Any:
    """CuPy, or what stands in for it."""
    return current().xp


def prepare(data: Any) -> None:
    """Compile or load what this shard will need, so that no clock is running when it happens."""
    device = current()
    device.load("gather_rows", (data.real, data.X.dtype))
    for name in KERNELS["rows.cu"]:
        device.load(name, (data.real,))


def masked(data: Any) -> Any:
    """The engine for a submodel."""
    return CompactEngine(sys.modules[__name__])


def forward(data: Any, batch: Array | None, Y: Array) -> tuple[Array, Array]:
    """Probabilities (n × outputs) and losses (n) at Y."""
    xp = current().xp
    n = _count(data, batch)
    W, bias = _columns(data, Y[None])
    labels = _labels(data, batch)
    P, losses = xp.empty((n, data.outputs), data.real), xp.empty(n)
    for first, last, rows in _blocks(data, batch, len(W)):
        xp.matmul(rows, W.T, out=P[first:last])
        _softmax(data, bias, labels, None, 1, first, n, P[first:last], None, losses)
    return P, losses


def losses(data: Any, parts: Array) -> Array:
    """The loss of every sample, which the passes below have made."""
    return parts


def residual_pass(data: Any, batch: Array | None, Y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Probabilities, losses and the gradient of Σ w_j·loss_j at Y; no ridge."""
    xp = current().xp
    n = _count(data, batch)
    P, losses = xp.empty((1, n, data.outputs), data.real), xp.empty((1, n))
    G = _gradients(data, batch, Y[None], weights[None], P, losses)
    return P[0], losses[0], G[0]


def gradients(data: Any, batch: Array | None, Y: Array, weights: Array) -> Array:
    """The gradients of Σ w_qj·loss_j at each of the copies Y[q]; weights are copies × n, or 1 × n for all."""
    losses = current().xp.empty((len(Y), _count(data, batch)))
    return _gradients(data, batch, Y, weights, None, losses)


def _gradients(data: Any, batch: Array | None, Y: Array, weights: Array, P: Any, losses: Array) -> Array:
    W, bias = _columns(data, Y)
    labels, weights = _labels(data, batch), current().asarray(weights, data.real)
    G = current().xp.zeros(Y.shape)
    for first, _, rows in _blocks(data, batch, len(W)):
        residual = rows @ W.T
        _softmax(data, bias, labels, weights, len(Y), first, _count(data, batch), residual, P, losses)
        _add_products(data, residual, rows, G)
    return G


def kept_residual_pass(data: Any, batch: Array | None, P: Array, weights: Array) -> Array:
    """The gradient of Σ w_j·loss_j where the probabilities are known."""
    device = current()
    P, weights, labels = device.asarray(P, data.real), device.asarray(weights, data.real), _labels(data, batch)
    G = device.xp.zeros((1, data.outputs, data.X.shape[1] + data.bias))
    for first, last, rows in _blocks(data, batch, data.outputs):
        residual = device.xp.empty((last - first, data.outputs), data.real)
        device.launch(
            "residual_rows", (data.real,), _grid(last - first, 1), ROWS_PER_BLOCK,
            (*_sizes(data, last - first), labels, weights, P, np.int64(first), residual),
        )  # fmt: skip
        _add_products(data, residual, rows, G)
    return G[0]


def jacobian_pass(data: Any, batch: Array | None, P: Array, weights: Array, V: Array) -> Array:
    """The Hessian of Σ w_j·loss_j times each of the V[q]; no ridge."""
    device = current()
    W, bias = _columns(data, V)
    P, weights = device.asarray(P, data.real), device.asarray(weights, data.real)
    G = device.xp.zeros(V.shape)
    for first, last, rows in _blocks(data, batch, len(W)):
        products = rows @ W.T
        device.launch(
            "jacobian_rows", (data.real,), _grid(last - first, len(V)), ROWS_PER_BLOCK,
            (*_sizes(data, last - first), bias, P, weights, np.int64(first), products),
        )  # fmt: skip
        _add_products(data, products, rows, G)
    return G


def along(data: Any, batch: Array | None, P: Array, V: Array) -> Array:
    """⟨∇_Y loss_j, V[q]⟩, copies × n."""
    device = current()
    n = _count(data, batch)
    W, bias = _columns(data, V)
    P, labels = device.asarray(P, data.real), _labels(data, batch)
    slopes = device.xp.empty((len(V), n))
    for first, last, rows in _blocks(data, batch, len(W)):
        device.launch(
            "along_rows", (data.real,), _grid(last - first, len(V)), ROWS_PER_BLOCK,
            (*_sizes(data, last - first), bias, P, labels, np.int64(first), np.int64(n), rows @ W.T, slopes),
        )  # fmt: skip
    return slopes


def _blocks(data: Any, batch: Array | None, columns: int) -> Iterator[tuple[int, int, Array]]:
    """(first, last, rows first to last of the batch as REAL numbers), for all of the batch."""
    device = current()
    X, n, features = data.X, _count(data, batch), data.X.shape[1]
    as_it_is = batch is None and X.dtype == data.real and (data.scale, data.shift) == (1, 0) and X.flags.c_contiguous
    width = max(columns if as_it_is else columns + features, 1)
    most = min(max(BLOCK_BYTES // (data.real.itemsize * width), 1), SUMMED_ROWS)
    batch = None if batch is None else device.asarray(batch, np.int64)
    for first in range(0, n, most):
        last = min(first + most, n)
        index = None if batch is None else batch[first:last]
        yield first, last, X[first:last] if as_it_is else _gathered(data, index, first, last - first)


def _gathered(data: Any, index: Array | None, first: int, count: int) -> Array:
    """Converted rows of X: those of an index, or `count` of them from `first` on."""
    device = current()
    X, features, real = data.X, data.X.shape[1], data.real.type
    if not X.flags.c_contiguous:  # rows apart from each other: the library can copy those, the kernel cannot
        X = device.asarray(X[first : first + count] if index is None else X[index])
        index, first = None, 0
    out = device.xp.empty((count, features), data.real)
    device.launch(
        "gather_rows", (data.real, X.dtype), (min(count, 1 << 20),), threads_for(features),
        (np.int64(count), np.int64(features), X, index, np.int64(first), real(data.scale), real(data.shift), out),
    )  # fmt: skip
    return out


def _softmax(
    data: Any,
    bias: Any,
    labels: Array,
    weights: Any,
    copies: int,
    first: int,
    n: int,
    scores: Array,
    P: Any,
    losses: Array,
) -> None:
    stride = n if weights is not None and len(weights) > 1 else 0
    places = np.int64(stride), np.int64(first), np.int64(n)
    current().launch(
        "softmax_rows", (data.real,), _grid(len(scores), copies), ROWS_PER_BLOCK,
        (*_sizes(data, len(scores)), bias, labels, weights, *places, scores, P, losses),
    )  # fmt: skip


def _add_products(data: Any, R: Array, rows: Array, G: Array) -> None:
    """G += Rᵀ X, and the sums of R's columns for the bias. Sums of blocks are in float64."""
    xp = current().xp
    copies, outputs, _ = G.shape
    features = rows.shape[1]
    G[:, :, :features] += (R.T @ rows).reshape(copies, outputs, features)
    if data.bias:
        G[:, :, features] += (xp.ones(len(R), data.real) @ R).reshape(copies, outputs)


def _columns(data: Any, Y: Array) -> tuple[Array, Array | None]:
    """Copies of a model as the rows of one matrix, and their biases."""
    device = current()
    features = data.X.shape[1]
    W = device.asarray(Y[:, :, :features], data.real).reshape(Y.shape[0] * Y.shape[1], features)
    return W, device.asarray(Y[:, :, features], data.real) if data.bias else None


def _count(data: Any, batch: Array | None) -> int:
    return len(data.X) if batch is None else len(batch)


def _labels(data: Any, batch: Array | None) -> Array:
    return data.labels if batch is None else data.labels[batch]


def _sizes(data: Any, rows: int) -> tuple:
    return np.int64(rows), np.int32(data.outputs), np.int32(data.logistic)


def _grid(rows: int, copies: int) -> tuple[int, int]:
    return -(-rows // ROWS_PER_BLOCK), copies
