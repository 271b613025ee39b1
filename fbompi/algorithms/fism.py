"""FISM: federated incremental subgradient method (Boontawee, Prangprakhon, Nimana; Algorithm 1), the nonsmooth family.

    min H(x)  over the minimisers in X of  F(x) = Σ_i Σ_j f_j^i(x)

The server picks one subgradient 𝓗_k of H and sends it with x_k; every client sweeps its own functions once, a projected
subgradient step each, and the server averages where they end. λ_k → 0 selects the minimiser of H among those of F
where γ_k = γ_1/k^a, λ_k = λ_1/k^b with a > 1/2, a > b > 0, a + b < 1 and γ_1 λ_1 μ_H ≤ 2M (Assumption 6).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fbompi.algorithms.method import Method, State
from fbompi.algorithms.setting import Setting
from fbompi.client import Client
from fbompi.config import Above, AtLeast
from fbompi.links.link import Link
from fbompi.messages import Array, task


@task(takes="x x 1", gives="x")
def sweep(client: Client, x: Array, shift: Array, gamma: Array) -> Array:
    """Lines 6–11: x ← P_X[x − γ_k g_j − (γ_k λ_k/M) 𝓗_k], once for every function of the client."""
    return client.sweep(x, float(gamma[0]), shift)


@dataclass
class FismParameters:
    """Parameters of FISM."""

    step: Annotated[float, "γ_1", Above(0)] = 1.0
    step_power: Annotated[float, "a, of γ_k = γ_1/k^a", AtLeast(0)] = 0.8
    weight: Annotated[float, "λ_1, of the outer objective", Above(0)] = 1.0
    weight_power: Annotated[float, "b, of λ_k = λ_1/k^b", AtLeast(0)] = 0.1


class Fism(Method):
    """Projected subgradient sweeps at the clients, averages at the server."""

    name = "fism"
    paper = "Boontawee, Prangprakhon, Nimana: Federated Incremental Subgradient Method for Convex Bilevel Optimization"
    facts = {"order": "first (subgradients)", "communication": "synchronous", "rate": "O(1/K^(0.5−ε)) of F, convex"}
    family = "nonsmooth"  # of problems
    Parameters = FismParameters
    client_keys = ()  # of [clients], beside count
    tasks = {"sweep": sweep}

    def __init__(self, parameters: FismParameters, setting: Setting) -> None:
        super().__init__(parameters, setting)
        p = parameters
        a, b = p.step_power, p.weight_power
        if not (a > 0.5 and a > b > 0 and a + b < 1):
            warnings.warn(f"a = {a}, b = {b}: FISM converges for a > 1/2, a > b > 0, a + b < 1", stacklevel=2)
        curvature, M = setting.outer_convexity, setting.components
        if p.step * p.weight * curvature > 2 * M:
            warnings.warn(f"γ_1 λ_1 μ_H = {p.step * p.weight * curvature:g} exceeds 2M = {2 * M}", stacklevel=2)

    def start(self, x: Array, y: Array) -> State:
        return State(x=self.setting.project_x(x), y=y)

    def round(self, s: State, link: Link) -> None:
        """One iteration of Algorithm 1."""
        k = s.round + 1
        gamma, weight = self.p.step / k**self.p.step_power, self.p.weight / k**self.p.weight_power
        shift = gamma * weight / self.setting.components * self.setting.outer_subgradient(s.x)
        x = self.mean(self.ask(link, "sweep", s.x, shift, np.array([gamma])))
        s.gradient_norm = float(np.linalg.norm(s.x - x)) / gamma
        s.x = x
        s.round = k
