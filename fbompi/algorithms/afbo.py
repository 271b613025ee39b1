"""AFBO with APHE: anarchic federated bilevel optimization (Li, Zhu, Gong, Mao, Zhou; Algorithms 1 and 2).

Asynchronous in both loops. The server averages the most recent vectors of all m clients, answers only those that
reported, and shortens its steps by 1/(1 + mean age). Two things differ from the printed text, because it is wrong:

- The printed Hessian inverse, m/ℓ times a product of m factors, is no inverse. Here N rounds of the fixed-point form
  v ← v − (1/ℓ)(H v − ∇_y f) are run; from v = 0 without delay they are the N-term Neumann sum, and whatever the
  staleness their limit solves H v = ∇_y f. ``hypergradient = "printed"`` runs the printed formula, with a warning.
- The printed method moves q×q matrices; here only vectors travel. ``"dense"`` moves the matrices, as a check.

The aligned average of local gradients leaves a bias of the order of (local step × E) where clients differ;
``drift = "corrected"`` takes it away with control variates (as SCAFFOLD's: Karimireddy et al. 2020).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from fbompi.algorithms.inverse import ROUNDING, conjugate_gradients, curves_upwards
from fbompi.algorithms.method import Method, UpperState
from fbompi.algorithms.recent import QuorumKey, Recent, bound_of, gather, left_out, quorum_of, shortened
from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, StepYKey, UpperStep
from fbompi.client import Client
from fbompi.config import Above, AtLeast
from fbompi.errors import UserError
from fbompi.kernels import library
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, task

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


@task(takes="x y y 1", gives="y", local_steps=True)
def corrected(client: Client, x: Array, y: Array, correction: Array, step: Array) -> Array:
    """The same with local steps that follow all clients: the correction is the mean gradient less this client's own.

    Where the mean gradient is 0, so is every local step, and the average is ∇_y g_i there: no bias is left, whatever E.
    """
    total = np.zeros_like(y)
    for _ in range(client.local_steps):
        gradient = client.lower_grad(x, y)
        total += gradient
        y = y - step[0] * (gradient + correction)
    return total / client.local_steps


@task(takes="x y y", gives="y y", plausible=curves_upwards(v=2))
def product(client: Client, x: Array, y: Array, v: Array) -> tuple[Array, Array]:
    """∇²_yy g_i · v and ∇_y f_i at the client's own point."""
    return client.hvp(x, y, v), client.upper_grad(x, y)[1]


@task(takes="x y y", gives="x")
def cross(client: Client, x: Array, y: Array, v: Array) -> Array:
    """The client's part of the hypergradient, ∇_x f_i − ∇²_xy g_i · v."""
    return client.upper_grad(x, y)[0] - client.cross(x, y, v)


def _convex(task: Sequence[Array], answer: Sequence[Array]) -> bool:
    """Whether ∇²_yy g_i has the diagonal of a convex function's, rounding apart."""
    hessian = answer[0]
    return bool((np.diag(hessian) >= -ROUNDING * np.abs(hessian).max(axis=1)).all())


@task(takes="x y", gives="yy xy x y", plausible=_convex)
def matrices(client: Client, x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """∇²_yy g_i, ∇²_xy g_i, ∇_x f_i and ∇_y f_i as they are."""
    unit = library(y).eye(y.size)
    hessian = np.stack([client.hvp(x, y, e) for e in unit], axis=1)
    mixed = np.stack([client.cross(x, y, e) for e in unit], axis=1)
    return hessian, mixed, *client.upper_grad(x, y)


@dataclass(kw_only=True)
class AfboParameters(UpperStep):
    """Parameters of AFBO."""

    step_y: StepYKey = "auto"
    local_step: Annotated[float | Literal["auto"], "step of local steps; auto: β", Above(0)] = "auto"
    drift: Annotated[
        Literal["plain", "corrected"], "local steps along the client's own gradients, or along all clients'"
    ] = "plain"
    inner_rounds: Annotated[int, "K, inner rounds on y per outer round", AtLeast(1)] = 10
    terms: Annotated[int, "N, rounds on v per outer round", AtLeast(1)] = 10
    quorum: QuorumKey = "auto"
    inner_bound: Annotated[int, "ρ, oldest vector allowed in inner rounds; −1: none", AtLeast(-1)] = -1
    outer_bound: Annotated[int, "τ, oldest vector allowed in outer rounds; −1: none", AtLeast(-1)] = -1
    adaptive: Annotated[bool, "shorten steps by 1/(1 + mean age)"] = True
    hypergradient: Annotated[
        Literal["warm", "cold", "cg", "dense", "printed"],
        "v from the last round, or from 0; conjugate gradients, waiting for all; the matrices; the misprint",
    ] = "warm"
    smoothness: SmoothnessKey = "auto"


@dataclass(kw_only=True)
class AfboState(UpperState):
    """Everything the server knows between two outer rounds."""

    v: Array
    recent: dict[str, Recent]
    idle: set[int]
    y_steps: int = 0
    v_steps: int = 0


class Afbo(Method):
    """Anarchic federated bilevel optimization."""

    name = "afbo"
    paper = "Li, Zhu, Gong, Mao, Zhou: Anarchic Federated Bilevel Optimization"
    facts = {"order": "second (products)", "communication": "asynchronous", "rate": "O(1/√(mT)) nonconvex"}
    Parameters = AfboParameters
    client_keys = ("local_steps", "batch")
    tasks = {"lower": lower, "corrected": corrected, "product": product, "cross": cross, "matrices": matrices}

    def __init__(self, parameters: AfboParameters, setting: Setting) -> None:
        super().__init__(parameters, setting)
        p = parameters
        self.quorum = quorum_of(p.quorum, setting.clients)
        if p.hypergradient == "printed":
            warnings.warn("the printed formula is not a Hessian inverse: expect a wrong hypergradient", stacklevel=2)
        self.inner_bound, self.outer_bound = bound_of(p.inner_bound), bound_of(p.outer_bound)
        if p.hypergradient == "cg":
            setting.need_whole_shards("algorithm.hypergradient")
        self.lower = "lower" if p.drift == "plain" else "corrected"

    @property
    def beta(self) -> float:
        beta = self.step_y(self.p.step_y)
        if self.p.schedule == "theory":  # Corollary 4.1: K β² ≤ 1/T
            beta = min(beta, 1 / math.sqrt(self.p.inner_rounds * self.setting.rounds))
        return beta

    @property
    def local_step(self) -> Array:
        return np.array([self.beta if self.p.local_step == "auto" else self.p.local_step])

    @classmethod
    def used_tasks(cls, parameters: AfboParameters, shapes: Shapes) -> dict[str, TaskFunction]:
        p = parameters
        quorum_of(p.quorum, len(shapes.blocks))
        dense = p.hypergradient in ("dense", "printed")
        if dense and shapes.dim_y > DENSE_LIMIT:
            raise UserError(
                f'algorithm.hypergradient = "{p.hypergradient}": matrices of {shapes.dim_y} rows; '
                f'this check is for at most {DENSE_LIMIT}; use "warm"'
            )
        kinds = ["lower" if p.drift == "plain" else "corrected", *(["matrices"] if dense else ["product", "cross"])]
        return {kind: cls.tasks[kind] for kind in kinds}

    def start(self, x: Array, y: Array) -> AfboState:
        shapes = self.setting.shapes
        tasks, rule = self.used_tasks(self.p, shapes), self.setting.aggregation
        recent = {kind: Recent(function.gives, shapes, rule) for kind, function in tasks.items()}
        everyone = set(range(self.setting.clients))
        return AfboState(x=x, y=y, rule=DistanceOverGradients.at(x), v=np.zeros_like(y), recent=recent, idle=everyone)

    def round(self, s: AfboState, link: Link) -> None:
        """One outer round of Algorithm 1."""
        for _ in range(self.p.inner_rounds):
            (G,), age_y = self._gather(s, link, self.lower, self._lower_task(s, link), s.y_steps, self.inner_bound)
            s.y = self.setting.project_y(s.y - self._shrink(age_y) * self.beta * G)
            s.y_steps += 1
        H, age = self._dense(s, link) if "matrices" in s.recent else self._aphe(s, link)
        # x follows y: its step must respect the age of y's vectors too, counted like τ in outer rounds.
        shrink = self._shrink(age + age_y / self.p.inner_rounds)
        self.descend(s, H, shrink)

    def _lower_task(self, s: AfboState, link: Link) -> Any:
        """What an inner round hands to clients: the point and the local step, and if asked for, a control variate."""
        if self.p.drift == "plain":
            return s.x, s.y, self.local_step
        recent = s.recent["corrected"]
        (mean,) = recent.means(left_out(link, recent, s.y_steps, self.inner_bound))
        own = recent.parts[0].reshape(self.setting.clients, -1).copy()  # of now, as the mean: answers come in meanwhile
        return lambda client: (s.x, s.y, mean - own[client], self.local_step)

    def _aphe(self, s: AfboState, link: Link) -> tuple[Array, float]:
        """The hypergradient by vectors: N asynchronous rounds on v, then one of the cross products; and its age."""
        if self.p.hypergradient == "cold":
            s.v = np.zeros_like(s.v)
        if self.p.hypergradient == "cg":
            age_v = self._conjugate_gradients(s, link)
        else:
            for _ in range(self.p.terms):
                (Hv, b), age_v = self._products(s, link, s.v, self.inner_bound)
                s.v = s.v - self._shrink(age_v) / self.ell * (Hv - b)
        (H,), age = self._gather(s, link, "cross", (s.x, s.y, s.v), s.round, self.outer_bound)
        return H, age + age_v / self.p.terms

    def _products(self, s: AfboState, link: Link, v: Array, bound: float) -> tuple[list, float]:
        """Hv and ∇_y f, averaged over all clients' most recent answers, and their age."""
        answers = self._gather(s, link, "product", (s.x, s.y, v), s.v_steps, bound)
        s.v_steps += 1
        return answers

    def _conjugate_gradients(self, s: AfboState, link: Link) -> float:
        """v by N products from the last round's on. They must be of one Hessian: every client answers every one."""
        (Hv, b), _ = self._products(s, link, s.v, bound=0)
        s.v = s.v + conjugate_gradients(lambda d: self._products(s, link, d, bound=0)[0][0], b - Hv, self.p.terms)
        return 0.0

    def _dense(self, s: AfboState, link: Link) -> tuple[Array, float]:
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

    def _gather(self, s: AfboState, link: Link, kind: str, point: Any, now: int, bound: float) -> tuple[list, float]:
        """The averages of all clients' most recent vectors of this kind, and their mean age."""
        invited = self.setting.participation.invited(link.round)
        means, ages = gather(link, s.recent, s.idle, kind, point, now, self.quorum, bound, invited)
        return means, float(ages.mean())

    def _shrink(self, age: float) -> float:
        """A delayed step of 1/ℓ is stable only if it shrinks with its age."""
        return shortened(age, self.p.adaptive)
