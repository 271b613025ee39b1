"""What every method has in common, so that a file in this folder holds the method and nothing else."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fbompi.algorithms.setting import Setting
from fbompi.algorithms.steps import DistanceOverGradients, UpperStep, schedule
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, Update

# Keys of [clients] for all methods
ANYONE = ("participation", "replacement", "presence", "stay", "away", "schedule", "aggregate", "clip", "trim")


@dataclass(kw_only=True)
class State:
    """What the server knows between two outer rounds; a method adds what it needs beside it."""

    x: Array
    y: Array
    round: int = 0
    gradient_norm: float = math.nan
    stopped: bool = False  # by a rule of the method's own: the run is complete


@dataclass(kw_only=True)
class UpperState(State):
    """Of methods that step on x along a hypergradient."""

    rule: DistanceOverGradients
    step: float = 0.0  # on x, the last one taken


class Method(ABC):
    """A method: its parameters, its client functions by kind, and one outer round.

    `family` is that of the problems it is for, `client_keys` what it uses of [clients] beside `count` and `ANYONE`,
    `facts` what `fbompi list` tells of it.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    facts: ClassVar[dict[str, str]]
    family: ClassVar[str] = "smooth"
    Parameters: ClassVar[Any]
    client_keys: ClassVar[tuple[str, ...]] = ("batch",)
    tasks: ClassVar[dict[str, TaskFunction]]
    figure_meanings: ClassVar[dict[str, str]] = {}  # columns of the trajectory that this method adds
    result_meanings: ClassVar[dict[str, str]] = {}  # arrays beside the last iterate in /final

    def __init__(self, parameters: Any, setting: Setting) -> None:
        self.p, self.setting = parameters, setting
        self.ell = math.nan
        self.heed()

    @classmethod
    def used_tasks(cls, parameters: Any, shapes: Shapes) -> dict[str, TaskFunction]:
        """The kinds of tasks that a run with these parameters sends; parameters that do not fit are refused."""
        return cls.tasks

    @abstractmethod
    def start(self, x: Array, y: Array) -> Any:
        """The state before the first round."""

    @abstractmethod
    def round(self, s: Any, link: Link) -> None:
        """One outer round."""

    def figures(self, s: Any) -> dict[str, float]:
        """What `figure_meanings` promises."""
        return {}

    def results(self, s: Any) -> dict[str, Array]:
        """What `result_meanings` promises."""
        return {}

    def ask(self, link: Link, kind: str, *arrays: Array, clients: Sequence[int] | Array | None = None) -> list[Update]:
        """One synchronous round: the same task for all clients invited, or for these; their answers in that order."""
        link.send(self.setting.participation.invited(link.round) if clients is None else clients, kind, *arrays)
        return link.collect()

    def mean(self, updates: Sequence[Update], place: int = 0) -> Array:
        """The average of one of the arrays that clients answered with, by the rule of `clients.aggregate`."""
        return self.setting.aggregation.over([update.arrays[place] for update in updates])

    def mean_x(self, updates: Sequence[Update], place: int = 0) -> Array:
        """The same for a vector in x, of which a client may own a block only: the rest of its vector is 0."""
        shapes = self.setting.shapes
        blocks, parts = [shapes.blocks[u.client] for u in updates], [u.arrays[place] for u in updates]
        return self.setting.aggregation.total(shapes.dim_x, blocks, parts) / len(updates)

    def heed(self) -> None:
        """Let ℓ follow what clients have met. The run does so between outer rounds: estimators need one ℓ."""
        if self.family == "smooth":
            self.ell = self.setting.ell(getattr(self.p, "smoothness", "auto"))

    def theory_factor(self) -> float:
        """What ``schedule = "theory"`` multiplies steps with: √(n/T), as for n clients in an average and T rounds."""
        n = self.setting.participation.count if self.facts["communication"] == "synchronous" else self.setting.clients
        return min(1.0, math.sqrt(n / self.setting.rounds))

    def local_x(self, s: UpperState) -> float:
        """The step that clients' own ways on x follow: the server's last, in a block of theirs its part of the mean."""
        owners = float(self.setting.shapes.owners.mean())
        return s.step * min(1.0, owners / self.setting.participation.count)

    @property
    def beta(self) -> float:
        """The step on y."""
        return self.scheduled(self.step_y(self.p.step_y))

    def scheduled(self, step: float) -> float:
        """A step on y or v, with the same factor as that on x where all follow the theory."""
        return step * self.theory_factor() if getattr(self.p, "schedule", "") == "theory" else step

    def step_y(self, given: float | str) -> float:
        """A step on y: as given, or 1/ℓ."""
        return 1 / self.ell if given == "auto" else float(given)

    def descend(self, s: UpperState, h: Array, shrink: float = 1.0, lacking: Sequence[Array] = ()) -> None:
        """x ← P[x − η h], η by the rule of `UpperStep`; the outer round is over.

        Methods that step on y and v no more often than on x give their residuals as `lacking`: the rule heeds them.
        """
        p: UpperStep = self.p
        s.gradient_norm = float(np.linalg.norm(h))
        eta = s.rule.step(s.x, h, lacking) if p.step_x == "auto" else p.step_x
        s.step = shrink * schedule(p.schedule, eta, s.round, p.decay, self.theory_factor())
        s.x = self.setting.project_x(s.x - s.step * h)
        s.round += 1
