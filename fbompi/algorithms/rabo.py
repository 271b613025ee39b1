"""RABO (Li, Zhang, Zheng, Shi, Yuan, Cheng, Yu; Algorithm 1): bilevel optimization with submodels for small clients.

A client holds a part of x and of y (`masks`), trains y on it for T local steps (`clients.local_steps`), then sends the
hypergradient of its submodel; the server averages each coordinate over those who hold it. Only what is held travels,
and, where the problem has submodels of its own, only that is computed.

- Lines 10 and 18 are printed with G = (y_T − y_0)/β and y − βG, which steps uphill. With G = (y_0 − y_T)/β, as here, y
  becomes the average of the y_T, which is what a client sends.
- Equation 7 is the hypergradient of the client's own problem. Where clients differ the mean of these is not ∇Φ, and the
  method ends where that mean is 0. That is ``hypergradient = "local"``, as designed. ``"global"`` solves for v with the
  average Hessian, one round of communication per product: its limit is x* where all is held, and for masks that do not
  change the solution of the paper's masked problem (2), of whose gradient h has each coordinate times m over its
  holders.
- With more than one local step y ends where the mean of the clients' ways is 0, not that of their gradients: a bias of
  the order of (β × T) where clients differ. T = 1 has none.
- The inverse is not specified; here Neumann sum or conjugate gradients (`inverse`).
- Where each client owns a block of x, a coordinate's average over its holders is weighted by its owners' share of the
  clients that answered, so that h is a mean over these, as everywhere in this project.
- ``schedule = "theory"`` has α ~ √(C_x*/Q), as Corollary 1. Its β = 1/(NTQ) would leave y where it is: not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fbompi.algorithms.inverse import conjugate_gradients, curves_upwards, neumann
from fbompi.algorithms.masks import COVERING, Covering, Dealt, MaskParameters, Submodels
from fbompi.algorithms.method import Method, UpperState
from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, StepYKey, UpperStep
from fbompi.client import Client
from fbompi.config import AtLeast
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, Update, task


@task(takes="held_x held_y part_x part_y 1", gives="part_y", local_steps=True)
def lower(client: Client, held_x: Array, held_y: Array, x: Array, y: Array, step: Array) -> Array:
    """y_T after T local steps on the submodel (lines 6–9)."""
    client = client.held(held_x, held_y)
    for _ in range(client.local_steps):
        y = y - step[0] * client.lower_grad(x, y)
    return y


@task(takes="held_x held_y part_x part_y 1 1", gives="part_x")
def local_sum(
    client: Client, held_x: Array, held_y: Array, x: Array, y: Array, ell: Array, terms: Array
) -> Array:  # fmt: skip
    """The submodel's own hypergradient (line 23, equation 7) by a Neumann sum, every product on a fresh sample."""
    client = client.held(held_x, held_y)
    in_x, in_y = client.upper_grad(x, y)
    v = neumann(lambda v: client.hvp(x, y, v), in_y, float(ell[0]), int(terms[0]))
    return in_x - client.cross(x, y, v)


@task(takes="held_x held_y part_x part_y 1 1", gives="part_x")
def local_cg(
    client: Client, held_x: Array, held_y: Array, x: Array, y: Array, terms: Array, tolerance: Array
) -> Array:  # fmt: skip
    """The same by conjugate gradients, all products on one sample: they must be with one and the same Hessian."""
    client = client.held(held_x, held_y)
    in_x, in_y = client.upper_grad(x, y)
    batch = client.draw()
    v = conjugate_gradients(lambda v: client.hvp(x, y, v, batch), in_y, int(terms[0]), float(tolerance[0]))
    return in_x - client.cross(x, y, v, batch)


@task(takes="held_x held_y part_x part_y", gives="part_x part_y")
def begin(client: Client, held_x: Array, held_y: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """∇_x f_i and ∇_y f_i of the submodel, for the global hypergradient."""
    return client.held(held_x, held_y).upper_grad(x, y)


@task(takes="held_x held_y part_x part_y part_y", gives="part_y", plausible=curves_upwards(v=4))
def product(client: Client, held_x: Array, held_y: Array, x: Array, y: Array, v: Array) -> Array:
    """∇²_yy g_i · v of the submodel."""
    return client.held(held_x, held_y).hvp(x, y, v)


@task(takes="held_x held_y part_x part_y part_y", gives="part_x")
def cross(client: Client, held_x: Array, held_y: Array, x: Array, y: Array, v: Array) -> Array:
    """∇²_xy g_i · v of the submodel."""
    return client.held(held_x, held_y).cross(x, y, v)


@dataclass(kw_only=True)
class RaboParameters(MaskParameters, UpperStep):
    """Parameters of RABO."""

    step_y: StepYKey = "auto"
    hypergradient: Annotated[
        Literal["local", "global"], "of each client's own problem, or of all clients' together"
    ] = "local"
    inverse: Annotated[Literal["neumann", "cg"], "of the lower Hessian: Neumann sum, or conjugate gradients"] = (
        "neumann"
    )
    terms: Annotated[int, "terms of the Neumann sum; products of conjugate gradients at most", AtLeast(1)] = 10
    tolerance: Annotated[float, "conjugate gradients end at a residual of this times the first", AtLeast(0)] = 1e-6
    smoothness: SmoothnessKey = "auto"


@dataclass(kw_only=True)
class RaboState(Covering, UpperState):
    """What the server knows between two outer rounds."""


class Rabo(Method):
    """Bilevel optimization with submodels that fit the clients."""

    name = "rabo"
    paper = "Li, Zhang, Zheng, Shi, Yuan, Cheng, Yu: Distributed Bilevel Optimization with Dual Pruning"
    facts = {"order": "second (products)", "communication": "synchronous", "rate": "O(1/√(C_x* Q)) nonconvex"}
    Parameters: ClassVar[Any] = RaboParameters
    client_keys = ("local_steps", "batch", "capacity")
    tasks = {
        "lower": lower, "local_sum": local_sum, "local_cg": local_cg, "begin": begin, "product": product, "cross": cross
    }  # fmt: skip
    figure_meanings = COVERING

    def __init__(self, parameters: Any, setting: Setting) -> None:
        super().__init__(parameters, setting)
        self.submodels = Submodels(parameters, setting)
        if getattr(parameters, "inverse", "") == "cg" and parameters.hypergradient == "global":
            setting.need_whole_shards("algorithm.inverse")

    @classmethod
    def used_tasks(cls, parameters: Any, shapes: Shapes) -> dict[str, TaskFunction]:
        p = parameters
        local = "local_sum" if p.inverse == "neumann" else "local_cg"
        kinds = ["lower", *([local] if p.hypergradient == "local" else ["begin", "product", "cross"])]
        return {kind: cls.tasks[kind] for kind in kinds}

    def start(self, x: Array, y: Array) -> RaboState:
        return RaboState(x=x, y=y, rule=DistanceOverGradients.at(x))

    def round(self, s: RaboState, link: Link) -> None:
        """One global iteration of Algorithm 1."""
        dealt = self.submodels.deal(s.round, s.x, s.y)
        beta = self.step_y(self.p.step_y)
        updates = self.invite(dealt, link, "lower", s.x, s.y, np.array([beta]))
        ends, holders = dealt.mean_y(updates)
        G = np.where(holders, (s.y - ends) / beta, 0.0)
        s.y = self.setting.project_y(np.where(holders, ends, s.y))
        s.cover(holders_y=dealt.covered(updates)[1])
        h, updates = self.hypergradient(s, dealt, link)
        s.cover(holders_x=dealt.covered(updates)[0])
        theory = math.sqrt(s.covering_x / self.setting.participation.count) if self.p.schedule == "theory" else 1.0
        self.descend(s, h, min(theory, 1.0), lacking=(G,))

    def hypergradient(self, s: RaboState, dealt: Dealt, link: Link) -> tuple[Array, list[Update]]:
        """The average of each coordinate over those who hold it, 0 where nobody does; and the answers it is made of."""
        p, at = self.p, (s.x, s.y)
        if p.hypergradient == "global":
            return self._global(s, dealt, link)
        if p.inverse == "cg":
            numbers = np.array([float(p.terms)]), np.array([p.tolerance])
            updates = self.invite(dealt, link, "local_cg", *at, *numbers)
        else:
            numbers = np.array([self.ell]), np.array([float(p.terms)])
            updates = self.invite(dealt, link, "local_sum", *at, *numbers)
        return dealt.mean_x(updates)[0], updates

    def _global(self, s: RaboState, dealt: Dealt, link: Link) -> tuple[Array, list[Update]]:
        """With H v = ∇_y f solved for the averages over holders, D⁻¹ Σ PᵀH_iP: its eigenvalues are at most ℓ.

        It is symmetric only once each coordinate is multiplied by its holders D, which conjugate gradients need. All of
        it is of the same clients: H must be one and the same.
        """
        at = s.x, s.y
        begun = self.invite(dealt, link, "begin", *at)
        clients = [update.client for update in begun]
        b, holders = dealt.mean_y(begun, 1)

        def products(v: Array) -> Array:
            return dealt.mean_y(dealt.ask(link, "product", clients, *at, v))[0]

        if self.p.inverse == "neumann":
            v = neumann(products, b, self.ell, self.p.terms)
        else:
            v = conjugate_gradients(lambda v: holders * products(v), holders * b, self.p.terms, self.p.tolerance)
        return dealt.mean_x(begun)[0] - dealt.mean_x(dealt.ask(link, "cross", clients, *at, v))[0], begun

    def invite(self, dealt: Dealt, link: Link, kind: str, *arrays: Array) -> list[Update]:
        """One synchronous round with the clients invited, each with its submodel."""
        return dealt.ask(link, kind, self.setting.participation.invited(link.round), *arrays)

    def figures(self, s: RaboState) -> dict[str, float]:
        return s.covering()
