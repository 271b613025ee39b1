"""Data hyper-cleaning: learn which training labels are wrong, from a small clean validation set (AFBO).

    f_i = mean over validation samples of CE(y)
    g_i = mean over training samples of σ(x_j)·CE_j(y) + ½·ridge·‖y‖²

Labels of training samples are changed to another class at a rate; y is softmax regression with a bias. The oracles are
in `cleaning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fbompi.config import AtLeast, AtMost
from fbompi.data.corruption import change
from fbompi.messages import Array
from fbompi.problems.cleaning import Cleaning
from fbompi.randomness import stream


@dataclass(eq=False)
class HyperCleaning(Cleaning):
    """Weights for noisy training samples above, ridge softmax regression below."""

    name = "hypercleaning"

    corruption: Annotated[float, "fraction of training labels changed", AtLeast(0), AtMost(1)] = 0.4

    def corrupt(self, labels: Array) -> Array:
        return change(labels, self.corruption, self.classes, stream(self.seed, "corruption"))
