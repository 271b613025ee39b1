"""What the experiments of the FISM paper have in common: its contestants, and its clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fbompi.reproduce.experiment import Keys

PAPER = (
    "Boontawee, Prangprakhon, Nimana: Federated Incremental Subgradient Method for Convex Bilevel Optimization Problems"
)
COUNTS = (1, 2, 4, 8)
IRIG = "IR-IG"
FISM = {f"S = {count}": count for count in COUNTS}
METHODS: Mapping[str, Keys] = {
    IRIG: {"run.algorithm": "irig", "clients.count": 1},
    **{name: {"run.algorithm": "fism", "clients.count": count} for name, count in FISM.items()},
}
CLOCK = (
    "Seconds are those of a machine per client, as the paper counts (its Remark 3): an iteration takes as long as its "
    "slowest client, and messages and the server take nothing. Every sweep of a client is the same work, so its lower "
    "quartile over all iterations stands for each of them: what else this machine does is not the method's doing."
)


def iteration_seconds(run: Any) -> float:
    """Of one iteration, with a machine for every client: the slowest client's sweep."""
    clients, seconds = (np.asarray(run.events[name]) for name in ("client", "seconds"))
    return max((float(np.quantile(seconds[clients == i], 0.25)) for i in np.unique(clients)), default=float("nan"))


def iterations(run: Any) -> float:
    """How many were done."""
    return float(run["round"][-1])


def total_seconds(run: Any) -> float:
    """Of all iterations of a run."""
    return iterations(run) * iteration_seconds(run)
