"""What the experiments of the FedMBO paper have in common: hyper-representation on MNIST by clients of few digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.reproduce.experiment import Keys
from fbompi.reproduce.measures import along, mean

PAPER = "Huang, Zhang, Ji: Achieving Linear Speedup in Non-IID Federated Bilevel Learning"
HYPERREP: Keys = {
    "run.problem": "hyperrep", "problem.data": "mnist", "problem.dtype": "float32", "problem.scaling": "standard",
    "algorithm.inner_rounds": 5, "algorithm.terms": 5, "delays.model": "none", "record.iterates": False,
}  # fmt: skip
# ℓ is of batches: activations grow in training, and batches of one or two digits have larger Hessians than shards. With
# 200 units and ℓ = 30, chains on batches of one digit grow, and the run diverges.
SMALL: Keys = {
    "problem.train": 4000, "problem.validation": 1500, "problem.test": 1000, "problem.hidden": 32,
    "algorithm.smoothness": 30.0,
}  # fmt: skip
FULL: Keys = {"problem.train": 0, "problem.validation": 10000, "problem.hidden": 200, "algorithm.smoothness": 80.0}
AXES = {"communication": "rounds of communication", "passes": "passes over the training data"}


def costed(run: Any, samples: int) -> dict[str, np.ndarray]:
    """A run's accuracy and validation loss with rounds of communication, and oracle calls over `samples` of them."""
    return {"communication": along(run, "communication"), "passes": along(run, "calls") / samples,
            "accuracy": np.asarray(run["accuracy"], float), "loss": np.asarray(run["upper"], float)}  # fmt: skip


def shared(runs: Sequence[Sequence[dict[str, np.ndarray]]], axis: str) -> float:
    """How far on an axis all runs have got."""
    return min(float(run[axis][-1]) for some in runs for run in some)


def training_samples(run: Any) -> int:
    """How many samples all clients have for training."""
    return int(np.sum(run.partition["train"]))


def average(runs: Sequence[dict[str, np.ndarray]], metric: str, until: float, axis: str) -> float:
    """The mean of a metric over an axis and over runs.

    Straight between rows: a row is so many outer rounds, which are many more samples in one case than in another.
    """
    return float(np.mean(curve(runs, metric, np.linspace(0, until, 1001), axis)))


def curve(runs: Sequence[dict[str, np.ndarray]], metric: str, places: np.ndarray, axis: str) -> np.ndarray:
    """The mean over runs at these places."""
    return np.mean([np.interp(places, run[axis], run[metric]) for run in runs], axis=0)


def trace(axes: Any, runs: Sequence[dict[str, np.ndarray]], metric: str, axis: str, **style: Any) -> None:
    """Draw the mean over runs, as far as all of them got."""
    places = np.linspace(0, shared([runs], axis), 300)
    axes.plot(places, curve(runs, metric, places, axis), **style)


def at(runs: Sequence[dict[str, np.ndarray]], metric: str, place: float, axis: str) -> float:
    """The mean over runs at a place."""
    return mean(curve(runs, metric, np.array([place]), axis))


def reached(runs: Sequence[dict[str, np.ndarray]], metric: str, level: float, until: float, axis: str) -> float:
    """Where on an axis the mean over runs first is down at a level; inf: not until there."""
    places = np.linspace(0, until, 2001)
    rows = np.flatnonzero(curve(runs, metric, places, axis) <= level)
    return float(places[rows[0]]) if len(rows) else math.inf
