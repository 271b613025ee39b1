"""What the link costs beside a bare echo over MPI."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fbompi.client import Client
from fbompi.config import Delays
from fbompi.delays import DelayModel
from fbompi.errors import UserError
from fbompi.links import mpi
from fbompi.messages import HEADER_WORDS, Array, Shapes, task

REPEATS = 5


@task(takes="y", gives="y")
def echo(client: Client, y: Array) -> Array:
    """The least a client can do."""
    return y


class NoOracles:
    """A problem with nothing in it."""

    upper_size = lower_size = 0

    def forget(self) -> None:
        """There is nothing to let go of."""


def link_figures(numbers: int, updates: int, per_rank: int) -> dict[str, Any] | None:
    """Updates per second, bare and through the link, alternating; None on ranks that are not the server."""
    comm = mpi.start()
    if comm.size < 2:
        raise UserError("fbompi bench link: needs at least two ranks, for example -n 4")
    with mpi.all_or_none():
        return _link_figures(comm, numbers, updates, per_rank)


def _link_figures(comm: Any, numbers: int, updates: int, per_rank: int) -> dict[str, Any] | None:
    rank, size = comm.rank, comm.size
    clients = per_rank * (size - 1)
    shapes = Shapes([slice(0, 0)] * clients, 0, numbers, 0)
    bare, ours = [], []
    for _ in range(REPEATS):
        comm.Barrier()
        bare.append(mpi.bare_echo(comm, 8 * (HEADER_WORDS + numbers), updates))
        comm.Barrier()
        if rank == 0:
            arguments = {"echo": echo}, shapes, DelayModel(Delays(), clients, 0), 1, 0
            ours.append(_updates_per_second(mpi.MpiLink(comm, *arguments), numbers, updates))
        else:
            mine = [c for c in range(clients) if mpi.host_of(c, size) == rank]
            workers = {c: Client(NoOracles(), c, 0, 0) for c in mine}  # type: ignore[arg-type]
            mpi.Host(comm, workers, {"echo": echo}, shapes).serve()
    mpi.finish()
    if rank:
        return None
    return {
        "numbers": numbers, "client_ranks": size - 1, "clients": clients, "updates": updates, "mpi": mpi.library(),
        "bare_per_second": float(np.median(bare)), "link_per_second": float(np.median(ours)),
        "ratio": float(np.median(np.array(ours) / np.array(bare))),
        "ratios": (np.array(ours) / np.array(bare)).tolist(),
    }  # fmt: skip


def _updates_per_second(link: mpi.MpiLink, numbers: int, updates: int) -> float:
    """A server that takes every answer as its new y and hands that out at once: all that is left is the link."""
    begin, done = time.perf_counter(), 0
    link.send(range(link.clients), "echo", np.ones(numbers))
    while done < updates:
        for update in link.take():
            (y,) = update.arrays
            link.end_round()
            link.send((update.client,), "echo", y)
            done += 1
        link.events.clear()
    rate = done / (time.perf_counter() - begin)
    link.close()
    return rate


def link_page(figures: dict[str, Any]) -> str:
    """The figures for people."""
    f = figures
    return (
        f"{f['clients']} clients on {f['client_ranks']} ranks, {f['numbers']} numbers per message, {f['mpi']}\n"
        f"  bare Irecv/Waitsome/Isend echo  {f['bare_per_second']:>9,.0f} updates/s\n"
        f"  through the link                {f['link_per_second']:>9,.0f} updates/s\n"
        f"  ratio                           {f['ratio']:>9.2f}   (each repeat: "
        + ", ".join(f"{r:.2f}" for r in f["ratios"]) + ")"
    )  # fmt: skip
