"""Iterative regularization: what the incremental subgradient methods FISM and IR-IG have in common.

    min H(x)  over the minimisers in X of  F(x) = Σ_i Σ_j f_j^i(x)

Both go down F + λ_k H with steps γ_k; λ_k → 0 selects the minimiser of H among those of F where γ_k = γ_1/k^a,
λ_k = λ_1/k^b with a > 1/2, a > b > 0, a + b < 1 and γ_1 λ_1 μ_H ≤ 2M (Assumption 6, Theorem 9 of the paper of FISM).
Here are these schedules, the average iterate x̂_K = Σ γ_k x_k / Σ γ_k of its Theorem 11, and the stopping rule of its
section III-B. F is summed from what clients find at the point that they were sent: whether x_k ends the run is known
one round later, and that round's step is taken too. Where clients are late, or only some take part, so is F.

The papers tune γ_1 and λ_1 by hand. Here `auto` takes them from sizes: D, that of X; B, the root mean square of the
norms of component subgradients at the start; n, how many of the M components are stepped through in a row:

    γ_1 = D / (n B)              the first pass may cross X once, and no more
    λ_1 = M B / (20 μ_H D)       at the far end of X, H pulls at least a twentieth as hard as F can

so that γ_1 λ_1 μ_H = M/(20 n) stays within 2M. A larger λ_1 selects sooner where the minimisers of F are many, but
keeps x away from them for longer: with b = 0.1 it takes a thousand times the rounds to halve it.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fbompi.algorithms.method import Method, State
from fbompi.algorithms.setting import Setting
from fbompi.client import Client
from fbompi.config import Above, AtLeast
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, Update, task

PROBES = 32  # components whose subgradients are measured
SMALL = 1e-6  # the step of a probe, which is to stay within X
FAR = 1e12  # coordinates of a point beyond any X that deserves to be called compact
PULL = 0.05  # of H, as a part of that of F


@task(takes="x", gives="1")
def probe(client: Client, x: Array) -> Array:
    """The mean of the squared norms of subgradients, over some of the client's components."""
    count = client.oracles.lower_size
    some = np.linspace(0, count - 1, min(count, PROBES)).astype(np.intp)
    ends = [client.sweep(x, SMALL, np.zeros_like(x), some[j : j + 1]) for j in range(len(some))]
    return np.array([np.mean([np.sum(((x - end) / SMALL) ** 2) for end in ends])])


@dataclass(kw_only=True)
class RegularizedParameters:
    """Parameters of the schedules and of the stopping rule."""

    step: Annotated[float | Literal["auto"], "γ_1; auto: the first pass may cross the feasible set once", Above(0)] = (
        "auto"
    )
    step_power: Annotated[float, "a, of γ_k = γ_1/k^a", AtLeast(0)] = 0.8
    weight: Annotated[
        float | Literal["auto"],
        "λ_1, of the outer objective; auto: it pulls a twentieth as hard as the inner",
        Above(0),
    ] = "auto"
    weight_power: Annotated[float, "b, of λ_k = λ_1/k^b", AtLeast(0)] = 0.1
    stop: Annotated[float, "ends the run when x, H and F change by no more than this part; 0: never", AtLeast(0)] = 0.0


@dataclass(kw_only=True)
class RegularizedState(State):
    """The iterate, the sums of its average, and what the stopping rule compares."""

    step: float  # γ_1
    weight: float  # λ_1
    total: Array  # Σ γ_k x_k
    steps: float = 0.0  # Σ γ_k
    before: Array  # x_{k−1}, and H and F there
    outer: float = math.nan
    inner: float = math.nan
    change: float = math.nan


class Regularized(Method):
    """An incremental subgradient method with iterative regularization; a method adds one pass over all components."""

    family = "nonsmooth"
    client_keys = ()
    figure_meanings: ClassVar[dict[str, str]] = {
        "upper_average": "outer objective at the average iterate",
        "change": "largest relative change of x and the two objectives, as the stopping rule takes it; NaN without one",
    }
    result_meanings: ClassVar[dict[str, str]] = {"x_average": "the average of all iterates, weighted by their steps"}

    def __init__(self, parameters: Any, setting: Setting) -> None:
        super().__init__(parameters, setting)
        a, b = parameters.step_power, parameters.weight_power
        if not (a > 0.5 and a > b > 0 and a + b < 1):
            name = self.name.upper().replace("IRIG", "IR-IG")
            warnings.warn(f"a = {a}, b = {b}: {name} converges for a > 1/2, a > b > 0, a + b < 1", stacklevel=2)
        if "auto" not in (parameters.step, parameters.weight):
            product, limit = parameters.step * parameters.weight * setting.outer_convexity, 2 * setting.components
            if product > limit:
                warnings.warn(f"γ_1 λ_1 μ_H = {product:g} exceeds 2M = {limit}", stacklevel=2)

    @classmethod
    def used_tasks(cls, parameters: Any, shapes: Shapes) -> dict[str, TaskFunction]:
        """The kind of pass that these parameters ask for, always by the name of "sweep", and where needed the probe."""
        found = {"sweep": cls.tasks[cls.sweep_kind(parameters)]}
        if "auto" in (parameters.step, parameters.weight):
            found["probe"] = probe
        return found

    @classmethod
    @abstractmethod
    def sweep_kind(cls, parameters: Any) -> str:
        """Which of the method's tasks."""

    @abstractmethod
    def in_a_row(self) -> float:
        """How many components are stepped through one after the other in a round."""

    @abstractmethod
    def advance(self, s: Any, link: Link, gamma: float, weight: float) -> tuple[Array, float]:
        """One pass over all components with γ_k and λ_k: x_{k+1}; and F(x_k), where there is a stopping rule."""

    def first(self, x: Array) -> dict[str, Any]:
        """The fields of the state before the first round."""
        x, p = self.setting.project_x(x), self.p
        sizes = {
            "step": math.nan if p.step == "auto" else p.step,
            "weight": math.nan if p.weight == "auto" else p.weight,
        }
        return {"x": x, "total": np.zeros_like(x), "before": x, **sizes}

    def start(self, x: Array, y: Array) -> RegularizedState:
        return RegularizedState(y=y, **self.first(x))

    def round(self, s: RegularizedState, link: Link) -> None:
        """One iteration."""
        if "auto" in (self.p.step, self.p.weight) and not s.round:
            self.choose(s, link)
        k = s.round + 1
        gamma, weight = s.step / k**self.p.step_power, s.weight / k**self.p.weight_power
        x, inner = self.advance(s, link, gamma, weight)
        s.total, s.steps = s.total + gamma * s.x, s.steps + gamma
        if self.p.stop:
            self.compare(s, inner)
        s.gradient_norm = float(np.linalg.norm(s.x - x)) / gamma
        s.x, s.round = x, k

    def choose(self, s: RegularizedState, link: Link) -> None:
        """γ_1 and λ_1 from the sizes of X and of subgradients, where they are not given."""
        answers = self.ask(link, "probe", s.x, clients=self.setting.participation.left())
        B = math.sqrt(float(self.mean(answers)[0])) or 1.0
        D, M = self.diameter(s.x), self.setting.components
        if self.p.step == "auto":
            s.step = D / (self.in_a_row() * B)
        if self.p.weight == "auto":
            s.weight = PULL * M * B / (self.setting.outer_convexity * D)

    def diameter(self, x: Array) -> float:
        """Of X, between its points farthest up and down the diagonal; where X has no end, that of what is around x."""
        far = np.full_like(x, FAR)
        D = float(np.linalg.norm(self.setting.project_x(far) - self.setting.project_x(-far)))
        return D if 0 < D < FAR else 2 * (math.sqrt(x.size) + float(np.linalg.norm(x)))

    def compare(self, s: RegularizedState, inner: float) -> None:
        """The stopping rule for x_k, whose F is known now: max of the relative changes of x, H and F at most `stop`."""
        outer = self.setting.outer(s.x)
        moved = float(np.linalg.norm(s.x - s.before)) / (float(np.linalg.norm(s.before)) + 1)
        if s.round:
            s.change = max(moved, abs(outer - s.outer) / (abs(s.outer) + 1), abs(inner - s.inner) / (abs(s.inner) + 1))
            s.stopped = s.change <= self.p.stop
        s.before, s.outer, s.inner = s.x, outer, inner

    def total_value(self, updates: list[Update], place: int) -> float:
        """F from its parts; where only some clients answered, as many times their mean as there are clients."""
        return self.setting.clients * float(self.mean(updates, place)[0])

    def average(self, s: RegularizedState) -> Array:
        """x̂_K of Theorem 11."""
        return s.total / s.steps if s.steps else s.x

    def figures(self, s: RegularizedState) -> dict[str, float]:
        return {"upper_average": self.setting.outer(self.average(s)), "change": s.change}

    def results(self, s: RegularizedState) -> dict[str, Array]:
        return {"x_average": self.average(s)}
