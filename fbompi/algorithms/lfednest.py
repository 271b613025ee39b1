"""LFedNest, FedNest's light form (Tarzanagh, Li, Thrampoulidis, Oymak 2022): everything local between two averages.

FedAvg on y, then local steps on x, each along the client's own hypergradient with a Neumann chain of its own Hessian:
T + 1 rounds of communication per outer round. What clients average are local hypergradients, and their mean is not the
hypergradient of the mean: where clients differ, the method settles elsewhere than at a stationary point of Φ. The order
of steps and the sum of N terms (``estimator = "sum"``) are those of the authors' published code; the chain of random
length and the steps β/τ_i and α/τ_i are recalled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fbompi.algorithms.fednest import EstimatorKey, InnerRoundsKey, TermsKey, along, fedavg
from fbompi.algorithms.inverse import neumann
from fbompi.algorithms.method import Method, UpperState
from fbompi.algorithms.setting import SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, StepYKey, UpperStep
from fbompi.client import Client
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, task


@task(takes="x y 1 1 1", gives="x", local_steps=True)
def sampled(client: Client, x: Array, y: Array, step: Array, ell: Array, terms: Array) -> Array:
    """The mean of τ local hypergradients, each with one term of the client's own Neumann series, drawn at random."""

    def direction(z: Array) -> Array:
        d, p = client.upper_grad(z, y)
        p = terms[0] / ell[0] * p
        for _ in range(client.rng.integers(int(terms[0]))):
            p = p - client.hvp(z, y, p) / ell[0]
        return d - client.cross(z, y, p)

    return along(direction, x, step, client.local_steps, client.project_x)


@task(takes="x y 1 1 1", gives="x", local_steps=True)
def summed(client: Client, x: Array, y: Array, step: Array, ell: Array, terms: Array) -> Array:
    """The same with all terms."""

    def direction(z: Array) -> Array:
        d, b = client.upper_grad(z, y)
        v = neumann(lambda v: client.hvp(z, y, v), b, ell[0], int(terms[0]))
        return d - client.cross(z, y, v)

    return along(direction, x, step, client.local_steps, client.project_x)


@dataclass(kw_only=True)
class LFedNestParameters(UpperStep):
    """Parameters of LFedNest."""

    step_y: StepYKey = "auto"
    inner_rounds: InnerRoundsKey = 5
    terms: TermsKey = 10
    estimator: EstimatorKey = "sampled"
    smoothness: SmoothnessKey = "auto"


class LFedNest(Method):
    """FedAvg below, averages of local hypergradients above: few messages, and a bias where clients differ."""

    name = "lfednest"
    paper = "Tarzanagh, Li, Thrampoulidis, Oymak: FedNest: Federated Bilevel, Minimax, and Compositional Optimization"
    facts = {"order": "second (products)", "communication": "synchronous", "rate": "none known; biased"}
    Parameters = LFedNestParameters
    client_keys = ("local_steps", "batch")
    tasks = {"fedavg": fedavg, "sampled": sampled, "sum": summed}

    @classmethod
    def used_tasks(cls, parameters: LFedNestParameters, shapes: Shapes) -> dict[str, TaskFunction]:
        return {kind: cls.tasks[kind] for kind in ("fedavg", parameters.estimator)}

    def start(self, x: Array, y: Array) -> UpperState:
        return UpperState(x=x, y=y, rule=DistanceOverGradients.at(x))

    def round(self, s: UpperState, link: Link) -> None:
        """T rounds on y, one on x."""
        p = self.p
        for _ in range(p.inner_rounds):
            d = self.mean(self.ask(link, "fedavg", s.x, s.y, np.array([self.beta])))
            s.y = self.setting.project_y(s.y - self.beta * d)
        numbers = (np.array([number]) for number in (self.local_x(s), self.ell, p.terms))
        self.descend(s, self.mean_x(self.ask(link, p.estimator, s.x, s.y, *numbers)))
