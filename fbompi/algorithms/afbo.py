"""AFBO with APHE: anarchic federated bilevel optimization (Li, Zhu, Gong, Mao, Zhou; Algorithms 1 and 2).

Asynchronous in both loops. The server averages the most recent vectors of all m clients, answers only those that
reported, and shortens its steps by 1/(1 + mean age). Two things differ from the printed text, because it is wrong:

- The printed Hessian inverse, m/ℓ times a product of m factors, is no inverse. Here N rounds of the fixed-point form
  v ← v − (1/ℓ)(H v − ∇_y f) are run; from v = 0 without delay they are the N-term Neumann sum, and whatever the
  staleness their limit solves H v = ∇_y f. ``hypergradient = "printed"`` runs the printed formula, with a warning.
- The printed method moves q×q matrices; here only vectors travel. ``"dense"`` moves the matrices, as a check.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.algorithms.recent import EVER, Recent, gather
from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, schedule
from fbompi.client import Client
from fbompi.config import Above, AtLeast
from fbompi.errors import UserError
from fbompi.kernels import library
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, task

DENSE_LIMIT = 512  # rows of a Hessian that may travel as a matrix


@task(takes="x y 1", gives="y", local_steps=True)
def lower(client: Client, x: Array, y: Array, step: Array) -> Array:
    """The average of E local gradients (aligned update): Algorithm 1, lines 5–8."""
    total = np.zeros_like(y)
    for _ in range(client.local_steps):
        gradient = client.lower_grad(x, y)
        total += gradient
        y = y - step[0] * gradient
    return total / client.local_steps


@task(takes="x y y", gives="y y")
def product(client: Client, x: Array, y: Array, v: Array) -> tuple[Array, Array]:
    """∇²_yy g_i · v and ∇_y f_i at the client's own point."""
    return client.hvp(x, y, v), client.upper_grad(x, y)[1]


@task(takes="x y y", gives="x")
def cross(client: Client, x: Array, y: Array, v: Array) -> Array:
    """The client's part of the hypergradient, ∇_x f_i − ∇²_xy g_i · v."""
    return client.upper_grad(x, y)[0] - client.cross(x, y, v)


@task(takes="x y", gives="yy xy x y")
def matrices(client: Client, x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """∇²_yy g_i, ∇²_xy g_i, ∇_x f_i and ∇_y f_i as they are."""
    unit = library(y).eye(y.size)
    hessian = np.stack([client.hvp(x, y, e) for e in unit], axis=1)
    mixed = np.stack([client.cross(x, y, e) for e in unit], axis=1)
    return hessian, mixed, *client.upper_grad(x, y)


@dataclass
class AfboParameters:
    """Parameters of AFBO."""

    step_x: Annotated[float | Literal["auto"], "η; auto: distance over gradients", Above(0)] = "auto"
    step_y: Annotated[float | Literal["auto"], "β; auto: 1/ℓ", Above(0)] = "auto"
    local_step: Annotated[float | Literal["auto"], "step of local steps; auto: β", Above(0)] = "auto"
    schedule: Annotated[Literal["constant", "theory", "decay"], "of η (theory: also of β, Corollary 4.1)"] = "constant"
    decay: Annotated[float, "schedule decay: rounds until η is halved", Above(0)] = 100.0
    inner_rounds: Annotated[int, "K, inner rounds on y per outer round", AtLeast(1)] = 10
    terms: Annotated[int, "N, rounds on v per outer round", AtLeast(1)] = 10
    quorum: Annotated[
        int | Literal["auto"], "answers that end a round; 0: from all clients; auto: 3, or all", AtLeast(0)
    ] = "auto"
    inner_bound: Annotated[int, "ρ, oldest vector allowed in inner rounds; −1: none", AtLeast(-1)] = -1
    outer_bound: Annotated[int, "τ, oldest vector allowed in outer rounds; −1: none", AtLeast(-1)] = -1
    adaptive: Annotated[bool, "shorten steps by 1/(1 + mean age)"] = True
    hypergradient: Annotated[
        Literal["warm", "cold", "dense", "printed"], "v from the last round, from 0; the matrices; the misprint"
    ] = "warm"
    smoothness: SmoothnessKey = "auto"


@dataclass
class State:
    """Everything the server knows between two outer rounds."""

    x: Array
    y: Array
    v: Array
    rule: DistanceOverGradients
    recent: dict[str, Recent]
    idle: set[int]
    round: int = 0
    y_steps: int = 0
    v_steps: int = 0
    gradient_norm: float = math.nan


class Afbo:
    """Anarchic federated bilevel optimization."""

    name = "afbo"
    paper = "Li, Zhu, Gong, Mao, Zhou: Anarchic Federated Bilevel Optimization"
    facts = {"order": "second (products)", "communication": "asynchronous", "rate": "O(1/√(mT)) nonconvex"}
    family = "smooth"  # of problems
    Parameters = AfboParameters
    client_keys = ("local_steps", "batch")  # of [clients], beside count
    tasks = {"lower": lower, "product": product, "cross": cross, "matrices": matrices}

    def __init__(self, parameters: AfboParameters, setting: Setting) -> None:
        p = self.p = parameters
        self.setting, m = setting, setting.clients
        self.quorum = min(3, m) if p.quorum == "auto" else p.quorum or m
        if p.hypergradient == "printed":
            warnings.warn("the printed formula is not a Hessian inverse: expect a wrong hypergradient", stacklevel=2)
        self.inner_bound = EVER if p.inner_bound < 0 else p.inner_bound
        self.outer_bound = EVER if p.outer_bound < 0 else p.outer_bound
        self.ell = setting.ell(p.smoothness)
        self.beta = 1 / self.ell if p.step_y == "auto" else p.step_y
        if p.schedule == "theory":  # Corollary 4.1: K β² ≤ 1/T
            self.beta = min(self.beta, 1 / math.sqrt(p.inner_rounds * setting.rounds))
        self.local_step = np.array([self.beta if p.local_step == "auto" else p.local_step])

    @classmethod
    def used_tasks(cls, parameters: AfboParameters, shapes: Shapes) -> dict:
        """The kinds of tasks that a run with these parameters sends; parameters that do not fit are refused."""
        p, m = parameters, len(shapes.blocks)
        if p.quorum != "auto" and p.quorum > m:
            raise UserError(f"algorithm.quorum = {p.quorum}: there are only {m} clients")
        dense = p.hypergradient in ("dense", "printed")
        if dense and shapes.dim_y > DENSE_LIMIT:
            raise UserError(
                f'algorithm.hypergradient = "{p.hypergradient}": matrices of {shapes.dim_y} rows; '
                f'this check is for at most {DENSE_LIMIT}; use "warm"'
            )
        return {k: f for k, f in cls.tasks.items() if k == "lower" or (k == "matrices") == dense}

    def start(self, x: Array, y: Array) -> State:
        shapes = self.setting.shapes
        recent = {k: Recent(f.gives, shapes) for k, f in self.used_tasks(self.p, shapes).items()}
        return State(x, y, np.zeros_like(y), DistanceOverGradients.at(x), recent, set(range(self.setting.clients)))

    def round(self, s: State, link: Link) -> None:
        """One outer round of Algorithm 1."""
        for _ in range(self.p.inner_rounds):
            (G,), age_y = self._gather(s, link, "lower", (s.x, s.y, self.local_step), s.y_steps, self.inner_bound)
            s.y = self.setting.project_y(s.y - self._shrink(age_y) * self.beta * G)
            s.y_steps += 1
        H, age = self._dense(s, link) if "matrices" in s.recent else self._aphe(s, link)
        # x follows y: its step must respect the age of y's vectors too, counted like τ in outer rounds.
        shrink = self._shrink(age + age_y / self.p.inner_rounds)
        s.gradient_norm = float(np.linalg.norm(H))
        s.x = self.setting.project_x(s.x - shrink * self._eta(s, H) * H)
        s.round += 1

    def _aphe(self, s: State, link: Link) -> tuple[Array, float]:
        """The hypergradient by vectors: N asynchronous rounds on v, then one of the cross products; and its age."""
        if self.p.hypergradient == "cold":
            s.v = np.zeros_like(s.v)
        for _ in range(self.p.terms):
            (Hv, b), age_v = self._gather(s, link, "product", (s.x, s.y, s.v), s.v_steps, self.inner_bound)
            s.v = s.v - self._shrink(age_v) / self.ell * (Hv - b)
            s.v_steps += 1
        (H,), age = self._gather(s, link, "cross", (s.x, s.y, s.v), s.round, self.outer_bound)
        return H, age + age_v / self.p.terms

    def _dense(self, s: State, link: Link) -> tuple[Array, float]:
        """The hypergradient from averaged matrices: the Neumann sum, or Algorithm 2 as printed; and its age."""
        (A, W, d, b), age = self._gather(s, link, "matrices", (s.x, s.y), s.round, self.outer_bound)
        ell, m = self.ell, self.setting.clients
        if self.p.hypergradient == "printed":
            v = m / ell * b
            for _ in range(m):
                v = v - A @ v / ell
        else:
            v = np.zeros_like(b)
            for _ in range(self.p.terms):
                v = v - (A @ v - b) / ell
        return d - W @ v, age

    def _gather(self, s: State, link: Link, kind: str, point: tuple, now: int, bound: float) -> tuple[list, float]:
        """The averages of all clients' most recent vectors of this kind, and their mean age."""
        means, ages = gather(link, s.recent, s.idle, kind, point, now, self.quorum, bound)
        return means, float(ages.mean())

    def _shrink(self, age: float) -> float:
        """A delayed step of 1/ℓ is stable only if it shrinks with its age."""
        return 1 / (1 + age) if self.p.adaptive else 1.0

    def _eta(self, s: State, H: Array) -> float:
        base = s.rule.step(s.x, H) if self.p.step_x == "auto" else self.p.step_x
        return schedule(self.p.schedule, base, s.round, self.setting.rounds, self.setting.clients, self.p.decay)
