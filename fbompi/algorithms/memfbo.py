"""MemFBO: first-order federated bilevel learning (Yang, Xiao, Ma, Ji 2025; Algorithm 1): synchronous, one loop.

    min over x, y, max over z of  L(x, y, z) = (1/m) Σ f_i(x, y) + λ [g_i(x, y) − g_i(x, z)]

z follows y*(x), y the minimiser of f + λg, and x the gradient of L there, which is ∇Φ up to O(1/λ). Clients run τ local
steps on all three at once and send the averages of their gradients, three vectors whatever τ is; nothing of second
order is computed, and nothing is kept from one local step to the next but a running sum.

The step on y must shrink as λ grows, because y sees λ times the curvature of g: auto is 1/((1 + λ)ℓ). With z's 1/ℓ,
λ(y − z) then goes to −H⁻¹∇_y f as fast as z goes to y*(x). Local steps are the server's over τ where they are auto, so
that τ of them go as far as one of its own. ``growth`` lets λ grow with the rounds, and the bias vanish. The constants
of Theorem 5.11 are in an appendix that is not at hand: ``schedule = "theory"`` takes the orders that follow from its
rate (PT)^(−2/7): λ ~ (PT)^(1/7), from its bias 1/λ², and γ_x ~ P^(2/7) T^(−5/7), from 1/(γ_x T).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fbompi.algorithms.method import Method, UpperState
from fbompi.algorithms.setting import SmoothnessKey
from fbompi.algorithms.steps import DistanceOverGradients, UpperStep
from fbompi.client import Client
from fbompi.config import Above, AtLeast
from fbompi.links.link import Link
from fbompi.messages import Array, task

LocalKey = Annotated[float | Literal["auto"], "local step on this variable; auto: the server's over τ", Above(0)]


@task(takes="x y y 1 1 1 1", gives="y y x", local_steps=True)
def local(
    client: Client, x: Array, y: Array, z: Array, weight: Array, step_z: Array, step_y: Array, step_x: Array
) -> tuple[Array, Array, Array]:
    """τ local steps on z, y and x at once (6), and the averages of their gradients (7)."""
    total_z, total_y, total_x = np.zeros_like(z), np.zeros_like(y), np.zeros_like(x)
    for _ in range(client.local_steps):
        h_z = client.lower_grad(x, z)
        batch = client.draw()  # the differences of g are taken on the same samples
        f_x, f_y = client.upper_grad(x, y)
        h_y = f_y + weight[0] * client.lower_grad(x, y, batch)
        h_x = f_x + weight[0] * (client.lower_grad_x(x, y, batch) - client.lower_grad_x(x, z, batch))
        total_z += h_z
        total_y += h_y
        total_x += h_x
        z, y, x = z - step_z[0] * h_z, y - step_y[0] * h_y, client.project_x(x - step_x[0] * h_x)
    tau = client.local_steps
    return total_z / tau, total_y / tau, total_x / tau


@dataclass(kw_only=True)
class MemFboParameters(UpperStep):
    """Parameters of MemFBO."""

    multiplier: Annotated[float, "λ; the bias is of the order of 1/λ", Above(0)] = 10.0
    growth: Annotated[float, "λ times (1 + t)^growth in round t", AtLeast(0)] = 0.0
    step_y: Annotated[float | Literal["auto"], "γ_y; auto: 1/((1 + λ)ℓ)", Above(0)] = "auto"
    step_z: Annotated[float | Literal["auto"], "γ_z; auto: 1/ℓ", Above(0)] = "auto"
    local_x: LocalKey = "auto"
    local_y: LocalKey = "auto"
    local_z: LocalKey = "auto"
    smoothness: SmoothnessKey = "auto"


@dataclass(kw_only=True)
class MemFboState(UpperState):
    """Everything the server knows between two rounds."""

    z: Array


class MemFbo(Method):
    """Local steps on a Lagrangian's three variables at once: gradients only, one round of communication."""

    name = "memfbo"
    paper = "Yang, Xiao, Ma, Ji: First-Order Federated Bilevel Learning"
    facts = {"order": "first (gradients)", "communication": "synchronous", "rate": "O((PT)^(−2/7)) nonconvex"}
    Parameters = MemFboParameters
    client_keys = ("local_steps", "batch")
    tasks = {"local": local}

    def start(self, x: Array, y: Array) -> MemFboState:
        return MemFboState(x=x, y=y, z=y, rule=DistanceOverGradients.at(x))

    def round(self, s: MemFboState, link: Link) -> None:
        """One round of Algorithm 1."""
        p, weight = self.p, self.multiplier(s.round)
        gamma_z = self.step_y(p.step_z)
        gamma_y = 1 / ((1 + weight) * self.ell) if p.step_y == "auto" else p.step_y
        tau = max(1.0, link.mean_local_steps)
        locals_ = [
            server / tau if given == "auto" else given
            for given, server in ((p.local_z, gamma_z), (p.local_y, gamma_y), (p.local_x, self.local_x(s)))
        ]
        numbers = (np.array([number]) for number in (weight, *locals_))
        updates = self.ask(link, "local", s.x, s.y, s.z, *numbers)
        h_z, h_y, h_x = self.mean(updates, 0), self.mean(updates, 1), self.mean_x(updates, 2)
        s.z = self.setting.project_y(s.z - gamma_z * h_z)
        s.y = self.setting.project_y(s.y - gamma_y * h_y)
        self.descend(s, h_x, lacking=(h_z, h_y - weight * h_z))  # of z, and of λ(y − z)

    def multiplier(self, t: int) -> float:
        """λ of round t."""
        weight = self.p.multiplier * (1 + t) ** self.p.growth
        if self.p.schedule == "theory":
            weight *= (self.setting.participation.count * self.setting.rounds) ** (1 / 7)
        return float(weight)

    def theory_factor(self) -> float:
        P, T = self.setting.participation.count, self.setting.rounds
        return min(1.0, P ** (2 / 7) * T ** (-5 / 7))
