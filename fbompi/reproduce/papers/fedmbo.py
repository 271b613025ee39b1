"""What the experiments of the FedMBO paper have in common: hyper-representation on MNIST by clients of few digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.reproduce.experiment import Keys
from fbompi.reproduce.measures import along

PAPER = "Huang, Zhang, Ji: Achieving Linear Speedup in Non-IID Federated Bilevel Learning"
# ℓ is of batches: activations grow in training, and batches of one or two digits have larger Hessians than shards.
HYPERREP: Keys = {
    "run.problem": "hyperrep", "problem.data": "mnist", "problem.dtype": "float32", "problem.scaling": "standard",
    "algorithm.inner_rounds": 5, "algorithm.terms": 5, "algorithm.smoothness": 30.0, "delays.model": "none",
    "record.iterates": False,
}  # fmt: skip
SMALL: Keys = {"problem.train": 4000, "problem.validation": 1500, "problem.test": 1000, "problem.hidden": 32}
FULL: Keys = {"problem.train": 0, "problem.validation": 10000, "problem.hidden": 200}
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
