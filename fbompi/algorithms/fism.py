"""FISM: federated incremental subgradient method (Boontawee, Prangprakhon, Nimana; Algorithm 1), the nonsmooth family.

    min H(x)  over the minimisers in X of  F(x) = Σ_i Σ_j f_j^i(x)

The server picks one subgradient 𝓗_k of H and sends it with x_k; every client sweeps its own functions once, a projected
subgradient step each, and the server averages where they end. The schedules of γ_k and λ_k, the average iterate of
Theorem 11 and the stopping rule of section III-B are in `regularized`.

Past the paper, which names both as future work:

- ``mode = "asynchronous"``: the server waits for a quorum, and steps along the average over all clients of the most
  recent direction of each, (x_j − end of its sweep)/γ_j as found at an earlier x_j, with today's γ_k. That scaling by
  γ_k/γ_j is what makes up for the age: without delay it is Algorithm 1, and old directions are taken with small steps.
  Measured with 18 clients, four of them 50 times slower, and Pareto delays, as the distance to x_H* after 1,500
  virtual seconds over the width of X: directions 0.0002 to 0.012; ends of sweeps averaged as they are, which pull x
  back to where it was, 0.01 to 0.18; displacements without the scaling, of which old ones are too long and are
  repeated, 0.04 to 0.18; directions with steps shortened by 1/(1 + mean age) 0.004 to 0.07; waiting for all 0.014 to
  0.23. Where the minimisers of F are many and λ is small, waiting can be better: early directions throw x across
  them, and the way back is slow.
- ``sample`` and ``order``: a client sweeps a part of its functions, drawn anew for every task, in random order. F and H
  shrink alike, so that no step has to be changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from fbompi.algorithms.recent import EVER, QuorumKey, Recent, gather, quorum_of
from fbompi.algorithms.regularized import Regularized, RegularizedParameters, RegularizedState
from fbompi.algorithms.setting import Setting
from fbompi.client import Client
from fbompi.config import Above, AtMost
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, task

AS_STORED = 0.0  # in the place of the part that a client sweeps: all of it, in the order of its shard


def drawn(client: Client, part: float) -> Array | None:
    """Which functions to sweep, in which order; the part of them holds in the mean, whatever the rounding."""
    if part == AS_STORED:
        return None
    count = client.oracles.lower_size
    return client.rng.choice(count, int(part * count + client.rng.random()), replace=False)


@task(takes="x x 1 1", gives="x")
def sweep(client: Client, x: Array, shift: Array, gamma: Array, part: Array) -> Array:
    """Lines 6–11: x ← P_X[x − γ_k g_j − (γ_k λ_k/M) 𝓗_k], once for every function of the client, or for a part."""
    return client.sweep(x, float(gamma[0]), shift, drawn(client, float(part[0])))


@task(takes="x x 1 1", gives="x 1")
def valued(client: Client, x: Array, shift: Array, gamma: Array, part: Array) -> tuple[Array, Array]:
    """The same, and F_i where the sweep began."""
    return sweep(client, x, shift, gamma, part), np.array([client.value(x)])


@task(takes="x x 1 1", gives="x")
def direction(client: Client, x: Array, shift: Array, gamma: Array, part: Array) -> Array:
    """What a sweep came to, per unit of its step: about the sum of the subgradients."""
    return (x - sweep(client, x, shift, gamma, part)) / gamma


@task(takes="x x 1 1", gives="x 1")
def valued_direction(client: Client, x: Array, shift: Array, gamma: Array, part: Array) -> tuple[Array, Array]:
    """The same, and F_i where the sweep began."""
    return direction(client, x, shift, gamma, part), np.array([client.value(x)])


@dataclass(kw_only=True)
class FismParameters(RegularizedParameters):
    """Parameters of FISM."""

    mode: Annotated[Literal["synchronous", "asynchronous"], "wait for all clients, or for a quorum"] = "synchronous"
    quorum: QuorumKey = "auto"
    sample: Annotated[float, "part of its functions that a client sweeps per task", Above(0), AtMost(1)] = 1.0
    order: Annotated[Literal["stored", "random"], "of a sweep over all of them; of a sample: always random"] = "stored"


@dataclass(kw_only=True)
class FismState(RegularizedState):
    """What the server knows between two rounds."""

    recent: dict[str, Recent]
    idle: set[int]


class Fism(Regularized):
    """Projected subgradient sweeps at the clients, averages at the server."""

    name = "fism"
    paper = "Boontawee, Prangprakhon, Nimana: Federated Incremental Subgradient Method for Convex Bilevel Optimization"
    facts = {"order": "first (subgradients)", "communication": "synchronous", "rate": "O(1/K^(0.5−ε)) of F, convex"}
    Parameters = FismParameters
    tasks = {"sweep": sweep, "valued": valued, "direction": direction, "valued direction": valued_direction}

    def __init__(self, parameters: FismParameters, setting: Setting) -> None:
        super().__init__(parameters, setting)
        p = parameters
        self.quorum = quorum_of(p.quorum, setting.clients)
        self.part = np.array([AS_STORED if p.sample == 1 and p.order == "stored" else p.sample])

    @classmethod
    def used_tasks(cls, parameters: FismParameters, shapes: Shapes) -> dict[str, TaskFunction]:
        quorum_of(parameters.quorum, len(shapes.blocks))
        return super().used_tasks(parameters, shapes)

    @classmethod
    def sweep_kind(cls, parameters: FismParameters) -> str:
        if parameters.mode == "synchronous":
            return "valued" if parameters.stop else "sweep"
        return "valued direction" if parameters.stop else "direction"

    def in_a_row(self) -> float:
        at_once = self.quorum if self.p.mode == "asynchronous" else self.setting.clients
        return self.setting.components / at_once

    def start(self, x: Array, y: Array) -> FismState:
        S, shapes = self.setting.clients, self.setting.shapes
        gives = self.used_tasks(self.p, shapes)["sweep"].gives
        recent = {"sweep": Recent(gives, shapes, self.setting.aggregation)} if self.p.mode == "asynchronous" else {}
        return FismState(y=y, recent=recent, idle=set(range(S)), **self.first(x))

    def advance(self, s: FismState, link: Link, gamma: float, weight: float) -> tuple[Array, float]:
        """One iteration of Algorithm 1: lines 3–13."""
        shift = gamma * weight / self.setting.components * self.setting.outer_subgradient(s.x)
        point = s.x, shift, np.array([gamma]), self.part
        if self.p.mode == "asynchronous":
            return self.advance_with_quorum(s, link, gamma, point)
        updates = self.ask(link, "sweep", *point)
        return self.mean(updates), self.total_value(updates, 1) if self.p.stop else math.nan

    def advance_with_quorum(self, s: FismState, link: Link, gamma: float, point: Any) -> tuple[Array, float]:
        """The same with the most recent directions of all clients; F from the most recent of its parts."""
        invited = self.setting.participation.invited(link.round)
        means, _ = gather(link, s.recent, s.idle, "sweep", point, s.round, self.quorum, EVER, invited)
        x = self.setting.project_x(s.x - gamma * means[0])
        return x, self.setting.clients * float(means[1][0]) if self.p.stop else math.nan
