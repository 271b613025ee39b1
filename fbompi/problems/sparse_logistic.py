"""Sparse logistic selection: of all classifiers with the least loss, a sparse one of small norm (FISM).

    min ‖x‖₁ + ½‖x‖²   over the minimisers in [−100, 100]^n of   Σ_i Σ_j log(1 + exp(−t_j⟨a_j, x⟩))

Two classes of a data set, as many samples of one as of the other; t is −1 and +1. The nonsmooth family has a protocol
of its own: the outer objective and a subgradient of it, and sweeps of projected subgradient steps over a shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from fbompi.config import AtLeast
from fbompi.data.partition import Rule, counts, partition
from fbompi.data.samples import DataKey
from fbompi.data.store import open_set
from fbompi.errors import UserError
from fbompi.kernels import sweeps
from fbompi.messages import Array
from fbompi.randomness import stream

BOX = (-100.0, 100.0)


@dataclass
class Shard:
    """One client's samples, bytes where the set has bytes, and those on which it tests."""

    rows: Array
    signs: Array
    test_rows: Array
    test_signs: Array


@dataclass(eq=False)
class SparseLogistic:
    """A sparse classifier of small norm among those with the least logistic loss."""

    name = "sparse-logistic"
    outer_convexity = 1.0
    metric_meanings = {"accuracy": "fraction of test samples classified correctly"}

    data: DataKey = "digits"
    pair: Annotated[list[int], "the two classes, of t = −1 and of t = +1", AtLeast(0)] = field(
        default_factory=lambda: [0, 1]
    )
    train: Annotated[int, "training samples, half of each class", AtLeast(2)] = 240
    seed: Annotated[int, "seed of drawing and dealing out", AtLeast(0)] = 0

    def __post_init__(self) -> None:
        self.set = open_set(self.data)
        if len(set(self.pair)) != 2 or len(self.pair) != 2 or max(self.pair) >= self.set.classes:
            raise UserError(f"problem.pair = {self.pair}: expected two classes of 0 to {self.set.classes - 1}")
        self.components = self.train // 2 * 2
        rng = stream(self.seed, "problem")
        labels = self.set.labels("train")
        groups = [rng.permutation(np.flatnonzero(labels == k)) for k in self.pair]
        half, least = self.components // 2, min(map(len, groups))
        own_test = "test" in self.set.parts
        if half > least - (not own_test):
            raise UserError(f"problem.train = {self.train}: {self.data} has {least} samples of one of these classes")
        self.drawn = rng.permutation(np.concatenate([group[:half] for group in groups]))
        self.signs = self._signs(labels[self.drawn])
        self.test_part = "test" if own_test else "train"
        test_labels = self.set.labels(self.test_part)
        self.for_test = np.flatnonzero(np.isin(test_labels, self.pair))
        if not own_test:
            self.for_test = np.setdiff1d(self.for_test, self.drawn)
        if not len(self.for_test):
            raise UserError(f"problem.pair = {self.pair}: {self.data} has no samples of these classes left for a test")
        self.test_signs = self._signs(test_labels[self.for_test])
        self.dim_x = self.set.features
        self.scale = 1 / self.set.largest if self.set.largest else 1.0

    def dealing(self, clients: int) -> tuple[str, dict[str, Array]]:
        """A sentence on the partition; and how many samples of the two classes each client has."""
        parts, tests = self._parts(clients)
        text = f"{self.data}: classes {self.pair[0]} and {self.pair[1]}, {Rule('iid').describe()}, seed {self.seed}"
        return text, {
            "train": counts(parts, (self.signs > 0).astype(np.int64), 2),
            "test": counts(tests, (self.test_signs > 0).astype(np.int64), 2),
        }

    @lru_cache(maxsize=2)  # noqa: B019  (a problem lives as long as its run)
    def _parts(self, clients: int) -> tuple[list[Array], list[Array]]:
        """Who holds which of the samples drawn, and of those for the test."""
        return (
            partition(Rule("iid"), self.signs, clients, self.seed),
            partition(Rule("iid"), self.test_signs, clients, self.seed, least=0),
        )

    def _signs(self, labels: Array) -> Array:
        return np.where(labels == self.pair[1], 1.0, -1.0)

    def shard(self, client: int, clients: int) -> Shard:
        mine, test = (parts[client] for parts in self._parts(clients))
        rows, test_rows = self._rows("train", self.drawn[mine]), self._rows(self.test_part, self.for_test[test])
        return Shard(rows, self.signs[mine], test_rows, self.test_signs[test])

    def _rows(self, part: str, which: Array) -> Array:
        """Bytes as they are stored; other features less their mean and over their deviation."""
        rows = self.set.rows(part, which)
        if self.set.largest:
            return rows
        return (rows - self.set.mean) / np.where(self.set.deviation > 0, self.set.deviation, 1)

    def start(self, rng: np.random.Generator) -> Array:
        return rng.standard_normal(self.dim_x) / np.sqrt(self.dim_x)

    def outer(self, x: Array) -> float:
        return float(np.abs(x).sum()) + 0.5 * float(x @ x)

    def outer_subgradient(self, x: Array) -> Array:
        return np.sign(x) + x

    def component_count(self, shard: Shard) -> int:
        return len(shard.signs)

    def value(self, shard: Shard, x: Array) -> float:
        return sweeps.logistic_value(shard.rows, shard.signs, x, self.scale)

    def sweep(self, shard: Shard, x: Array, gamma: float, shift: Any, order: Array | None) -> Array:
        return sweeps.logistic_sweep(shard.rows, shard.signs, x, gamma, shift, order, BOX, self.scale)

    def fresh(self, weight: float) -> sweeps.Fresh:
        return sweeps.Fresh(weight, l1=1.0, l2=1.0)

    def project(self, x: Array) -> Array:
        return np.clip(x, *BOX)

    def metrics(self, shard: Shard, x: Array) -> dict[str, tuple[float, float]]:
        right = (shard.test_rows @ (self.scale * x) > 0) == (shard.test_signs > 0)
        return {"accuracy": (float(right.sum()), float(len(right)))}
