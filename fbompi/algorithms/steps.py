"""Step sizes on x: a constant, a schedule of the papers, or a rule that needs no tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from fbompi.config import Above
from fbompi.messages import Array

StepYKey = Annotated[float | Literal["auto"], "β, the step on y; auto: 1/ℓ", Above(0)]


@dataclass(kw_only=True)
class UpperStep:
    """Parameters of the step on x, for all methods that take one along a hypergradient."""

    step_x: Annotated[float | Literal["auto"], "the step on x; auto: distance over gradients", Above(0)] = "auto"
    schedule: Annotated[
        Literal["constant", "theory", "decay"],
        "of the step on x; theory: of all steps whose orders the method's theorem gives",
    ] = "constant"
    decay: Annotated[float, "schedule decay: rounds until the step on x is halved", Above(0)] = 100.0


@dataclass
class DistanceOverGradients:
    """η_t = max_{s≤t}‖x_s − x_0‖ / √(Σ_{s≤t}‖h_s‖²): the DoG rule of Ivgi, Hinder and Carmon (2023).

    It asks for no constant of the problem. The first step moves x by 1 % of (1 + its root mean square) per coordinate,
    but by no more than a tenth of its norm: the weights of a network are small, and the first h is often tiny.

    Where y and v take one step for each of x's, h lags behind x, and no rule that looks at x and h alone is safe: DoG
    then diverges on quadratics of condition 20. Such methods tell what y and v lack, their residuals r_t. η may then
    grow by no more than 7 % per round, and when r exceeds 1.2 times its largest norm of the first three rounds (0.6
    times, once it has been below 0.3), x has run ahead: η is held at a quarter of what it was from then on; from
    the fourth such alarm on, at 1 − 1/k of that. Another alarm needs twice that r, or one that has come back. As norm
    of r counts the least of √⟨r_t, r_s⟩ over the last three rounds s: what sampled clients and batches add to r is
    another thing in every round, and cancels.
    """

    origin: Array
    distance: float
    squares: float = 0.0
    last: float = 0.0  # step, where residuals are told
    most: float = math.inf  # that a step may be
    usual: float = 0.0  # the largest residual of the first rounds
    alarm: float = math.inf  # the residual that cuts the step
    alarms: int = 0
    rounds: int = 0
    past: list[Array] = field(default_factory=list)  # residuals of the last three rounds

    @classmethod
    def at(cls, x: Array) -> DistanceOverGradients:
        norm = float(np.linalg.norm(x))
        first = 0.01 * (math.sqrt(x.size) + norm)
        return cls(x, min(first, 0.1 * norm) if norm > 0 else first)

    def step(self, x: Array, h: Array, lacking: Sequence[Array] = ()) -> float:
        """The step to take from x along −h."""
        self.distance = max(self.distance, float(np.linalg.norm(x - self.origin)))
        self.squares += float(h @ h)
        step = self.distance / np.sqrt(self.squares) if self.squares > 0 else 0.0
        return self._held_back(step, np.concatenate(lacking)) if lacking else step

    def _held_back(self, step: float, residual: Array) -> float:
        self.rounds += 1
        if self.rounds <= 3:
            self.usual = max(self.usual, float(np.linalg.norm(residual)))
        products = [float(residual @ earlier) for earlier in self.past] or [float(residual @ residual)]
        size = math.sqrt(max(0.0, min(products)))
        if self.rounds > 3 and size > self.alarm:
            self.alarms += 1
            self.most = min(self.most, self.last) * (0.25 if self.alarms <= 3 else 1 - 1 / self.alarms)
            self.alarm = 2 * size
        if size <= 0.3 * self.usual:
            self.alarm = 0.6 * self.usual
        elif size <= self.usual and self.alarm > 1.2 * self.usual:
            self.alarm = 1.2 * self.usual
        self.past = [*self.past[-2:], residual]
        self.last = min(step, self.most, 1.07 * self.last or step)
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
