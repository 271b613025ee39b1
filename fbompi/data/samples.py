"""The samples of a data set as a federation holds them: drawn, dealt out, split, and read where they are used.

Everything that decides who holds what is a function of the labels and the seed, computed alike on every rank; features
are read by the rank that hosts a client, its rows alone, and bytes stay bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Literal, NamedTuple, TypedDict

import numpy as np

from fbompi.config import Above, AtLeast
from fbompi.data.partition import Kind, Rule, Sizes, counts, partition, split
from fbompi.data.store import DataSet, open_set
from fbompi.errors import UserError
from fbompi.messages import Array
from fbompi.randomness import stream

DataKey = Annotated[str, "data set (fbompi data list)"]
TrainKey = Annotated[int, "training samples; 0: all that the others leave", AtLeast(0)]
ValidationKey = Annotated[int, "validation samples", AtLeast(1)]
ScalingKey = Annotated[
    Literal["unit", "centred", "standard", "features"],
    "bytes to 0…1; less the mean of all; over their deviation; or every feature by its own, as floats (sets that are "
    "not bytes: as they are; less the features' means; over their deviations)",
]
PartitionKey = Annotated[Kind, "how samples are dealt out to clients"]
DTypeKey = Annotated[Literal["float64", "float32"], "precision of the clients' arithmetic"]


class Part(NamedTuple):
    """Positions of one client's samples: the first two among those drawn, the last among those for the test."""

    train: Array
    validation: Array
    test: Array


class Coding(TypedDict):
    """How the kernels are to read stored features: scale·feature + shift."""

    scale: float
    shift: float


@dataclass(eq=False)
class Samples:
    """What every problem on a data set has in common."""

    data: DataKey = "digits"
    train: TrainKey = 0
    validation: ValidationKey = 300
    test: Annotated[int, "test samples; 0: the set's own test part, or what the others leave", AtLeast(0)] = 0
    scaling: ScalingKey = "centred"
    partition: PartitionKey = "iid"
    classes_per_client: Annotated[int, "partition classes: classes that each client holds", AtLeast(1)] = 2
    shards_per_client: Annotated[int, "partition shards: shards that each client holds", AtLeast(1)] = 2
    alpha: Annotated[float, "partition dirichlet: how even; small is heterogeneous", Above(0)] = 0.5
    sizes: Annotated[Sizes, "how many samples each client holds"] = "equal"
    power: Annotated[float, "sizes power: the k-th largest share is proportional to k^−power", AtLeast(0)] = 1.0
    dtype: DTypeKey = "float64"
    seed: Annotated[int, "seed of drawing, dealing out and corruption", AtLeast(0)] = 0

    def __post_init__(self) -> None:
        self.rule = Rule(
            self.partition, self.classes_per_client, self.shards_per_client, self.alpha, self.sizes, self.power
        )
        self.set: DataSet = open_set(self.data)
        self.classes = self.set.classes
        if self.classes < 2:
            raise UserError(f'problem.data = "{self.data}": has one class only; expected two at least')
        everything = self.set.labels("train")
        pool = self.kept(everything)
        order = pool[stream(self.seed, "problem").permutation(len(pool))]
        dropped = stream(self.seed, "problem", 2).permutation(np.setdiff1d(np.arange(len(everything)), pool))
        own_test = "test" in self.set.parts
        room = len(order) if own_test else len(order) - max(0, max(self.test, 1) - len(dropped))
        wanted = self.train + self.validation if self.train else room
        if not self.train and not own_test and not self.test:
            raise UserError(f"problem.train = 0: {self.data} has no test part of its own: set problem.test, or train")
        if wanted > room or wanted <= self.validation:
            key = "test" if self.test and not own_test else "train" if self.train else "validation"
            raise UserError(
                f"problem.{key} = {getattr(self, key)}: {self.data} has {len(order)} samples for this; "
                f"train = {self.train}, validation = {self.validation}"
                + ("" if own_test else f" and test = {self.test or 'the rest, at least 1'}")
            )
        # Positions in the train part of the set. Every rank keeps these, so they are as small as they can be.
        self.drawn = _small(np.sort(order[:wanted]))
        self.labels = _small(everything[self.drawn])  # the true ones
        self.train = wanted - self.validation
        self.test_part = "test" if own_test else "train"
        self.for_test = self._test_samples(np.concatenate([order[wanted:], dropped]))
        self.test_labels = _small((self.set.labels("test") if own_test else everything)[self.for_test])
        if not np.isin(self.test_labels, self.labels).any():
            raise UserError(f'problem.data = "{self.data}": no class of its test part is among those to train on')

    def kept(self, labels: Array) -> Array:
        """Which samples of the set's train part are used at all."""
        return np.arange(len(labels))

    def _test_samples(self, left: Array) -> Array:
        """Positions in the test part, or in the train part where the set has only that one."""
        if self.test_part == "test":
            left = stream(self.seed, "problem", 1).permutation(self.set.parts["test"])
        if self.test > len(left):
            raise UserError(f"problem.test = {self.test}: there are only {len(left)} samples for it in {self.data}")
        return _small(np.sort(left[: self.test or len(left)]))

    @lru_cache(maxsize=2)  # noqa: B019  (a problem lives as long as its run)
    def parts(self, clients: int) -> list[Part]:
        """Who holds which samples."""
        held = partition(self.rule, self.labels, clients, self.seed, least=2)
        tests = partition(Rule("iid"), self.test_labels, clients, self.seed, least=0)
        parts = zip(*split(held, self.validation, self.seed), tests, strict=True)
        return [Part(*map(_small, part)) for part in parts]

    def dealing(self, clients: int) -> tuple[str, dict[str, Array]]:
        """What a person wants to know of the partition: a sentence, and samples by client and class of each part."""
        parts, classes = self.parts(clients), int(max(self.labels.max(), self.test_labels.max())) + 1
        tables = {
            "train": counts([part.train for part in parts], self.labels, classes),
            "validation": counts([part.validation for part in parts], self.labels, classes),
            "test": counts([part.test for part in parts], self.test_labels, classes),
        }
        return f"{self.data}: {self.rule.describe()}, seed {self.seed}", tables

    # Features

    @property
    def features(self) -> int:
        return self.set.features

    @property
    def _bytes(self) -> bool:
        """Whether features stay the bytes that are stored."""
        return self.set.largest > 0 and self.scaling != "features"

    @cached_property
    def coding(self) -> Coding:
        """What turns bytes into features; features that are read as floats are scaled already."""
        if not self._bytes:
            return {"scale": 1.0, "shift": 0.0}
        mean = float(self.set.mean.mean()) / self.set.largest
        square = float((self.set.deviation**2 + self.set.mean**2).mean()) / self.set.largest**2
        by = float(np.sqrt(max(square - mean**2, 0))) if self.scaling == "standard" else 1.0
        by = by or 1.0  # nothing varies
        return {"scale": 1 / (self.set.largest * by), "shift": 0.0 if self.scaling == "unit" else -mean / by}

    def training_rows(self, which: Array) -> Array:
        """Features of samples drawn."""
        return self._rows("train", self.drawn[which])

    def test_rows(self, which: Array) -> Array:
        return self._rows(self.test_part, self.for_test[which])

    def _rows(self, part: str, which: Array) -> Array:
        rows = self.set.rows(part, which)
        if self._bytes:
            return rows
        if self.scaling == "unit":
            return rows.astype(self.dtype)
        deviation = np.where(self.set.deviation > 0, self.set.deviation, 1)
        by = 1 if self.scaling == "centred" else deviation
        result = np.empty(rows.shape, self.dtype)
        for begin in range(0, len(rows), 1024):  # no second copy of the whole
            result[begin : begin + 1024] = (rows[begin : begin + 1024] - self.set.mean) / by
        return result


def _small(numbers: Array) -> Array:
    """Whole numbers from 0 in the smallest type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))
