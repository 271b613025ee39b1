"""The server of a run: sets up the method, drives it, and leaves a file that tells what happened."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fbompi import checkpoint, record
from fbompi.checkpoint import Checkpoint
from fbompi.config import Config
from fbompi.destination import Destination
from fbompi.errors import UserError
from fbompi.journal import Lock
from fbompi.layout import CLIENT, STATES, Layout
from fbompi.links import mpi
from fbompi.links.link import Link, RanksLost
from fbompi.progress import Progress
from fbompi.record import RunFile, Unwritable, script_of
from fbompi.recorder import IN_SCRIPTS, Recorder
from fbompi.run import Driver, Parts, dealing
from fbompi.signals import Stop
from fbompi.status import LOSSES, RESUMABLE


@dataclass(frozen=True)
class Resumption:
    """A run file that is to be gone on with."""

    path: Path
    lock: Lock


@dataclass(frozen=True)
class Ended:
    """A run that is complete; what was lost on the way, in words."""

    path: Path
    losses: str
    link: Link

    def leave(self) -> NoReturn:
        """The end of the command, where there were losses."""
        self.link.leave(LOSSES, f"fbompi: complete, but {self.losses}")


def destination(config: Config, overwrite: bool) -> Destination:
    """Where the run file goes; refused where it cannot be written."""
    stem = "-".join(name.rpartition(":")[2] for name in (config.run.algorithm, config.run.problem))
    return Destination.choose(config.run.out, stem, overwrite)


def drive(parts: Parts, link: Link, out: Destination | Resumption, where: dict[str, Any], quiet: bool) -> Ended:
    """Set up the method, then run it into the file to the end; whatever happens, the file tells."""
    with Stop() as stop:  # from before there is a file: one that was interrupted says so
        link.asked = stop.ask
        file = None
        try:
            driver = Driver(parts, link)
            checkpoint.check(driver.state, f"method {parts.config.run.algorithm}: its state")
            layout = _layout(parts, driver, link, where)
            if isinstance(out, Resumption):
                file = record.reopen(out.path, out.lock, layout)
                resumed = _restore(driver, file)
            else:
                file, resumed = record.create(out, layout), None
            attributes = {**where, "config": parts.config.text()}
            file.begin(attributes, driver.state.round)
        except UserError:
            if file is not None:
                file.close()
            elif isinstance(out, Resumption):
                out.lock.release()
            link.close()
            if where["ranks"] > 1:
                mpi.finish()
            raise
        progress = Progress(parts.config.run.rounds, "s" if link.name == "mpi" else "virtual s", quiet)
        recorder = Recorder(file, driver, progress, resumed)
        why = _run(driver, recorder, link, stop, progress)
    if why:
        words = f"fbompi: {why} after round {driver.state.round}; fbompi resume {file.path} goes on"
        link.leave(RESUMABLE, words)
    return Ended(file.path, _losses(link), link)


def _run(driver: Driver, recorder: Recorder, link: Link, stop: Stop, progress: Progress) -> str:
    """Run to the end, empty, or to why it stopped before, in a state that can be gone on with."""
    file = recorder.file
    try:
        if driver.run(recorder, stop):
            last, results = recorder.taken(driver.state, link), _results(driver)
            link.close()
            file.append_incidents(link.incidents)  # of ranks that did not live to the end
            file.finish("complete", {**_iterates(driver), **results}, last)
            return ""
        recorder.keep(driver.state, link)
        link.close()
        file.append_incidents(link.incidents)
        file.finish("interrupted", _iterates(driver))
        return "interrupted"
    except Unwritable as e:
        link.close()
        file.close()
        record.mark(file.path, "interrupted")
        return f"{e.line}; what was recorded before stands; make room; stopped"
    except RanksLost as e:  # in the middle of a round: the last checkpoint is what can be gone on from
        link.close()
        try:
            file.append_incidents([incident for incident in link.incidents if incident.what not in IN_SCRIPTS])
            file.finish("interrupted", {})
        except Unwritable:
            file.close()
        return str(e)
    except BaseException as e:
        try:
            file.finish("interrupted" if isinstance(e, KeyboardInterrupt) else "failed", _iterates(driver))
        except UserError:
            file.close()
        raise
    finally:
        progress.end()


def _losses(link: Link) -> str:
    """What was lost on the way, in words; empty, if nothing was."""
    words = []
    if mpi.LOST:
        several = len(mpi.LOST) > 1
        words.append(f"rank{'s' * several} {', '.join(map(str, sorted(mpi.LOST)))} {'were' if several else 'was'} lost")
    for state, what in (("lost", "left out"), ("adopted", "adopted")):
        count = int((link.client_state == STATES[state]).sum())
        if count:
            words.append(f"{count} client{'s were' if count > 1 else ' was'} {what}")
    return ", ".join(words)


def _restore(driver: Driver, file: RunFile) -> Checkpoint | None:
    """Put a run where its last usable checkpoint has it, with what is known of what came after."""
    link = driver.link
    found, where = _last_usable(driver, file)
    takes = 0
    if found is not None:
        driver.restore(found, where)
        if (rounds := driver.parts.config.run.rounds) < driver.state.round:
            raise UserError(f"run.rounds = {rounds}: {file.path} has rounds up to {driver.state.round} already")
        takes = found.link.takes
    elif file.events:
        print("fbompi: no checkpoint: what is recorded is gone through again from the start", file=sys.stderr)
    if link.name == "mpi":
        link.script = script_of(file.path, file.file, found.events if found else 0, takes) or None
    return found


def _last_usable(driver: Driver, file: RunFile) -> tuple[Checkpoint | None, str]:
    """The newest checkpoint that is whole and of this run, and where it was; those that are not are told."""
    like = Checkpoint("", 0, 0, [0.0, 0.0], 0.0, driver.state, driver.link.saved())
    for name, path in checkpoint.candidates(file.path, file.file):
        try:
            found = checkpoint.read(name, path, file.file, like)
            file.holds(found)
            driver.link.check(found.link)
            return found, name
        except checkpoint.Newer:
            raise
        except UserError as e:
            print(f"fbompi: {e}", file=sys.stderr)
        except Exception as e:  # whatever a checksum that is right lets through
            print(f"fbompi: {checkpoint.unusable(name, e)}", file=sys.stderr)
    return None, ""


def _layout(parts: Parts, driver: Driver, link: Link, where: dict[str, Any]) -> Layout:
    """What the file of this run has before its first row."""
    config, problem = parts.config, parts.problem
    clients = np.zeros(parts.clients, CLIENT)
    clients["shard_size"] = driver.shard_sizes
    clients["capacity"] = driver.setting.capacity
    clients["delay_factor"] = link.delays.factor
    clients["state"] = STATES["alive"]
    for name, column in link.places().items():
        clients[name] = column
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
    return Layout(attributes, link.kinds, clients, {k: (v, "") for k, v in meanings.items()}, dims, dealt)


def _iterates(driver: Driver) -> dict[str, tuple[np.ndarray, str]]:
    state = driver.state
    return {"x": (state.x, "the upper variable"), "y": (state.y, "the lower variable")}


def _results(driver: Driver) -> dict[str, tuple[np.ndarray, str]]:
    """What a method gives at the end beside the last iterate, with its meanings."""
    method = driver.method
    return {name: (array, method.result_meanings[name]) for name, array in method.results(driver.state).items()}
