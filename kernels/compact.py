"""Submodels by dense passes over the features that they hold at all, copied side by side once.

The cost is that of the outputs times those features. Where a mask holds whole features (windows of units, rolling or
not) that is the number of coordinates held, at the full speed of dense products. The same for any engine.
"""

from __future__ import annotations

from copy import copy
from typing import Any

Array = Any


class CompactEngine:
    """What `fbompi.kernels.regression` asks of an engine, for a `Masked`, by means of the engine of its whole model."""

    def __init__(self, dense: Any) -> None:
        self.dense = dense

    def prepare(self, data: Any) -> None:
        """The shard's held features side by side, and where the held coordinates lie in a model on them."""
        kept = data.features_held[data.features_held < data.X.shape[1]]
        compact = data.compact = copy(data)
        compact.X = data.xp.asarray(data.X[:, kept], order="C")
        compact.bias = len(kept) < len(data.features_held)
        compact.shape = data.outputs, len(data.features_held)
        data.places = data.coordinates // data.whole.shape[1] * compact.shape[1] + data.positions
        self.dense.prepare(compact)

    def forward(self, data: Any, batch: Array | None, Y: Array) -> tuple[Array, Array]:
        return self.dense.forward(data.compact, batch, _spread(data, Y[None])[0])

    def losses(self, data: Any, parts: Array) -> Array:
        return self.dense.losses(data, parts)

    def residual_pass(self, data: Any, batch: Array | None, Y: Array, weights: Array) -> tuple[Array, Array, Array]:
        P, parts, G = self.dense.residual_pass(data.compact, batch, _spread(data, Y[None])[0], weights)
        return P, parts, _held(data, G[None])[0]

    def gradients(self, data: Any, batch: Array | None, Y: Array, weights: Array) -> Array:
        return _held(data, self.dense.gradients(data.compact, batch, _spread(data, Y), weights))

    def kept_residual_pass(self, data: Any, batch: Array | None, P: Array, weights: Array) -> Array:
        return _held(data, self.dense.kept_residual_pass(data.compact, batch, P, weights)[None])[0]

    def jacobian_pass(self, data: Any, batch: Array | None, P: Array, weights: Array, V: Array) -> Array:
        return _held(data, self.dense.jacobian_pass(data.compact, batch, P, weights, _spread(data, V)))

    def along(self, data: Any, batch: Array | None, P: Array, V: Array) -> Array:
        return self.dense.along(data.compact, batch, P, _spread(data, V))


def _spread(data: Any, V: Array) -> Array:
    """Held coordinates at their places in models on the held features, zeros elsewhere."""
    models = data.xp.zeros((len(V), data.outputs * data.compact.shape[1]), data.real)
    models[:, data.places] = V
    return models.reshape(len(V), *data.compact.shape)


def _held(data: Any, G: Array) -> Array:
    return G.reshape(len(G), data.outputs * data.compact.shape[1])[:, data.places]
