"""FedMBO with PHE (Huang, Zhang, Ji 2023; Algorithms 1 and 2): synchronous, sampled clients, independent chains.

Inner loop: minibatch SGD on y, n sampled clients at the same point. Outer step: the mean of n chains, each a Neumann
product in which every factor comes from another client. Chains are independent, as Proposition 3 needs, with
``clients.replacement = true``; drawn without, they are not, and their mean varies less. Where clients come and go
(``presence = "anarchic"``) the factors of a chain are of the same few clients, and its mean is no Neumann sum. ℓ must
bound the Hessian on every batch; the default follows what products meet. Line 4 of the printed Algorithm 2 says ∇_y f
for d_i; it is ∇_x f, as in equation (6).

A chain of random length Q is N times one term of the series: large where it is short, small where it is long, and only
the mean of many is of use. Rules that look for the middle of the chains (``clients.aggregate``) need chains that are
alike: ``estimator = "sum"`` has all N terms in each, v ← v − (∇²_yy g_i · v − ∇_y f)/ℓ, with another client in every
factor. Its mean is the same, its variance smaller, its chains twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.algorithms.inverse import curves_upwards
from fbompi.algorithms.method import Method, UpperState
from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, StepYKey, UpperStep
from fbompi.client import Client
from fbompi.config import AtLeast
from fbompi.links.link import Link
from fbompi.messages import Array, task
from fbompi.randomness import stream


@task(takes="x y", gives="y")
def lower(client: Client, x: Array, y: Array) -> Array:
    """G_i: the mean of S sample gradients at the server's point (Algorithm 1, line 8)."""
    return client.lower_grad(x, y)


@task(takes="x y", gives="x y")
def begin(client: Client, x: Array, y: Array) -> tuple[Array, Array]:
    """∇_x f_i and ∇_y f_i, with which a chain begins (Algorithm 2, lines 3–5)."""
    return client.upper_grad(x, y)


@task(takes="x y y", gives="y", plausible=curves_upwards(v=2))
def factor(client: Client, x: Array, y: Array, p: Array) -> Array:
    """∇²_yy g_i · p on a fresh sample (line 13)."""
    return client.hvp(x, y, p)


@task(takes="x y y", gives="x")
def cross(client: Client, x: Array, y: Array, p: Array) -> Array:
    """∇²_xy g_i · p on a fresh sample (line 22)."""
    return client.cross(x, y, p)


@dataclass(kw_only=True)
class FedMboParameters(UpperStep):
    """Parameters of FedMBO."""

    step_y: StepYKey = "auto"
    inner_rounds: Annotated[int, "T, inner rounds on y per outer round", AtLeast(1)] = 5
    terms: Annotated[int, "N, chains have fewer than N factors", AtLeast(1)] = 10
    estimator: Annotated[
        Literal["auto", "sampled", "sum"],
        "chains: one term of the series, drawn at random; all terms; auto: the first, if clients.aggregate is mean",
    ] = "auto"
    smoothness: SmoothnessKey = "auto"


class Chains(Method):
    """PHE: a hypergradient from independent chains. Tasks are those of this file: begin, factor, cross."""

    in_full: bool  # all terms of the series in every chain

    def over_chains(self, H: Array) -> Array:
        """One hypergradient: the mean of the chains, or another rule where every client has all of x.

        In a block of x most chains have nothing, and the middle of them is 0.
        """
        shapes = self.setting.shapes
        return self.setting.aggregation.over(H) if (shapes.owners == self.setting.clients).all() else np.mean(H, axis=0)

    def chains(self, x: Array, y: Array, link: Link, rng: np.random.Generator) -> Array:
        """PHE, Algorithm 2: one independent hypergradient estimate per row."""
        n, N, ell = self.setting.participation.count, self.p.terms, self.ell
        H = np.zeros((n, x.size))
        chains = self.ask(link, "begin", x, y, clients=self._draw(link, n))
        for i, update in enumerate(chains):
            H[i, self._block(update.client)] = update.arrays[0]
        b = np.array([update.arrays[1] for update in chains])
        if self.in_full:
            p, again, lengths = b / ell, b / ell, np.full(n, N - 1)
        else:
            p, again, lengths = N / ell * b, np.zeros_like(b), rng.integers(N, size=n)
        for level in range(1, int(lengths.max()) + 1):
            going = np.flatnonzero(lengths >= level)
            for i, client in zip(going.tolist(), self._draw(link, n)[going]):
                link.send([client], "factor", x, y, p[i])
            products = link.collect()
            p[going] -= np.array([update.arrays[0] for update in products]) / ell - again[going]
        for i, client in enumerate(self._draw(link, n)):
            link.send([client], "cross", x, y, p[i])
        for i, update in enumerate(link.collect()):
            H[i, self._block(update.client)] -= update.arrays[0]
        return H

    def _draw(self, link: Link, n: int) -> Array:
        """A client for each of n chains, drawn afresh in every round of communication."""
        return self.setting.participation.sample(link.round, n)

    def _block(self, client: int) -> slice:
        return self.setting.shapes.blocks[client]


class FedMbo(Chains):
    """Minibatch SGD below, parallel hypergradient chains above; linear speed-up in the sampled clients."""

    name = "fedmbo"
    paper = "Huang, Zhang, Ji: Achieving Linear Speedup in Non-IID Federated Bilevel Learning"
    facts = {"order": "second (products)", "communication": "synchronous", "rate": "O(1/√(nK)) nonconvex"}
    Parameters = FedMboParameters
    tasks = {"lower": lower, "begin": begin, "factor": factor, "cross": cross}

    def __init__(self, parameters: FedMboParameters, setting: Setting) -> None:
        super().__init__(parameters, setting)
        estimator = parameters.estimator
        self.in_full = setting.aggregation.robust if estimator == "auto" else estimator == "sum"

    def start(self, x: Array, y: Array) -> UpperState:
        return UpperState(x=x, y=y, rule=DistanceOverGradients.at(x))

    def round(self, s: UpperState, link: Link) -> None:
        """One outer round of Algorithm 1."""
        for _ in range(self.p.inner_rounds):
            G = self.mean(self.ask(link, "lower", s.x, s.y))
            s.y = self.setting.project_y(s.y - self.beta * G)
        H = self.chains(s.x, s.y, link, stream(self.setting.seed, "server", s.round))
        self.descend(s, self.over_chains(H))
