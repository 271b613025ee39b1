"""What a reader of original files hands to the writer of the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

MOST_FEATURES = 1 << 22  # of a sample: several rows of so many are in memory at once
BLOCK = 1 << 22  # bytes of features that are read, checked and written at once


class Progress(Protocol):
    """Hears how much there is to do, in bytes, and how much is done."""

    def expect(self, count: int) -> None:
        """So many more bytes are to be read or written."""

    def advance(self, count: int) -> None:
        """So many bytes were read or written."""


class Silent:
    """Hears, and says nothing."""

    def expect(self, count: int) -> None: ...

    def advance(self, count: int) -> None: ...


SILENT = Silent()


@dataclass
class Part:
    """Samples in their order, in blocks of (features, labels); labels count from 0."""

    samples: int
    blocks: Iterable[tuple[np.ndarray, np.ndarray]]


@dataclass
class Content:
    """A set, before it is stored."""

    name: str
    title: str
    description: str
    classes: int
    features: int
    dtype: np.dtype
    parts: dict[str, Part]
    sources: list[str]
    image: tuple[int, ...] = ()
    label_values: np.ndarray | None = None  # what the original has for labels 0, 1, ...: numbers or words

    def bytes(self) -> int:
        """Size of all features."""
        return sum(part.samples for part in self.parts.values()) * self.features * self.dtype.itemsize

    @property
    def largest(self) -> float:
        """255 for images of bytes, else 0.0."""
        return 255.0 if self.image and self.dtype == np.uint8 else 0.0


def label_type(classes: int) -> np.dtype:
    """The smallest type that holds all labels."""
    return np.min_scalar_type(max(classes - 1, 0))


def in_blocks(features: np.ndarray, labels: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Arrays that are in memory, block by block."""
    step = rows_per_block(features[:1].nbytes)
    for begin in range(0, len(features), step):
        yield features[begin : begin + step], labels[begin : begin + step]


def rows_per_block(row: int) -> int:
    """How many rows of so many bytes make a block."""
    return max(1, BLOCK // max(row, 1))
