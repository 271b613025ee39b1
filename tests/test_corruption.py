"""Data are spoiled exactly as much as asked for, uniformly, and the same by whoever does it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fbompi.data.corruption import change, long_tail, noise_and_flip
from fbompi.data.store import open_set


def shuffled(*totals: int) -> np.ndarray:
    """Labels of which label c occurs totals[c] times, in no order."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(totals)), totals))


BALANCED = shuffled(*[6000] * 10)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200), st.floats(0, 1), st.integers(2, 10), st.integers(0, 99))
def test_change_makes_exactly_the_share_wrong(n: int, rate: float, classes: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, n).astype(np.uint8)
    given = labels.copy()
    changed = change(labels, rate, classes, np.random.default_rng(seed))
    np.testing.assert_array_equal(labels, given)
    assert changed.dtype == np.int64 and (changed != labels).sum() == round(rate * n)
    assert n == 0 or (changed.min() >= 0 and changed.max() < classes)


def test_changed_labels_are_uniform_among_the_other_classes() -> None:
    """χ² with 8 degrees of freedom for each true class exceeds 27.9 once in two thousand times."""
    changed = change(BALANCED, 0.5, 10, np.random.default_rng(0))
    for true in range(10):
        became = np.delete(np.bincount(changed[np.equal(BALANCED, true) & (changed != true)], minlength=10), true)
        expected = became.sum() / 9
        assert ((became - expected) ** 2 / expected).sum() < 27.9


def test_exactly_the_share_is_noisy_and_only_noisy_labels_flip() -> None:
    rng, many = np.random.default_rng(0), 10**9  # so many classes that a label drawn anew is another
    for noise in (0, 0.3, 0.77777, 1):
        assert (noise_and_flip(BALANCED, noise, 1, many, rng) != BALANCED).sum() == round(noise * 60_000)
    np.testing.assert_array_equal(noise_and_flip(BALANCED, 0.5, 0, 10, rng), BALANCED)


def test_noisy_labels_flip_with_the_probability_and_may_stay() -> None:
    before = BALANCED.copy()
    changed = noise_and_flip(BALANCED, 0.6, 0.5, 10, np.random.default_rng(0))
    np.testing.assert_array_equal(BALANCED, before)
    noisy, other = 36_000, 0.5 * 9 / 10
    found = (changed != BALANCED).sum()
    assert changed.dtype == np.int64
    assert abs(found - noisy * other) < 4 * np.sqrt(noisy * other * (1 - other))
    became = np.bincount(changed[changed != BALANCED], minlength=10)
    assert ((became - found / 10) ** 2 / (found / 10)).sum() < 29.7  # 9 degrees of freedom, once in two thousand times


@pytest.mark.parametrize("ratio", [1.0, 0.9, 0.5, 0.29, 0.01])
def test_a_long_tail_keeps_a_power_of_the_ratio_of_every_class(ratio: float) -> None:
    labels = shuffled(*[100] * 4, 0, *[1000] * 3)  # class 4 does not occur: 5 is at position 4
    kept = long_tail(labels, ratio, np.random.default_rng(0))
    assert kept.dtype == np.int64 and (np.diff(kept) > 0).all()
    percents = round(100 * ratio)
    wanted = [max(1, n * percents**i // 100**i) for i, n in enumerate([100] * 4 + [1000] * 3)]
    np.testing.assert_array_equal(np.delete(np.bincount(labels[kept], minlength=8), 4), wanted)


def test_a_long_tail_with_ratio_one_keeps_all_and_otherwise_keeps_at_random() -> None:
    np.testing.assert_array_equal(long_tail(BALANCED, 1.0, np.random.default_rng(0)), np.arange(60_000))
    some, others = (long_tail(BALANCED, 0.5, np.random.default_rng(seed)) for seed in (0, 1))
    assert len(some) == len(others) and set(some) != set(others)


@pytest.mark.parametrize("noise", [0, 0.3, 0.5, 0.7])
def test_memfbo_flips_four_fifths_of_the_noisy_labels_of_its_450_samples(noise: float) -> None:
    """100 clients' worth: "assigned to one of all labels with equal probability", hence one in ten is right again."""
    labels = np.random.default_rng(1).integers(0, 10, 45_000)
    changed = noise_and_flip(labels, noise, 0.8, 10, np.random.default_rng(0)) != labels
    expected, noisy = noise * 0.8 * 0.9, round(noise * 45_000)
    assert abs(changed.mean() - expected) <= 4 * np.sqrt(noisy * 0.72 * 0.28) / 45_000
    by_client = changed.reshape(100, 450).sum(axis=1)  # whoever holds a sample, it is as likely to be noisy
    spread = np.sqrt(450 * expected * (1 - expected))
    assert abs(by_client - 450 * expected).max() <= 4.5 * spread


def test_which_samples_are_changed_does_not_depend_on_their_labels() -> None:
    other = (BALANCED + 3) % 10
    for spoil in (
        lambda labels, rng: change(labels, 0.4, 10, rng),
        lambda labels, rng: noise_and_flip(labels, 0.4, 1.0, 10**9, rng),
    ):
        first, second = (spoil(labels, np.random.default_rng(5)) != labels for labels in (BALANCED, other))
        np.testing.assert_array_equal(first, second)
        again = spoil(BALANCED, np.random.default_rng(6)) != BALANCED
        assert (first != again).any()
        halves = first[:30_000].sum(), first[30_000:].sum()  # as many early ones as late ones
        assert abs(halves[0] - halves[1]) < 4 * np.sqrt(60_000 * 0.4 * 0.6)


def test_the_same_generator_spoils_the_same_labels() -> None:
    for spoil in (
        lambda rng: change(BALANCED, 0.4, 10, rng),
        lambda rng: noise_and_flip(BALANCED, 0.4, 0.8, 10, rng),
        lambda rng: long_tail(BALANCED, 0.7, rng),
    ):
        np.testing.assert_array_equal(spoil(np.random.default_rng(7)), spoil(np.random.default_rng(7)))


@pytest.mark.parametrize("ratio", [0.9, 0.6, 0.1 ** (2 / 9)])
def test_rabo_keeps_n_mu_to_the_i_of_the_5000_images_of_a_class(ratio: float) -> None:
    labels = shuffled(*[5000] * 10)
    kept = np.bincount(labels[long_tail(labels, ratio, np.random.default_rng(0))])
    wanted = 5000 * ratio ** np.arange(10)
    assert kept[0] == 5000 and ((kept <= wanted + 1e-6) & (kept > wanted - 1)).all()


def test_the_tail_of_the_digits_is_made_of_digits() -> None:
    labels = open_set("digits").labels("train")
    kept = long_tail(labels, 0.5, np.random.default_rng(0))
    np.testing.assert_array_equal(np.bincount(labels[kept])[:8], np.bincount(labels)[:8] // 2 ** np.arange(8))
    assert len(set(kept)) == len(kept) and kept.max() < len(labels)
