"""AFL: anarchic federated learning (Yang, Zhang, Khanduri, Liu; ICML 2022), on bilevel problems as AFBO's authors did.

AFL is a single level method: the server steps with the mean of the most recent updates of all clients (its cross-silo
form, AFA-CS), each the average of as many local gradients as that client cared to take. The comparison in the AFBO
paper says that AFL averages most recent gradients and has no distributed hypergradient; how y is trained there is not
said. This is the reading here: a client is handed (x, y), averages the gradients of its local steps on y, takes its own
hypergradient at (x, y) with its own Hessian, and sends both; the server steps x and y with the means over all clients.

Where clients differ, the mean of local hypergradients is not ∇Φ: the method ends where that mean is 0, not at x*. Of
the AFL paper only the abstract could be read; its algorithm is recalled. Steps shrink with the age of vectors as in
AFBO, and like there the first round waits until all clients have been heard, so that the mean is one from the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.algorithms.afbo import lower
from fbompi.algorithms.inverse import conjugate_gradients, neumann
from fbompi.algorithms.method import Method, UpperState
from fbompi.algorithms.recent import QuorumKey, Recent, bound_of, gather, quorum_of, shortened
from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, StepYKey, UpperStep
from fbompi.client import Client
from fbompi.config import AtLeast
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, task


@task(takes="x y 1 1 1", gives="x y", local_steps=True)
def local_sum(client: Client, x: Array, y: Array, step: Array, ell: Array, terms: Array) -> tuple[Array, Array]:
    """The client's own hypergradient by a Neumann sum, and the mean of its local gradients."""
    in_x, in_y = client.upper_grad(x, y)
    v = neumann(lambda v: client.hvp(x, y, v), in_y, float(ell[0]), int(terms[0]))
    return in_x - client.cross(x, y, v), lower(client, x, y, step)


@task(takes="x y 1 1", gives="x y", local_steps=True)
def local_cg(client: Client, x: Array, y: Array, step: Array, terms: Array) -> tuple[Array, Array]:
    """The same by conjugate gradients, all products on one sample: they must be with one and the same Hessian."""
    in_x, in_y = client.upper_grad(x, y)
    batch = client.draw()
    v = conjugate_gradients(lambda v: client.hvp(x, y, v, batch), in_y, int(terms[0]))
    return in_x - client.cross(x, y, v, batch), lower(client, x, y, step)


@dataclass(kw_only=True)
class AflParameters(UpperStep):
    """Parameters of AFL."""

    step_y: StepYKey = "auto"
    inverse: Annotated[Literal["neumann", "cg"], "of the client's own Hessian: Neumann sum, or conjugate gradients"] = (
        "neumann"
    )
    terms: Annotated[int, "terms of the Neumann sum; products of conjugate gradients at most", AtLeast(1)] = 10
    quorum: QuorumKey = "auto"
    bound: Annotated[int, "oldest vector allowed; −1: any", AtLeast(-1)] = -1
    adaptive: Annotated[bool, "shorten steps by 1/(1 + mean age)"] = True
    smoothness: SmoothnessKey = "auto"


@dataclass(kw_only=True)
class AflState(UpperState):
    """What the server knows between two rounds."""

    recent: dict[str, Recent]
    idle: set[int]


class Afl(Method):
    """Most recent local gradients and local hypergradients of all clients, averaged."""

    name = "afl"
    paper = "Yang, Zhang, Khanduri, Liu: Anarchic Federated Learning"
    facts = {"order": "second (products)", "communication": "asynchronous", "rate": "none known; biased"}
    Parameters = AflParameters
    client_keys = ("local_steps", "batch")
    tasks = {"neumann": local_sum, "cg": local_cg}

    def __init__(self, parameters: AflParameters, setting: Setting) -> None:
        super().__init__(parameters, setting)
        self.quorum, self.bound = quorum_of(parameters.quorum, setting.clients), bound_of(parameters.bound)

    @classmethod
    def used_tasks(cls, parameters: AflParameters, shapes: Shapes) -> dict[str, TaskFunction]:
        quorum_of(parameters.quorum, len(shapes.blocks))
        return {parameters.inverse: cls.tasks[parameters.inverse]}

    def start(self, x: Array, y: Array) -> AflState:
        recent = {self.p.inverse: Recent(("x", "y"), self.setting.shapes, self.setting.aggregation)}
        return AflState(
            x=x, y=y, rule=DistanceOverGradients.at(x), recent=recent, idle=set(range(self.setting.clients))
        )  # fmt: skip

    def round(self, s: AflState, link: Link) -> None:
        """One step of the server on x and on y."""
        invited = self.setting.participation.invited(link.round)
        numbers = [self.beta, self.ell, self.p.terms] if self.p.inverse == "neumann" else [self.beta, self.p.terms]
        point = s.x, s.y, *(np.array([float(number)]) for number in numbers)
        (h, G), ages = gather(link, s.recent, s.idle, self.p.inverse, point, s.round, self.quorum, self.bound, invited)
        shrink = shortened(float(ages.mean()), self.p.adaptive)
        s.y = self.setting.project_y(s.y - shrink * self.beta * G)
        self.descend(s, h, shrink, lacking=(G,))
