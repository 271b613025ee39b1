"""What the experiments of the RABO paper have in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fbompi.reproduce.experiment import Keys

PAPER = (
    "Li, Zhang, Zheng, Shi, Yuan, Cheng, Yu: Distributed Bilevel Optimization with Dual Pruning for Resource-limited "
    "Clients"
)
CAPACITIES = [1.0, 0.5, 0.25, 0.125, 0.0625]
POLICIES = {"Static": "static", "HeteroFL": "ordered", "FedRolex": "rolling", "FIARSE": "importance"}
MEANINGS = {
    "Static": "drawn once", "HeteroFL": "the first units", "FedRolex": "a moving window", "FIARSE": "largest weights",
}  # fmt: skip

FEWSHOT: Keys = {
    "run.problem": "fewshot", "problem.data": "omniglot", "problem.dtype": "float32", "clients.count": 10,
    "delays.model": "none", "record.iterates": False,
}  # fmt: skip
FEWSHOT_SMALL: Keys = {
    "problem.ways": 5, "problem.shots": 1, "problem.queries": 10, "problem.tasks": 50, "problem.test_tasks": 50,
    "problem.hidden": 32,
}  # fmt: skip
FEWSHOT_FULL: Keys = {"problem.tasks": 400, "problem.test_tasks": 200, "problem.hidden": 64, "clients.batch": 10}
BACKBONE = (
    "The paper's backbone is a ResNet-12; here it is one layer of 64 units (32 at the small scale), and every task "
    "has a head of its own, because one head for all tasks, as printed, can be no better than chance in a new one."
)
FORMULAS = (
    "Printed formulas that step uphill (RABO's lines 10 and 18, RAFBO's equation 10) are corrected; RAFBO draws some "
    "of the coordinates of x to perturb."
)

MARGIN = 0.01  # of accuracy: what is less is chance, with the seeds and test samples that there are


def two_levels(method: str, coordinates: int = 8) -> dict[str, Any]:
    """The keys of RABO or RAFBO: five local steps, an inverse of five terms or of a map of five steps."""
    own = {"algorithm.terms": 5} if method == "RABO" else {
        "algorithm.coordinates": coordinates, "algorithm.map_steps": 5
    }  # fmt: skip
    return {"run.algorithm": method.lower(), "clients.local_steps": 5, "algorithm.masks": "importance", **own}


FEDMBO: Mapping[str, Any] = {"run.algorithm": "fedmbo", "algorithm.inner_rounds": 5, "algorithm.terms": 5}


def covering_file(least: int) -> str:
    """Masks of ten clients over 32 units, a quarter each, the least held quarter by `least` of them."""
    return str(Path(__file__).with_name(f"rabo_covering_{least}.csv"))
