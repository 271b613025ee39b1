"""Which runs a sweep has, what their files are called, and what is to be done about each."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fbompi.config import Config, load
from fbompi.errors import UserError
from fbompi.journal import is_being_written
from fbompi.resume import refuse_other, stored

LONGEST = 150  # characters of a name


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    path: Path
    options: tuple[str, ...]  # as -o has them, the seed among them
    config: Config


def values_of(text: str) -> list[str]:
    """What stands between commas, but for those in brackets and quotes: a list may be a value itself."""
    values, depth, quote = [""], 0, ""
    for c in text:
        if c == "," and not depth and not quote:
            values.append("")
            continue
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        else:
            depth += (c in "[{(") - (c in "]})")
        values[-1] += c
    return [value.strip() for value in values]


def plan(config: str | None, options: Sequence[str], seeds: int | None, directory: Path) -> list[Planned]:
    """All runs of a sweep, their configurations checked; refused, where one is wrong."""
    lists: dict[str, list[str]] = {}
    for option in options:
        key, equals, text = option.partition("=")
        key, values = key.strip(), values_of(text)
        if not equals or "." not in key or "" in values:
            raise UserError(f"-o {option}: expected section.key=value,value,..., for example -o run.rounds=20,40")
        if key in lists or len(set(values)) < len(values):
            raise UserError(f"-o {option}: {'the key' if key in lists else 'a value'} is given twice")
        lists[key] = values
    if "run.out" in lists:
        raise UserError("-o run.out: a sweep names its files itself; --out is their directory")
    if "run.seed" in lists and seeds is not None:
        raise UserError(f"--seeds {seeds}: seeds are listed by -o run.seed already")
    if "run.seed" not in lists:
        first = load(config).run.seed
        lists["run.seed"] = [str(first + i) for i in range(seeds or 1)]
    combinations = [tuple(zip(lists, values)) for values in itertools.product(*lists.values())]
    names = _names(combinations, [key for key, values in lists.items() if len(values) > 1 or key == "run.seed"])
    runs = []
    for name, combination in zip(names, combinations):
        runs.append(planned(directory / f"{name}.h5", combination, config))
    return runs


def planned(path: Path, keys: Iterable[tuple[str, str]], config: str | None = None) -> Planned:
    """One run with these keys, its configuration checked."""
    words = tuple(f"{key}={value}" for key, value in keys)
    return Planned(path, words, load(config, words, str(path)))


def _names(combinations: list[tuple[tuple[str, str], ...]], keys: list[str]) -> list[str]:
    """Names made of the values that vary; where they would not do, with a number made from all of the text."""
    last = [key.partition(".")[2] for key in keys]
    short = {key: word if last.count(word) == 1 else key for key, word in zip(keys, last)}
    names = [",".join(f"{short[k]}={word_of(v)}" for k, v in combination if k in short) for combination in combinations]
    return [
        name if len(name) <= LONGEST and names.count(name) == 1
        else f"{name[: LONGEST - 9]}-{zlib.crc32(repr(combination).encode()):08x}"
        for name, combination in zip(names, combinations)
    ]  # fmt: skip


def word_of(value: str) -> str:
    """A value as a part of a file's name."""
    return re.sub(r"[^\w.+-]+", "-", value.strip("\"'[]{} "))[:60]


def state(run: Planned, ranks: int) -> str:
    """What there is of a run: missing, complete, interrupted, killed, failed, being written; refused, where its file is
    of another one."""
    if not run.path.exists():
        return "missing"
    attributes = stored(run.path)
    refuse_other(run.path, attributes, run.config)
    link = "mpi" if ranks > 1 else "virtual"
    if attributes["link"] != link:
        there = "on MPI" if link == "virtual" else "in one process"
        raise UserError(f"{run.path}: was run {there}, and this sweep is not; choose another -n or --out")
    if attributes["status"] == "running":
        return "being written" if is_being_written(run.path) else "killed"
    return str(attributes["status"])
