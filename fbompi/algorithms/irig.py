"""IR-IG: iterative regularized incremental projected subgradient method (Amini, Yousefian), the nonsmooth family.

    min H(x)  over the minimisers in X of  F(x) = Σ_i Σ_j f_j^i(x)

As eq. (1) of the paper of FISM (Boontawee, Prangprakhon, Nimana) gives it; that of Amini and Yousefian was not at hand,
and the rate is that of FISM's Theorem 11, which tests find here too:

    x ← P_X[x − γ_k g_j(x) − (γ_k λ_k/M) 𝓗(x)]        for all M functions, one after the other, 𝓗(x) ∈ ∂H(x) fresh

There it is a method for one client. Here x is passed on from client to client, in order, within each iteration: for any
number of clients that hold the same functions in the same order it is the same method, one client at work at a time.
Clients must know H. The schedules of γ_k and λ_k, the average iterate and the stopping rule are in `regularized`.
"""

from __future__ import annotations

import math

import numpy as np

from fbompi.algorithms.regularized import Regularized, RegularizedParameters, RegularizedState
from fbompi.client import Client
from fbompi.links.link import Link
from fbompi.messages import Array, task


@task(takes="x 1 1", gives="x")
def sweep(client: Client, x: Array, gamma: Array, weight: Array) -> Array:
    """The steps over this client's functions; `weight` is γ_k λ_k/M."""
    return client.fresh_sweep(x, float(gamma[0]), float(weight[0]))


@task(takes="x 1 1 x", gives="x 1")
def valued(client: Client, x: Array, gamma: Array, weight: Array, x_k: Array) -> tuple[Array, Array]:
    """The same, and F_i at x_k, where the first client began."""
    return sweep(client, x, gamma, weight), np.array([client.value(x_k)])


class Irig(Regularized):
    """Projected subgradient steps over all clients' functions, one after the other."""

    name = "irig"
    paper = (
        "Amini, Yousefian: An Iterative Regularized Incremental Projected Subgradient Method for Bilevel Optimization"
    )
    facts = {"order": "first (subgradients)", "communication": "synchronous", "rate": "O(1/K^(0.5−ε)) of F, convex"}
    Parameters = RegularizedParameters
    tasks = {"sweep": sweep, "valued": valued}

    @classmethod
    def sweep_kind(cls, parameters: RegularizedParameters) -> str:
        return "valued" if parameters.stop else "sweep"

    def in_a_row(self) -> float:
        return self.setting.components

    def advance(self, s: RegularizedState, link: Link, gamma: float, weight: float) -> tuple[Array, float]:
        """One iteration: x goes once through all clients that take part."""
        sizes = np.array([gamma]), np.array([gamma * weight / self.setting.components])
        x, updates = s.x, []
        for client in self.setting.participation.invited(link.round):
            updates += self.ask(link, "sweep", x, *sizes, *([s.x] if self.p.stop else []), clients=[client])
            x = updates[-1].arrays[0]
        return x, self.total_value(updates, 1) if self.p.stop else math.nan
