"""Run on every rank by a test: the bytes of memory of its own that a rank's clients take, summed over the hosts."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

from mpi4py import MPI

from fbompi.config import load
from fbompi.links.mpi import host_of
from fbompi.run import build


def own_memory() -> int:
    """Bytes of this process that belong to no file and to nobody else, less what is free within it."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def clients(options: list[str]) -> tuple:
    """The parts of a run and this rank's clients."""
    parts = build(load(None, options), comm.size - 1)
    mine = [c for c in range(parts.clients) if comm.rank and host_of(c, comm.size) == comm.rank]
    return parts, [parts.client(c) for c in mine]


comm = MPI.COMM_WORLD
before_kept = clients([sys.argv[1], "problem.train=360"])  # loaded and compiled once; of the same set, for HDF5
before = own_memory()
kept = clients(sys.argv[1:])
total = comm.allreduce(own_memory() - before if comm.rank else 0)
if comm.rank == 0:
    print(f"bytes {total}")
