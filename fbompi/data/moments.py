"""Mean and standard deviation of every feature, in one pass over blocks of samples."""

from __future__ import annotations

import numpy as np


class Moments:
    """Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances (1979)."""

    def __init__(self, features: int) -> None:
        self.count = 0
        self.mean = np.zeros(features)
        self._squares = np.zeros(features)  # sums of squared distances from the mean

    def add(self, block: np.ndarray) -> None:
        """Take in rows of samples."""
        values = block.astype(np.float64)
        total = self.count + len(values)
        with np.errstate(over="ignore", invalid="ignore"):  # it shows in the result
            mean = values.mean(axis=0)
            values -= mean
            step = mean - self.mean
            self._squares += np.einsum("ij,ij->j", values, values) + step**2 * (self.count * len(values) / total)
            self.mean += step * (len(values) / total)
        self.count = total

    def deviation(self) -> np.ndarray:
        """Standard deviation, of the samples themselves (divided by their number)."""
        return np.sqrt(self._squares / self.count)
