"""Every sample goes to exactly one client, as the rule says, whoever computes it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from fbompi.data.partition import Kind, Rule, counts, partition, split
from fbompi.errors import UserError

KINDS = get_args(Kind)
SIZED = ("iid", "sorted", "classes")  # kinds that take sizes = "power"
MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


def shuffled(*totals: int) -> np.ndarray:
    """Labels of which label c occurs totals[c] times, in no order."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(totals)), totals))


def sizes(parts: list[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in parts])


def digest(parts: list[np.ndarray]) -> str:
    return hashlib.sha256(b"|".join(part.tobytes() for part in parts)).hexdigest()


BALANCED = shuffled(*[6000] * 10)


class Case(NamedTuple):
    """The arguments of a partition that is possible."""

    rule: Rule
    labels: np.ndarray
    clients: int
    seed: int
    least: int


@st.composite
def cases(draw: Any, kinds: tuple[str, ...] = KINDS, rarest: int = 0) -> Case:
    """Rules of these kinds on labels of 1 to 8 classes, some of them missing or rare."""
    totals = draw(st.lists(st.integers(rarest, rarest + 60), min_size=1, max_size=8).filter(any))
    least = draw(st.integers(0, min(4, sum(totals))))
    clients = draw(st.integers(1, min(40, sum(totals) // max(least, 1))))
    kind = draw(st.sampled_from(kinds))
    occurring = np.count_nonzero(totals)
    rule = Rule(
        kind,
        classes_per_client=draw(st.integers(-(-occurring // clients), 10)),
        shards_per_client=draw(st.integers(1, max(1, sum(totals) // clients))),
        alpha=draw(st.sampled_from([1e-6, 0.05, 0.5, 5, 1e9])),
        sizes=draw(st.sampled_from(["equal", "power"] if kind in SIZED else ["equal"])),
        power=draw(st.sampled_from([0, 0.5, 1, 3, 1e4])),
    )
    return Case(rule, shuffled(*totals), clients, draw(st.integers(0, 2**32)), least)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_sample_is_dealt_out_once_and_every_client_has_the_least(case: Case) -> None:
    parts = partition(*case)
    assert len(parts) == case.clients and sizes(parts).min() >= case.least
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(case.labels)))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


@settings(max_examples=60, deadline=None)
@given(cases(kinds=("iid", "sorted", "shards")))
def test_equal_sizes_differ_by_one_at_most(case: Case) -> None:
    if case.rule.sizes == "equal":
        assert np.ptp(sizes(partition(*case))) <= 1


@settings(max_examples=60, deadline=None)
@given(cases(kinds=("classes",), rarest=200))
def test_clients_hold_exactly_so_many_classes_and_classes_have_alike_many_holders(case: Case) -> None:
    held = counts(partition(*case), case.labels, 8) > 0
    occurring = len(set(case.labels))
    assert (held.sum(axis=1) == min(case.rule.classes_per_client, occurring)).all()
    assert np.ptp(held.sum(axis=0)[:occurring]) <= 1


@settings(max_examples=60, deadline=None)
@given(cases(kinds=("sorted",)))
def test_sorted_clients_follow_each_other_in_the_order_of_labels(case: Case) -> None:
    held = [np.sort(case.labels[part]) for part in partition(*case)]
    assert (np.diff(np.concatenate(held)) >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clients", [1, 7, 100])
def test_the_table_of_counts_adds_up_to_the_clients_and_to_the_classes(kind: Kind, clients: int) -> None:
    labels = shuffled(*MNIST)
    parts = partition(Rule(kind, classes_per_client=10), labels, clients, 3)
    table = counts(parts, labels, 12)
    np.testing.assert_array_equal(table.sum(axis=1), sizes(parts))
    np.testing.assert_array_equal(table.sum(axis=0), [*MNIST, 0, 0])


def test_two_shards_each_for_a_hundred_clients_are_200_shards_of_300() -> None:
    table = counts(partition(Rule("shards"), BALANCED, 100, 0), BALANCED, 10)
    assert (table.sum(axis=1) == 600).all()
    assert set(np.unique(table)) == {0, 300, 600}  # a class of 6000 is 20 whole shards
    assert ((table // 300).sum(axis=0) == 20).all()


def test_clients_with_two_shards_of_mnist_see_four_classes_at_most() -> None:
    labels = shuffled(*MNIST)
    seen = (counts(partition(Rule("shards"), labels, 100, 0), labels, 10) > 0).sum(axis=1)
    assert seen.max() <= 4 and seen.mean() < 2.5


def test_shards_of_mnist_are_stretches_of_its_sorted_labels() -> None:
    """Of 200 stretches of 300, nine at most lie across the border of two digits: 209 pieces of one digit each."""
    labels = shuffled(*MNIST)
    table = counts(partition(Rule("shards"), labels, 100, 1), labels, 10)
    assert (table.sum(axis=1) == 600).all() and (table.sum(axis=0) == MNIST).all()
    assert np.count_nonzero(table) <= 209
    assert np.count_nonzero(table % 300) <= 18  # elsewhere only whole stretches


def test_sorted_mnist_in_100_parts_goes_to_the_clients_in_order() -> None:
    labels = shuffled(*MNIST)
    parts = partition(Rule("sorted"), labels, 100, 0)
    assert (sizes(parts) == 600).all()
    np.testing.assert_array_equal(np.concatenate([np.sort(labels[part]) for part in parts]), np.sort(labels))


def test_sorted_clients_see_two_classes_at_most() -> None:
    for clients in (10, 18, 100):
        seen = (counts(partition(Rule("sorted"), BALANCED, clients, 0), BALANCED, 10) > 0).sum(axis=1)
        assert seen.max() <= 2


@pytest.mark.parametrize("each", range(1, 11))
@pytest.mark.parametrize("law", ["equal", "power"])
def test_a_hundred_clients_hold_exactly_so_many_digits(each: int, law: Any) -> None:
    labels = shuffled(*MNIST)
    held = counts(partition(Rule("classes", classes_per_client=each, sizes=law), labels, 100, 0), labels, 10) > 0
    assert (held.sum(axis=1) == each).all() and (held.sum(axis=0) == 10 * each).all()


def test_holders_of_a_class_get_shares_in_proportion_to_their_ranks() -> None:
    table = counts(partition(Rule("classes", classes_per_client=10, sizes="power"), BALANCED, 20, 0), BALANCED, 10)
    ranked = np.sort(table, axis=0)[::-1]
    harmonic = (1 / np.arange(1, 21)).sum()
    assert np.abs(ranked - 6000 / harmonic / np.arange(1, 21)[:, None]).max() <= 1


def test_which_clients_hold_a_class_is_drawn_and_not_regular() -> None:
    pairs = set()
    for seed in range(40):
        table = counts(partition(Rule("classes"), BALANCED, 10, seed), BALANCED, 10)
        pairs |= {tuple(np.flatnonzero(row)) for row in table}
    assert len(pairs) == 45  # every pair of ten digits occurs among 400 clients


def test_a_second_set_of_samples_goes_to_like_clients() -> None:
    test = shuffled(*[800] * 10)
    for rule in (Rule("classes"), Rule("classes", sizes="power"), Rule("dirichlet", alpha=0.1), Rule("shards")):
        shares = [counts(partition(rule, labels, 50, 4), labels, 10) / len(labels) for labels in (BALANCED, test)]
        assert np.abs(shares[0] - shares[1]).max() <= 2 / len(test)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_shares_of_a_class_have_the_second_moment_of_dirichlet(alpha: float) -> None:
    """E Σ share² = (α + 1)/(Nα + 1) for N clients."""
    labels, clients = shuffled(*[500] * 200), 10
    shares = counts(partition(Rule("dirichlet", alpha=alpha), labels, clients, 0), labels, 200) / 500
    assert (shares**2).sum(axis=0).mean() == pytest.approx((alpha + 1) / (clients * alpha + 1), rel=0.07)


def test_dirichlet_with_large_alpha_is_nearly_iid_and_with_small_alpha_concentrated() -> None:
    alike, apart = (counts(partition(Rule("dirichlet", alpha=a), BALANCED, 20, 0), BALANCED, 10) for a in (1e9, 1e-4))
    assert np.abs(alike - 300).max() <= 1
    assert (apart.max(axis=0) > 0.99 * 6000).all()


def test_dirichlet_does_not_give_all_rare_classes_to_the_same_clients() -> None:
    """Half a sample of each of 40 classes: sizes are those of 40 tosses of a coin, not all or nothing."""
    held = sizes(partition(Rule("dirichlet", alpha=1e9), shuffled(*[50] * 40), 100, 0))
    assert abs(held - 20).max() <= 4 * np.sqrt(10)
    assert held.std() == pytest.approx(np.sqrt(10), rel=0.25)


@pytest.mark.parametrize("kind", ["iid", "sorted"])
@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
def test_sizes_follow_the_power_law(kind: Kind, power: float) -> None:
    held = sizes(partition(Rule(kind, sizes="power", power=power), BALANCED, 50, 0))
    slope, _ = np.polyfit(np.log(np.arange(1, 51)), np.log(np.sort(held)[::-1]), 1)
    assert slope == pytest.approx(-power, abs=0.005)
    assert held.argmax() != 0 or held.argmin() != 49  # who has which rank is drawn


@pytest.mark.parametrize("kind", ["iid", "sorted", "dirichlet"])
def test_what_small_clients_lack_comes_from_the_largest(kind: Kind) -> None:
    rule = Rule(kind, alpha=0.1, sizes="equal" if kind == "dirichlet" else "power", power=2)
    before, after = (sizes(partition(rule, shuffled(*[100] * 10), 30, 0, least)) for least in (0, 8))
    assert before.min() < 8 and after.min() == 8
    gave = after < before
    np.testing.assert_array_equal(after[~gave], np.maximum(before[~gave], 8))
    assert after[gave].min() >= after.max() - 1


def test_the_same_arguments_give_the_same_partition_and_another_seed_another() -> None:
    for kind in KINDS:
        first, again, other = (digest(partition(Rule(kind), BALANCED, 100, seed)) for seed in (0, 0, 1))
        assert first == again != other


def test_a_fresh_process_deals_out_the_same_bits() -> None:
    code = (
        "from test_partition import *\n"
        "print([digest(partition(Rule(kind), BALANCED, 100, 5)) for kind in KINDS])\n"
        "print([digest(half) for half in split(partition(Rule('iid'), BALANCED, 100, 5), 1000, 5)])"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    here = [digest(partition(Rule(kind), BALANCED, 100, 5)) for kind in KINDS]
    halves = [digest(half) for half in split(partition(Rule("iid"), BALANCED, 100, 5), 1000, 5)]
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "12"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{here}\n{halves}\n", done.stderr


@pytest.mark.parametrize(
    ("rule", "clients", "least", "line"),
    [
        ({"kind": "iid"}, 31, 1, "clients.count = 31: there are only 30 samples to deal out"),
        ({"kind": "dirichlet"}, 8, 4, "clients.count = 8: there are only 30 samples to deal out, and every client"),
        ({"kind": "shards"}, 16, 1, "problem.shards_per_client = 2: 16 clients would take 32 shards"),
        (
            {"kind": "classes"},
            1,
            1,
            "problem.classes_per_client = 2: 1 clients hold 2 classes at most, and there are 3",
        ),
        ({"kind": "shards", "sizes": "power"}, 3, 1, 'problem.sizes = "power": with partition "shards"'),
        ({"kind": "dirichlet", "sizes": "power"}, 3, 1, 'problem.sizes = "power": with partition "dirichlet"'),
        ({"kind": "random"}, 3, 1, 'problem.partition = "random": expected one of iid, classes'),
        ({"kind": "iid", "sizes": "odd"}, 3, 1, 'problem.sizes = "odd": expected one of equal, power'),
        ({"kind": "dirichlet", "alpha": 0}, 3, 1, "problem.alpha = 0: expected a number above 0"),
        ({"kind": "dirichlet", "alpha": float("nan")}, 3, 1, "problem.alpha = nan: expected"),
        ({"kind": "iid", "power": -1.0}, 3, 1, "problem.power = -1.0: expected"),
        ({"kind": "classes", "classes_per_client": 0}, 3, 1, "problem.classes_per_client = 0: expected at least 1"),
        ({"kind": "shards", "shards_per_client": 0}, 3, 1, "problem.shards_per_client = 0: expected at least 1"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused_by_key_and_value(rule: dict, clients: int, least: int, line: str) -> None:
    with pytest.raises(UserError) as refusal:
        partition(Rule(**rule), shuffled(10, 10, 10), clients, 0, least)
    assert refusal.value.line.startswith(line)


def test_a_rule_describes_itself_in_one_line() -> None:
    assert Rule("shards").describe() == "label-sorted, 2 shards per client, equal sizes"
    assert Rule("sorted", sizes="power").describe() == "label-sorted, one stretch per client, sizes as rank^-1"
    lines = [Rule(kind, classes_per_client=1, alpha=0.25).describe() for kind in KINDS]
    assert len(set(lines)) == len(KINDS) and all(line.isprintable() for line in lines)
    assert "1 class per client" in lines[KINDS.index("classes")] and "0.25" in lines[KINDS.index("dirichlet")]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(2, 50), min_size=1, max_size=30), st.data())
def test_a_split_is_exact_in_all_and_leaves_every_client_both_kinds(held: list[int], data: st.DataObject) -> None:
    total, clients = sum(held), len(held)
    second = data.draw(st.integers(clients, total - clients))
    parts = np.split(np.random.default_rng(0).permutation(total), np.cumsum(held)[:-1])
    train, validation = split(parts, second, 0)
    assert sizes(validation).sum() == second and min(sizes(train).min(), sizes(validation).min()) >= 1
    for part, a, b in zip(parts, train, validation):
        np.testing.assert_array_equal(np.sort(np.concatenate([a, b])), np.sort(part))
        assert (np.diff(a) > 0).all() and (np.diff(b) > 0).all()
    exact = second * np.array(held) / total
    if (exact >= 1).all() and (exact <= np.array(held) - 1).all():
        assert np.abs(sizes(validation) - exact).max() < 1


def test_a_split_is_drawn_by_the_seed() -> None:
    parts = partition(Rule("iid"), BALANCED, 10, 0)
    first, again, other = (digest(split(parts, 6000, seed)[1]) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(
    ("held", "second", "line"),
    [
        ([5, 5, 5], 2, "problem.validation = 2: expected 3 to 12 of 15 samples"),
        ([5, 5, 5], 13, "problem.validation = 13: expected 3 to 12 of 15 samples"),
        ([5, 1, 5], 4, "problem.validation = 4: client 1 holds 1 sample, and needs two"),
    ],
)
def test_a_split_that_leaves_a_client_without_is_refused(held: list[int], second: int, line: str) -> None:
    with pytest.raises(UserError) as refusal:
        split(np.split(np.arange(sum(held)), np.cumsum(held)[:-1]), second, 0)
    assert refusal.value.line.startswith(line)
