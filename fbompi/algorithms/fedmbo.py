"""FedMBO with PHE (Huang, Zhang, Ji 2023; Algorithms 1 and 2): synchronous, sampled clients, independent chains.

Inner loop: minibatch SGD on y, n sampled clients at the same point. Outer step: the mean of n chains, each a Neumann
product in which every factor comes from another client. Chains are independent, as Proposition 3 needs, with
``clients.replacement = true``; drawn without, they are not, and their mean varies less. ℓ (``smoothness``) must
bound the Hessian on every batch: that of a whole shard, the default, can be too small for small batches, or for a
network whose activations grow. Line 4 of the printed Algorithm 2 says ∇_y f for d_i; it is ∇_x f, as in equation (6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, schedule
from fbompi.client import Client
from fbompi.config import Above, AtLeast
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, task
from fbompi.randomness import stream


@task(takes="x y", gives="y")
def lower(client: Client, x: Array, y: Array) -> Array:
    """G_i: the mean of S sample gradients at the server's point (Algorithm 1, line 8)."""
    return client.lower_grad(x, y)


@task(takes="x y", gives="x y")
def begin(client: Client, x: Array, y: Array) -> tuple[Array, Array]:
    """∇_x f_i and ∇_y f_i, with which a chain begins (Algorithm 2, lines 3–5)."""
    return client.upper_grad(x, y)


@task(takes="x y y", gives="y")
def factor(client: Client, x: Array, y: Array, p: Array) -> Array:
    """∇²_yy g_i · p on a fresh sample (line 13)."""
    return client.hvp(x, y, p)


@task(takes="x y y", gives="x")
def cross(client: Client, x: Array, y: Array, p: Array) -> Array:
    """∇²_xy g_i · p on a fresh sample (line 22)."""
    return client.cross(x, y, p)


@dataclass
class FedMboParameters:
    """Parameters of FedMBO."""

    step_x: Annotated[float | Literal["auto"], "α; auto: distance over gradients", Above(0)] = "auto"
    step_y: Annotated[float | Literal["auto"], "β; auto: 1/ℓ", Above(0)] = "auto"
    schedule: Annotated[Literal["constant", "theory", "decay"], "of α (theory: also of β, Theorem 1)"] = "constant"
    decay: Annotated[float, "schedule decay: rounds until α is halved", Above(0)] = 100.0
    inner_rounds: Annotated[int, "T, inner rounds on y per outer round", AtLeast(1)] = 5
    terms: Annotated[int, "N, chains have fewer than N factors", AtLeast(1)] = 10
    smoothness: SmoothnessKey = "auto"


@dataclass
class State:
    """Everything the server knows between two outer rounds."""

    x: Array
    y: Array
    rule: DistanceOverGradients
    round: int = 0
    gradient_norm: float = math.nan


class FedMbo:
    """Minibatch SGD below, parallel hypergradient chains above; linear speed-up in the sampled clients."""

    name = "fedmbo"
    paper = "Huang, Zhang, Ji: Achieving Linear Speedup in Non-IID Federated Bilevel Learning"
    facts = {"order": "second (products)", "communication": "synchronous", "rate": "O(1/√(nK)) nonconvex"}
    family = "smooth"  # of problems
    Parameters = FedMboParameters
    client_keys = ("batch", "participation", "replacement")  # of [clients], beside count
    tasks = {"lower": lower, "begin": begin, "factor": factor, "cross": cross}

    def __init__(self, parameters: FedMboParameters, setting: Setting) -> None:
        self.p, self.setting = parameters, setting
        self.ell = setting.ell(parameters.smoothness)
        self.beta = 1 / self.ell if parameters.step_y == "auto" else parameters.step_y

    @classmethod
    def used_tasks(cls, parameters: FedMboParameters, shapes: Shapes) -> dict:
        """The kinds of tasks that a run with these parameters sends."""
        return cls.tasks

    def start(self, x: Array, y: Array) -> State:
        return State(x, y, DistanceOverGradients.at(x))

    def round(self, s: State, link: Link) -> None:
        """One outer round of Algorithm 1."""
        rng = stream(self.setting.seed, "server", s.round)
        beta = self._scheduled(self.beta, s.round) if self.p.schedule == "theory" else self.beta
        for _ in range(self.p.inner_rounds):
            link.send(self._sample(rng), "lower", s.x, s.y)
            G = np.mean([u.arrays[0] for u in link.collect()], axis=0)
            s.y = self.setting.project_y(s.y - beta * G)
        h = np.mean(self.chains(s.x, s.y, link, rng), axis=0)
        s.gradient_norm = float(np.linalg.norm(h))
        alpha = s.rule.step(s.x, h) if self.p.step_x == "auto" else self.p.step_x
        s.x = self.setting.project_x(s.x - self._scheduled(alpha, s.round) * h)
        s.round += 1

    def chains(self, x: Array, y: Array, link: Link, rng: np.random.Generator) -> Array:
        """PHE, Algorithm 2: one independent hypergradient estimate per row."""
        n, N, ell = self.setting.sampled, self.p.terms, self.ell
        H = np.zeros((n, x.size))
        link.send(self._sample(rng), "begin", x, y)
        chains = link.collect()
        for i, update in enumerate(chains):
            H[i, self._block(update.client)] = update.arrays[0]
        p = np.array([N / ell * update.arrays[1] for update in chains])
        lengths = rng.integers(N, size=n)
        for level in range(1, int(lengths.max()) + 1):
            going = np.flatnonzero(lengths >= level)
            for i, client in zip(going.tolist(), self._sample(rng)[going]):
                link.send([client], "factor", x, y, p[i])
            products = link.collect()
            p[going] -= np.array([update.arrays[0] for update in products]) / ell
        for i, client in enumerate(self._sample(rng)):
            link.send([client], "cross", x, y, p[i])
        for i, update in enumerate(link.collect()):
            H[i, self._block(update.client)] -= update.arrays[0]
        return H

    def _sample(self, rng: np.random.Generator) -> Array:
        """n clients, drawn afresh."""
        m, n = self.setting.clients, self.setting.sampled
        return rng.integers(m, size=n) if self.setting.replacement else rng.permutation(m)[:n]

    def _block(self, client: int) -> slice:
        return self.setting.shapes.blocks[client]

    def _scheduled(self, base: float, t: int) -> float:
        return schedule(self.p.schedule, base, t, self.setting.rounds, self.setting.sampled, self.p.decay)
