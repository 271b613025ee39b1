"""How vectors of clients become one: their mean, or a rule that some clients' garbage cannot carry away.

    mean      of all
    clip      of all, after vectors longer than `clip` times the median length were shortened to that
    trimmed   of what is left of each coordinate when a part `trim` of the clients is cut off at either end
    median    of each coordinate

A coordinate that fewer than three clients have keeps the mean under every rule: who of two is right cannot be known.
Where clients differ, a rule other than the mean has another limit than the mean has: trimmed means and medians of
skewed values are not their means.

A value that is not finite counts as the largest of all; a vector with such a value is clipped to 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fbompi.config import Clients

Array = np.ndarray

FEW = 3  # clients, from which on there is a majority


@dataclass(frozen=True)
class Aggregation:
    """One of the rules, with what [clients] says of it."""

    rule: str = "mean"
    clip: float = 3.0
    trim: float = 0.2

    @classmethod
    def of(cls, settings: Clients) -> Aggregation:
        return cls(settings.aggregate, settings.clip, settings.trim)

    @property
    def robust(self) -> bool:
        return self.rule != "mean"

    def over(self, vectors: Sequence[Array] | Array) -> Array:
        """One vector for those of several clients, all of the same shape."""
        if not self.robust or len(vectors) < FEW:
            return np.mean(vectors, axis=0)
        rows = np.asarray(vectors)
        flat = rows.reshape(len(rows), -1)
        return self._center(flat, np.ones(flat.shape, np.bool_)).reshape(rows.shape[1:])

    def total(self, size: int, places: Sequence[slice | Array], parts: Sequence[Array]) -> Array:
        """The sum of parts of a vector of this size, each at its place; or as many times the rule as have a coordinate.

        Over how many clients that is an average, whoever asks knows: over those who have the coordinate (`holders`), or
        over all, of whom the others have a 0 there.
        """
        if not self.robust:
            return _sum(size, places, parts)
        if all(part.size == size for part in parts):
            return len(parts) * self.over(parts)
        with np.errstate(invalid="ignore", over="ignore"):
            total = _sum(size, places, parts)
        count = holders(size, places)
        shared = np.flatnonzero(count >= FEW)
        if shared.size:
            column = np.full(size, -1)
            column[shared] = np.arange(shared.size)
            rows = np.zeros((len(parts), shared.size))
            held = np.zeros(rows.shape, np.bool_)
            for row, has, place, part in zip(rows, held, places, parts):
                at = column[place]
                row[at[at >= 0]] = part[at >= 0]
                has[at[at >= 0]] = True
            total[shared] = count[shared] * self._center(rows, held)
        return total

    def _center(self, rows: Array, held: Array) -> Array:
        """The rule over those that are held of each column."""
        with np.errstate(invalid="ignore", over="ignore"):
            return self._clipped(rows, held) if self.rule == "clip" else self._trimmed(rows, held)

    def _trimmed(self, rows: Array, held: Array) -> Array:
        """The mean of the middle of each column, summed in rising order: that of the clients is nothing to it."""
        n = len(rows)
        if held.all():
            cut = self._cut(n)
            return _sorted_columns(rows)[cut : n - cut].mean(axis=0)
        values = _sorted_columns(np.where(held, rows, np.inf))
        count = held.sum(axis=0)
        cuts = np.array([self._cut(k) for k in range(n + 1)])[count]
        rank = np.arange(n)[:, None]
        middle = (rank >= cuts) & (rank < count - cuts)
        return np.where(middle, values, 0.0).sum(axis=0) / middle.sum(axis=0)

    def _cut(self, count: int) -> int:
        """How many of so many values go at either end: at least the part asked for, never all."""
        most = max(0, (count - 1) // 2)
        return most if self.rule == "median" else min(most, math.ceil(self.trim * count - 1e-9))

    def _clipped(self, rows: Array, held: Array) -> Array:
        """The mean after shortening; lengths are root mean squares, so that parts of different size compare."""
        largest = np.abs(np.where(held, rows, 0.0)).max(axis=1)
        finite = np.isfinite(largest)
        rows = np.where(held & finite[:, None], rows, 0.0)  # a vector that is not finite has no direction
        scaled = rows / np.where(finite & (largest > 0), largest, 1.0)[:, None]  # squares of the rows may overflow
        lengths = largest * np.sqrt((scaled**2).sum(axis=1) / np.maximum(held.sum(axis=1), 1))
        bound = self.clip * float(np.median(np.where(finite, lengths, np.inf)[held.any(axis=1)]))
        longer = finite & (lengths > bound)
        factors = np.where(longer, bound / np.where(longer, lengths, 1.0), 1.0)
        return (rows * factors[:, None]).sum(axis=0) / held.sum(axis=0)


MEAN = Aggregation()


def holders(size: int, places: Sequence[slice | Array]) -> Array:
    """How many of these parts have each coordinate."""
    count = np.zeros(size, np.int64)
    for place in places:
        count[place] += 1
    return count


def _sum(size: int, places: Sequence[slice | Array], parts: Sequence[Array]) -> Array:
    total = np.zeros(size)
    for place, part in zip(places, parts):
        total[place] += part
    return total


def _sorted_columns(rows: Array) -> Array:
    """Each column in rising order, what is not finite last; along contiguous memory, three times as fast."""
    columns = np.ascontiguousarray(rows.T)
    columns = np.where(np.isfinite(columns), columns, np.inf)
    columns.sort(axis=1)
    return columns.T
