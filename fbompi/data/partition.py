"""Dealing samples out to clients: every sample to exactly one, the same for any number of ranks."""

from __future__ import annotations

import numpy as np

from fbompi.errors import UserError
from fbompi.randomness import stream

PARTS = ("training", "validation", "test")


def partition(name: str, labels: np.ndarray, clients: int, seed: int, part: str) -> list[np.ndarray]:
    """The sample indices of every client, sizes differing by at most one.

    ``iid``: shuffled. ``sorted``: in order of their label, so that a client sees one or two classes only.
    """
    if clients > len(labels):
        raise UserError(f"clients.count = {clients}: there are only {len(labels)} {part} samples to deal out")
    order = stream(seed, "partition", PARTS.index(part)).permutation(len(labels))
    if name == "sorted":
        order = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(part) for part in np.array_split(order, clients)]
