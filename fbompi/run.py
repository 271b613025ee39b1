"""One run from configuration to run file: build the parts, drive the method, record what it does."""

from __future__ import annotations

import copy
import math
import os
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fbompi import registry
from fbompi.aggregation import Aggregation
from fbompi.algorithms.setting import Setting
from fbompi.client import Client, combine, metric_names
from fbompi.config import Clients, Config
from fbompi.delays import DelayModel
from fbompi.errors import UserError
from fbompi.links.link import OF_LINKS, ClientsGone, Link
from fbompi.memory import computes_on_gpu
from fbompi.messages import Array, Shapes, TaskFunction
from fbompi.participation import Participation
from fbompi.problem import Oracles, Selection, blocks, family, missing_parts
from fbompi.randomness import stream

if TYPE_CHECKING:  # hosts need not load HDF5
    from fbompi.checkpoint import Checkpoint

DEFAULT_CLIENTS = 18
FAR = 1e8  # times the size of the start: no iterate of a run that converges is there


@dataclass
class Parts:
    """What server and hosts build alike from one configuration."""

    config: Config
    problem: Any
    shapes: Shapes
    functions: dict[str, TaskFunction]

    @property
    def clients(self) -> int:
        return len(self.shapes.blocks)

    def client(self, index: int) -> Client:
        """A client with its shard, made or read here."""
        with registry.told(f"problem {self.config.run.problem}, shard of client {index}"):
            shard = self.problem.shard(index, self.clients)
            oracles = Oracles(self.problem, shard, self.shapes.held(index))
        device = None
        if computes_on_gpu(self.problem):
            from fbompi.kernels.cuda.device import current

            device = current()
        return Client(oracles, index, self.config.run.seed, self.config.clients.batch, device)


def build(config: Config, client_ranks: int = 0) -> Parts:
    """The parts of a run; `client_ranks` is how many ranks there are to host clients."""
    if config.clients.count == "auto":
        config.clients.count = max(DEFAULT_CLIENTS, client_ranks)
    name, count = config.run.problem, int(config.clients.count)
    method, problem = registry.algorithm(config.run.algorithm), make_problem(config)
    if family(problem) != method.family:
        raise UserError(
            f'run.problem = "{name}": is of the {family(problem)} family, and {method.name} is a method for the '
            f"{method.family} one (fbompi list)"
        )
    if method.family == "nonsmooth":
        problem = Selection(problem)
    _refuse_too_large(problem, name)
    with registry.told(f"problem {name}"):
        owned = blocks(problem, count)
    shapes = Shapes(owned, problem.dim_x, problem.dim_y, 2 + 2 * len(metric_names(problem)))
    return Parts(config, problem, shapes, method.used_tasks(config.algorithm, shapes))


def _refuse_too_large(problem: Any, name: str) -> None:
    """Before memory is taken: one iterate, of which a run needs several, must fit."""
    needed = 8 * (problem.dim_x + problem.dim_y)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise UserError(
            f"problem {name}: dim_x = {problem.dim_x:,} and dim_y = {problem.dim_y:,} numbers take {needed / 1e9:,.0f} "
            f"GB, and this machine has {memory / 1e9:,.0f} GB"
        )


def make_problem(config: Config) -> Any:
    """The problem of a configuration, with all that its protocol asks for."""
    name = config.run.problem
    with registry.told(f"problem {name}"):
        problem = registry.problem(name)(**config.problem)
        missing = missing_parts(problem)
    if missing:
        raise UserError(f"problem {name} lacks {', '.join(missing)}; fbompi/problem.py has the protocol")
    return problem


def dealing(problem: Any, name: str, clients: int) -> tuple[str, dict[str, Array]] | None:
    """How a problem's samples are dealt out: a sentence, and tables with a row per client; None if it does not say."""
    if not hasattr(problem, "dealing"):
        return None
    with registry.told(f"problem {name}, dealing"):
        rule, tables = problem.dealing(clients)
        tables = {str(part): np.asarray(table) for part, table in tables.items()}
        if not all(part and np.ndim(table) in (1, 2) and len(table) == clients for part, table in tables.items()):
            raise ValueError(f"expected tables with names and a row for each of {clients} clients")
        return str(rule), tables


def link_arguments(parts: Parts) -> tuple:
    """What every link is made from."""
    config = parts.config
    delays = DelayModel(config.delays, parts.clients, config.run.seed)
    clients = config.clients
    by_client = clients.steps_by == "client"
    return parts.functions, parts.shapes, delays, clients.local_steps, config.run.seed, by_client, config.faults


class Driver:
    """The server of a run: introduces itself to the clients, then drives the method round by round."""

    def __init__(self, parts: Parts, link: Link) -> None:
        self.parts, self.link = parts, link
        config, problem = parts.config, parts.problem
        x, y = _start(parts)
        link.send(range(parts.clients), "hello", x, y)
        answers = link.collect()
        link.reset_clock()
        self.shard_sizes = np.array([u.arrays[0][0] for u in answers], np.int64)
        smoothness = max(float(u.arrays[1][0]) for u in answers)
        method = registry.algorithm(config.run.algorithm)
        if method.family == "smooth" and not (math.isfinite(smoothness) and smoothness > 0):
            raise UserError(f"problem {config.run.problem}: smoothness ℓ = {smoothness}: expected a positive number")
        setting = Setting(
            parts.shapes, smoothness, config.run.rounds, config.run.seed,
            Participation(config.clients, parts.clients, config.run.seed), capacities(config.clients, parts.clients),
            getattr(problem, "project_x", _same), getattr(problem, "project_y", _same), lambda: link.curvature,
            config.clients.batch, aggregation=Aggregation.of(config.clients),
        )  # fmt: skip
        if hasattr(problem, "units"):
            with registry.told(f"problem {config.run.problem}, units"):
                setting.units = _checked_units(problem)
        if method.family == "nonsmooth":
            setting.outer, setting.outer_subgradient = problem.outer, problem.outer_subgradient
            setting.outer_convexity, setting.components = problem.outer_convexity, problem.components
        self.setting = setting
        setting.participation.gone = link.gone
        link.guard.suspicious = setting.aggregation.robust and bool(getattr(problem, "convex", False))
        link.breaks_rounds = method.facts["communication"] == "synchronous"
        with self._told("__init__ and start"):
            self.method = method(config.algorithm, setting)
            self.state = self.method.start(x, y)
        self.server_seconds = 0.0
        self._far = FAR * (math.sqrt(x.size + y.size) + float(np.linalg.norm(x)) + float(np.linalg.norm(y)))

    _doubted = ""  # a checkpoint from which no round has been taken yet

    def restore(self, checkpoint: Checkpoint, name: str) -> None:
        """Go on from there; `name` is where the checkpoint was found."""
        self._doubted = name
        self.state, self.server_seconds = checkpoint.state, checkpoint.server_seconds
        self.link.restore(checkpoint.link)
        self.method.heed()

    def run(self, recorder: Any, stop: Any) -> bool:
        """All rounds, unless asked to stop; `recorder` is shown the state before the first and after each."""
        recorder.see(self.state, self.link)
        while not self.over and not stop.asked:
            self.advance()
            recorder.see(self.state, self.link)
        if self.over:
            recorder.finish(self.link)
        return self.over

    def advance(self) -> None:
        """One outer round."""
        begin, waited = time.perf_counter(), self.link.waited
        while True:
            before = _copied(self.state) if self.link.breaks_rounds else None
            try:
                with self._told("round"):
                    self.method.round(self.state, self.link)
                break
            except ClientsGone:  # the round begins anew without them
                self.state = before
        self._doubted = ""
        self.method.heed()
        self.server_seconds += time.perf_counter() - begin - (self.link.waited - waited)
        self._check()

    def _check(self) -> None:
        """Refuse to go on with a run that diverges."""
        state = self.state
        for name, z in (("x", state.x), ("y", state.y)):
            size = float(np.linalg.norm(z))
            if not size < self._far:
                raise UserError(
                    f"the run diverges: ‖{name}‖ = {size:.3g} after round {state.round}. {self._steps()}: try a "
                    "smaller step; if a few clients send garbage, -o clients.aggregate=median"
                )

    def _steps(self) -> str:
        """The step sizes in use, in words."""
        found = []
        for key, value in vars(self.parts.config.algorithm).items():
            if "step" in key and isinstance(value, int | float | str) and key not in ("map_steps",):
                taken = getattr(self.state, "step", 0.0) if key == "step_x" else 0.0
                found.append(f"algorithm.{key} = {value}" + (f" (the last was {taken:.3g})" if taken else ""))
        return ", ".join(found) or "the method has no step size of its own"

    def _told(self, doing: str) -> AbstractContextManager:
        """An error in a user's own method is told with the lines of that method; in ours it is ours."""
        name = self.parts.config.run.algorithm
        if self._doubted:
            return registry.told(f"{self._doubted}: does not fit this run", OF_LINKS)
        return registry.told(f"method {name}, {doing}", OF_LINKS) if ":" in name else nullcontext()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do: all rounds are done, or the method's own rule has ended the run."""
        return self.state.stopped or self.state.round >= self.setting.rounds

    def row(self, parts: Array) -> dict[str, float]:
        """Metrics of a row from the parts of an evaluation."""
        return combine(parts, self.parts.problem)


def capacities(settings: Clients, clients: int) -> Array:
    """The fraction of the model that each client can hold: several are dealt out in turn."""
    given = settings.capacity if isinstance(settings.capacity, list) else [settings.capacity]
    if not given:
        raise UserError("clients.capacity = []: expected at least one fraction")
    return np.resize(np.array(given, np.float64), clients)


def _checked_units(problem: Any) -> tuple[Array, Array]:
    """What a problem says of its units, refused where it does not fit."""
    units = tuple(np.asarray(part) for part in problem.units())
    sizes = (problem.dim_x,), (problem.dim_y,)
    fits = len(units) == 2 and all(
        part.shape == size and (part.dtype.kind in "iu" and part.min(initial=-1) >= -1)
        for part, size in zip(units, sizes)
    )
    if not fits:
        raise ValueError(f"expected whole numbers of at least -1, one for each coordinate of x and of y: {sizes}")
    return units[0], units[1]


def _start(parts: Parts) -> tuple[Array, Array]:
    """(x0, y0), checked."""
    problem, name = parts.problem, parts.config.run.problem
    with registry.told(f"problem {name}, start"):
        x, y = (np.array(a, np.float64) for a in problem.start(stream(parts.config.run.seed, "start")))
    if x.shape != (problem.dim_x,) or y.shape != (problem.dim_y,):
        raise UserError(
            f"problem {name}: start gives shapes {x.shape} and {y.shape}: expected ({problem.dim_x},) and "
            f"({problem.dim_y},), as dim_x and dim_y say"
        )
    return x, y


def _same(z: Array) -> Array:
    return z


def _copied(state: Any) -> Any:
    """A state that stays as it is when the method goes on with the original, which replaces arrays but keeps them."""
    copied = copy.copy(state)
    for name, value in vars(state).items():
        if is_dataclass(value):
            setattr(copied, name, copy.copy(value))
        elif isinstance(value, list | dict | set):
            setattr(copied, name, copy.deepcopy(value))
    return copied
