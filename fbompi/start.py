"""From a command to a finished run: in one process on the virtual link, or as one of many ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fbompi.client import Client
from fbompi.config import Config
from fbompi.errors import UserError
from fbompi.links import mpi
from fbompi.links.virtual import VirtualLink
from fbompi.run import Parts, build, link_arguments
from fbompi.signals import leave_to_server


def run(load: Callable[[], Config], overwrite: bool, quiet: bool) -> Path | None:
    """Run a configuration; the path of its run file, or None on a rank that is not the server."""
    if mpi.launched_ranks() > 1:
        comm = mpi.start()
        with mpi.all_or_none():
            return _run_as_rank(comm, load, overwrite, quiet)
    config = load()
    if config.run.link == "mpi":
        raise UserError('run.link = "mpi": there is one process only; start several with fbompi run -n 4, or mpirun')
    from fbompi import server

    parts = build(config)
    out = server.destination(config, overwrite)
    link = VirtualLink([parts.client(i) for i in range(parts.clients)], *link_arguments(parts))
    return server.drive(parts, link, out, {"mpi": "", "ranks": 1}, quiet)


def _run_as_rank(comm: Any, load: Callable[[], Config], overwrite: bool, quiet: bool) -> Path | None:
    rank, size = comm.rank, comm.size
    parts: Parts | None = None
    complaint = ""
    workers: dict[int, Client] = {}
    try:
        config = load()
        if config.run.link == "virtual":
            raise UserError(f'run.link = "virtual": takes one process, and the launcher started {size}')
        parts = build(config, size - 1)
        if rank == 0:
            from fbompi import server  # with HDF5, which the hosts need not load

            out = server.destination(config, overwrite)
            arguments = link_arguments(parts)
        else:
            mine = [c for c in range(parts.clients) if mpi.host_of(c, size) == rank]
            workers = {c: parts.client(c) for c in mine}
    except UserError as e:
        complaint = e.text()
    who, text = mpi.agree(comm, complaint)
    if who >= 0:
        mpi.finish()
        if rank:  # with status 0: launchers kill the other ranks of one that failed, and rank 0 has something to say
            return None
        raise UserError.of(text)
    assert parts is not None
    if rank == 0:
        link = mpi.MpiLink(comm, *arguments)
        path = server.drive(parts, link, out, {"mpi": mpi.library(), "ranks": size}, quiet)
        mpi.finish()
        return path
    leave_to_server()
    host = mpi.Host(comm, workers, parts.functions, parts.shapes)
    try:
        host.serve()
    except BaseException as e:
        host.fail(e)  # the server prints it, closes the file and ends the job; if it does not, we do
        raise
    mpi.finish()
    return None
