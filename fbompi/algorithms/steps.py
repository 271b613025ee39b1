"""Step sizes on x: a constant, a schedule of the papers, or a rule that needs no tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.config import Above
from fbompi.messages import Array

StepYKey = Annotated[float | Literal["auto"], "β, the step on y; auto: 1/ℓ", Above(0)]


@dataclass(kw_only=True)
class UpperStep:
    """Parameters of the step on x, for all methods that take one along a hypergradient."""

    step_x: Annotated[float | Literal["auto"], "the step on x; auto: distance over gradients", Above(0)] = "auto"
    schedule: Annotated[Literal["constant", "theory", "decay"], "of the step on x (theory: also of that on y)"] = (
        "constant"
    )
    decay: Annotated[float, "schedule decay: rounds until the step on x is halved", Above(0)] = 100.0


@dataclass
class DistanceOverGradients:
    """η_t = max_{s≤t}‖x_s − x_0‖ / √(Σ_{s≤t}‖h_s‖²): the DoG rule of Ivgi, Hinder and Carmon (2023).

    It asks for no constant of the problem. The first step moves x by 1 % of (1 + its root mean square) per coordinate.
    """

    origin: Array
    distance: float
    squares: float = 0.0

    @classmethod
    def at(cls, x: Array) -> DistanceOverGradients:
        return cls(x, 0.01 * float(np.sqrt(x.size) + np.linalg.norm(x)))

    def step(self, x: Array, h: Array) -> float:
        """The step to take from x along −h."""
        self.distance = max(self.distance, float(np.linalg.norm(x - self.origin)))
        self.squares += float(h @ h)
        return self.distance / np.sqrt(self.squares) if self.squares > 0 else 0.0


def schedule(name: str, base: float, t: int, decay: float, theory: float) -> float:
    """The step of round t.

    ``constant``: base. ``theory``: base times the factor of a method's theorem (`Method.theory_factor`), whose unknown
    constants are in `base`. ``decay``: base/(1 + t/decay), for noise that must vanish.
    """
    if name == "theory":
        return base * theory
    if name == "decay":
        return base / (1.0 + t / decay)
    return base
