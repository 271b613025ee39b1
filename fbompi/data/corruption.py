"""Spoiling data on purpose: wrong labels and rare classes. Labels are 0 … classes − 1; those given stay as they are."""

from __future__ import annotations

import math

import numpy as np


def change(labels: np.ndarray, rate: float, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Labels of which exactly round(rate·n) are changed to another class, uniformly among the others."""
    changed = labels.astype(np.int64)
    wrong = _chosen(len(labels), rate, rng)
    changed[wrong] = (changed[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return changed


def noise_and_flip(labels: np.ndarray, noise: float, flip: float, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Labels of which exactly round(noise·n) are noisy: with probability `flip` drawn anew, all classes alike."""
    changed = labels.astype(np.int64)
    noisy = _chosen(len(labels), noise, rng)
    anew = noisy[rng.random(len(noisy)) < flip]
    changed[anew] = rng.integers(0, classes, len(anew))
    return changed


def long_tail(labels: np.ndarray, ratio: float, rng: np.random.Generator) -> np.ndarray:
    """The samples kept where the class at position i among those that occur keeps ⌊nᵢ·ratioⁱ⌋ of them, at least 1."""
    kept = [np.empty(0, np.int64)]
    for position, label in enumerate(np.unique(labels)):
        samples = rng.permutation(np.flatnonzero(labels == label))
        keep = math.floor(len(samples) * ratio**position + 1e-9)  # 100·0.29 is 28.999999999999996
        kept.append(samples[: max(1, keep)])
    return np.sort(np.concatenate(kept))


def _chosen(samples: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Exactly round(share·n) samples, at random."""
    return rng.permutation(samples)[: round(share * samples)]
