"""What a problem is, and how the oracles that it leaves out are derived from those it has.

A problem is one class with the attributes and methods of `Problem`. The first group must be there; what is missing
of the second is derived by finite differences or power iteration (`Oracles`); what is missing of the third is simply
not used. *batch* is None (the whole shard) or an array of sample indices. Arrays that an oracle is given are read-only.
The methods' hypergradients hold where `project_y` is not active.

The nonsmooth family, where one minimiser is selected among many, has a protocol of its own: `Nonsmooth`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fbompi.errors import UserError
from fbompi.kernels import library
from fbompi.kernels.spectrum import largest_eigenvalue

Array = np.ndarray

REQUIRED = ("shard", "size", "start", "upper", "lower", "upper_grad", "lower_grad")
DERIVED = ("lower_grad_x", "hvp", "cross", "smoothness")
NONSMOOTH = ("shard", "component_count", "start", "outer", "outer_subgradient", "value", "sweep", "project")
MEANINGS = {"metrics": "metric_meanings", "exact": "exact_meanings"}


class Problem(Protocol):
    """The names a problem offers; only the first group is required."""

    dim_x: int
    dim_y: int

    def shard(self, client: int, clients: int) -> Any:
        """This client's data, made or read where the client lives."""

    def size(self, shard: Any) -> int | tuple[int, int]:
        """Number of samples, for batches; a pair where upper and lower objective have samples of their own."""

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """(x0, y0)."""

    def upper(self, shard: Any, x: Array, y: Array, batch: Array | None) -> float: ...
    def lower(self, shard: Any, x: Array, y: Array, batch: Array | None) -> float: ...
    def upper_grad(self, shard: Any, x: Array, y: Array, batch: Array | None) -> tuple[Array, Array]: ...
    def lower_grad(self, shard: Any, x: Array, y: Array, batch: Array | None) -> Array: ...

    def lower_grad_x(self, shard: Any, x: Array, y: Array, batch: Array | None) -> Array: ...
    def hvp(self, shard: Any, x: Array, y: Array, v: Array, batch: Array | None) -> Array: ...
    def cross(self, shard: Any, x: Array, y: Array, v: Array, batch: Array | None) -> Array: ...
    def smoothness(self, shard: Any) -> float:
        """ℓ, an upper bound on the largest eigenvalue of ∇²_yy g on this shard."""

    def lower_grads(self, shard: Any, X: Array, batch: Array | None) -> Any:
        """∇_y g of many models at once: for k copies of x (k × dim_x), the function of their k × dim_y lower variables.

        None where it has no better way than `lower_grad` of each.
        """

    def submodel(self, shard: Any, held_x: Array, held_y: Array) -> Any:
        """A shard whose oracles take and give only these coordinates (in rising order) of x and y, the others being 0.

        None where it has no form of its own for them; then the whole model is computed, and the rest thrown away.
        """

    def units(self) -> tuple[Array, Array]:
        """To which unit every coordinate of x and of y belongs, −1: to all; submodels hold whole units."""

    def block(self, client: int, clients: int) -> slice:
        """The part of x that this client owns; its oracles then see and return only that part."""

    def dealing(self, clients: int) -> tuple[str, dict[str, Array]]:
        """How samples are dealt out, for people: a sentence, and tables with a row per client.

        The columns of a table that has any are classes; a table without counts one thing.
        """

    def project_x(self, x: Array) -> Array: ...
    def project_y(self, y: Array) -> Array: ...

    backend: str
    """"cuda" where oracles take and give arrays of a GPU, batches too; missing, or "cpu", where NumPy's."""

    convex: bool
    """Whether every g_i is convex in y on every batch; with ``clients.aggregate`` other than the mean, Hessian products
    that cannot be those of a convex function are then rejected. Missing: not known."""

    metric_meanings: dict[str, str]

    def metrics(self, shard: Any, x: Array, y: Array) -> dict[str, tuple[float, float]]:
        """This client's (sum, weight) for each metric; the metric is the quotient of the totals over clients."""

    exact_meanings: dict[str, str]

    def exact(self, x: Array, y: Array, clients: int) -> dict[str, float]:
        """Figures known in closed form, computed by the server."""


class Nonsmooth(Protocol):
    """min outer(x) over the minimisers, in a convex set, of the sum of all clients' components (FISM, IR-IG).

    `metrics(shard, x)`, `metric_meanings` and `dealing` are as in `Problem`. All but `fresh` is required.
    """

    dim_x: int
    components: int
    """Of all clients together: M."""
    outer_convexity: float
    """μ_H: the outer objective less ½μ_H‖x‖² is convex."""

    def shard(self, client: int, clients: int) -> Any:
        """This client's components."""

    def component_count(self, shard: Any) -> int: ...
    def start(self, rng: np.random.Generator) -> Array: ...
    def outer(self, x: Array) -> float: ...
    def outer_subgradient(self, x: Array) -> Array: ...
    def value(self, shard: Any, x: Array) -> float:
        """The sum of this client's components."""

    def sweep(self, shard: Any, x: Array, gamma: float, shift: Any, order: Array | None) -> Array:
        """x after one step x ← P[x − γ g_j(x) − shift] per component, in this order; None: as they are stored.

        `shift` is an array, or a `fbompi.kernels.sweeps.Fresh` where the outer subgradient is taken at every step.
        """

    def project(self, x: Array) -> Array: ...

    def fresh(self, weight: float) -> Any:
        """The `fbompi.kernels.sweeps.Fresh` of the outer objective, for sweeps that take its subgradient at every step.

        Where it is missing, IR-IG sweeps one component at a time, with `outer_subgradient` before each.
        """


class Selection:
    """A nonsmooth problem as runs and their records see every problem: without a lower variable.

    `upper` is the outer objective, `lower` the sum of a client's components.
    """

    dim_y = 0

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self.project_x = problem.project

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def size(self, shard: Any) -> int:
        return self.problem.component_count(shard)

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        return self.problem.start(rng), np.empty(0)

    def upper(self, shard: Any, x: Array, y: Array, batch: Array | None) -> float:
        return self.problem.outer(x)

    def lower(self, shard: Any, x: Array, y: Array, batch: Array | None) -> float:
        return self.problem.value(shard, x)

    def fresh_sweep(self, shard: Any, x: Array, gamma: float, weight: float) -> Array:
        """A sweep over all components that takes the outer subgradient, times `weight`, anew at every step."""
        if hasattr(self.problem, "fresh"):
            return self.problem.sweep(shard, x, gamma, self.problem.fresh(weight), None)
        for j in range(self.size(shard)):
            x = self.problem.sweep(shard, x, gamma, weight * self.problem.outer_subgradient(x), np.array([j]))
        return x

    def smoothness(self, shard: Any) -> float:
        return np.nan  # nobody asks for ℓ where there is none

    def metrics(self, shard: Any, x: Array, y: Array) -> dict[str, tuple[float, float]]:
        return self.problem.metrics(shard, x)


def family(problem: Any) -> str:
    """Which protocol a problem, or its class, follows: "smooth" or "nonsmooth"."""
    return "nonsmooth" if hasattr(problem, "sweep") else "smooth"


def missing_parts(problem: Any) -> list[str]:
    """Required names that this object does not have."""
    protocol = (*NONSMOOTH, "components", "outer_convexity") if family(problem) == "nonsmooth" else (*REQUIRED, "dim_y")
    needed = [*protocol, "dim_x", *(meanings for name, meanings in MEANINGS.items() if hasattr(problem, name))]
    return [name for name in needed if not hasattr(problem, name)]


def native_oracles(problem: Any) -> list[str]:
    """Which of the derivable oracles this problem computes itself."""
    return [name for name in DERIVED if hasattr(problem, name)]


def blocks(problem: Any, clients: int) -> list[slice]:
    """The part of x that each client owns: all of it where the problem says nothing."""
    if not hasattr(problem, "block"):
        return [slice(0, problem.dim_x)] * clients
    owned = [problem.block(client, clients) for client in range(clients)]
    for client, block in enumerate(owned):
        ends = (block.start, block.stop)
        if not all(isinstance(end, int) for end in ends) or not 0 <= block.start <= block.stop <= problem.dim_x:
            raise UserError(f"problem: block of client {client} is {block}: expected slice(begin, end) within dim_x")
    return owned


class Oracles:
    """All oracles of a problem on one shard: its own where it has them, derived ones elsewhere."""

    def __init__(self, problem: Any, shard: Any, size_x: int | None = None) -> None:
        """`size_x` is the length of x on this shard: that of the client's block, where it owns one."""
        self.problem, self.shard = problem, shard
        self.size_x = getattr(problem, "dim_x", 0) if size_x is None else size_x
        size = problem.size(shard)
        self.upper_size, self.lower_size = size if isinstance(size, tuple) else (size, size)
        self._last: tuple[bytes, Oracles] | None = None  # the last submodel asked for

    def computed(self, x: Array, y: Array) -> int:
        """Of how many coordinates an oracle at (x, y) works."""
        return x.size + y.size

    def forget(self) -> None:
        """Let go of the last submodel, so that the next one is made anew."""
        self._last = None

    def held(self, held_x: Array, held_y: Array) -> Oracles:
        """The oracles of the submodel with these coordinates: the problem's own, or cut out of those of the whole."""
        key = np.concatenate([[held_x.size], held_x, held_y]).tobytes()
        if self._last is None or self._last[0] != key:
            shard = None
            if hasattr(self.problem, "submodel"):
                shard = self.problem.submodel(self.shard, held_x, held_y)
            part = CutOut(self, held_x, held_y) if shard is None else Oracles(self.problem, shard, held_x.size)
            self._last = key, part
        return self._last[1]

    def upper(self, x: Array, y: Array, batch: Array | None = None) -> float:
        return float(self.problem.upper(self.shard, x, y, batch))

    def lower(self, x: Array, y: Array, batch: Array | None = None) -> float:
        return float(self.problem.lower(self.shard, x, y, batch))

    def upper_grad(self, x: Array, y: Array, batch: Array | None = None) -> tuple[Array, Array]:
        return self.problem.upper_grad(self.shard, x, y, batch)

    def lower_grad(self, x: Array, y: Array, batch: Array | None = None) -> Array:
        return self.problem.lower_grad(self.shard, x, y, batch)

    def lower_grads(self, X: Array, batch: Array | None = None) -> Callable[[Array], Array]:
        """∇_y g of many models: given copies of x, the function of their y; one by one where the problem has none."""
        if hasattr(self.problem, "lower_grads"):
            found = self.problem.lower_grads(self.shard, X, batch)
            if found is not None:
                return found
        return lambda Y: library(Y).stack([self.lower_grad(x, y, batch) for x, y in zip(X, Y, strict=True)])

    def lower_grad_x(self, x: Array, y: Array, batch: Array | None = None) -> Array:
        """∇_x g; from central differences of g along each coordinate where the problem has none."""
        if hasattr(self.problem, "lower_grad_x"):
            return self.problem.lower_grad_x(self.shard, x, y, batch)
        return _along_coordinates(lambda z: self.lower(z, y, batch), x)

    def hvp(self, x: Array, y: Array, v: Array, batch: Array | None = None) -> Array:
        """∇²_yy g · v; from a central difference of ∇_y g along v where the problem has none."""
        if hasattr(self.problem, "hvp"):
            return self.problem.hvp(self.shard, x, y, v, batch)
        return _along(lambda z: self.lower_grad(x, z, batch), y, v)

    def cross(self, x: Array, y: Array, v: Array, batch: Array | None = None) -> Array:
        """∇²_xy g · v; from differences of ∇_x g along v, or of ⟨∇_y g, v⟩ along x, where the problem has none."""
        if hasattr(self.problem, "cross"):
            return self.problem.cross(self.shard, x, y, v, batch)
        if hasattr(self.problem, "lower_grad_x"):
            return _along(lambda z: self.lower_grad_x(x, z, batch), y, v)
        return _along_coordinates(lambda z: float(self.lower_grad(z, y, batch) @ v), x)

    def smoothness(self, x: Array, y: Array) -> float:
        """ℓ of this shard; from power iteration on the Hessian at (x, y) where the problem has no bound."""
        if hasattr(self.problem, "smoothness"):
            return float(self.problem.smoothness(self.shard))
        start = library(y).asarray(np.random.default_rng(0).standard_normal(y.size))
        return largest_eigenvalue(lambda v: self.hvp(x, y, v), start)


def spread(part: Array, held: Array, size: int) -> Array:
    """The coordinates of a submodel at their places in a vector of this size, zeros elsewhere; or those of several."""
    xp = library(part)
    full = xp.zeros((*part.shape[:-1], size))
    full[..., xp.asarray(held)] = part
    return full


def gather(full: Array, held: Array) -> Array:
    """The coordinates of a submodel out of a vector, or out of several."""
    return full[..., library(full).asarray(held)]


class CutOut(Oracles):
    """The oracles of a submodel from those of the whole, for problems without submodels of their own."""

    def __init__(self, whole: Oracles, held_x: Array, held_y: Array) -> None:
        super().__init__(whole.problem, whole.shard, whole.size_x)
        self.whole, self.held_x, self.held_y = whole, held_x, held_y

    def computed(self, x: Array, y: Array) -> int:
        return self.size_x + self.problem.dim_y

    def _x(self, x: Array) -> Array:
        return spread(x, self.held_x, self.size_x)

    def _y(self, y: Array) -> Array:
        return spread(y, self.held_y, self.problem.dim_y)

    def upper(self, x: Array, y: Array, batch: Array | None = None) -> float:
        return self.whole.upper(self._x(x), self._y(y), batch)

    def lower(self, x: Array, y: Array, batch: Array | None = None) -> float:
        return self.whole.lower(self._x(x), self._y(y), batch)

    def upper_grad(self, x: Array, y: Array, batch: Array | None = None) -> tuple[Array, Array]:
        in_x, in_y = self.whole.upper_grad(self._x(x), self._y(y), batch)
        return gather(in_x, self.held_x), gather(in_y, self.held_y)

    def lower_grad(self, x: Array, y: Array, batch: Array | None = None) -> Array:
        return gather(self.whole.lower_grad(self._x(x), self._y(y), batch), self.held_y)

    def lower_grads(self, X: Array, batch: Array | None = None) -> Callable[[Array], Array]:
        gradients = self.whole.lower_grads(self._x(X), batch)
        return lambda Y: gather(gradients(self._y(Y)), self.held_y)

    def lower_grad_x(self, x: Array, y: Array, batch: Array | None = None) -> Array:
        return gather(self.whole.lower_grad_x(self._x(x), self._y(y), batch), self.held_x)

    def hvp(self, x: Array, y: Array, v: Array, batch: Array | None = None) -> Array:
        return gather(self.whole.hvp(self._x(x), self._y(y), self._y(v), batch), self.held_y)

    def cross(self, x: Array, y: Array, v: Array, batch: Array | None = None) -> Array:
        return gather(self.whole.cross(self._x(x), self._y(y), self._y(v), batch), self.held_x)


def _along(gradient, at: Array, v: Array) -> Array:
    """Directional derivative of `gradient`; the step balances rounding and truncation at the scale of the point."""
    norm = float(np.linalg.norm(v))
    if norm == 0.0:
        return np.zeros_like(gradient(at))
    step = np.cbrt(np.finfo(np.float64).eps) * (1.0 + float(np.linalg.norm(at))) / norm
    return (gradient(at + step * v) - gradient(at - step * v)) / (2 * step)


def _along_coordinates(value, at: Array) -> Array:
    gradient = np.empty_like(at)
    for j in range(at.size):
        step = np.cbrt(np.finfo(np.float64).eps) * (1.0 + abs(at[j]))
        ahead, behind = at.copy(), at.copy()
        ahead[j] += step
        behind[j] -= step
        gradient[j] = (value(ahead) - value(behind)) / (2 * step)
    return gradient
