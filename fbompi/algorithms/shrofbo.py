"""ShroFBO (Yang, Xiao, Ji 2023): SimFBO made robust to clients that take different numbers of local steps.

A client's sums are divided by the sum of its weights (normalised aggregation, as FedNova's: Wang et al. 2020), so that
each client counts alike, however many steps it took; with equal numbers of steps it is SimFBO. The paper was not at
hand: the purpose is that of its abstract, the form is recalled. The server divides, which needs the sums of weights
anyway; the paper's factor ρ, their mean, is in the steps here, as in `simfbo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fbompi.algorithms.simfbo import SimFbo
from fbompi.messages import Array, Update


class ShroFbo(SimFbo):
    """SimFBO with normalised sums: no bias towards clients that take more local steps."""

    name = "shrofbo"

    def aggregate(self, updates: Sequence[Update]) -> tuple[Array, Array, Array]:
        """The means of the clients' weighted means."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # a weight may be garbage
            means = [replace(u, arrays=tuple(a / u.arrays[3][0] for a in u.arrays)) for u in updates]
        return super().aggregate(means)
