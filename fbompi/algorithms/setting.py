"""What a method is told before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.aggregation import MEAN, Aggregation
from fbompi.config import Above
from fbompi.errors import UserError
from fbompi.messages import Array, Shapes
from fbompi.participation import Participation

SmoothnessKey = Annotated[
    float | Literal["auto"],
    "ℓ, which bounds the lower Hessians of batches; auto: the largest of the shards', or more where more is met",
    Above(0),
]


@dataclass
class Setting:
    """The federation as a method sees it: sizes, constants and projections, never data."""

    shapes: Shapes
    smoothness: float  # ℓ, the largest over the clients
    rounds: int
    seed: int
    participation: Participation
    capacity: Array  # of every client: the fraction of the model that it can hold
    project_x: Callable[[Array], Array]
    project_y: Callable[[Array], Array]
    met: Callable[[], float]  # the largest curvature that clients have met so far
    batch: int = 0  # samples per oracle call; 0: all of the shard
    # Of nonsmooth problems only: the outer objective and a subgradient of it, its modulus of convexity μ_H, and M
    outer: Callable[[Array], float] = float
    outer_subgradient: Callable[[Array], Array] = np.zeros_like
    outer_convexity: float = 0.0
    components: int = 0
    # Of smooth problems that have units: to which one each coordinate of x and of y belongs
    units: tuple[Array, Array] | None = None
    aggregation: Aggregation = MEAN  # how vectors of clients become one

    def ell(self, given: float | str) -> float:
        """ℓ as the configuration gives it; or the clients' bound, and where a task has met more, 1.5 times that."""
        if given != "auto":
            return float(given)
        met = self.met()
        return self.smoothness if met <= self.smoothness else 1.5 * met

    def need_whole_shards(self, key: str) -> None:
        """Conjugate gradients need one Hessian in all products: on batches each would be another's."""
        if self.batch:
            raise UserError(f'{key} = "cg": needs whole shards in all products, and clients.batch = {self.batch}')

    @property
    def clients(self) -> int:
        return len(self.shapes.blocks)
