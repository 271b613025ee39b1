"""Step sizes on x: a constant, a schedule of the papers, or a rule that needs no tuning."""

from __future__ import annotations

import math
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

    Where y and v take one step for each of x's, h lags behind x, and no rule that looks at x and h alone is safe: DoG
    then diverges on quadratics of condition 20. Such methods tell the norm of what y and v lack (their `residual`): η
    may then grow by no more than a tenth per round, and when the residual exceeds 1.2 times its largest of the first
    three rounds (0.6 times, once it has been below 0.3), x has run ahead, and η is held at a quarter of what it was
    from then on. Another alarm needs twice that residual, or one that has come back.
    """

    origin: Array
    distance: float
    squares: float = 0.0
    rounds: int = 0  # with a residual
    last: float = 0.0  # step
    most: float = math.inf  # that a step may be
    usual: float = 0.0  # the largest residual of the first rounds
    alarm: float = math.inf  # the residual that cuts the step
    alarms: int = 0

    @classmethod
    def at(cls, x: Array) -> DistanceOverGradients:
        return cls(x, 0.01 * float(np.sqrt(x.size) + np.linalg.norm(x)))

    def step(self, x: Array, h: Array, residual: float | None = None) -> float:
        """The step to take from x along −h."""
        self.distance = max(self.distance, float(np.linalg.norm(x - self.origin)))
        self.squares += float(h @ h)
        step = self.distance / np.sqrt(self.squares) if self.squares > 0 else 0.0
        return step if residual is None else self._held_back(step, residual)

    def _held_back(self, step: float, residual: float) -> float:
        self.rounds += 1
        if self.rounds <= 3:
            self.usual = max(self.usual, residual)
        elif residual > self.alarm:
            self.most = min(self.most, self.last) / 4
            self.alarm = 2 * residual
            self.alarms += 1
        if residual <= 0.3 * self.usual:
            self.alarm = 0.6 * self.usual
        elif residual <= self.usual and self.alarm > 1.2 * self.usual:
            self.alarm = 1.2 * self.usual
        self.last = min(step, self.most, 1.1 * self.last or step)
        return self.last


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
