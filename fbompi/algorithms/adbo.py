"""ADBO: asynchronous distributed bilevel optimization by cutting planes (Jiao, Yang, Wu, Song, Jian; ICLR 2023).

Every worker has an x_i and a y_i of its own, the master v and z (here `s.x` and `s.y`, the model reported). With φ(v)
the solution of the lower problem, as m + 1 copies of y*(v),

    min Σ_i f_i(x_i, y_i)   over x_i = v  and  h(v, {y_i}, z) = ‖({y_i}, z) − φ(v)‖² ≤ ε,

and of h ≤ ε the master knows only planes a·v + Σ_i b_i·y_i + c·z + κ ≤ 0. Workers descend and duals ascend on
Σ f_i + Σ θ_i·(x_i − v) + Σ λ_l (plane l); a master's iteration ends with the answers of `quorum` workers. An outer
round adds a plane, for which all workers are asked, then runs `iterations` of these. Nothing steps along a
hypergradient: it is the duals of planes that carry ∇_y f to v. At the solution the y_i are √ε from y*(x), and x is
wrong by O(√ε) and by what K rounds leave out of dφ/dv, which is (1 − μ/ℓ)^K as in a Neumann sum of K terms.

Of the paper only the abstract could be read. The updates and their order are those of its authors' program; what that
leaves out (ε, and that a plane must have been idle for a while before it is dropped) is recalled. What differs:

- Workers keep nothing: x_i, y_i, θ_i and Σ_l λ_l b_{i,l} travel with the task.
- φ comes from K steps on the averaged lower problem, from where the last plane's ended: the paper's augmented
  Lagrangian with its constraint y_i = z solved for. dφ/dv is that of K such steps on g linearised at their end: K − 1
  products with the average Hessian and one mixed product. For K = 1, as in the paper's experiments, that is the mixed
  product alone.
- ``cut = "distance"`` takes tangents of √h ≤ √ε: the same set, cut twice as deep. Right where φ is affine and K large,
  it needs a fraction of the planes there; elsewhere such planes contradict each other, and duals grow without bound.
- Duals act extrapolated, 2λ − the last λ (Chambolle and Pock 2011): where the objective is linear, as in v and z, plain
  descent and ascent circle. Dual steps stay below the inverse squared norm of the matrix through which duals act,
  and shrink with the age of answers like AFBO's. The term −½c‖λ‖² − ½c‖θ‖², constant in the program, is `damping`,
  in units of these steps: planes of a φ that is not affine contradict each other a little, and with c = 0 duals add up
  what they contradict. Where φ is affine, c = 0 with ``"distance"`` and ε = 0 leads to x*, as far as K allows.
- A worker that was left out for good has no copies any more: planes through its y_i go, new ones know nothing of it.
- ``clients.aggregate`` is for the averages that φ, its derivative and the sum of the θ_i are made of. Planes are over
  all copies y_i, each worker's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fbompi.algorithms.inverse import curves_upwards, neumann
from fbompi.algorithms.method import Method, State
from fbompi.algorithms.recent import Recent, bound_of, gather, quorum_of, shortened
from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import StepYKey
from fbompi.client import Client
from fbompi.config import Above, AtLeast, AtMost
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, task


@task(takes="x y x y 1 1", gives="x y")
def worker(
    client: Client, x: Array, y: Array, theta: Array, pull: Array, step_x: Array, step_y: Array
) -> tuple[Array, Array]:
    """One step of a worker on its own x_i and y_i; `pull` is Σ_l λ_l b_{i,l}."""
    grad_x, grad_y = client.upper_grad(x, y)
    return x - step_x[0] * (grad_x + theta), y - step_y[0] * (grad_y + pull)


@task(takes="x y", gives="y")
def lower(client: Client, v: Array, y: Array) -> Array:
    """∇_y g_i, for the estimate of φ."""
    return client.lower_grad(v, y)


@task(takes="x y y", gives="y", plausible=curves_upwards(v=2))
def product(client: Client, v: Array, y: Array, u: Array) -> Array:
    """∇²_yy g_i · u, for its derivative."""
    return client.hvp(v, y, u)


@task(takes="x y y", gives="x")
def mixed(client: Client, v: Array, y: Array, u: Array) -> Array:
    """∇²_xy g_i · u."""
    return client.cross(v, y, u)


@dataclass(kw_only=True)
class PlaneParameters:
    """Parameters of the method, whether or not it waits for everyone."""

    step_x: Annotated[
        float | Literal["auto"], "on x_i, and over their number on v; auto: planes as steep in v as in y", Above(0)
    ] = "auto"
    step_y: StepYKey = "auto"
    estimate_rounds: Annotated[int, "K, rounds for φ, and as many for its derivative", AtLeast(1)] = 20
    iterations: Annotated[int, "iterations of the master per plane", AtLeast(1)] = 20
    tolerance: Annotated[float, "ε: no plane is added where h ≤ ε", AtLeast(0)] = 0.0
    cut: Annotated[Literal["square", "distance"], "planes are tangents of h, or of √h"] = "square"
    planes: Annotated[int, "planes kept at most; the one with the smallest dual goes", AtLeast(1)] = 30
    damping: Annotated[float, "c, share of the duals forgotten in every iteration", AtLeast(0), AtMost(1)] = 0.03
    adaptive: Annotated[bool, "shorten dual steps by 1/(1 + mean age)"] = True
    smoothness: SmoothnessKey = "auto"


@dataclass(kw_only=True)
class AdboParameters(PlaneParameters):
    """Parameters of ADBO."""

    quorum: Annotated[
        int | Literal["auto"], "S, answers that end an iteration; 0: from all; auto: half of them", AtLeast(0)
    ] = "auto"
    bound: Annotated[int, "τ, oldest answer allowed in an iteration; −1: any", AtLeast(-1)] = -1


@dataclass(kw_only=True)
class AdboState(State):
    """What the master knows: x is v and y is z; planes are rows over (v, y_1 … y_m, z)."""

    recent: dict[str, Recent]  # of kind "worker": every worker's x_i and y_i
    phi: Array  # φ(v) at the last plane, one copy of it
    theta: Recent  # θ_i and its extrapolation; stamps tell of which answer it took account last
    idle: set[int]
    normals: Array
    offsets: Array
    duals: Array
    ahead: Array  # duals, extrapolated
    lately: Array  # the largest that each dual was since the last plane
    iteration: int = 0
    estimates: int = 0
    steepness: float = 0.0  # of the steepest plane so far: ‖a‖² in v's share of steps over ‖b‖² + ‖c‖²
    gap: float = np.nan  # h


class Adbo(Method):
    """Cutting planes for the lower level, answers of the fastest workers."""

    name = "adbo"
    paper = "Jiao, Yang, Wu, Song, Jian: Asynchronous Distributed Bilevel Optimization"
    facts = {"order": "second (products)", "communication": "asynchronous", "rate": "O(1/√T) of the relaxed problem"}
    Parameters: ClassVar[Any] = AdboParameters
    tasks = {"worker": worker, "lower": lower, "product": product, "mixed": mixed}
    figure_meanings = {
        "planes": "cutting planes kept",
        "gap": "h, squared distance of all copies of y from the estimated lower solution, at the last plane",
    }

    def __init__(self, parameters: Any, setting: Setting) -> None:
        super().__init__(parameters, setting)
        shapes = setting.shapes
        self.quorum, self.bound = self.patience(parameters, setting.clients)
        self.share = 1 / np.maximum(shapes.owners, 1)  # v is stepped by a mean over those who have a copy

    @classmethod
    def used_tasks(cls, parameters: Any, shapes: Shapes) -> dict[str, TaskFunction]:
        cls.patience(parameters, len(shapes.blocks))
        return cls.tasks

    @classmethod
    def patience(cls, parameters: Any, clients: int) -> tuple[int, int]:
        """S and τ: whom an iteration waits for."""
        p = parameters
        return -(-clients // 2) if p.quorum == "auto" else quorum_of(p.quorum, clients), bound_of(p.bound)

    def start(self, x: Array, y: Array) -> AdboState:
        shapes, m = self.setting.shapes, self.setting.clients
        rule = self.setting.aggregation
        recent = {kind: Recent(function.gives, shapes, rule) for kind, function in self.tasks.items()}
        for client, block in enumerate(shapes.blocks):
            x_i, y_i = recent["worker"].of(client)
            x_i[:], y_i[:] = x[block], y
        return AdboState(
            x=x, y=y, phi=y, recent=recent, theta=Recent(("x", "x"), shapes, rule), idle=set(range(m)),
            normals=np.zeros((0, x.size + (m + 1) * y.size)), offsets=np.zeros(0),
            duals=np.zeros(0), ahead=np.zeros(0), lately=np.zeros(0),
        )  # fmt: skip

    def round(self, s: AdboState, link: Link) -> None:
        """A plane, then iterations on everything else."""
        self.cut(s, link)
        for _ in range(self.p.iterations):
            self.iterate(s, link)
        s.round += 1

    def figures(self, s: AdboState) -> dict[str, float]:
        return {"planes": float(s.duals.size), "gap": s.gap}

    # The planes

    def cut(self, s: AdboState, link: Link) -> None:
        """Forget planes that did not act; where h > ε, add the tangent plane at the master's point."""
        phi, v, K, eps = s.phi, s.x, self.p.estimate_rounds, self.p.tolerance
        Y = self._y(s).copy()  # answers of workers may come in between
        for _ in range(K):
            (G,) = self._everyone(s, link, "lower", v, phi)
            phi = self.setting.project_y(phi - self.beta * G)
        s.phi = phi
        gone = sorted(link.gone)
        Y[gone] = phi
        b, c = 2 * (Y - phi), 2 * (s.y - phi)
        s.gap = h = float((b * b).sum() + c @ c) / 4
        through_gone = s.normals[:, s.x.size : -s.y.size].reshape(len(s.normals), *Y.shape)[:, gone].any(axis=(1, 2))
        self._keep(s, (s.lately > 0) & ~through_gone)
        if h > eps:
            # (dφ/dv)ᵀ = −β ∇²_xy g Σ_{k<K} (I − β∇²_yy g)^k for each of the m + 1 copies.
            u = b.sum(axis=0) + c
            u = neumann(lambda u: self._everyone(s, link, "product", v, phi, u)[0], u, 1 / self.beta, K)
            (a,) = self._everyone(s, link, "mixed", v, phi, u)
            normal, here = np.concatenate([a, b.ravel(), c]), np.concatenate([v, Y.ravel(), s.y])
            value = h - eps if self.p.cut == "square" else 2 * np.sqrt(h) * (np.sqrt(h) - np.sqrt(eps))
            self._add(s, normal, value - normal @ here)
            s.steepness = max(s.steepness, float(self.share @ (a * a)) / (4 * h))
        s.lately = s.duals

    def _add(self, s: AdboState, normal: Array, offset: float) -> None:
        """A plane with a dual of 0; where there are too many, that with the smallest dual goes.

        At unit length, for which the plane is the same, and duals are of the size of gradients whatever h is.
        """
        while s.duals.size >= self.p.planes:
            self._keep(s, np.arange(s.duals.size) != s.duals.argmin())
        length = np.linalg.norm(normal)
        s.normals = np.vstack([s.normals, normal / length])
        s.offsets = np.append(s.offsets, offset / length)
        s.duals, s.ahead, s.lately = (np.append(duals, 0.0) for duals in (s.duals, s.ahead, s.lately))

    def _keep(self, s: AdboState, which: Array) -> None:
        s.normals, s.offsets = s.normals[which], s.offsets[which]
        s.duals, s.ahead, s.lately = s.duals[which], s.ahead[which], s.lately[which]

    # The iteration

    def iterate(self, s: AdboState, link: Link) -> None:
        """One iteration of the master: later lines use what earlier ones have found."""
        keep, blocks = 1 - self.p.damping, self.setting.shapes.blocks
        project_x, project_y = self.setting.project_x, self.setting.project_y
        eta_x = self._eta_x(s)
        pull_v, pull_y, pull_z = self._split(s.ahead @ s.normals)
        workers, steps = s.recent["worker"], (np.array([eta_x]), np.array([self.beta]))

        def point(i: int) -> tuple[Array, ...]:
            x_i, y_i = workers.of(i)
            return project_x(self._whole(i, x_i)), project_y(y_i), self._whole(i, s.theta.of(i)[1]), pull_y[i], *steps

        invited = self.setting.participation.invited(link.round)
        _, ages = gather(link, s.recent, s.idle, "worker", point, s.iteration, self.quorum, self.bound, invited)
        workers_left = self.setting.clients - len(link.gone)
        gradient = pull_v - workers_left * s.theta.means(link.gone)[1]
        s.gradient_norm = float(np.linalg.norm(gradient)) / workers_left
        s.x = project_x(s.x - eta_x * self.share * gradient)
        s.y = project_y(s.y - self.beta * pull_z)

        shrink = shortened(float(ages.mean()), self.p.adaptive)
        eta_lambda, eta_theta = (shrink * eta for eta in self._dual_steps(s, eta_x))
        values = s.normals @ np.concatenate([s.x, self._y(s).ravel(), s.y]) + s.offsets
        duals = np.maximum(0.0, keep * s.duals + eta_lambda * values)
        s.duals, s.ahead, s.lately = duals, 2 * duals - s.duals, np.maximum(s.lately, duals)
        for i in np.flatnonzero(s.theta.stamps < workers.stamps).tolist():  # who has answered since the last iteration
            theta, ahead = s.theta.of(i)
            new = keep * theta + eta_theta * (workers.of(i)[0] - s.x[blocks[i]])
            theta[:], ahead[:] = new, 2 * new - theta
        s.theta.stamps[:] = workers.stamps
        s.iteration += 1

    def _eta_x(self, s: AdboState) -> float:
        if self.p.step_x != "auto":
            return self.p.step_x
        return self.beta / s.steepness if s.steepness > 0 else self.beta

    def _dual_steps(self, s: AdboState, eta_x: float) -> tuple[float, float]:
        """On λ and on θ: half of the longest with which descent and ascent are stable on either kind alone."""
        weights = np.full(s.normals.shape[1], self.beta)
        weights[: s.x.size] = eta_x * self.share
        gram = (s.normals * weights) @ s.normals.T
        return (0.5 / float(np.linalg.norm(gram, 2)) if s.duals.size else 0.0), 0.5 / (2 * eta_x)

    # The places of things

    def _split(self, row: Array) -> tuple[Array, Array, Array]:
        """A row over (v, y_1 … y_m, z) in its three parts."""
        p, q = self.setting.shapes.dim_x, self.setting.shapes.dim_y
        return row[:p], row[p:-q].reshape(-1, q), row[-q:]

    def _y(self, s: AdboState) -> Array:
        """All y_i, one per row."""
        return s.recent["worker"].parts[1].reshape(self.setting.clients, -1)

    def _whole(self, client: int, part: Array) -> Array:
        """A worker's block at its place in a vector like x, as tasks are handed over."""
        whole = np.zeros(self.setting.shapes.dim_x)
        whole[self.setting.shapes.blocks[client]] = part
        return whole

    def _everyone(self, s: AdboState, link: Link, kind: str, *arrays: Array) -> list[Array]:
        """The average over all workers' answers to one task, with nobody missing, as in the authors' program."""
        m = self.setting.clients
        means, _ = gather(link, s.recent, s.idle, kind, arrays, s.estimates, m, 0, np.arange(m))
        s.estimates += 1
        return means
