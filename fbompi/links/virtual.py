"""The virtual link: all clients in this process, and a clock that follows the delay model.

A client works on one task at a time. An answer is computed when it arrives, not when it is sent, so what is
still on its way at the end of a run costs nothing, and the whole state of the link is its outstanding tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from fbompi.client import Client
from fbompi.kernels import on_gpu
from fbompi.links.link import Link
from fbompi.messages import Array, Task, Update, check_shapes, read_only


class VirtualLink(Link):
    """An event queue in virtual seconds."""

    name = "virtual"

    def __init__(self, workers: Sequence[Client], *args: Any) -> None:
        super().__init__(*args)
        self._workers = workers
        self._clock = 0.0
        self._free = np.zeros(self.clients)  # when each client has done what it was given
        self._queue: list[tuple[float, int, Task]] = []  # (arrival, number, task)
        self._instant: list[Task] = []  # evaluations, which take no virtual time

    @property
    def now(self) -> float:
        return self._clock

    def reset_clock(self) -> None:
        super().reset_clock()
        self._clock = 0.0
        self._free[:] = 0.0

    def _set_clock(self, now: float, busy: Array) -> None:
        self._clock = now
        self._free[:] = busy

    def stand_at(self, now: float) -> None:
        """This clock is where it was then."""

    def close(self) -> None:
        """The clients live and end with this process."""

    def _deliver(self, task: Task) -> None:
        if task.kind == "evaluate":
            self._instant.append(task)
            return
        # Half of the communication time is the way there; then the client may still be busy.
        begin = max(self._clock + task.delay / 2, self._free[task.client])
        self._free[task.client] = begin + task.compute
        arrival = float(self._free[task.client]) + task.delay / 2
        heapq.heappush(self._queue, (arrival, task.number, task))

    def _arrivals(self) -> list[Update]:
        if self._instant:
            tasks, self._instant = self._instant, []
            return [self._answer(task, self._clock) for task in tasks]
        arrival = self._queue[0][0]
        self._clock = max(self._clock, arrival)  # an answer may have been here before a checkpoint, not yet taken
        tasks = []
        while self._queue and self._queue[0][0] == arrival:  # what arrives together is taken together
            tasks.append(heapq.heappop(self._queue)[2])
        return [self._answer(task, arrival) for task in tasks if task.number in self._tasks]  # its client may be gone

    def _due(self) -> dict[int, float]:
        arrivals = {number: arrival for arrival, number, _ in self._queue}
        return {**arrivals, **{number: update.time for number, update in self._here.items()}}

    def _busy(self) -> Array:
        return self._free

    def _deliver_again(self, task: Task, due: float) -> None:
        heapq.heappush(self._queue, (due, task.number, task))

    def _answer(self, task: Task, arrival: float) -> Update:
        worker = self._workers[task.client]
        route, function = self._routes[task.kind][task.client], self.functions[task.kind]
        local = [read_only(array) for array in self._local_arrays(task, route)]
        check_shapes(local, function.takes, route.task, "task", task.kind, task.client)
        arrays = worker.answer(function, task.number, task.local_steps, local)
        check_shapes(arrays, function.gives, route.answer, "answer to", task.kind, task.client)
        if worker.device is not None:
            arrays = tuple([worker.device.to_host(array) if on_gpu(array) else array for array in arrays])
        return Update(task, arrays, worker.costs, task.compute, arrival, worker.seconds, worker.curvature)
