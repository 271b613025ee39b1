"""Most recent vectors: what makes an asynchronous server's average an average over all clients.

For every client and every kind of vector the server remembers the last one it was sent, and in which of its own
steps the client had been asked for it. Averages run over all m clients, in client order.

Clients that were left out for good (`Link.gone`) are asked no more. Their last vectors stand, as those of anyone who is
not there, but are no older for it: nobody waits for them, and steps need not be shortened for vectors that will not
answer any step. Averages leave them out where they were never heard, where vectors may not be older than a bound and
theirs are, and where their answers were rejected (`Link.barred`): what was accepted of these before is no better.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

import numpy as np

from fbompi.aggregation import MEAN, Aggregation
from fbompi.config import AtLeast
from fbompi.errors import UserError
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, Update
from fbompi.participation import NOBODY

NEVER = -(1 << 62)  # the stamp of a client that has not been heard
Point = Any  # the arrays of a task, the same for all clients, or a function of the client that gives them
EVER = 1 << 60  # a bound that only a client never heard exceeds


QuorumKey = Annotated[
    int | Literal["auto"], "answers that end an asynchronous round; 0: from all clients; auto: 3, or all", AtLeast(0)
]


def quorum_of(given: int | str, clients: int) -> int:
    """How many answers end a round; more than there are clients are refused."""
    if given != "auto" and int(given) > clients:
        raise UserError(f"algorithm.quorum = {given}: there are only {clients} clients")
    return min(3, clients) if given == "auto" else int(given) or clients


def bound_of(given: int) -> int:
    """The oldest vector allowed; −1 stands for any."""
    return EVER if given < 0 else given


def shortened(age: float, adaptive: bool) -> float:
    """What a step on vectors of this mean age is multiplied with, where steps adapt to it."""
    return 1 / (1 + age) if adaptive else 1.0


class Recent:
    """The most recent answers of one kind from every client.

    The parts of all clients lie one behind the other in one flat array per word, so that a client which owns a
    block of x takes no more room than its block.
    """

    kept = ("parts", "stamps")  # for checkpoints

    def __init__(self, words: tuple[str, ...], shapes: Shapes, aggregation: Aggregation = MEAN) -> None:
        self.words, self.shapes, self.aggregation = words, shapes, aggregation
        m = len(shapes.blocks)
        lengths = [[shapes.layout((word,), c).numbers for c in range(m)] for word in words]
        self.offsets = [np.concatenate([[0], np.cumsum(ls)]) for ls in lengths]
        self.parts = [np.zeros(int(offsets[-1])) for offsets in self.offsets]
        self.stamps = np.full(m, NEVER, np.int64)

    def remember(self, update: Update) -> None:
        """Put an answer in the place of the client's last one, unless that was asked for later."""
        c = update.client
        if update.task.stamp < self.stamps[c]:
            return
        self.stamps[c] = update.task.stamp
        for flat, offsets, array in zip(self.parts, self.offsets, update.arrays, strict=True):
            flat[offsets[c] : offsets[c + 1]] = array.ravel()

    def of(self, client: int) -> list[Array]:
        """The most recent vectors of one client; zeros, if there are none."""
        return [flat[offsets[client] : offsets[client + 1]] for flat, offsets in zip(self.parts, self.offsets)]

    def ages(self, now: int) -> Array:
        """How many of the server's steps ago each client was asked."""
        return now - self.stamps

    def older(self, clients: Collection[int], now: int, bound: float) -> list[int]:
        """Those of these clients whose vectors are older than `bound`; a client never heard is older than any."""
        return [c for c in sorted(clients) if now - int(self.stamps[c]) > bound]

    def means(self, without: Collection[int] = ()) -> list[Array]:
        """The average over all clients, but for some, of each word."""
        kept = [c for c in range(len(self.stamps)) if c not in without]
        words = zip(self.words, self.parts, self.offsets)
        return [self._mean(word, flat, offsets, kept) for word, flat, offsets in words]

    def _mean(self, word: str, flat: Array, offsets: Array, kept: list[int]) -> Array:
        shapes, m = self.shapes, len(self.stamps)
        total = shapes.dim_x * (shapes.dim_y if word == "xy" else 1) if word.startswith("x") else offsets[1]
        if offsets[-1] == m * total:  # every client has the whole vector
            rows = flat.reshape(m, total)
            mean = self.aggregation.over(rows if len(kept) == m else rows[kept])
        else:
            scale = total // shapes.dim_x
            blocks = [slice(b.start * scale, b.stop * scale) for b in (shapes.blocks[c] for c in kept)]
            parts = [flat[offsets[c] : offsets[c + 1]] for c in kept]
            mean = self.aggregation.total(total, blocks, parts) / len(kept)
        return mean.reshape(-1, shapes.dim_y) if word in ("xy", "yy") else mean


def gather(
    link: Link, tables: dict[str, Recent], idle: set[int], kind: str, point: Point, now: int, quorum: int, bound: float,
    invited: Array,
) -> tuple[list[Array], Array]:  # fmt: skip
    """One asynchronous round: hand `point` to whoever is idle, wait for `quorum` answers of its kind, average over all.

    Of the idle only the `invited` are asked, and those never heard or older than `bound` steps. Answers of another
    kind, asked for in an earlier phase, are remembered and their clients handed this point, but they do not end the
    round: it would step on nothing new. The round is prolonged while some client's vector is older than `bound`, or
    was never sent; it ends early where nobody is left to be waited for, and where only some are invited and no more
    than the quorum of them are idle, with half of these (unless the quorum is everyone).
    Returns the means of all clients' most recent vectors, and the ages of those of clients that are not gone.
    """
    recent = tables[kind]
    here, left = np.zeros(len(recent.stamps), bool), _left(link)
    here[invited] = True
    here &= left
    asked = sum(bool(here[c]) for c in idle)
    # Waiting for all that are asked is waiting for the slowest.
    if here.sum() < left.sum() and asked <= quorum < left.sum():
        quorum = max(1, asked // 2)
    heard: set[int] = set()
    while True:
        # Of those who may be asked, the others have answered at this very point.
        wanted = left & (recent.stamps < now) & (here | (recent.ages(now) > bound))
        ready = sorted(c for c in idle if wanted[c])
        idle.difference_update(ready)
        if callable(point):
            for client in ready:
                link.send((client,), kind, *point(client), stamp=now)
        else:
            link.send(ready, kind, *point, stamp=now)
        if link.outstanding:
            for update in link.take():
                tables[update.kind].remember(update)
                idle.add(update.client)
                if update.kind == kind:
                    heard.add(update.client)
            left = _left(link)
        if (len(heard) >= quorum or not link.outstanding) and (ages := recent.ages(now)[left]).max() <= bound:
            link.end_round()
            return recent.means(left_out(link, recent, now, bound)), ages


def left_out(link: Link, recent: Recent, now: int, bound: float) -> set[int]:
    """The clients whose vectors no longer count."""
    return {*link.barred, *recent.older(link.gone, now, bound)}


def _left(link: Link) -> Array:
    """Of every client whether it is not gone."""
    left = np.ones(link.clients, bool)
    left[sorted(link.gone)] = False
    if not left.any():
        raise UserError(NOBODY)
    return left
