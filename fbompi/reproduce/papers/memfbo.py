"""What the experiments of the MemFBO paper have in common."""

from __future__ import annotations

import math

import numpy as np

from fbompi.reproduce.measures import Columns, along

PAPER = "Yang, Xiao, Ma, Ji: First-Order Federated Bilevel Learning"

MARGIN = 0.01  # of accuracy: what is less is chance, with the seeds and test samples that there are


def closing(run: Columns, metric: str, until: float = math.inf, axis: str = "communication") -> float:
    """The mean over the last third of the rows up to a place: of sampled clients, one row alone is chance.

    NaN if one of these is.
    """
    values = np.asarray(run[metric], float)[along(run, axis) <= until]
    return float(np.mean(values[-max(1, len(values) // 3) :])) if len(values) else math.nan
