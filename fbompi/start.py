"""From a command to a finished run: in one process on the virtual link, or as one of many ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fbompi.config import Config
from fbompi.errors import UserError
from fbompi.links import mpi
from fbompi.links.virtual import VirtualLink
from fbompi.memory import computes_on_gpu, memory_for
from fbompi.progress import announce_compiling
from fbompi.run import Parts, build, link_arguments
from fbompi.signals import leave_to_server

if TYPE_CHECKING:  # hosts need not load HDF5
    from fbompi.server import Ended

T = TypeVar("T")

Prepare = Callable[[], tuple[Config, Callable[[], Any]]]  # the configuration, and who chooses the run file's place


def run(load: Callable[[], Config], overwrite: bool, quiet: bool, go_on: bool = False) -> Ended | None:
    """Run a configuration; how it ended, or None on a rank that is not the server. Where its run file has been begun,
    `go_on` takes it up."""

    def prepare() -> tuple[Config, Callable[[], Any]]:
        config = load()
        if go_on and _begun(config):
            return _resumed(Path(config.run.out), [f"run.rounds={config.run.rounds}"])
        return config, lambda: _destination(config, overwrite)

    return _start(prepare, quiet)


def _begun(config: Config) -> bool:
    from fbompi.resume import begun

    return begun(config) != "missing"


def _destination(config: Config, overwrite: bool) -> Any:
    from fbompi import server  # with HDF5, which the hosts need not load

    return server.destination(config, overwrite)


def resume(path: Path, options: Sequence[str], quiet: bool) -> Ended | None:
    """Go on with a run from its last checkpoint; how it ended, or None on a rank that is not the server."""
    return _start(lambda: _resumed(path, options), quiet)


def _resumed(path: Path, options: Sequence[str]) -> tuple[Config, Callable[[], Any]]:
    from fbompi.resume import resumed_config, resumption

    config = resumed_config(path, options, mpi.launched_ranks())
    return config, lambda: resumption(path, config)


def _start(prepare: Prepare, quiet: bool) -> Ended | None:
    if not quiet:
        announce_compiling()
    if mpi.launched_ranks() > 1:
        comm = mpi.start()
        with mpi.all_or_none():
            return _start_as_rank(comm, prepare, quiet)
    config, out = prepare()
    if config.run.link == "mpi":
        raise UserError('run.link = "mpi": there is one process only; start several with fbompi run -n 4, or mpirun')
    from fbompi import server

    parts = build(config)
    place = out()
    arguments = link_arguments(parts)
    link = VirtualLink([parts.client(i) for i in range(parts.clients)], *arguments)
    return server.drive(parts, link, place, {"mpi": "", "ranks": 1}, quiet)


def _start_as_rank(comm: Any, prepare: Prepare, quiet: bool) -> Ended | None:
    rank, size = comm.rank, comm.size

    def build_parts() -> tuple[Parts, Any, tuple]:
        config, out = prepare()
        if config.run.link == "virtual":
            raise UserError(f'run.link = "virtual": takes one process, and the launcher started {size}')
        parts = build(config, size - 1)
        return (parts, None, ()) if rank else (parts, out(), link_arguments(parts))

    prepared = _on_all_ranks(comm, build_parts)
    if prepared is None:
        return None
    parts, place, arguments = prepared
    # Shards are read and kernels compiled only when the configuration is known to be good.
    mine = [c for c in range(parts.clients) if rank and mpi.host_of(c, size) == rank]
    workers = _on_all_ranks(comm, lambda: {c: parts.client(c) for c in mine})
    if workers is None:
        return None
    if rank == 0:
        from fbompi import server

        link = mpi.MpiLink(comm, *arguments)
        ended = server.drive(parts, link, place, {"mpi": mpi.library(), "ranks": size}, quiet)
        mpi.finish()
        return ended
    leave_to_server()
    memory = memory_for(parts.problem, computes_on_gpu(parts.problem) and mpi.cuda_aware())
    silence = parts.config.faults.silence
    host = mpi.Host(comm, workers, parts.functions, parts.shapes, memory, parts.client, silence)
    try:
        host.serve()
    except BaseException as e:
        host.fail(e)  # the server prints it, closes the file and ends the job; if it does not, we do
        raise
    mpi.finish()
    return None


def _on_all_ranks(comm: Any, make: Callable[[], T]) -> T | None:
    """What `make` gives; if any rank cannot, rank 0 says why and the others leave (None)."""
    rank, made, complaint = comm.rank, None, ""
    try:
        made = make()
    except UserError as e:
        complaint = e.text()
    who, text = mpi.agree(comm, complaint)
    if who < 0:
        return made
    mpi.finish()
    if rank:  # with status 0: launchers kill the other ranks of one that failed, and rank 0 has something to say
        return None
    raise UserError.of(text)
