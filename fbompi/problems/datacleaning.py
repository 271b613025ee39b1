"""Robust federated data cleaning (MemFBO): clients hold many noisy samples and few clean ones.

    f_i = mean over the clean samples of CE(y)
    g_i = mean over the noisy samples of w_j(x)·CE_j(y) + ½·ridge·‖y‖²

The paper's noise: a share of the training samples, of all clients together, is noisy, and the label of a noisy one is
drawn anew among all classes with the flip rate. w is a sigmoid of x, or x itself, kept in [0, 1]: the paper writes it
without bounds and without a ridge, and negative weights can then leave g_i unbounded below. y is softmax regression, or
a network of two layers: then g_i is not convex, as in the paper. The oracles are in `cleaning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.config import AtLeast, AtMost
from fbompi.data.corruption import noise_and_flip
from fbompi.messages import Array
from fbompi.problems.cleaning import Cleaning
from fbompi.randomness import stream


@dataclass(eq=False)
class DataCleaning(Cleaning):
    """Weights for noisy training samples above, softmax regression or a two-layer network below."""

    name = "datacleaning"

    noise: Annotated[float, "fraction of training samples that are noisy", AtLeast(0), AtMost(1)] = 0.5
    flip: Annotated[float, "how often a noisy label is drawn anew among all classes", AtLeast(0), AtMost(1)] = 0.8
    weighting: Annotated[Literal["sigmoid", "clipped"], "w = σ(x), or x kept in [0, 1]"] = "sigmoid"
    model: Annotated[Literal["linear", "mlp"], "the classifier"] = "linear"
    hidden: Annotated[int, "model mlp: units of the first layer", AtLeast(1)] = 32

    def first_layer(self) -> int:
        return self.hidden if self.model == "mlp" else 0

    def corrupt(self, labels: Array) -> Array:
        return noise_and_flip(labels, self.noise, self.flip, self.classes, stream(self.seed, "corruption"))

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = super().start(rng)
        return (x if self.weighting == "sigmoid" else np.ones_like(x)), y

    def weights(self, x: Array) -> tuple[Array, Array]:
        return super().weights(x) if self.weighting == "sigmoid" else (x, np.ones_like(x))

    def project_x(self, x: Array) -> Array:
        return x if self.weighting == "sigmoid" else np.clip(x, 0, 1)
