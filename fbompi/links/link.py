"""What every link has in common: numbering tasks, knowing which are outstanding, logging arrivals, evaluating.

A synchronous method uses `send` and `collect`, an asynchronous one `send`, `take` and `end_round`. A link of a
certain kind adds only how a task leaves (`_deliver`) and how answers come in (`_arrivals`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fbompi.client import evaluate, hello
from fbompi.delays import DelayModel
from fbompi.messages import COSTS, HEADER_WORDS, Array, Layout, Shapes, Task, TaskFunction, Update, framed
from fbompi.randomness import Table

SERVICE = {"hello": hello, "evaluate": evaluate}  # tasks of the run itself, beside those of the method
EVALUATIONS_IN_FLIGHT = 2  # rows sent out at once: enough to hide the way there and back, not enough to pile up

EVENT = np.dtype(
    [
        ("client", "<i4"), ("kind", "<u1"), ("task", "<i8"), ("sent_round", "<i8"), ("arrived_round", "<i8"),
        ("age", "<i8"), ("local_steps", "<i4"), ("bytes", "<i8"), ("time_sent", "<f8"), ("time_arrived", "<f8"),
        ("compute", "<f8"), ("step", "<i8"), *((name, "<i8") for name in COSTS), ("bytes_up", "<i8"),
        ("seconds", "<f8"),
    ]
)  # fmt: skip


def all_tasks(functions: dict[str, TaskFunction]) -> dict[str, TaskFunction]:
    """The tasks of a run and of its method, in the order in which messages number them."""
    if both := SERVICE.keys() & functions.keys():
        raise ValueError(f"a method cannot call a task {' or '.join(both)}: the run itself has one of that name")
    return {**SERVICE, **functions}


class Route(NamedTuple):
    """All that is known beforehand of the messages of one kind to and from one client."""

    code: int
    block: slice | None  # the part of x to send, where it is not all of it
    x_words: tuple[int, ...]  # which of the arrays are x
    task: Layout
    answer: Layout
    down: int  # bytes of the task, header included; 0 where they differ from task to task
    up: int  # and of the answer


class Stalled(Exception):
    """More answers are awaited than there are tasks outstanding: an error in a method."""


@dataclass(slots=True)
class Evaluation:
    """One row of the trajectory on its way: the iterate, and the parts that have come in.

    Its tasks have negative numbers, so that how often a run is looked at does not change what it draws.
    """

    row: int
    x: Array
    y: Array
    parts: Array
    missing: int


class Link(ABC):
    """The server's side of a link.

    Parameters
    ----------
    functions
        The method's client functions by kind.
    shapes
        The sizes of everything that travels.
    delays
        The clock's model; on real links only what is injected.
    local_steps
        A number, or [low, high], drawn for every task or, with `steps_by_client`, for every client.
    """

    name = ""

    def __init__(
        self,
        functions: dict[str, TaskFunction],
        shapes: Shapes,
        delays: DelayModel,
        local_steps: int | list[int],
        seed: int,
        steps_by_client: bool = False,
    ) -> None:
        self.functions = all_tasks(functions)
        self.kinds = list(self.functions)
        self.shapes, self.delays = shapes, delays
        self.clients = len(shapes.blocks)
        low, high = local_steps if isinstance(local_steps, list) else (local_steps, local_steps)
        self._local_steps = Table(seed, "local steps", lambda rng, n: rng.integers(low, high + 1, n))
        self._steps_by_client = steps_by_client
        self._fixed_steps = low if low == high else None
        self.mean_local_steps = (low + high) / 2  # of tasks that take any
        self.round = 0  # rounds of communication: how often the server had what it waited for
        self.events: list[tuple] = []
        self.tasks_done = np.zeros(self.clients, np.int64)
        self.curvature = 0.0  # of the lower objective, the largest that any task has met
        self.waited = 0.0  # real seconds in which the server had nothing to do, or clients computed in its place
        self.evaluated: list[tuple[int, Array]] = []  # (row, parts), complete and not yet fetched
        self._sent = [0] * self.clients  # tasks each client was given
        self._next_number = 0
        self._tasks: dict[int, Task] = {}  # outstanding, by number
        self._open = 0  # how many of them are the method's
        self._evaluations: dict[int, Evaluation] = {}
        self._waiting_evaluations: deque[Evaluation] = deque()
        self._routes = {kind: [self._route(kind, c) for c in range(self.clients)] for kind in self.kinds}

    # What a method uses

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the run began."""

    @property
    def outstanding(self) -> int:
        """How many tasks of the method's have not been answered."""
        return self._open

    def send(self, clients: Iterable[int], kind: str, *arrays: Array, stamp: int = 0) -> None:
        """Hand a task to each of these clients; `arrays` must not be changed in place afterwards."""
        now = self.now
        fixed = self._fixed_steps if self.functions[kind].local_steps else 1
        for client in map(int, clients):
            index = self._sent[client]
            steps = fixed or int(self._local_steps.value(client, 0 if self._steps_by_client else index))
            delay, compute = self._times(client, index, steps)
            number = self._next_number
            task = Task(number, client, kind, arrays, stamp, self.round, steps, now, delay, compute)
            self._sent[client] = index + 1
            self._next_number = number + 1
            self._open += 1
            self._tasks[number] = task
            self._deliver(task)

    def take(self) -> list[Update]:
        """Wait for the next answers and return them, in the order of sending."""
        if not self._open:
            raise Stalled("an answer is awaited and no task is outstanding")
        updates: list[Update] = []
        begin = time.perf_counter()
        while not updates:
            updates = [update for update in self._arrivals() if self._log(update)]
        self.waited += time.perf_counter() - begin
        return sorted(updates, key=_number) if len(updates) > 1 else updates

    def collect(self) -> list[Update]:
        """Wait for every outstanding answer; the round ends. In the order of sending, whatever that of arrival."""
        updates: list[Update] = []
        while self._open:
            updates += self.take()
        self.end_round()
        return sorted(updates, key=_number)

    def end_round(self) -> None:
        """The server has what it waited for; what arrives from now on is one round older."""
        self.round += 1

    # What the run uses

    def reset_clock(self) -> None:
        """Forget the introduction: rounds, time, task numbers and events of the run begin here."""
        self.round = self._next_number = 0
        self.events.clear()
        self._sent = [0] * self.clients
        self.tasks_done[:] = 0
        self.curvature = self.waited = 0.0

    def evaluate(self, row: int, x: Array, y: Array) -> None:
        """Ask every client for its part of an evaluation; never waits. See `evaluated`."""
        parts = np.full((self.clients, self.shapes.metrics), np.nan)
        self._waiting_evaluations.append(Evaluation(row, x, y, parts, self.clients))
        self._send_evaluations()

    def finish_evaluations(self) -> None:
        """Wait until every evaluation asked for is complete."""
        while self._evaluations:
            for update in self._arrivals():
                self._log(update)

    @abstractmethod
    def close(self) -> None:
        """Let the clients go."""

    def _send_evaluations(self) -> None:
        while self._waiting_evaluations and len(self._evaluations) < EVALUATIONS_IN_FLIGHT:
            evaluation = self._waiting_evaluations.popleft()
            self._evaluations[evaluation.row] = evaluation
            for client in range(self.clients):
                number = -1 - evaluation.row * self.clients - client
                arrays = (evaluation.x, evaluation.y)
                task = Task(number, client, "evaluate", arrays, evaluation.row, self.round, 1, self.now, 0.0, 0.0)
                self._tasks[number] = task
                self._deliver(task)

    def _log(self, update: Update) -> bool:
        """Note an arrival; True if it is the method's, False if it was a part of an evaluation."""
        task = update.task
        del self._tasks[task.number]
        if task.kind == "evaluate":
            evaluation = self._evaluations[task.stamp]
            evaluation.parts[task.client] = update.arrays[0]
            evaluation.missing -= 1
            if not evaluation.missing:
                del self._evaluations[task.stamp]
                self.evaluated.append((task.stamp, evaluation.parts))
                self._send_evaluations()
            return False
        self._open -= 1
        self.tasks_done[task.client] += 1
        if update.curvature > self.curvature:
            self.curvature = update.curvature
        route, arrived = self._routes[task.kind][task.client], self.round
        down, up = route.down, route.up
        if not down:
            down = _bytes(self._local_arrays(task, route), route.task)
            up = _bytes(update.arrays, route.answer)
        self.events.append(
            (
                task.client, route.code, task.number, task.round, arrived, arrived - task.round, task.local_steps,
                down + up, task.time_sent, update.time, update.compute, task.stamp, *update.costs, up, update.seconds,
            )
        )  # fmt: skip
        return True

    # What a link of a certain kind adds

    @abstractmethod
    def _deliver(self, task: Task) -> None:
        """Let a task go."""

    @abstractmethod
    def _arrivals(self) -> Sequence[Update]:
        """At least one answer, waiting for it if need be."""

    def _times(self, client: int, index: int, steps: int) -> tuple[float, float]:
        """Seconds of communication and of computing that the delay model gives a task."""
        return self.delays.communication(client, index), self.delays.computing(client, steps)

    def _route(self, kind: str, client: int) -> Route:
        function, shapes = self.functions[kind], self.shapes
        takes, gives = function.takes, function.gives
        task, answer = shapes.layout(takes, client), shapes.layout(gives, client)
        block = shapes.blocks[client] if shapes.held(client) < shapes.dim_x else None
        x_words = tuple(i for i, word in enumerate(takes) if word == "x")
        sizes = (0, 0) if task.parts or answer.parts else tuple(8 * (HEADER_WORDS + s.numbers) for s in (task, answer))
        return Route(self.kinds.index(kind), block, x_words, task, answer, *sizes)

    def _local_arrays(self, task: Task, route: Route) -> Sequence[Array]:
        """The arrays of a task as its client sees them: of x only the block that it owns."""
        if route.block is None or not route.x_words:
            return task.arrays
        return [array[route.block] if i in route.x_words else array for i, array in enumerate(task.arrays)]


def _bytes(arrays: Sequence[Array], layout: Layout) -> int:
    """Of a message with these arrays, header included."""
    return 8 * (HEADER_WORDS + sum(array.size for array in framed(arrays, layout)))


def _number(update: Update) -> int:
    return update.task.number
