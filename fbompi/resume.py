"""Going on with a run: its configuration, as its file has it, with what may be changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fbompi.config import Config, Source, apply_option, resolve, tomllib
from fbompi.errors import UserError
from fbompi.journal import Lock
from fbompi.links import mpi
from fbompi.links.mpi import WHEREABOUTS
from fbompi.record import reading
from fbompi.server import Resumption

MAY_CHANGE = "run.rounds and the keys of [record]"


def stored(path: str | Path) -> dict:
    """The attributes of a run file."""
    with reading(path) as file:
        return dict(file.attrs)


def tables_of(path: str | Path, attributes: dict) -> dict:
    """The configuration of a run as tables."""
    try:
        return tomllib.loads(attributes["config"])
    except (ValueError, TypeError, RecursionError) as e:
        raise UserError(f"{path}: is damaged: its configuration is not TOML: {e}") from None


def announce_code(path: str | Path, tables: dict) -> None:
    """Say which files of Python a run file names before they are loaded: whoever made it chose them.

    Nothing else in a run file can have code run, and `fbompi inspect` loads none.
    """
    if mpi.launched_rank() or WHEREABOUTS in os.environ:  # rank 0 says it, or has said it when it started the ranks
        return
    run = tables.get("run")
    for key in ("algorithm", "problem"):
        name = run.get(key) if isinstance(run, dict) else None
        if isinstance(name, str) and ":" in name:
            file = os.path.abspath(name.rpartition(":")[0].replace("\0", ""))
            line = UserError(f"{path}: its {key} is code of {file}, which is loaded").line
            print(f"fbompi: {line}", file=sys.stderr)


def resumed_config(path: Path, options: Sequence[str], ranks: int) -> Config:
    """The configuration with which a run goes on; refused where it cannot, with the reason."""
    attributes = stored(path)
    if "run" not in attributes:
        raise UserError(f"{path}: was written by fbompi {attributes['fbompi_version']}, which could not resume")
    tables = tables_of(path, attributes)
    announce_code(path, tables)
    source = Source(str(path))
    for option in options:
        name = option.partition("=")[0].strip()
        if name != "run.rounds" and not name.startswith("record."):
            raise UserError(
                f"-o {option}: a run that goes on may change {MAY_CHANGE} only; start another with fbompi run"
            )
        if name == "record.iterates":
            raise UserError(f"-o {option}: whether a file has iterates cannot be changed any more")
        apply_option(tables, option, source)
    if attributes["link"] == "mpi" and ranks == 1:
        raise UserError(f"{path}: was run on MPI: fbompi resume -n 4 {path}, or mpirun -n 4 fbompi resume {path}")
    if attributes["link"] == "virtual" and ranks > 1:
        raise UserError(f"{path}: was run on the virtual link, in one process: fbompi resume {path}, without mpirun")
    config = resolve(tables, source)
    _refuse_done(path, config)
    return config


def _refuse_done(path: Path, config: Config) -> None:
    """Refuse to go on where there is nothing left to do."""
    status, done = _standing(path)
    if config.run.rounds < done:
        raise UserError(f"run.rounds = {config.run.rounds}: {path} has rounds up to {done} already")
    if status == "complete" and config.run.rounds == done:
        raise UserError(f"{path}: is complete after {done} rounds; to prolong it: -o run.rounds={2 * done}")


def _standing(path: Path) -> tuple[str, int]:
    """The status of a run, and the last round that it has recorded."""
    with reading(path) as file:
        rounds = file["trajectory/round"]
        return str(file.attrs["status"]), int(rounds[-1]) if len(rounds) else 0


def refuse_other(path: Path, attributes: dict, config: Config, may_differ: Sequence[str] = ()) -> None:
    """Refuse a run file that is not of this configuration, with the key that differs."""
    ours, theirs = _keys(tomllib.loads(config.text())), _keys(tables_of(path, attributes))
    if config.clients.count == "auto":
        theirs["clients.count"] = "auto"
    for key in ours:
        if ours[key] != theirs.get(key) and key not in ("run.out", "run.link", *may_differ):
            raise UserError(
                f"{path}: is of another configuration: {key} is {theirs.get(key)!r} there, {ours[key]!r} here; "
                "choose another --out"
            )


def _keys(tables: dict[str, Any]) -> dict[str, Any]:
    """A configuration as section.key: value."""
    return {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}


def begun(config: Config) -> str:
    """What there is of this configuration's run: missing, complete, or begun; refused, where its file is of another."""
    if not config.run.out:
        raise UserError("--resume: needs the name of the run file: add --out RUN.h5")
    path = Path(config.run.out)
    if not path.exists():
        return "missing"
    refuse_other(path, stored(path), config, ["run.rounds"])
    return "complete" if _standing(path) == ("complete", config.run.rounds) else "begun"


def resumption(path: Path, config: Config) -> Resumption:
    """The right to go on with a run file, to which nobody else has gone on meanwhile."""
    lock = Lock(path)
    try:
        _refuse_done(path, config)
    except BaseException:
        lock.release()
        raise
    return Resumption(path, lock)
