"""Submodels on a GPU: dense passes over the features that are held at all, gathered once.

The cost is that of the outputs times those features. Where a mask holds whole features (windows of units, rolling or
not) that is the number of coordinates held; the CPU engine keeps to that number for masks without any order too.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from fbompi.kernels.cuda import regression as dense
from fbompi.kernels.cuda.device import current

Array = Any


def prepare(data: Any) -> None:
    """The shard's held features side by side, and where the held coordinates lie in a model on them."""
    d = data.X.shape[1]
    kept = data.features_held[data.features_held < d]
    compact = data.compact = copy(data)
    compact.X = current().asarray(data.X[:, kept])
    compact.bias = len(kept) < len(data.features_held)
    compact.shape = data.outputs, len(data.features_held)
    counts = np.diff(current().to_host(data.starts))
    output = current().asarray(np.repeat(np.arange(data.outputs), counts))
    data.places = output * compact.shape[1] + data.positions
    dense.prepare(compact)


def forward(data: Any, batch: Array | None, Y: Array) -> tuple[Array, Array]:
    return dense.forward(data.compact, batch, _spread(data, Y[None])[0])


def residual_pass(data: Any, batch: Array | None, Y: Array, weights: Array) -> tuple[Array, Array, Array]:
    P, losses, G = dense.residual_pass(data.compact, batch, _spread(data, Y[None])[0], weights)
    return P, losses, _held(data, G[None])[0]


def gradients(data: Any, batch: Array | None, Y: Array, weights: Array) -> Array:
    return _held(data, dense.gradients(data.compact, batch, _spread(data, Y), weights))


def kept_residual_pass(data: Any, batch: Array | None, P: Array, weights: Array) -> Array:
    return _held(data, dense.kept_residual_pass(data.compact, batch, P, weights)[None])[0]


def jacobian_pass(data: Any, batch: Array | None, P: Array, weights: Array, V: Array) -> Array:
    return _held(data, dense.jacobian_pass(data.compact, batch, P, weights, _spread(data, V)))


def along(data: Any, batch: Array | None, P: Array, V: Array) -> Array:
    return dense.along(data.compact, batch, P, _spread(data, V))


def _spread(data: Any, V: Array) -> Array:
    """Held coordinates at their places in models on the held features, zeros elsewhere."""
    models = current().xp.zeros((len(V), data.outputs * data.compact.shape[1]), data.real)
    models[:, data.places] = V
    return models.reshape(len(V), *data.compact.shape)


def _held(data: Any, G: Array) -> Array:
    return G.reshape(len(G), -1)[:, data.places]
