"""From a command to a finished run: in one process on the virtual link, or as one of many ranks."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fbompi.client import Client
from fbompi.config import Config
from fbompi.errors import UserError
from fbompi.links import mpi
from fbompi.links.link import Link
from fbompi.links.virtual import VirtualLink
from fbompi.progress import Progress
from fbompi.record import CLIENT, STATES, Recorder, RunFile, free_path
from fbompi.run import Driver, Parts, build, link_arguments


def run(load: Callable[[], Config], overwrite: bool, quiet: bool) -> Path | None:
    """Run a configuration; the path of its run file, or None on a rank that is not the server."""
    if mpi.launched_ranks() > 1:
        try:
            return _run_as_rank(load, overwrite, quiet)
        except (UserError, SystemExit):
            raise
        except BaseException as e:  # leaving quietly would let the other ranks wait for us for ever
            _abort(e)
    config = load()
    if config.run.link == "mpi":
        raise UserError('run.link = "mpi": there is one process only; start several with fbompi run -n 4, or mpirun')
    parts = build(config)
    path = _output(config, overwrite)
    link = VirtualLink([parts.client(i) for i in range(parts.clients)], *link_arguments(parts))
    _drive(parts, link, path, {"mpi": "", "ranks": 1}, quiet)
    return path


def _run_as_rank(load: Callable[[], Config], overwrite: bool, quiet: bool) -> Path | None:
    comm, rank, size = mpi.start()
    parts: Parts | None = None
    path, complaint = None, ""
    workers: dict[int, Client] = {}
    try:
        config = load()
        if config.run.link == "virtual":
            raise UserError(f'run.link = "virtual": takes one process, and the launcher started {size}')
        parts = build(config, size - 1)
        if rank == 0:
            path = _output(config, overwrite)
            arguments = link_arguments(parts)
        else:
            mine = [c for c in range(parts.clients) if mpi.host_of(c, size) == rank]
            workers = {c: parts.client(c) for c in mine}
    except UserError as e:
        complaint = str(e)
    who, text = mpi.agree(comm, complaint)
    if who >= 0:
        mpi.finish()
        # All ranks complain alike of a bad configuration; one of them says so.
        raise UserError(text) if rank == 0 else SystemExit(2)
    assert parts is not None
    if rank == 0:
        assert path is not None
        link = mpi.MpiLink(comm, *arguments)
        _drive(parts, link, path, {"mpi": mpi.library(), "ranks": size}, quiet)
        mpi.finish()
        return path
    host = mpi.Host(comm, workers, parts.functions, parts.shapes)
    try:
        host.serve()
    except BaseException as e:
        host.fail(e)  # the server prints it, closes the file and ends the job; if it does not, we do
        raise
    mpi.finish()
    return None


def _output(config: Config, overwrite: bool) -> Path:
    stem = f"{config.run.algorithm}-{config.run.problem.rpartition(':')[2]}"
    return free_path(config.run.out, stem, overwrite)


def _drive(parts: Parts, link: Link, path: Path, where: dict[str, Any], quiet: bool) -> None:
    """Set up the method, then run it into the file; whatever happens, the file tells."""
    try:
        driver = Driver(parts, link)
        file = _create(parts, driver, link, path, where)
    except UserError:
        link.close()
        if where["ranks"] > 1:
            mpi.finish()
        raise
    progress = Progress(parts.config.run.rounds, "s" if link.name == "mpi" else "virtual s", quiet)
    try:
        driver.run(Recorder(file, driver, progress))
        link.close()
        file.finish("complete", driver.state.x, driver.state.y)
    except BaseException as e:
        file.finish("interrupted" if isinstance(e, KeyboardInterrupt) else "failed")
        raise
    finally:
        progress.end()


def _abort(error: BaseException) -> NoReturn:
    """Show the traceback of the rank that raised, and end the job on all of them."""
    if isinstance(error, mpi.ClientFailed):
        print(error, file=sys.stderr)
    else:
        traceback.print_exception(error)
    mpi.abort(130 if isinstance(error, KeyboardInterrupt) else 1)


def _create(parts: Parts, driver: Driver, link: Link, path: Path, where: dict[str, Any]) -> RunFile:
    config, problem = parts.config, parts.problem
    clients = np.zeros(parts.clients, CLIENT)
    clients["shard_size"] = driver.shard_sizes
    clients["delay_factor"] = link.delays.factor
    clients["state"] = STATES["alive"]
    if where["ranks"] > 1:
        clients["rank"] = [mpi.host_of(c, where["ranks"]) for c in range(parts.clients)]
    attributes = {
        **where, "config": config.text(), "seed": config.run.seed, "link": link.name,
        "smoothness": driver.setting.smoothness,
    }  # fmt: skip
    meanings = {**getattr(problem, "metric_meanings", {}), **getattr(problem, "exact_meanings", {})}
    dims = (problem.dim_x, problem.dim_y) if config.record.iterates else None
    return RunFile(path, attributes, link.kinds, clients, {k: (v, "") for k, v in meanings.items()}, dims)
