"""The classifier that a problem trains below: softmax regression, or a network of two layers with both in y."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fbompi.data.samples import Samples
from fbompi.kernels.mlp import MLP, Whole
from fbompi.kernels.regression import Regression
from fbompi.kernels.spectrum import largest_eigenvalue
from fbompi.messages import Array
from fbompi.randomness import stream


class Network:
    """Makes classifiers for the samples of a problem; what they offer is that of `Regression`, with a bias.

    `head` is where the last layer lies in y: classes × (inputs and a bias).
    """

    def __init__(self, samples: Samples, hidden: int, backend: Any = None) -> None:
        """`hidden` is the number of units of the first layer; 0: there is none."""
        self.samples, self.hidden, self.backend = samples, hidden, backend
        inputs = self.hidden or samples.features
        first = self.hidden * (samples.features + 1)
        self.shape = samples.classes, inputs + 1
        self.head = slice(first, first + samples.classes * (inputs + 1))
        self.dim_y = self.head.stop

    def on(self, rows: Array, labels: Array) -> Any:
        """The classifier on these samples."""
        s, kind = self.samples, self.backend
        if not self.hidden:
            return Regression(rows, labels, s.classes, bias=True, dtype=s.dtype, backend=kind, **s.coding)
        return Whole(MLP(rows, labels, self.hidden, s.classes, dtype=s.dtype, backend=kind, **s.coding))

    @cached_property
    def units(self) -> Array:
        """To which feature, or with a first layer to which of its units, every coordinate of y belongs; −1: a bias."""
        inputs = self.shape[1] - 1
        head = np.tile(np.append(np.arange(inputs), -1), self.shape[0])
        return np.concatenate([np.repeat(np.arange(self.hidden), self.samples.features + 1), head])

    def held(self, classifier: Any, coordinates: Array) -> Any:
        """The classifier with these coordinates of y, which are whole units with all biases; None if they are not."""
        held = np.zeros(self.shape[1], np.bool_)  # of the head's inputs; the bias is the last, or −1
        held[self.units[coordinates]] = held[-1] = True
        if not np.array_equal(np.flatnonzero(held[self.units]), coordinates):
            return None
        if not self.hidden:
            return classifier.held(coordinates)
        return Whole(classifier.mlp.held(np.flatnonzero(held[:-1]))[0])

    def start(self, rng: np.random.Generator) -> Array:
        """Where training begins: zero, but for a random first layer, and a small random head, which moves it."""
        y = np.zeros(self.dim_y)
        if self.hidden:
            y[: self.head.start] = random_layer(self.hidden, self.samples.features, rng)
            y[self.head] = random_layer(self.samples.classes, self.hidden, rng)
        return y

    def curvature(self, classifier: Any) -> float:
        """ℓ of the mean loss on a shard: a bound for regression; for a network the Hessian's norm at a random start."""
        if not self.hidden:
            return classifier.curvature()
        rng = stream(self.samples.seed, "start")
        point = classifier.at(self.start(rng))
        return largest_eigenvalue(point.hvp, classifier.xp.asarray(rng.standard_normal(self.dim_y)))


def random_layer(outputs: int, inputs: int, rng: np.random.Generator) -> Array:
    """Weights and biases, flat, uniform within ±1/√inputs: activations are of the size of the inputs."""
    return rng.uniform(-1, 1, outputs * (inputs + 1)) / np.sqrt(inputs)


def whole_units(units: tuple[Array, Array], held_x: Array, held_y: Array) -> Array | None:
    """Which units a submodel with these coordinates has; None, if it has some in part, or not what belongs to all."""
    of_x, of_y = units
    held = np.unique(of_x[held_x])
    whole = np.flatnonzero(np.isin(of_x, held)), np.flatnonzero(np.isin(of_y, [*held, -1]))
    return held if np.array_equal(whole[0], held_x) and np.array_equal(whole[1], held_y) else None
