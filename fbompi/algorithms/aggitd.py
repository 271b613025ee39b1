"""FBO-AggITD (Xiao, Ji 2023): the hypergradient by iterative differentiation, in the same rounds as the steps on y.

Reconstructed: the paper was not at hand. From its abstract, and from how later papers describe it, are taken that the
hypergradient is made from the intermediate y^t while y is being optimised, that this saves the rounds of a chain of its
own, and that samples and rounds are of the order of FedNest's. The rest is recalled or follows from these.

Inner rounds t = 0, …, N−1 are FedNest's, y^{t+1} = y^t − λ·(mean gradient) with local SVRG steps. The chain is carried
along in their first message: at t = Q it begins with z = ∇_y f(x, y^Q), after that z ← (I − λH(y^t)) z, every factor an
average over clients; then h = ∇_x f − ∇²_xy g · w at y^N, and FedNest's local steps on x. Three estimators of w:

- ``sampled``: w = λN·z with Q uniform on {0..N−1}. 2N + 2 rounds of communication.
- ``sum``: its mean over Q, w ← (I − λH(y^t)) w + λ∇_y f(x, y^t) from w = 0, in the same rounds. It is FedNest's sum
  of N terms, except that terms see ∇_y f where y was when they began.
- ``reverse``: the derivative of f(x, y^N) through the N steps themselves, with ∇_y f at y^N and every ∇²_xy g at its
  own y^t, exact for one local step. That cannot go along: it is N rounds of its own, backwards over iterates that the
  server has kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fbompi.algorithms.fedmbo import begin, lower
from fbompi.algorithms.fednest import FedNest, hypergradient, outer, svrg
from fbompi.algorithms.inverse import curves_upwards
from fbompi.algorithms.method import UpperState
from fbompi.algorithms.setting import SmoothnessKey
from fbompi.algorithms.steps import StepYKey, UpperStep
from fbompi.client import Client
from fbompi.config import AtLeast
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, Update, task
from fbompi.randomness import stream


@task(takes="x y", gives="y y")
def first(client: Client, x: Array, y: Array) -> tuple[Array, Array]:
    """∇_y g_i, and ∇_y f_i to begin the chain with."""
    return client.lower_grad(x, y), client.upper_grad(x, y)[1]


@task(takes="x y y", gives="y y", plausible=curves_upwards(v=2, product=1))
def linked(client: Client, x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """∇_y g_i, and ∇²_yy g_i · z for the chain."""
    return client.lower_grad(x, y), client.hvp(x, y, z)


@task(takes="x y y", gives="y y")
def all_linked(client: Client, x: Array, y: Array, w: Array) -> tuple[Array, Array]:
    """∇_y g_i, and ∇²_yy g_i · w − ∇_y f_i for the sum of all chains."""
    return client.lower_grad(x, y), client.hvp(x, y, w) - client.upper_grad(x, y)[1]


@task(takes="x y y", gives="x y", plausible=curves_upwards(v=2, product=1))
def back(client: Client, x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """∇²_xy g_i · z and ∇²_yy g_i · z: back through one step on y."""
    return client.cross(x, y, z), client.hvp(x, y, z)


@dataclass(kw_only=True)
class AggItdParameters(UpperStep):
    """Parameters of AggITD."""

    step_y: StepYKey = "auto"
    inner_rounds: Annotated[int, "N, inner rounds on y, through which is differentiated", AtLeast(1)] = 10
    estimator: Annotated[
        Literal["sampled", "sum", "reverse"], "one chain drawn at random, the mean of all, or the exact derivative"
    ] = "sampled"
    smoothness: SmoothnessKey = "auto"


class AggItd(FedNest):
    """Aggregated iterative differentiation: the hypergradient grows while y is being optimised."""

    name = "aggitd"
    paper = (
        "Xiao, Ji: Communication-Efficient Federated Hypergradient Computation via Aggregated Iterative Differentiation"
    )
    Parameters: ClassVar[Any] = AggItdParameters
    tasks = {
        "lower": lower, "first": first, "linked": linked, "all_linked": all_linked, "svrg": svrg, "begin": begin,
        "back": back, "hypergradient": hypergradient, "outer": outer,
    }  # fmt: skip

    @classmethod
    def used_tasks(cls, parameters: AggItdParameters, shapes: Shapes) -> dict[str, TaskFunction]:
        used = {
            "sampled": ("lower", "first", "linked", "hypergradient"),
            "sum": ("all_linked", "hypergradient"),
            "reverse": ("lower", "begin", "back"),
        }[parameters.estimator]
        return {kind: cls.tasks[kind] for kind in (*used, "svrg", "outer")}

    def round(self, s: UpperState, link: Link) -> None:
        """N rounds on y with the hypergradient along them, one step on x.

        How far y went tells the automatic step whether it keeps up: a chain with one large factor throws x far.
        """
        before = s.y
        if self.p.estimator == "reverse":
            h, updates = self.reverse(s, link)
        else:
            if self.p.estimator == "sum":
                w = self.all_chains(s, link)
            else:
                w = self.chain(s, link, stream(self.setting.seed, "server", s.round))
            updates = self.ask(link, "hypergradient", s.x, s.y, w)
            h = self.mean_x(updates)
        self.fedout(s, link, h, updates, lacking=((before - s.y) / self.beta,))

    def chain(self, s: UpperState, link: Link, rng: np.random.Generator) -> Array:
        """y ← y^N; λN times the product of the factors after a round Q drawn at random, times ∇_y f(x, y^Q)."""
        N, lam = self.p.inner_rounds, self.beta
        Q, z = rng.integers(N), np.zeros_like(s.y)
        for t in range(N):
            if t < Q:
                updates = self.ask(link, "lower", s.x, s.y)
            elif t == Q:
                updates = self.ask(link, "first", s.x, s.y)
                z = lam * N * self.mean(updates, 1)
            else:
                updates = self.ask(link, "linked", s.x, s.y, z)
                z = z - lam * self.mean(updates, 1)
            s.y = self.svrg_steps(s.x, s.y, link, updates)
        return z

    def all_chains(self, s: UpperState, link: Link) -> Array:
        """y ← y^N; the mean of `chain` over Q."""
        w = np.zeros_like(s.y)
        for _ in range(self.p.inner_rounds):
            updates = self.ask(link, "all_linked", s.x, s.y, w)
            w = w - self.beta * self.mean(updates, 1)
            s.y = self.svrg_steps(s.x, s.y, link, updates)
        return w

    def reverse(self, s: UpperState, link: Link) -> tuple[Array, list[Update]]:
        """y ← y^N; the derivative of f(x, y^N) in x, through all N steps, and the answers it begins with."""
        iterates = []
        for _ in range(self.p.inner_rounds):
            iterates.append(s.y)
            s.y = self.svrg_steps(s.x, s.y, link, self.ask(link, "lower", s.x, s.y))
        ends = self.ask(link, "begin", s.x, s.y)
        h, z = self.mean_x(ends, 0), self.mean(ends, 1)
        for y in reversed(iterates):
            updates = self.ask(link, "back", s.x, y, z)
            h, z = h - self.beta * self.mean_x(updates, 0), z - self.beta * self.mean(updates, 1)
        return h, ends
