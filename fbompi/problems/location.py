"""The location problem: of all points with the least total distance to many balls, the one nearest to an anchor (FISM).

    min ½‖x − a‖²   over the minimisers in [−10, 10]^n of   Σ_i Σ_j dist(x, ball(c_j, r_j))

Centres, the anchor and the start are uniform in the box, radii uniform in (0, 1). The nonsmooth family has a protocol
of its own: the outer objective and a subgradient of it, and sweeps of projected subgradient steps over a shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fbompi.config import AtLeast
from fbompi.errors import UserError
from fbompi.kernels import sweeps
from fbompi.messages import Array
from fbompi.randomness import stream

BOX = (-10.0, 10.0)


@dataclass
class Shard:
    """One client's balls."""

    centres: Array
    radii: Array


@dataclass(eq=False)
class Location:
    """The point nearest to an anchor among those with the least total distance to balls."""

    name = "location"
    outer_convexity = 1.0

    dim_x: Annotated[int, "n, the dimension of the space", AtLeast(1)] = 10
    balls: Annotated[int, "balls of all clients together", AtLeast(1)] = 1000
    seed: Annotated[int, "seed of balls and anchor", AtLeast(0)] = 0

    def __post_init__(self) -> None:
        self.components = self.balls
        self.anchor = stream(self.seed, "problem").uniform(*BOX, self.dim_x)

    def shard(self, client: int, clients: int) -> Shard:
        if clients > self.balls:
            raise UserError(f"clients.count = {clients}: there are only {self.balls} balls to deal out")
        mine = np.array_split(np.arange(self.balls), clients)[client]
        rng = stream(self.seed, "problem", 1)  # all balls are drawn by everyone: the same for any number of clients
        centres = rng.uniform(*BOX, (self.balls, self.dim_x))
        return Shard(centres[mine].copy(), rng.uniform(0, 1, self.balls)[mine])

    def start(self, rng: np.random.Generator) -> Array:
        return rng.uniform(*BOX, self.dim_x)

    def outer(self, x: Array) -> float:
        return 0.5 * float((x - self.anchor) @ (x - self.anchor))

    def outer_subgradient(self, x: Array) -> Array:
        return x - self.anchor

    def component_count(self, shard: Shard) -> int:
        return len(shard.radii)

    def value(self, shard: Shard, x: Array) -> float:
        return sweeps.location_value(shard.centres, shard.radii, x)

    def sweep(self, shard: Shard, x: Array, gamma: float, shift: Any, order: Array | None) -> Array:
        return sweeps.location_sweep(shard.centres, shard.radii, x, gamma, shift, order, BOX)

    def fresh(self, weight: float) -> sweeps.Fresh:
        return sweeps.Fresh(weight, l2=1.0, anchor=self.anchor)

    def project(self, x: Array) -> Array:
        return np.clip(x, *BOX)
