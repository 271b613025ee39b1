"""SimFBO (Yang, Xiao, Ji 2023): y, v and x in one loop, τ local steps on all three at once, one message each way.

v follows H⁻¹∇_y f, which minimises the mean of R_i(v) = ½vᵀ∇²_yy g_i v − vᵀ∇_y f_i. A client steps on y, v and x, each
from the others' old values, and sends the weighted sums Σ_k a_k·(k-th direction); the server steps with their average,
and puts v back into a ball. The local steps and the sum are those that "First-Order Federated Bilevel Learning" (2025,
section 3.1 and equation 3) prints; the server's step, and the ball, are recalled from the paper itself, which was
not at hand. One sample of f serves both ∇_x f and ∇_y f.

- A step here is one along the mean of all local directions: the server's γ is step/(mean of clients' Σ_k a_k), a
  client's η is step/τ_i. So τ local steps go about as far as one step of the server's, and what is stable for
  τ = 1 is so for any. With one τ for all and a_k = 1, γ = η: the server averages the clients' last points.
- Weights: a_k = discount^(τ−1−k). Where clients take different numbers of steps, those that take more weigh more, and
  the method solves another problem than the mean of the clients': `shrofbo` does not.
- Memory: the definition of the sums keeps the τ products with the Hessian and with ∇²_xy g until they are summed, and
  that paper's Figure 4 measures it. ``store = false`` adds them up as they come: the same sums, memory free of τ.
- The ball: its radius is a bound on ‖H⁻¹∇_y f‖, which theory takes as (bound on ‖∇_y f‖)/μ. No μ is known here, so
  there is none unless ``radius`` is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fbompi.algorithms.method import Method, UpperState
from fbompi.algorithms.setting import SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, StepYKey, UpperStep
from fbompi.client import Client
from fbompi.config import Above, AtLeast, AtMost
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, Update, task

Sums = tuple[Array, Array, Array, Array]  # of directions in x, y and v, and of the weights


def directions(
    client: Client, x: Array, y: Array, v: Array, steps: Sequence[Array]
) -> Iterator[tuple[Array, Array, Array]]:
    """The directions in x, y and v of τ local steps on all three at once."""
    eta_x, eta_y, eta_v = (step[0] / client.local_steps for step in steps)
    for _ in range(client.local_steps):
        f_x, f_y = client.upper_grad(x, y)
        d_x, d_y, d_v = f_x - client.cross(x, y, v), client.lower_grad(x, y), client.hvp(x, y, v) - f_y
        yield d_x, d_y, d_v
        x, y, v = client.project_x(x - eta_x * d_x), y - eta_y * d_y, v - eta_v * d_v


def weights(client: Client, discount: Array) -> list[float]:
    """a_k of the local steps k = 0, …, τ−1."""
    return [float(discount[0]) ** k for k in reversed(range(client.local_steps))]


@task(takes="x y y 1 1 1 1", gives="x y y 1", local_steps=True)
def stored(client: Client, x: Array, y: Array, v: Array, discount: Array, *steps: Array) -> Sums:
    """The weighted sums; products are kept until there are τ of them."""
    a, q_y, kept = weights(client, discount), np.zeros_like(y), []
    for a_k, (d_x, d_y, d_v) in zip(a, directions(client, x, y, v, steps)):
        q_y += a_k * d_y
        kept.append((d_x, d_v))
    q_x, q_v = (sum(a_k * d for a_k, d in zip(a, products)) for products in zip(*kept))
    return q_x, q_y, q_v, np.array([sum(a)])


@task(takes="x y y 1 1 1 1", gives="x y y 1", local_steps=True)
def summed(client: Client, x: Array, y: Array, v: Array, discount: Array, *steps: Array) -> Sums:
    """The same sums, made on the way."""
    a, q_x, q_y, q_v = weights(client, discount), np.zeros_like(x), np.zeros_like(y), np.zeros_like(v)
    for a_k, (d_x, d_y, d_v) in zip(a, directions(client, x, y, v, steps)):
        q_x += a_k * d_x
        q_y += a_k * d_y
        q_v += a_k * d_v
    return q_x, q_y, q_v, np.array([sum(a)])


@dataclass(kw_only=True)
class SimFboParameters(UpperStep):
    """Parameters of SimFBO and ShroFBO."""

    step_y: StepYKey = "auto"
    step_v: Annotated[float | Literal["auto"], "the step on v; auto: 1/ℓ", Above(0)] = "auto"
    discount: Annotated[float, "weights a_k = discount^(τ−1−k) of local steps", Above(0), AtMost(1)] = 1.0
    radius: Annotated[float, "of the ball in which v is kept; 0: none", AtLeast(0)] = 0.0
    store: Annotated[bool, "clients keep all τ products, as defined, or only their sum"] = True
    smoothness: SmoothnessKey = "auto"


@dataclass(kw_only=True)
class SimFboState(UpperState):
    """Everything the server knows between two rounds."""

    v: Array


class SimFbo(Method):
    """Simultaneous local steps on y, v and x: one round of communication per step on x."""

    name = "simfbo"
    paper = "Yang, Xiao, Ji: SimFBO: Towards Simple, Flexible and Communication-efficient Federated Bilevel Learning"
    facts = {"order": "second (products)", "communication": "synchronous", "rate": "O(1/√(PT)) nonconvex"}
    Parameters: ClassVar[Any] = SimFboParameters
    client_keys = ("local_steps", "batch")
    tasks = {"stored": stored, "summed": summed}

    @classmethod
    def used_tasks(cls, parameters: SimFboParameters, shapes: Shapes) -> dict[str, TaskFunction]:
        kind = "stored" if parameters.store else "summed"
        return {kind: cls.tasks[kind]}

    def start(self, x: Array, y: Array) -> SimFboState:
        return SimFboState(x=x, y=y, v=np.zeros_like(y), rule=DistanceOverGradients.at(x))

    def round(self, s: SimFboState, link: Link) -> None:
        """The local steps, and the server's along the average of their sums."""
        p = self.p
        beta, gamma = self.beta, self.scheduled(self.step_y(p.step_v))
        numbers = (np.array([number]) for number in (p.discount, self.local_x(s), beta, gamma))
        updates = self.ask(link, "stored" if p.store else "summed", s.x, s.y, s.v, *numbers)
        d_x, d_y, d_v = self.aggregate(updates)
        s.y = self.setting.project_y(s.y - beta * d_y)
        s.v = self.into_ball(s.v - gamma * d_v)
        self.descend(s, d_x, lacking=(d_y, d_v))

    def aggregate(self, updates: Sequence[Update]) -> tuple[Array, Array, Array]:
        """The means of the clients' sums, over the mean of the sums of their weights."""
        total = self.mean(updates, 3)[0]
        return self.mean_x(updates, 0) / total, self.mean(updates, 1) / total, self.mean(updates, 2) / total

    def into_ball(self, v: Array) -> Array:
        """The nearest point of the ball."""
        norm = float(np.linalg.norm(v))
        return v * (self.p.radius / norm) if 0 < self.p.radius < norm else v
