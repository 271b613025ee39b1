"""How good a model is: figures that several problems report."""

from __future__ import annotations

from typing import Any

import numpy as np

from fbompi.messages import Array


def hits(model: Any, y: Array) -> tuple[float, float]:
    """How many samples of a model's shard are classified correctly at y, and how many there are."""
    if not len(model.labels):
        return 0.0, 0.0
    return float((model.at(y).guesses() == model.labels).sum()), float(len(model.labels))


def area_under_roc(scores: Array, positive: Array) -> float:
    """Of all pairs of a positive and a negative one, the share where the positive scores higher; ties count half."""
    n = int(positive.sum())
    if not 0 < n < len(scores):
        return float("nan")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of those that tie
    return float((ranks[places][positive].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))
