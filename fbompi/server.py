"""The server of a run: sets up the method, drives it, and leaves a file that tells what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fbompi.config import Config
from fbompi.errors import UserError
from fbompi.links import mpi
from fbompi.links.link import Link
from fbompi.progress import Progress
from fbompi.record import CLIENT, STATES, Recorder, RunFile, free_path
from fbompi.run import Driver, Parts


def output_path(config: Config, overwrite: bool) -> Path:
    """Where the run file goes; refused where it cannot be written."""
    stem = f"{config.run.algorithm}-{config.run.problem.rpartition(':')[2]}"
    return free_path(config.run.out, stem, overwrite)


def drive(parts: Parts, link: Link, path: Path, where: dict[str, Any], quiet: bool) -> None:
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
