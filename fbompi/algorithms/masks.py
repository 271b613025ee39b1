"""Submodels: which coordinates of x and y each client holds in a round, and averages over those who hold them.

Client i can hold a fraction c_i of the model (`clients.capacity`). A policy picks ⌈c_i·K⌉ of the K units that the
problem names (`Problem.units`: a feature, a hidden unit, with all their coordinates in x and in y; those of no unit are
held by all), or, where it names none, of the coordinates of x and of those of y:

    static       a subset of each client's own, drawn once
    ordered      always the first (HeteroFL: Diao, Ding, Tarokh 2021)
    rolling      a window that moves on by `stride` units every round (FedRolex: Alam et al. 2022; it moves by 1)
    importance   the largest norms in the current x and y, equals in an order of each client's own (by weight and with a
                 gradient through the mask: FIARSE; here by unit, the mask being fixed in a round, as in RABO)
    given        from a file: `mask_file`

A mask is a function of the seed, the client, the round and the current values: nothing has to be saved. Where clients
own blocks of x, a client's mask is over its own block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.aggregation import holders as holders_of
from fbompi.algorithms.mask_file import Given, read_masks
from fbompi.algorithms.setting import Setting
from fbompi.config import AtLeast
from fbompi.errors import UserError
from fbompi.links.link import Link
from fbompi.messages import Array, Update, pack_mask
from fbompi.randomness import stream

COVERING = {  # Definition 3 of RABO, for `Method.figure_meanings`
    "covering_x": "C_x*: the fewest clients that held a coordinate of x in a round in which anybody did, so far",
    "covering_y": "C_y*: the same of y",
}


@dataclass(kw_only=True)
class MaskParameters:
    """Parameters of submodels, for all methods that train them."""

    masks: Annotated[
        Literal["importance", "rolling", "ordered", "static", "given"], "which units clients hold, see clients.capacity"
    ] = "importance"
    masked: Annotated[
        Literal["both", "x", "y"], "of which variable clients hold a part; of the other they hold all"
    ] = "both"
    stride: Annotated[int, "masks rolling: units by which the window moves every round", AtLeast(1)] = 1
    masks_file: Annotated[str, "masks given: .npz of masks x and y, or .csv of units, one row per client"] = ""


@dataclass(kw_only=True)
class Covering:
    """What a state remembers of who held what: the least numbers so far."""

    covering_x: float = math.inf
    covering_y: float = math.inf

    def cover(self, holders_x: Array | None = None, holders_y: Array | None = None) -> None:
        """Count the holders of a round: those of each coordinate."""
        if holders_x is not None:
            self.covering_x = min(self.covering_x, _fewest(holders_x))
        if holders_y is not None:
            self.covering_y = min(self.covering_y, _fewest(holders_y))

    def covering(self) -> dict[str, float]:
        """What `COVERING` promises; unknown before anybody has held anything."""
        found = {"covering_x": self.covering_x, "covering_y": self.covering_y}
        return {name: number if math.isfinite(number) else math.nan for name, number in found.items()}


def _fewest(holders: Array) -> float:
    return float(holders[holders > 0].min()) if holders.any() else math.inf


@dataclass(frozen=True)
class Group:
    """Units among which a client's capacity is shared out: to which each coordinate belongs, −1 to none."""

    count: int
    x: Array
    y: Array


class Submodels:
    """The masks of a run."""

    def __init__(self, parameters: MaskParameters, setting: Setting) -> None:
        self.p, self.setting = parameters, setting
        self.groups = _groups(setting, parameters.masked)
        self._groups: dict[tuple[int, int], list[Group]] = {}
        if not any(group.count for group in self.groups) and setting.capacity.min() < 1:
            raise UserError(
                f'algorithm.masked = "{parameters.masked}": clients.capacity = {setting.capacity.min():g} and no '
                "coordinates that this problem allows to be left out"
            )
        self.given: Given | None = None
        if parameters.masks == "given":
            self.given = read_masks(parameters.masks_file, self)

    def deal(self, round_: int, x: Array, y: Array) -> Dealt:
        """The masks of one outer round, which begins at (x, y)."""
        return Dealt(self, round_, x, y)

    def limit(self, client: int, count: int) -> int:
        """How many of `count` units a client can hold; at least one."""
        return min(count, max(1, math.ceil(self.setting.capacity[client] * count - 1e-9)))

    def masks(self, round_: int, client: int, x: Array, y: Array) -> tuple[Array, Array]:
        """Which coordinates of its block of x, and of y, a client holds."""
        if self.given is not None:
            return self.given(round_, client)
        block = self.setting.shapes.blocks[client]
        mask_x, mask_y = np.ones(block.stop - block.start, np.bool_), np.ones(y.size, np.bool_)
        for number, group in enumerate(self.client_groups(block)):
            held = np.zeros(group.count + 1, np.bool_)
            held[-1] = True  # of coordinates that belong to no unit: −1
            held[self._choose(number, group, client, round_, x[block], y)] = True
            mask_x &= held[group.x]
            mask_y &= held[group.y]
        return mask_x, mask_y

    def client_groups(self, block: slice) -> list[Group]:
        """The units of a client that owns this block of x, numbered among themselves."""
        key = block.start, block.stop
        if key not in self._groups:
            self._groups[key] = [_within(group, block) for group in self.groups]
        return self._groups[key]

    def _choose(self, number: int, group: Group, client: int, round_: int, x: Array, y: Array) -> Array:
        """The units of this group that a client holds."""
        n = self.limit(client, group.count)
        if self.p.masks == "ordered":
            return np.arange(n)
        if self.p.masks == "rolling":
            return (round_ * self.p.stride + np.arange(n)) % max(group.count, 1)
        own = stream(self.setting.seed, "mask", client, number).permutation(group.count)
        if self.p.masks == "static":
            return own[:n]
        size = group.count + 1
        squares = np.bincount(group.x + 1, x**2, size)[1:] + np.bincount(group.y + 1, y**2, size)[1:]
        return np.lexsort((own, -squares))[:n]


class Dealt:
    """The masks of one round, what is sent under them, and averages of what comes back."""

    def __init__(self, submodels: Submodels, round_: int, x: Array, y: Array) -> None:
        self.submodels, self.shapes = submodels, submodels.setting.shapes
        self.aggregation = submodels.setting.aggregation
        self._at = round_, x, y
        self._masks: dict[int, tuple[Array, Array]] = {}

    def of(self, client: int) -> tuple[Array, Array]:
        """Which coordinates of its block of x, and of y, a client holds."""
        if client not in self._masks:
            round_, x, y = self._at
            self._masks[client] = self.submodels.masks(round_, client, x, y)
        return self._masks[client]

    def ask(self, link: Link, kind: str, clients: Iterable[int] | Array, *arrays: Array) -> list[Update]:
        """One synchronous round: each of these clients is sent its masks, and of these arrays what it holds.

        The task must take ``held_x held_y`` first; of an array whose word is ``part_x`` or ``part_y``, the whole vector
        is given here.
        """
        words = link.functions[kind].takes[2:]
        for client in map(int, clients):
            mask_x, mask_y = self.of(client)
            block = self.shapes.blocks[client]
            cut = {"part_x": lambda v: v[block][mask_x], "part_y": lambda v: v[mask_y]}  # noqa: B023  (used at once)
            parts = [cut[word](array) if word in cut else array for word, array in zip(words, arrays, strict=True)]
            link.send([client], kind, pack_mask(mask_x), pack_mask(mask_y), *parts)
        return link.collect()

    def mean_y(self, updates: Sequence[Update], place: int = 0) -> tuple[Array, Array]:
        """The average of a part of y over those who hold a coordinate, and how many they are; 0 where nobody does."""
        places = [np.flatnonzero(self.of(update.client)[1]) for update in updates]
        total = self.aggregation.total(self.shapes.dim_y, places, [update.arrays[place] for update in updates])
        holders = holders_of(self.shapes.dim_y, places)
        return total / np.maximum(holders, 1), holders

    def mean_x(self, updates: Sequence[Update], place: int = 0) -> tuple[Array, Array]:
        """The same for x, as the average over all that answered: what one client owns is 0 for the others."""
        clients, blocks = [update.client for update in updates], self.shapes.blocks
        places = [blocks[client].start + np.flatnonzero(self.of(client)[0]) for client in clients]
        total = self.aggregation.total(self.shapes.dim_x, places, [update.arrays[place] for update in updates])
        holders = holders_of(self.shapes.dim_x, places)
        share = np.minimum(self.shapes.owners / max(len(updates), 1), 1.0)
        return share * total / np.maximum(holders, 1), holders

    def covered(self, updates: Sequence[Update]) -> tuple[Array, Array]:
        """How many of the clients that answered hold each coordinate of x, and of y."""
        of_x, of_y = np.zeros(self.shapes.dim_x, np.int64), np.zeros(self.shapes.dim_y, np.int64)
        for client in {update.client for update in updates}:
            mask_x, mask_y = self.of(client)
            of_x[self.shapes.blocks[client]] += mask_x
            of_y += mask_y
        return of_x, of_y


def _groups(setting: Setting, masked: str) -> list[Group]:
    """Units of x and y together where the problem names any, otherwise coordinates of each; −1 where all hold all."""
    p, q = setting.shapes.dim_x, setting.shapes.dim_y
    no_x, no_y = np.full(p, -1), np.full(q, -1)
    if setting.units is not None:
        x, y = (setting.units[0] if masked != "y" else no_x), (setting.units[1] if masked != "x" else no_y)
        return [Group(int(max(x.max(initial=-1), y.max(initial=-1))) + 1, x, y)]
    own = [Group(p, np.arange(p), no_y), Group(q, no_x, np.arange(q))]
    return own if masked == "both" else own[:1] if masked == "x" else own[1:]


def _within(group: Group, block: slice) -> Group:
    """The group as a client sees it: of x its block, units that it has no part of left out."""
    x = group.x[block]
    present = np.unique(np.concatenate([x[x >= 0], group.y[group.y >= 0]]))
    if len(present) == group.count:
        return Group(group.count, x, group.y)
    x, y = (np.where(units >= 0, np.searchsorted(present, units), -1) for units in (x, group.y))
    return Group(len(present), x, y)
