"""What every link has in common: numbering tasks, knowing which are outstanding, logging arrivals, evaluating.

A synchronous method uses `send` and `collect`, an asynchronous one `send`, `take` and `end_round`. A link of a
certain kind adds only how a task leaves (`_deliver`) and how answers come in (`_arrivals`).

What arrives is taken in steps, which are numbered: a group of answers, or clients that are left out. The log of steps
is all that was accident in a run. With a `Script` made of it, a link lets the same happen again.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import numpy as np

from fbompi.client import evaluate, hello
from fbompi.config import Faults
from fbompi.delays import DelayModel
from fbompi.errors import UserError
from fbompi.links.guard import Guard
from fbompi.messages import COSTS, HEADER_WORDS, Array, Layout, Shapes, Task, TaskFunction, Update, check_shapes, framed
from fbompi.randomness import Table

SERVICE = {"hello": hello, "evaluate": evaluate}  # tasks of the run itself, beside those of the method
EVALUATIONS_IN_FLIGHT = 2  # rows sent out at once: enough to hide the way there and back, not enough to pile up

EVENT = np.dtype(
    [
        ("client", "<i4"), ("kind", "<u1"), ("task", "<i8"), ("sent_round", "<i8"), ("arrived_round", "<i8"),
        ("age", "<i8"), ("local_steps", "<i4"), ("bytes", "<i8"), ("time_sent", "<f8"), ("time_arrived", "<f8"),
        ("compute", "<f8"), ("step", "<i8"), *((name, "<i8") for name in COSTS), ("bytes_up", "<i8"),
        ("seconds", "<f8"), ("take", "<i8"), ("rejected", "<u1"),
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


class ClientsGone(Exception):
    """A client that a synchronous round needs was left out: the round is to begin anew without it."""


class RanksLost(Exception):
    """Ranks were lost, and the run is to stop for it; it can be resumed."""


class ClientFailed(Exception):
    """A client's code raised on another rank; the text is that rank's traceback."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank} failed:\n{text}")


OF_LINKS = (ClientsGone, RanksLost, ClientFailed)  # what a method lets pass


class Incident(NamedTuple):
    """Something that befell a rank or a client."""

    time: float
    round: int  # of communication
    take: int  # the step before which, or as which, it happened
    what: str
    client: int  # −1: none
    rank: int  # −1: none
    text: str


@dataclass
class Step:
    """One step of an earlier run: the tasks whose answers were taken together, or the clients that were left out."""

    answers: dict[int, bool] = field(default_factory=dict)  # by task number, whether the answer was rejected
    leaving: list[int] = field(default_factory=list)


Script = dict[int, Step]  # by number


@dataclass(slots=True)
class Evaluation:
    """One row of the trajectory on its way: the iterate, and the parts that have come in.

    Its tasks have negative numbers, so that how often a run is looked at does not change what it draws.
    """

    row: int
    x: Array
    y: Array
    parts: Array
    missing: set[int]  # clients


@dataclass
class LinkState:
    """All that a link must remember to go on in another process; tasks and evaluations under way, one row each."""

    round: int
    next_number: int
    takes: int
    now: float
    curvature: float
    waited: float
    sent: Array
    tasks_done: Array
    rejected: Array
    client_state: Array
    gone: set[int]
    guard: Guard
    numbers: Array  # number, client, kind, stamp, round, local steps, place
    times: Array  # time sent, delay, computing, and on the virtual link the arrival
    busy: Array  # on the virtual link, when each client has done what it was given
    arrays: list[Array]  # each once, however many tasks share it
    uses: list[Array]  # for every task, which of them it has
    evaluations: list[int]
    points: list[Array]  # x and y of each


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
    faults
        Which answers are rejected, and what is done about ranks that are lost.
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
        faults: Faults | None = None,
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
        self.takes = 0  # steps taken
        self.script: Script | None = None  # what is to happen, where it has happened before
        self.gone: set[int] = set()  # clients left out for good
        self.client_state = np.zeros(self.clients, np.uint8)  # alive 0, lost 1, adopted 2
        self.rejected = np.zeros(self.clients, np.int64)
        self.incidents: list[Incident] = []  # not yet fetched
        self.asked: Callable[[], object] = lambda: None  # called when another rank was asked to stop
        self.introduced = False  # whether every client has been heard once, before the run
        self.breaks_rounds = False  # whether a client that leaves ends the round with `ClientsGone`
        self.faults = faults or Faults()
        self.guard = Guard(self.faults, self.clients, functions)
        self._sent = [0] * self.clients  # tasks each client was given
        self._next_number = 0
        self._tasks: dict[int, Task] = {}  # outstanding, by number
        self._open = 0  # how many of them are the method's
        self._here: dict[int, Update] = {}  # answers that have come in and not been taken yet
        self._leaving: list[tuple[int, str]] = []  # clients to be left out at the next step, and why
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

    @property
    def barred(self) -> set[int]:
        """Of the clients left out for good, those whose answers were rejected: nothing of theirs counts."""
        return {client for client in self.gone if self.guard.offences[client] >= self.guard.most_offences}

    def send(self, clients: Iterable[int], kind: str, *arrays: Array, stamp: int = 0) -> None:
        """Hand a task to each of these clients; `arrays` must not be changed in place afterwards."""
        now = self.now
        fixed = self._fixed_steps if self.functions[kind].local_steps else 1
        for client in map(int, clients):
            if client in self.gone:
                if self.breaks_rounds:
                    raise self._broken()
                continue
            index = self._sent[client]
            steps = fixed or int(self._local_steps.value(client, 0 if self._steps_by_client else index))
            delay, compute = self._times(client, index, steps)
            number = self._next_number
            task = Task(number, client, kind, arrays, stamp, self.round, steps, now, delay, compute, number)
            self._hand_over(task)

    def _hand_over(self, task: Task) -> None:
        self._sent[task.client] += 1
        self._next_number = task.number + 1
        self._open += 1
        self._tasks[task.number] = task
        self._deliver(task)

    def take(self) -> list[Update]:
        """Wait for the next answers and return them, in the order of sending; none, where nobody is left to answer."""
        if not self._open:
            raise Stalled("an answer is awaited and no task is outstanding")
        updates: list[Update] = []
        begin = time.perf_counter()
        while not updates and self._open:
            if self.script is not None:
                updates = self._follow()
            elif self._leaving:
                self._let_go()
            elif group := self._group():
                updates = self._judge(group)
        self.waited += time.perf_counter() - begin
        return sorted(updates, key=_place) if len(updates) > 1 else updates

    def collect(self) -> list[Update]:
        """Wait for every outstanding answer; the round ends. In the order of sending, whatever that of arrival."""
        updates: list[Update] = []
        while self._open:
            updates += self.take()
        self.end_round()
        return sorted(updates, key=_place)

    def end_round(self) -> None:
        """The server has what it waited for; what arrives from now on is one round older."""
        self.round += 1

    # What the run uses

    def reset_clock(self) -> None:
        """Forget the introduction: rounds, time, task numbers and events of the run begin here."""
        self.introduced = True
        self.round = self._next_number = self.takes = 0
        self.events.clear()
        self._date_incidents(0.0)
        self._sent = [0] * self.clients
        self.tasks_done[:] = 0
        self.rejected[:] = 0
        self.curvature = self.waited = 0.0

    def _date_incidents(self, now: float) -> None:
        """What befell ranks before the run began, or went on, belongs to where it does."""
        self.incidents = [i._replace(time=now, round=self.round, take=self.takes) for i in self.incidents]

    def evaluate(self, row: int, x: Array, y: Array) -> None:
        """Ask every client for its part of an evaluation, unless it is under way; never waits. See `evaluated`."""
        if row in self._evaluations or any(waiting.row == row for waiting in self._waiting_evaluations):
            return
        parts = np.full((self.clients, self.shapes.metrics), np.nan)
        self._waiting_evaluations.append(Evaluation(row, x, y, parts, set()))
        self._send_evaluations()

    def finish_evaluations(self) -> None:
        """Wait until every evaluation asked for is complete."""
        while self._evaluations:
            if self._leaving:
                self._let_go()
            else:
                self._take_in()

    @abstractmethod
    def stand_at(self, now: float) -> None:
        """Rounds are gone through again, and this is the last moment recorded: a clock that measures stands there."""

    def note(self, what: str, client: int = -1, rank: int = -1, text: str = "") -> None:
        """Remember that something befell a client or a rank."""
        self.incidents.append(Incident(self.now, self.round, self.takes, what, client, rank, text))

    @property
    def needs_everyone(self) -> bool:
        """Whether nobody can be left out now: in the introduction, and where what has happened is to happen again."""
        return not self.introduced or self.script is not None

    def leave_out(self, client: int, why: str) -> None:
        """From the next step on, do without this client."""
        if client not in self.gone:
            self._leaving.append((client, why))

    def places(self) -> dict[str, Array]:
        """Where clients live, as columns of the table of clients."""
        return {}

    def saved(self) -> LinkState:
        """What must be remembered to go on elsewhere."""
        tasks = [task for number, task in self._tasks.items() if number >= 0]
        arrays: dict[int, Array] = {id(array): array for task in tasks for array in task.arrays}
        index = {key: i for i, key in enumerate(arrays)}
        rows = [(t.number, t.client, self.kinds.index(t.kind), t.stamp, t.round, t.local_steps, t.place) for t in tasks]
        due = self._due()
        under_way = [*self._evaluations.values(), *self._waiting_evaluations]
        return LinkState(
            self.round, self._next_number, self.takes, self.now, self.curvature, self.waited,
            np.array(self._sent, np.int64), self.tasks_done, self.rejected, self.client_state, self.gone, self.guard,
            np.array(rows, np.int64).reshape(-1, 7),
            np.array([(t.time_sent, t.delay, t.compute, due.get(t.number, 0.0)) for t in tasks]).reshape(-1, 4),
            self._busy(),
            list(arrays.values()), [np.array([index[id(a)] for a in t.arrays], np.int64) for t in tasks],
            [e.row for e in under_way], [z for e in under_way for z in (e.x, e.y)],
        )  # fmt: skip

    def check(self, state: LinkState) -> None:
        """Refuse what no link of this run can have saved."""
        counts = {len(part) for part in (state.numbers, state.times, state.uses)}
        numbers, clients = state.numbers[:, 0], state.numbers[:, 1]
        if len(counts) != 1 or state.round < 0 or state.takes < 0 or len(set(numbers.tolist())) != len(numbers):
            raise ValueError("its tasks do not fit together")
        if not (np.isfinite(state.times).all() and np.isfinite(state.busy).all() and np.isfinite(state.now)):
            raise ValueError("its times are not finite")
        for client in [*clients.tolist(), *state.gone]:
            if not 0 <= client < self.clients:
                raise ValueError(f"it has a client {client} of {self.clients}")
        if (numbers < 0).any() or (numbers >= state.next_number).any() or (state.sent < 0).any():
            raise ValueError("its tasks are not numbered in order")
        for (_, client, kind, *_), uses in zip(state.numbers.tolist(), state.uses):
            if not 0 <= kind < len(self.kinds) or any(not 0 <= i < len(state.arrays) for i in uses.ravel()):
                raise ValueError("it has a task of a kind or with arrays that are not there")
            route, function = self._routes[self.kinds[kind]][client], self.functions[self.kinds[kind]]
            arrays = [state.arrays[i] for i in uses.ravel()]
            whole = [self.shapes.dim_x if i in route.x_words else None for i in range(len(arrays))]
            if any(n is not None and array.shape != (n,) for n, array in zip(whole, arrays)):
                raise ValueError("it has a task with an x of another length")
            local = [array[route.block] if n and route.block else array for n, array in zip(whole, arrays)]
            check_shapes(local, function.takes, route.task, "task", self.kinds[kind], client)
        points = [(self.shapes.dim_x,), (self.shapes.dim_y,)] * len(state.evaluations)
        if [point.shape for point in state.points] != points:
            raise ValueError("it evaluates points of other lengths")
        if any(array.dtype != np.float64 for array in (*state.arrays, *state.points)):
            raise ValueError("it has arrays of other numbers than float64")

    def restore(self, state: LinkState) -> None:
        """Go on from there: outstanding tasks are sent again."""
        self.round, self.takes = state.round, state.takes
        self.curvature, self.waited, self.guard = state.curvature, state.waited, state.guard
        self._sent = state.sent.tolist()
        self.tasks_done[:], self.rejected[:], self.client_state[:] = (
            state.tasks_done,
            state.rejected,
            state.client_state,
        )
        self.gone |= state.gone
        self._set_clock(state.now, state.busy)
        self._date_incidents(state.now)
        for row, (sent, delay, compute, due), uses in zip(state.numbers.tolist(), state.times.tolist(), state.uses):
            number, client, kind, stamp, round_, steps, place = row
            arrays = tuple(state.arrays[i] for i in uses)
            task = Task(number, client, self.kinds[kind], arrays, stamp, round_, steps, sent, delay, compute, place)
            self._tasks[number] = task
            self._open += 1
            self._deliver_again(task, due)
        self._next_number = state.next_number
        for row, x, y in zip(state.evaluations, state.points[::2], state.points[1::2]):
            self.evaluate(row, x, y)

    @abstractmethod
    def close(self) -> None:
        """Let the clients go."""

    def leave(self, status: int, words: str) -> NoReturn:
        """End this process after `close`, with last words and another status than 0."""
        print(words, file=sys.stderr)
        raise SystemExit(status)

    # Steps

    def _take_in(self) -> None:
        """Wait for answers; parts of evaluations are put in their place, the method's wait to be taken."""
        for update in self._arrivals():
            if update.task.number < 0:
                self._put(update)
            else:
                self._here[update.task.number] = update

    def _group(self) -> list[Update]:
        """The next answers to be taken together: all that are here and of which it can be said what is usual."""
        if not self._here:
            self._take_in()
        here = list(self._here.values())
        group = [update for update in here if self.guard.can_judge(update.kind, here)]
        if len(here) == self._open:  # nobody else will answer
            group = here
        elif not group:
            self._take_in()
        for update in group:
            del self._here[update.task.number]
        return sorted(group, key=_arrival)

    def _judge(self, group: Sequence[Update]) -> list[Update]:
        """The answers that are let in; the others' clients are asked again, or left out."""
        accepted: list[Update] = []
        for update, length in zip(group, self.guard.measure(group)):
            self._settle(update, length, self.guard.complaint(update, length, self._as_sent), accepted)
        self.takes += 1
        return accepted

    def _settle(self, update: Update, length: float, complaint: str, accepted: list[Update]) -> None:
        self._log(update, bool(complaint))
        if not complaint:
            self.guard.accept(update, length)
            accepted.append(update)
            return
        task, client = update.task, update.client
        self.rejected[client] += 1
        self.note("answer rejected", client, text=f"{task.kind}: {complaint}")
        if self.guard.reject(client):
            self.leave_out(client, f"{self.guard.offences[client]} answers in a row were rejected")
        index = self._sent[client]
        delay, compute = self._times(client, index, task.local_steps)
        number, now = self._next_number, self.now
        again = dataclasses.replace(
            task, number=number, round=self.round, time_sent=now, delay=delay, compute=compute
        )  # fmt: skip
        self._hand_over(again)

    def _follow(self) -> list[Update]:
        """The next step of the script."""
        assert self.script is not None
        step = self.script.pop(self.takes, None)
        if step is None:
            if self.script:
                raise UserError(f"the log of arrivals has no step {self.takes}: the run file is damaged")
            self.script = None  # from here on it is accident again
            return []
        if not all(0 <= client < self.clients for client in step.leaving):
            raise UserError(f"the log of arrivals tells of a client beyond {self.clients}: the run file is damaged")
        if step.leaving:
            self._leaving = [(client, "as in the log") for client in step.leaving]
            self._let_go()
            return []
        if not step.answers.keys() <= self._tasks.keys():
            raise UserError(
                f"the log of arrivals does not fit: step {self.takes} takes answers to tasks that were not sent; "
                "the file is damaged, or the problem, its data or this fbompi are not those of the run"
            )
        while not step.answers.keys() <= self._here.keys():
            self._take_in()
        group = [self._here.pop(number) for number in step.answers]
        accepted: list[Update] = []
        for update, length in zip(group, self.guard.measure(group)):
            self._settle(update, length, "as in the log" if step.answers[update.task.number] else "", accepted)
        self._leaving.clear()  # who leaves is in the script, as a step of its own
        self.takes += 1
        return accepted

    def _let_go(self) -> None:
        """Do without the clients that are to be left out, as a step."""
        broken = False
        for client, why in self._leaving:
            if client in self.gone:
                continue
            self.gone.add(client)
            self.client_state[client] = 1
            self.note("client left out", client, text=why)
            for number in [n for n, task in self._tasks.items() if task.client == client]:
                task = self._tasks.pop(number)
                self._here.pop(number, None)
                if number >= 0:
                    self._open -= 1
                    broken = True
                else:
                    self._put_aside(task)
        self._leaving.clear()
        self.takes += 1
        if broken and self.breaks_rounds:
            raise self._broken()

    def _broken(self) -> ClientsGone:
        """The round cannot be completed: nothing that is outstanding is awaited any more."""
        for number in [number for number in self._tasks if number >= 0]:
            del self._tasks[number]
        self._here.clear()
        self._open = 0
        return ClientsGone()

    # Evaluations

    def _send_evaluations(self) -> None:
        while self._waiting_evaluations and len(self._evaluations) < EVALUATIONS_IN_FLIGHT:
            evaluation = self._waiting_evaluations.popleft()
            self._evaluations[evaluation.row] = evaluation
            evaluation.missing = set(range(self.clients)) - self.gone
            for client in sorted(evaluation.missing):
                number = -1 - evaluation.row * self.clients - client
                arrays = (evaluation.x, evaluation.y)
                now = self.now
                task = Task(number, client, "evaluate", arrays, evaluation.row, self.round, 1, now, 0.0, 0.0, number)
                self._tasks[number] = task
                self._deliver(task)

    def _put(self, update: Update) -> None:
        """A part of an evaluation has come in."""
        task = update.task
        del self._tasks[task.number]
        self._evaluations[task.stamp].parts[task.client] = update.arrays[0]
        self._put_aside(task)

    def _put_aside(self, task: Task) -> None:
        """Nothing more is awaited from this client; an evaluation that is complete can be fetched."""
        evaluation = self._evaluations[task.stamp]
        evaluation.missing.discard(task.client)
        if not evaluation.missing:
            del self._evaluations[task.stamp]
            here = [client for client in range(self.clients) if client not in self.gone]
            self.evaluated.append((task.stamp, evaluation.parts[here]))
            self._send_evaluations()

    def _log(self, update: Update, rejected: bool) -> None:
        """Note an arrival."""
        task = update.task
        del self._tasks[task.number]
        self._open -= 1
        self.tasks_done[task.client] += 1
        if update.curvature > self.curvature and not rejected:
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
                self.takes, rejected,
            )
        )  # fmt: skip

    # What a link of a certain kind adds

    @abstractmethod
    def _deliver(self, task: Task) -> None:
        """Let a task go."""

    @abstractmethod
    def _arrivals(self) -> Sequence[Update]:
        """At least one answer, waiting for it if need be."""

    @abstractmethod
    def _set_clock(self, now: float, busy: Array) -> None:
        """Let `now` go on from here, where clients are busy until these times."""

    def _deliver_again(self, task: Task, due: float) -> None:
        """Let a task go that an earlier process had sent; its answer would have arrived at `due`."""
        self._deliver(task)

    def _due(self) -> dict[int, float]:
        """When the answers to outstanding tasks arrive, where that is known."""
        return {}

    def _busy(self) -> Array:
        """Until when each client is busy, where that is known."""
        return np.zeros(0)

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

    def _as_sent(self, task: Task) -> Sequence[Array]:
        return self._local_arrays(task, self._routes[task.kind][task.client])

    def _local_arrays(self, task: Task, route: Route) -> Sequence[Array]:
        """The arrays of a task as its client sees them: of x only the block that it owns."""
        if route.block is None or not route.x_words:
            return task.arrays
        return [array[route.block] if i in route.x_words else array for i, array in enumerate(task.arrays)]


def _bytes(arrays: Sequence[Array], layout: Layout) -> int:
    """Of a message with these arrays, header included."""
    return 8 * (HEADER_WORDS + sum(array.size for array in framed(arrays, layout)))


def _arrival(update: Update) -> tuple[float, int]:
    return update.time, update.task.number


def _place(update: Update) -> int:
    return update.task.place
