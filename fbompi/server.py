"""The server of a run: sets up the method, drives it, and leaves a file that tells what happened."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from fbompi.config import Config
from fbompi.errors import UserError
from fbompi.links import mpi
from fbompi.links.link import Link
from fbompi.progress import Progress
from fbompi.record import CLIENT, STATES, Destination, Recorder, RunFile
from fbompi.run import Driver, Parts, dealing
from fbompi.signals import Stop


def destination(config: Config, overwrite: bool) -> Destination:
    """Where the run file goes; refused where it cannot be written."""
    stem = "-".join(name.rpartition(":")[2] for name in (config.run.algorithm, config.run.problem))
    return Destination.choose(config.run.out, stem, overwrite)


def drive(parts: Parts, link: Link, out: Destination, where: dict[str, Any], quiet: bool) -> Path:
    """Set up the method, then run it into the file; whatever happens, the file tells."""
    with Stop() as stop:  # from before there is a file: one that was interrupted says so
        try:
            driver = Driver(parts, link)
            file = _create(parts, driver, link, out, where)
        except UserError:
            link.close()
            if where["ranks"] > 1:
                mpi.finish()
            raise
        progress = Progress(parts.config.run.rounds, "s" if link.name == "mpi" else "virtual s", quiet)
        status = "failed"
        final: dict[str, tuple[np.ndarray, str]] = {}
        try:
            completed = driver.run(Recorder(file, driver, progress), stop)
            final = _results(driver)
            link.close()
            status = "complete" if completed else "interrupted"
        finally:
            progress.end()
            state = driver.state
            last = {"x": (state.x, "the upper variable"), "y": (state.y, "the lower variable")}
            file.finish(status, {**last, **final})
    if not completed:
        if where["ranks"] > 1:
            mpi.finish()
        print(f"fbompi: interrupted after round {driver.state.round}; recorded in {file.path}", file=sys.stderr)
        raise SystemExit(130)
    return file.path


def _create(parts: Parts, driver: Driver, link: Link, out: Destination, where: dict[str, Any]) -> RunFile:
    config, problem = parts.config, parts.problem
    clients = np.zeros(parts.clients, CLIENT)
    clients["shard_size"] = driver.shard_sizes
    clients["capacity"] = driver.setting.capacity
    clients["delay_factor"] = link.delays.factor
    clients["state"] = STATES["alive"]
    if where["ranks"] > 1:
        clients["rank"] = [mpi.host_of(c, where["ranks"]) for c in range(parts.clients)]
    attributes = {
        **where, "config": config.text(), "seed": config.run.seed, "link": link.name,
        "smoothness": driver.setting.smoothness,
    }  # fmt: skip
    meanings = {
        **getattr(problem, "metric_meanings", {}), **getattr(problem, "exact_meanings", {}),
        **driver.method.figure_meanings,
    }  # fmt: skip
    dims = (problem.dim_x, problem.dim_y) if config.record.iterates else None
    dealt = dealing(problem, config.run.problem, parts.clients)
    return RunFile(out, attributes, link.kinds, clients, {k: (v, "") for k, v in meanings.items()}, dims, dealt)


def _results(driver: Driver) -> dict[str, tuple[np.ndarray, str]]:
    """What a method gives at the end beside the last iterate, with its meanings."""
    method = driver.method
    return {name: (array, method.result_meanings[name]) for name, array in method.results(driver.state).items()}
