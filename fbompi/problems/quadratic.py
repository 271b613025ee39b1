"""Heterogeneous strongly convex quadratics with everything known in closed form: the oracle of the project.

    g_i(x, y) = ½ yᵀA_i y − yᵀ(B_i x + c_i)            f_i(x, y) = ½‖y − t_i‖² + ½ρ‖x − s_i‖²

Every A_i has eigenvalues spread evenly in logarithm over [1/κ, 1]; its eigenvectors, B_i, c_i, t_i and s_i move away
from a common value by `heterogeneity`. With bars for client averages,

    y*(x) = Ā⁻¹(B̄x + c̄),     ∇Φ(x) = ρ(x − s̄) + B̄ᵀĀ⁻¹(y*(x) − t̄),     x* solves a linear system.

Sample j of a client scales (A_i, B_i) by 1 + ½·min(`noise`, 1)·u_j, |u_j| ≤ 2, and shifts c_i and t_i by `noise` times
normal numbers, with means over the shard exactly zero: batches are noisy, whole shards are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from fbompi.config import Above, AtLeast
from fbompi.messages import Array
from fbompi.randomness import stream


@dataclass
class Shard:
    """One client's matrices, and the deviations of its samples."""

    A: Array
    B: Array
    c: Array
    t: Array
    s: Array
    scale: Array  # (samples,), mean 0
    shift_c: Array  # (samples, q), mean 0
    shift_t: Array  # (samples, q), mean 0
    rest: Array  # (samples,): of f, what coordinates add that a submodel has not


class Quadratic:
    """m heterogeneous quadratics; y*(x), Φ, ∇Φ and x* in closed form."""

    name = "quadratic"
    convex = True
    exact_meanings = {
        "x_error": "‖x − x*‖ / ‖x*‖",
        "y_error": "‖y − y*(x)‖ / ‖y*(x)‖",
        "gradient_exact": "‖∇Φ(x)‖ in closed form",
    }

    def __init__(
        self,
        dim_x: Annotated[int, "length of x", AtLeast(1)] = 10,
        dim_y: Annotated[int, "length of y", AtLeast(1)] = 20,
        condition: Annotated[float, "condition number κ of every client's lower Hessian", AtLeast(1)] = 20.0,
        heterogeneity: Annotated[float, "how far clients are apart; 0: all alike", AtLeast(0)] = 1.0,
        samples: Annotated[int, "samples per client", AtLeast(1)] = 32,
        noise: Annotated[float, "how far the samples of a client are apart", AtLeast(0)] = 0.0,
        curvature: Annotated[float, "ρ, the strong convexity of f in x", Above(0)] = 0.1,
        seed: Annotated[int, "seed of the matrices", AtLeast(0)] = 0,
    ) -> None:
        self.dim_x, self.dim_y, self.condition, self.heterogeneity = dim_x, dim_y, condition, heterogeneity
        self.samples, self.noise, self.curvature, self.seed = samples, noise, curvature, seed

    def shard(self, client: int, clients: int) -> Shard:
        p, q, h = self.dim_x, self.dim_y, self.heterogeneity
        common, own = stream(self.seed, "problem"), stream(self.seed, "problem", 1 + client)
        basis = common.standard_normal((q, q)) + h * own.standard_normal((q, q))
        Q, _ = np.linalg.qr(basis)
        eigenvalues = np.geomspace(1 / self.condition, 1.0, q)
        B = (common.standard_normal((q, p)) + h * own.standard_normal((q, p))) / np.sqrt(p)
        c, t = (common.standard_normal(q) + h * own.standard_normal(q) for _ in range(2))
        s = common.standard_normal(p) + h * own.standard_normal(p)
        scale = own.uniform(-1, 1, self.samples)
        shifts = own.standard_normal((2, self.samples, q))
        return Shard(
            A=(Q * eigenvalues) @ Q.T, B=B, c=c, t=t, s=s,
            scale=min(self.noise, 1.0) * 0.5 * (scale - scale.mean()),
            shift_c=self.noise * (shifts[0] - shifts[0].mean(axis=0)),
            shift_t=self.noise * (shifts[1] - shifts[1].mean(axis=0)),
            rest=np.zeros(self.samples),
        )  # fmt: skip

    def submodel(self, shard: Shard, held_x: Array, held_y: Array) -> Shard:
        """Principal submatrices; f at y = 0 and x = 0 on the rest is ½‖t‖² + ⟨shift, t⟩ + ½ρ‖s‖² of them."""
        t, s = np.delete(shard.t, held_y), np.delete(shard.s, held_x)
        return Shard(
            A=shard.A[np.ix_(held_y, held_y)], B=shard.B[np.ix_(held_y, held_x)], c=shard.c[held_y], t=shard.t[held_y],
            s=shard.s[held_x], scale=shard.scale, shift_c=shard.shift_c[:, held_y], shift_t=shard.shift_t[:, held_y],
            rest=np.delete(shard.shift_t, held_y, axis=1) @ t + 0.5 * (t @ t) + 0.5 * self.curvature * (s @ s),
        )  # fmt: skip

    def size(self, shard: Shard) -> int:
        return self.samples

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        return np.zeros(self.dim_x), np.zeros(self.dim_y)

    def upper(self, shard, x, y, batch=None) -> float:
        gap, shift = y - shard.t, _mean(shard.shift_t, batch)  # linear in the shift: samples average to the shard
        rest = float(shard.rest.mean() if batch is None else shard.rest[batch].mean())
        return (
            0.5 * float(gap @ gap) - np.sum(shift * gap) + 0.5 * self.curvature * float((x - shard.s) @ (x - shard.s))
        ) + rest

    def lower(self, shard, x, y, batch=None) -> float:
        scale, c = 1 + _mean(shard.scale, batch), shard.c + _mean(shard.shift_c, batch)
        return float(scale * (0.5 * y @ (shard.A @ y) - y @ (shard.B @ x)) - y @ c)

    def upper_grad(self, shard, x, y, batch=None) -> tuple[Array, Array]:
        return self.curvature * (x - shard.s), y - shard.t - _mean(shard.shift_t, batch)

    def lower_grad(self, shard, x, y, batch=None) -> Array:
        scale, c = 1 + _mean(shard.scale, batch), shard.c + _mean(shard.shift_c, batch)
        return scale * (shard.A @ y - shard.B @ x) - c

    def lower_grads(self, shard, X, batch=None):
        scale, c = 1 + _mean(shard.scale, batch), shard.c + _mean(shard.shift_c, batch)
        BX = X @ shard.B.T
        return lambda Y: scale * (Y @ shard.A - BX) - c

    def lower_grad_x(self, shard, x, y, batch=None) -> Array:
        return -(1 + _mean(shard.scale, batch)) * (shard.B.T @ y)

    def hvp(self, shard, x, y, v, batch=None) -> Array:
        return (1 + _mean(shard.scale, batch)) * (shard.A @ v)

    def cross(self, shard, x, y, v, batch=None) -> Array:
        return -(1 + _mean(shard.scale, batch)) * (shard.B.T @ v)

    def smoothness(self, shard: Shard) -> float:
        return 1.0 + float(shard.scale.max())

    # The closed form

    @lru_cache(maxsize=4)  # noqa: B019  (a problem lives as long as its run)
    def average(self, clients: int) -> Shard:
        """The client averages Ā, B̄, c̄, t̄, s̄."""
        shards = [self.shard(i, clients) for i in range(clients)]
        return Shard(*(np.mean([getattr(s, k) for s in shards], axis=0) for k in Shard.__dataclass_fields__))

    def y_star(self, x: Array, clients: int) -> Array:
        mean = self.average(clients)
        return np.linalg.solve(mean.A, mean.B @ x + mean.c)

    def gradient(self, x: Array, clients: int, y: Array | None = None) -> Array:
        """∇Φ(x); with a y other than y*(x), the surrogate ∇̄f(x, y)."""
        mean = self.average(clients)
        y = self.y_star(x, clients) if y is None else y
        return self.curvature * (x - mean.s) + mean.B.T @ np.linalg.solve(mean.A, y - mean.t)

    @lru_cache(maxsize=4)  # noqa: B019
    def x_star(self, clients: int) -> Array:
        mean = self.average(clients)
        M = np.linalg.solve(mean.A, mean.B)
        offset = np.linalg.solve(mean.A, mean.c)
        return np.linalg.solve(
            self.curvature * np.eye(self.dim_x) + M.T @ M, self.curvature * mean.s + M.T @ (mean.t - offset)
        )

    def upper_smoothness(self, clients: int) -> float:
        """The largest eigenvalue of ∇²Φ: steps on x below its inverse are stable."""
        mean = self.average(clients)
        return self.curvature + float(np.linalg.norm(np.linalg.solve(mean.A, mean.B), 2) ** 2)

    def exact(self, x: Array, y: Array, clients: int) -> dict[str, float]:
        x_star, y_star = self.x_star(clients), self.y_star(x, clients)
        return {
            "x_error": float(np.linalg.norm(x - x_star) / np.linalg.norm(x_star)),
            "y_error": float(np.linalg.norm(y - y_star) / np.linalg.norm(y_star)),
            "gradient_exact": float(np.linalg.norm(self.gradient(x, clients))),
        }


def _mean(deviations: Array, batch: Array | None) -> Array | float:
    """The mean deviation of a batch; exactly zero on the whole shard."""
    return 0.0 if batch is None else deviations[batch].mean(axis=0)
