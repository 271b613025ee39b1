"""Rules that average clients' vectors: the mean where clients agree, and deaf to a few that send garbage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fbompi.aggregation import MEAN, Aggregation

RULES = {rule: Aggregation(rule) for rule in ("mean", "clip", "trimmed", "median")}
ROBUST = {rule: aggregation for rule, aggregation in RULES.items() if rule != "mean"}
NUMBERS = st.floats(-1e3, 1e3, allow_nan=False, width=32).map(float)
GARBAGE = st.sampled_from([np.nan, np.inf, -np.inf, 1e300, -1e300, 1e12])

rules = pytest.mark.parametrize("rule", RULES)
robust = pytest.mark.parametrize("rule", ROBUST)


@st.composite
def clients(draw: st.DrawFn, least: int = 1) -> np.ndarray:
    return draw(arrays(np.float64, (draw(st.integers(least, 12)), draw(st.integers(1, 6))), elements=NUMBERS))


@rules
@given(vector=arrays(np.float64, 5, elements=NUMBERS), count=st.integers(1, 9))
def test_clients_that_agree_are_believed(rule, vector, count):
    np.testing.assert_allclose(RULES[rule].over([vector] * count), vector, rtol=1e-14, atol=1e-300)


@rules
@given(rows=clients(), chance=st.randoms())
def test_the_order_of_clients_does_not_matter(rule, rows, chance):
    order = list(range(len(rows)))
    chance.shuffle(order)
    np.testing.assert_allclose(RULES[rule].over(rows[order]), RULES[rule].over(rows), rtol=1e-12, atol=1e-9)


@given(rows=clients())
def test_the_median_is_that_of_numpy(rows):
    if len(rows) >= 3:
        np.testing.assert_allclose(RULES["median"].over(rows), np.median(rows, axis=0), rtol=1e-14, atol=1e-300)


@given(rows=clients(least=3), trim=st.sampled_from([0.1, 0.2, 0.3, 0.45]))
def test_the_trimmed_mean_is_that_of_the_middle(rows, trim):
    cut = min((len(rows) - 1) // 2, int(np.ceil(trim * len(rows) - 1e-9)))
    middle = np.sort(rows, axis=0)[cut : len(rows) - cut]
    np.testing.assert_allclose(
        Aggregation("trimmed", trim=trim).over(rows), middle.mean(axis=0), rtol=1e-12, atol=1e-12
    )


@given(rows=clients(least=3))
def test_clipping_leaves_alone_what_is_of_usual_length(rows):
    lengths = np.linalg.norm(rows, axis=1)
    if lengths.max() < 2.9 * np.median(lengths):
        np.testing.assert_allclose(RULES["clip"].over(rows), rows.mean(axis=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["trimmed", "median"])
@given(honest=clients(least=7), bad=st.lists(GARBAGE, min_size=1, max_size=2))
def test_a_minority_cannot_leave_the_range_of_the_others(rule, honest, bad):
    aggregation = Aggregation(rule, trim=0.25)
    rows = np.concatenate([honest, np.array([[value] * honest.shape[1] for value in bad])])
    found = aggregation.over(rows)
    slack = 1e-9 * (1 + np.abs(honest).max())
    assert (found >= honest.min(axis=0) - slack).all() and (found <= honest.max(axis=0) + slack).all()


@given(honest=clients(least=7), bad=st.lists(GARBAGE, min_size=1, max_size=2))
def test_a_clipped_vector_is_no_longer_than_the_longest_that_is_allowed(honest, bad):
    rows = np.concatenate([honest, np.array([[value] * honest.shape[1] for value in bad])])
    found = RULES["clip"].over(rows)
    lengths = np.sort(np.linalg.norm(honest, axis=1))
    middle = lengths[min(len(honest) - 1, (len(rows) + 1) // 2)]  # not below the median of all
    assert np.isfinite(found).all() and np.linalg.norm(found) <= max(3 * middle, lengths.max()) * (1 + 1e-9)


@rules
@given(rows=clients(least=3))
def test_parts_that_are_the_whole_vector_are_averaged_as_whole_vectors(rule, rows):
    places = [slice(0, rows.shape[1])] * len(rows)
    total = RULES[rule].total(rows.shape[1], places, list(rows))
    np.testing.assert_allclose(total / len(rows), RULES[rule].over(rows), rtol=1e-12, atol=1e-12)


@rules
@given(rows=clients(least=3), data=st.data())
def test_every_coordinate_is_averaged_over_those_who_hold_it(rule, rows, data):
    held = data.draw(arrays(np.bool_, rows.shape))
    places, parts = [np.flatnonzero(mask) for mask in held], [row[mask] for row, mask in zip(rows, held)]
    total = RULES[rule].total(rows.shape[1], places, parts)
    for column in range(rows.shape[1]):
        values = rows[held[:, column], column]
        if rule != "clip":  # which shortens whole vectors
            expected = len(values) * RULES[rule].over(values[:, None])[0] if len(values) else 0.0
            np.testing.assert_allclose(total[column], expected, rtol=1e-9, atol=1e-9)
        elif len(values):
            assert abs(total[column]) <= np.abs(values).sum() * (1 + 1e-9)


@robust
@given(row=arrays(np.float64, 4, elements=NUMBERS))
def test_of_two_clients_nobody_can_say_who_is_right(rule, row):
    rows = [row, -3 * row + 1]
    assert np.array_equal(ROBUST[rule].over(rows), MEAN.over(rows))


@robust
def test_blocks_that_only_their_owner_has_are_taken_from_it(rule):
    places, parts = (
        [slice(0, 2), slice(2, 5), slice(5, 6)],
        [np.array([1.0, 2]), np.array([3.0, 4, 5]), np.array([6.0])],
    )
    assert ROBUST[rule].total(6, places, parts).tolist() == [1, 2, 3, 4, 5, 6]
