"""Dealing samples out to clients: every sample to exactly one, the same for any number of ranks.

What makes a client what it is (its classes, its shards, its shares of every class, its size) is drawn from a stream
of its own, before and apart from the order of the samples: a second set of samples with the same classes, dealt out
by the same rule and seed, goes to like clients.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fbompi.errors import UserError
from fbompi.randomness import stream

Kind = Literal["iid", "classes", "sorted", "shards", "dirichlet"]
Sizes = Literal["equal", "power"]

ORDER, CLIENTS, SPLIT = range(3)  # streams of a seed
FLATTEST = 1e100  # a larger α changes nothing, and sums of its gamma numbers overflow


@dataclass(frozen=True)
class Rule:
    """How samples are dealt out.

    ``iid``: shuffled. ``sorted``: in order of their label, a stretch per client. ``shards``: several stretches per
    client, at random. ``classes``: a number of classes per client. ``dirichlet``: the clients' shares of a class are
    drawn from Dirichlet(`alpha`). With `sizes` "power" the shares of the clients fall as rank^−`power`.
    """

    kind: Kind
    classes_per_client: int = 2
    shards_per_client: int = 2
    alpha: float = 0.5
    sizes: Sizes = "equal"
    power: float = 1.0

    def __post_init__(self) -> None:
        _expect("partition", self.kind, self.kind in get_args(Kind), f"one of {', '.join(get_args(Kind))}")
        _expect("sizes", self.sizes, self.sizes in get_args(Sizes), f"one of {', '.join(get_args(Sizes))}")
        _expect("classes_per_client", self.classes_per_client, self.classes_per_client >= 1, "at least 1")
        _expect("shards_per_client", self.shards_per_client, self.shards_per_client >= 1, "at least 1")
        _expect("alpha", self.alpha, 0 < self.alpha <= FLATTEST, f"a number above 0, at most {FLATTEST:g}")
        _expect("power", self.power, 0 <= self.power < np.inf, "a finite number, at least 0")
        if self.sizes == "power" and self.kind in ("shards", "dirichlet"):
            raise UserError(f'problem.sizes = "power": with partition "{self.kind}" sizes follow from the partition')

    def describe(self) -> str:
        """One line for people and for the run file."""
        classes, shards = _number(self.classes_per_client, "class", "es"), _number(self.shards_per_client, "shard", "s")
        law = "" if self.sizes == "equal" else f"rank^-{self.power:g}"
        sizes = f"sizes as {law}" if law else "equal sizes"
        return {
            "iid": f"shuffled, {sizes}",
            "sorted": f"label-sorted, one stretch per client, {sizes}",
            "shards": f"label-sorted, {shards} per client, {sizes}",
            "classes": f"{classes} per client, a class dealt to its holders {f'as {law}' if law else 'equally'}",
            "dirichlet": f"shares of every class drawn from Dirichlet({self.alpha:g})",
        }[self.kind]


def _expect(key: str, value: object, valid: bool, expected: str) -> None:
    if not valid:
        shown = f'"{value}"' if isinstance(value, str) else value
        raise UserError(f"problem.{key} = {shown}: expected {expected}")


def _number(count: int, noun: str, plural: str) -> str:
    return f"{count} {noun}{plural if count > 1 else ''}"


def partition(rule: Rule, labels: np.ndarray, clients: int, seed: int, least: int = 1) -> list[np.ndarray]:
    """The sample indices of every client, in order; at least `least` each, taken from the largest if need be."""
    if len(labels) < clients * least:
        need = f", and every client needs {least}" if least > 1 else ""
        raise UserError(f"clients.count = {clients}: there are only {len(labels)} samples to deal out{need}")
    order = stream(seed, "partition", ORDER).permutation(len(labels))
    if rule.kind != "iid":
        order = order[np.argsort(labels[order], kind="stable")]
    owners = np.empty(len(labels), np.int64)
    owners[order] = _owners(rule, labels, clients, stream(seed, "partition", CLIENTS), least)
    ends = np.cumsum(np.bincount(owners, minlength=clients))
    return np.split(np.argsort(owners, kind="stable"), ends[:-1])


def _owners(rule: Rule, labels: np.ndarray, clients: int, rng: np.random.Generator, least: int) -> np.ndarray:
    """The client of every sample, in the order in which samples are dealt (unless iid, that of their labels)."""
    if rule.kind in ("iid", "sorted"):
        return np.repeat(np.arange(clients), _apportion(len(labels), _weights(rule, clients, rng), least))
    if rule.kind == "shards":
        return _shards(rule.shards_per_client, len(labels), clients, rng)
    totals = np.unique(labels, return_counts=True)[1]
    if rule.kind == "classes":
        table = _classes(rule, totals, clients, rng, least)
    else:
        table = _dirichlet(rule.alpha, totals, clients, rng)
    return np.repeat(np.tile(np.arange(clients), len(totals)), _topped_up(table, least).ravel())


def _weights(rule: Rule, clients: int, rng: np.random.Generator) -> np.ndarray:
    """What the clients' sizes are to be in proportion to."""
    if rule.sizes == "equal":
        return np.ones(clients)
    ranks = rng.permutation(clients) + 1.0
    return np.maximum(ranks**-rule.power, np.finfo(float).tiny)  # no zeros: some clients alone must have proportions


def _shards(each: int, samples: int, clients: int, rng: np.random.Generator) -> np.ndarray:
    """The owners where clients take shards at random; neither shards nor clients differ by more than one sample."""
    if clients * each > samples:
        raise UserError(
            f"problem.shards_per_client = {each}: {clients} clients would take {clients * each} shards, "
            f"and there are only {samples} samples"
        )
    owner, place = np.divmod(rng.permutation(clients * each), each)
    sizes = _apportion(samples, np.ones(clients))[owner]
    return np.repeat(owner, sizes // each + (place < sizes % each))


def _classes(rule: Rule, totals: np.ndarray, clients: int, rng: np.random.Generator, least: int) -> np.ndarray:
    """How many samples of every class (rows) each client gets where it holds a number of classes."""
    each = min(rule.classes_per_client, len(totals))
    if each * clients < len(totals):
        raise UserError(
            f"problem.classes_per_client = {rule.classes_per_client}: {clients} clients hold {each * clients} classes "
            f"at most, and there are {len(totals)}: some samples would belong to nobody"
        )
    weights = _weights(rule, clients, rng)
    held = _held(each, len(totals), clients, rng)
    floor = max(1, -(-least // each))  # of every class, so that a client has `least` in all
    table = np.zeros((len(totals), clients), np.int64)
    for row, total, holds in zip(table, totals, held.T):
        holders = rng.permutation(np.flatnonzero(holds))  # ties between holders are broken at random
        row[holders] = _apportion(total, weights[holders], min(floor, total // len(holders)))
    return table


def _held(each: int, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Which classes (columns) a client holds: it takes those that fewest have taken, ties broken at random."""
    held = np.zeros((clients, classes), bool)
    takers = np.zeros(classes)
    for client in rng.permutation(clients):
        taken = np.argsort(takers + rng.random(classes), kind="stable")[:each]  # the random part only breaks ties
        held[client, taken] = True
        takers[taken] += 1
    return held


def _dirichlet(alpha: float, totals: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """How many samples of every class (rows) each client gets where shares are drawn from Dirichlet(α).

    Cumulative rounding: within one of the share, and exact in sum. Rows are mixed afterwards: equal shares of half a
    sample would otherwise give every sample of every class to the same half of the clients.
    """
    shares = rng.dirichlet(np.full(clients, alpha), len(totals))
    ends = np.rint(np.cumsum(shares, axis=1) * totals[:, None]).astype(np.int64)
    ends[:, -1] = totals  # whatever the shares add up to in floating point
    return rng.permuted(np.diff(ends, axis=1, prepend=0), axis=1)


def _topped_up(table: np.ndarray, least: int) -> np.ndarray:
    """A table of classes × clients where clients with fewer than `least` samples have got them from the largest."""
    sizes = table.sum(axis=0)
    aims = _levelled(np.maximum(sizes, least), sizes.sum())
    kept = table.copy()
    for giver in np.flatnonzero(aims < sizes):
        kept[:, giver] = _levelled(table[:, giver], aims[giver])
    given = np.repeat(np.arange(len(table)), (table - kept).sum(axis=1))
    takers = np.repeat(np.arange(len(sizes)), np.maximum(aims - sizes, 0))
    np.add.at(kept, (given, takers), 1)
    return kept


def _apportion(total: int, weights: np.ndarray, least: int = 0) -> np.ndarray:
    """Whole numbers in proportion to weights, by largest remainder; none below `least`."""
    exact = total * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return _levelled(np.maximum(counts, least), total)


def _levelled(counts: np.ndarray, total: int) -> np.ndarray:
    """These counts, the largest cut down to one level so that the sum is no more than `total`."""
    level = bisect_left(range(counts.max() + 1), True, key=lambda height: np.minimum(counts, height).sum() >= total)
    cut = np.minimum(counts, level)
    cut[np.flatnonzero(cut == level)[: cut.sum() - total]] -= 1
    return cut


def counts(parts: list[np.ndarray], labels: np.ndarray, classes: int) -> np.ndarray:
    """How many samples of every class (columns) each client (rows) holds."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def split(parts: list[np.ndarray], second: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Every client's samples in two, at random and in proportion: `second` in all go to the second."""
    rng = stream(seed, "partition", SPLIT)
    mixed = [rng.permutation(part) for part in parts]
    taken = _shares_of(second, np.array([len(part) for part in parts]))
    first = [np.sort(part[n:]) for part, n in zip(mixed, taken)]
    return first, [np.sort(part[:n]) for part, n in zip(mixed, taken)]


def _shares_of(second: int, sizes: np.ndarray) -> np.ndarray:
    """How many of `second` samples come from each client, leaving it one at least and taking one at least."""
    total, clients = int(sizes.sum()), len(sizes)
    if sizes.min() < 2:
        raise UserError(
            f"problem.validation = {second}: client {sizes.argmin()} holds {_number(sizes.min(), 'sample', 's')}, "
            "and needs two, one for training and one for validation"
        )
    if not clients <= second <= total - clients:
        raise UserError(
            f"problem.validation = {second}: expected {clients} to {total - clients} of {total} samples, "
            f"for each of {clients} clients to have one for training and one for validation"
        )
    ends = (2 * second * np.cumsum(sizes) + total) // (2 * total)
    taken = _levelled(np.clip(np.diff(ends, prepend=0), 1, sizes - 1), second)
    return sizes - _levelled(sizes - taken, total - second)
