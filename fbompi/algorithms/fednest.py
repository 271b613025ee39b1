"""FedNest (Tarzanagh, Li, Thrampoulidis, Oymak 2022): federated SVRG on both levels, one Hessian chain for all clients.

FedInn takes local SVRG steps on y, FedIHGP estimates H⁻¹∇_y f by a chain of products in which every factor is an
average over clients, and FedOut takes local SVRG steps on x along the hypergradient, of which only the direct part,
∇_x f, is followed as x moves. What was at hand of the paper: the estimator as Huang, Zhang and Ji (2023, section 3.2)
print it, and the authors' published code for the local steps, their order and the number of rounds of communication,
2T + N' + 3 per outer round. Local steps of β/τ_i and α/τ_i are recalled from its theorem. Where the published code
differs from the estimator (powers of local Hessians instead of averaged factors), the estimator is followed.
``estimator = "sum"`` adds up all N terms, as that code does, where the printed one is N times one of them, drawn at
random: twice the rounds of communication for a chain without noise of its own.

Clients answer with the mean of their τ local directions instead of their last points: z − step·(mean direction) is the
last point, and where a client owns a block of x only, the rest of x follows the other clients. ``inner`` chooses what
the paper and FedMBO's Figure 3 compare: ``svrg``, ``fedavg`` (local steps along the client's own gradients, which
drift apart), ``minibatch`` (one gradient of every client at the same point, as FedMBO). ``hypergradient`` chooses the
other half of that comparison: ``ihgp``, the chain above with FedOut after it, or ``phe``, FedMBO's independent chains
and one step on x by the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fbompi.algorithms import fedmbo
from fbompi.algorithms.fedmbo import Chains, cross, factor, lower
from fbompi.algorithms.inverse import neumann
from fbompi.algorithms.method import UpperState
from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, StepYKey, UpperStep
from fbompi.client import Client
from fbompi.config import AtLeast
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, Update, task
from fbompi.randomness import stream

TermsKey = Annotated[int, "N, terms of the Neumann series", AtLeast(1)]
EstimatorKey = Annotated[
    Literal["sampled", "sum"], "of the Neumann series: one term drawn at random, or the sum of all, its mean"
]
InnerRoundsKey = Annotated[int, "T, inner rounds on y per outer round", AtLeast(1)]


def _as_it_is(z: Array) -> Array:
    return z


def along(
    direction: Callable[[Array], Array],
    z: Array,
    step: Array,
    count: int,
    project: Callable[[Array], Array] = _as_it_is,
) -> Array:
    """The mean of `count` directions d_s, met on the way z ← z − (step/count)·d_s: the way ends at z − step·(mean)."""
    total = np.zeros_like(z)
    for _ in range(count):
        d = direction(z)
        total += d
        z = project(z - step[0] / count * d)
    return total / count


def corrected(gradient: Callable[[Array, Any], Array], draw: Callable[[], Any], origin: Array, mean: Array) -> Any:
    """The direction of SVRG: a client's gradient, less that at the origin on the same sample, plus the mean there."""

    def direction(z: Array) -> Array:
        batch = draw()
        return gradient(z, batch) - gradient(origin, batch) + mean

    return direction


@task(takes="x y y 1", gives="y", local_steps=True)
def svrg(client: Client, x: Array, y: Array, q: Array, step: Array) -> Array:
    """FedInn: local steps on y, corrected by the mean gradient q."""
    direction = corrected(lambda z, batch: client.lower_grad(x, z, batch), client.draw, y, q)
    return along(direction, y, step, client.local_steps)


@task(takes="x y 1", gives="y", local_steps=True)
def fedavg(client: Client, x: Array, y: Array, step: Array) -> Array:
    """Local steps on y along the client's own gradients."""
    return along(lambda z: client.lower_grad(x, z), y, step, client.local_steps)


@task(takes="x y", gives="y")
def begin(client: Client, x: Array, y: Array) -> Array:
    """∇_y f_i, with which the chain begins."""
    return client.upper_grad(x, y)[1]


@task(takes="x y y", gives="x")
def hypergradient(client: Client, x: Array, y: Array, p: Array) -> Array:
    """h_i = ∇_x f_i − ∇²_xy g_i · p."""
    return client.upper_grad(x, y)[0] - client.cross(x, y, p)


@task(takes="x y x 1", gives="x", local_steps=True)
def outer(client: Client, x: Array, y: Array, h: Array, step: Array) -> Array:
    """FedOut: by how much local steps on x, of which only ∇_x f_i changes on the way, differ from h on average."""
    direction = corrected(lambda z, batch: client.upper_grad(z, y, batch)[0], client.draw_upper, x, h)
    return along(direction, x, step, client.local_steps, client.project_x) - h


@dataclass(kw_only=True)
class FedNestParameters(UpperStep):
    """Parameters of FedNest."""

    step_y: StepYKey = "auto"
    inner: Annotated[Literal["svrg", "fedavg", "minibatch"], "what inner rounds on y do"] = "svrg"
    inner_rounds: InnerRoundsKey = 5
    hypergradient: Annotated[
        Literal["ihgp", "phe"], "one chain of averages and local steps on x, or FedMBO's independent chains"
    ] = "ihgp"
    terms: TermsKey = 10
    estimator: EstimatorKey = "sampled"
    smoothness: SmoothnessKey = "auto"


class FedNest(Chains):
    """Federated SVRG below and above, a chain of averaged Hessian products between them."""

    name = "fednest"
    paper = "Tarzanagh, Li, Thrampoulidis, Oymak: FedNest: Federated Bilevel, Minimax, and Compositional Optimization"
    facts = {"order": "second (products)", "communication": "synchronous", "rate": "O(1/√K) nonconvex"}
    Parameters: ClassVar[Any] = FedNestParameters
    client_keys = ("local_steps", "batch")
    tasks = {
        "lower": lower, "svrg": svrg, "fedavg": fedavg, "begin": begin, "factor": factor,
        "hypergradient": hypergradient, "outer": outer, "chains": fedmbo.begin, "cross": cross,
    }  # fmt: skip

    @classmethod
    def used_tasks(cls, parameters: Any, shapes: Shapes) -> dict[str, TaskFunction]:
        """Chains begin with another task, which FedMBO calls "begin"."""
        unused = {"svrg": {"fedavg"}, "fedavg": {"lower", "svrg"}, "minibatch": {"svrg", "fedavg"}}[parameters.inner]
        independent = parameters.hypergradient == "phe"
        unused |= {"hypergradient", "outer", "chains"} if independent else {"chains", "cross"}
        used = {kind: function for kind, function in cls.tasks.items() if kind not in unused}
        return {**used, "begin": cls.tasks["chains"]} if independent else used

    def __init__(self, parameters: Any, setting: Setting) -> None:
        super().__init__(parameters, setting)
        self.in_full = parameters.estimator == "sum"

    def start(self, x: Array, y: Array) -> UpperState:
        return UpperState(x=x, y=y, rule=DistanceOverGradients.at(x))

    def round(self, s: UpperState, link: Link) -> None:
        """One outer round of Algorithm 1."""
        for _ in range(self.p.inner_rounds):
            s.y = self.fedinn(s.x, s.y, link)
        rng = stream(self.setting.seed, "server", s.round)
        if self.p.hypergradient == "phe":
            return self.descend(s, self.over_chains(self.chains(s.x, s.y, link, rng)))
        p = self.fedihgp(s.x, s.y, link, rng)
        updates = self.ask(link, "hypergradient", s.x, s.y, p)
        self.fedout(s, link, self.mean_x(updates), updates)

    def fedinn(self, x: Array, y: Array, link: Link) -> Array:
        """One inner round: two of communication for SVRG, one otherwise."""
        if self.p.inner == "fedavg":
            updates = self.ask(link, "fedavg", x, y, np.array([self.beta]))
        else:
            updates = self.ask(link, "lower", x, y)
        if self.p.inner == "svrg":
            return self.svrg_steps(x, y, link, updates)
        return self.setting.project_y(y - self.beta * self.mean(updates))

    def svrg_steps(self, x: Array, y: Array, link: Link, updates: Sequence[Update]) -> Array:
        """y after local steps by the clients whose gradients at y are the first of these answers."""
        step = np.array([self.beta])
        d = self.mean(self.ask(link, "svrg", x, y, self.mean(updates), step, clients=_same(updates)))
        return self.setting.project_y(y - self.beta * d)

    def fedihgp(self, x: Array, y: Array, link: Link, rng: np.random.Generator) -> Array:
        """p ≈ H⁻¹∇_y f: N/ℓ times N' averaged factors, N' uniform on {0..N−1}; or the sum of all N terms."""
        b = self.mean(self.ask(link, "begin", x, y))
        if self.p.estimator == "sum":
            return neumann(lambda v: self.mean(self.ask(link, "factor", x, y, v)), b, self.ell, self.p.terms)
        p = self.p.terms / self.ell * b
        for _ in range(rng.integers(self.p.terms)):
            p = p - self.mean(self.ask(link, "factor", x, y, p)) / self.ell
        return p

    def fedout(
        self, s: UpperState, link: Link, h: Array, updates: Sequence[Update], lacking: Sequence[Array] = ()
    ) -> None:  # fmt: skip
        """Local steps on x along h, by the clients whose parts h is the average of; then the server's.

        Local steps are as long as the server's last one: how long the next is, it knows from what they find.
        """
        drift = self.mean_x(self.ask(link, "outer", s.x, s.y, h, np.array([s.step]), clients=_same(updates)))
        self.descend(s, h + drift, lacking=lacking)


def _same(updates: Sequence[Update]) -> list[int]:
    """The clients of these answers: SVRG corrects the gradients that it averaged."""
    return [update.client for update in updates]
