"""RAFBO (Li, Zhang, Zheng, Shi, Yuan, Cheng, Yu; Algorithm 2): RABO without any second-order oracle.

The hypergradient ∇_x f_i + Jᵀ∇_y f_i of a submodel takes J = dy*/dx from finite differences along coordinates of x. The
paper prints the difference of ∇_y g_i for J (line 5, equation 10). That is the mixed derivative: it has the other sign,
and no inverse, and the method climbs. Here J is that of the client's own inner map, the derivative of T gradient steps

    J_p = [y_T(x + μ e_p) − y_T(x)] / μ,        y_T(x):  y ← y − β ∇_y g_i(x, y), `map_steps` times from the server's y

all copies on one sample and side by side (`kernels.jacobian`). For quadratics that is RABO's local hypergradient with a
Neumann sum of T terms and ℓ = 1/β, and it tends to the solution's Jacobian as T grows. ``hypergradient = "printed"``
runs the printed formula, with a warning.

One estimate takes about (coordinates + 2) × T gradients. `coordinates` of x are drawn without replacement from those
held, and what is found is multiplied by held over drawn: the mean of the estimate is that of all held ones. The paper
samples too, and does not say whether it scales; without it, ∇_x f would outweigh the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from fbompi.algorithms.masks import Dealt, MaskParameters
from fbompi.algorithms.rabo import Rabo, RaboState, lower
from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import StepYKey, UpperStep
from fbompi.client import GRADIENTS, WORK, Client
from fbompi.config import Above, AtLeast
from fbompi.kernels import jacobian, library
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, Update, task

MANY = 64  # coordinates of which `coordinates = "auto"` takes all


@task(takes="held_x held_y part_x part_y 1 1 1 1", gives="part_x")
def differences(
    client: Client, held_x: Array, held_y: Array, x: Array, y: Array,
    step: Array, steps: Array, coordinates: Array, mu: Array,
) -> Array:  # fmt: skip
    """∇_x f_i + Σ_p ⟨J_p, ∇_y f_i⟩ e_p of the submodel, over all its coordinates of x or a sample (lines 3–7)."""
    client = client.held(held_x, held_y)
    h, w = client.upper_grad(x, y)
    count = min(int(coordinates[0]) or x.size, x.size)
    xp = library(x)
    which = xp.asarray(np.sort(client.rng.permutation(x.size)[:count]) if count < x.size else np.arange(x.size))
    batch, z = client.draw(), y
    for _ in range(int(steps[0]) if batch is None else 0):  # the client notes what curvature it meets: β heeds it
        z = z - step[0] * client.lower_grad(x, z, batch)
    dtype = getattr(client.oracles.problem, "dtype", np.float64)
    increments = xp.full(count, mu[0]) if mu[0] > 0 else jacobian.increments(x, which, dtype)
    found = jacobian.coordinates(inner_map(client, batch), x, y, which, int(steps[0]), float(step[0]), w, increments)
    h = h.copy()
    h[which] += found * (x.size / max(count, 1))
    return h


def inner_map(client: Client, batch: Array | None) -> Callable[[Array], Callable[[Array], Array]]:
    """∇_y g of many copies on one sample, as `kernels.jacobian` asks for it; every copy's gradient is counted."""
    samples = client.oracles.lower_size if batch is None else len(batch)

    def at(X: Array) -> Callable[[Array], Array]:
        gradients = client.oracles.lower_grads(X, batch)

        def counted(Y: Array) -> Array:
            client.costs[GRADIENTS] += samples * len(X)
            client.costs[WORK] += samples * len(X) * client.oracles.computed(X[0], Y[0])
            return gradients(Y)

        return counted

    return at


@dataclass(kw_only=True)
class RafboParameters(MaskParameters, UpperStep):
    """Parameters of RAFBO."""

    step_y: StepYKey = "auto"
    hypergradient: Annotated[
        Literal["map", "printed"], "difference of the inner map, or of gradients: the misprint"
    ] = "map"
    map_steps: Annotated[int, "T, steps of the inner map that is differenced", AtLeast(1)] = 10
    coordinates: Annotated[
        int | Literal["auto"], f"of x that a client perturbs; 0: all held; auto: at most {MANY}", AtLeast(0)
    ] = "auto"
    perturbation: Annotated[float | Literal["auto"], "μ; auto: √ε of the arithmetic, times |x_p| above 1", Above(0)] = (
        "auto"
    )
    smoothness: SmoothnessKey = "auto"


class Rafbo(Rabo):
    """RABO with finite differences in place of second-order products."""

    name = "rafbo"
    facts = {"order": "first", "communication": "synchronous", "rate": "O(1/√(C_x* Q)) nonconvex"}
    Parameters = RafboParameters
    tasks = {"lower": lower, "differences": differences}

    def __init__(self, parameters: Any, setting: Setting) -> None:
        super().__init__(parameters, setting)
        if parameters.hypergradient == "printed":
            warnings.warn("the printed difference of gradients is not dy*/dx: expect Φ to rise", stacklevel=2)

    @classmethod
    def used_tasks(cls, parameters: Any, shapes: Shapes) -> dict[str, TaskFunction]:
        return cls.tasks

    def hypergradient(self, s: RaboState, dealt: Dealt, link: Link) -> tuple[Array, list[Update]]:
        p: RafboParameters = self.p
        # One step of −1 from y is y + ∇_y g, and its difference that of the gradients.
        step, steps = (self.step_y(p.step_y), p.map_steps) if p.hypergradient == "map" else (-1.0, 1)
        coordinates = MANY if p.coordinates == "auto" else p.coordinates
        mu = 0.0 if p.perturbation == "auto" else p.perturbation
        numbers = (np.array([float(number)]) for number in (step, steps, coordinates, mu))
        updates = self.invite(dealt, link, "differences", s.x, s.y, *numbers)
        return dealt.mean_x(updates)[0], updates
