"""Configurations, and the rows of numbers that they name."""

from __future__ import annotations

import json
import os
import random
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
from conftest import ROOT

from fbompi import registry
from fbompi.algorithms.mask_file import read_masks
from fbompi.algorithms.masks import MaskParameters, Submodels
from fbompi.algorithms.setting import Setting
from fbompi.config import SECTIONS, Clients, keys_of, load
from fbompi.delays import DelayModel
from fbompi.errors import UserError
from fbompi.messages import Shapes
from fbompi.participation import Participation, read_schedule
from fbompi.rows import read_rows
from fbompi.run import build, capacities, link_arguments
from hostile.content import CUT, NUMBERS


@cache
def words() -> list[str]:
    """Sections, keys and names that mean something."""
    found = {*SECTIONS, "problem", "algorithm"}
    for section in SECTIONS.values():
        found |= set(keys_of(section) or {})
    for kind, name in ((registry.algorithms(), "Parameters"), (registry.problems(), "")):
        found |= set(kind)
        for member in kind.values():
            found |= set(keys_of(getattr(member, name) if name else member) or {})
    found |= {"auto", "anarchic", "schedule", "trace", "clip", "trimmed", "median", "rows.csv", "given", "masks.npz"}
    return sorted(found)


VALUES = (
    "nan", "-nan", "inf", "-inf", "1e309", "-0.0", "0.0", "-0", "0", "1", "-1", "2", "1e-320", "1e300", "5e-324",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1000000000000", "4294967296", "2147483648",
    "1" + "0" * 400, "1" * 5000, '""', '"\\u0000"', '"\\uFFFF"', '"\\U0001F600"', '"\u202e"', '"a.py:B"', '":"', '"/"',
    '"../../x.py:X"', "true", "false", "[]", "[[]]", "[1, 2]", "[2, 1]", "[0.5, 0.25]", "[nan]", "[inf, 1]", "{}",
    "{a = 1}", "1979-05-27T07:32:00Z", "07:32:00", "1979-05-27", "'''\n'''", "0x7fffffff", "1_000",
    "[" * 300 + "]" * 300,
    '"' + "x" * 5000 + '"', "[" + "1," * 2000 + "]", '"rows.csv"', '"mnist"', '"digits"', '"trace"', '"none"',
)  # fmt: skip
OPTIONS = b"run.rounds=3\nclients.count=4\nproblem.data=digits"
ROWS = b"0, 1, 2\n# a comment\n3,4\n0"


def seeds() -> list[bytes]:
    found = [path.read_bytes() + CUT + CUT + ROWS for path in sorted((ROOT / "jobs").glob("*.toml"))]
    for name, method in registry.algorithms().items():
        problem = "quadratic" if method.family == "smooth" else "location"
        for key in (f"run.problem={problem}", "clients.schedule=rows.csv"):
            text = f"run.algorithm={name}\n{key}\nclients.presence=schedule"
            found.append(b"" + CUT + text.encode() + CUT + ROWS)
    for problem, member in registry.problems().items():
        keys = keys_of(member) or {}
        lines = [f"{key} = {json.dumps(spec.default)}" for key, spec in keys.items() if _plain(spec.default)]
        text = "\n".join([f'[run]\nproblem = "{problem}"', "[problem]", *lines])
        found.append(text.encode() + CUT + OPTIONS + CUT + b"0.5,1e3\n")
    return found


def _plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str | list)


def changed(data: bytes, rng: random.Random) -> bytes:
    """A line, a key or a value replaced by another that means something, or by one that means trouble."""
    parts = data.split(CUT)
    part = 0 if rng.random() < 0.6 else rng.randrange(len(parts))
    lines = parts[part].decode("utf-8", "replace").splitlines() or [""]
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, what = rng.randrange(len(lines)), rng.randrange(6)
        key, equals, _ = lines[at].partition("=")
        if what <= 1 and equals:
            lines[at] = f"{key}= {rng.choice(VALUES)}"
        elif what == 2 and equals:
            lines[at] = f'{key}= "{rng.choice(words())}"'
        elif what == 3:
            value = rng.choice((*VALUES, f'"{rng.choice(words())}"', str(rng.choice(NUMBERS))))
            section = "" if part == 0 else f"{rng.choice(('run', 'clients', 'problem', 'algorithm', 'delays'))}."
            lines.insert(at + 1, f"{section}{rng.choice(words())} = {value}")
        elif what == 4:
            lines.insert(at, f"[{rng.choice(words())}]")
        else:
            tokens = re.findall(r"\w+|\W", lines[at]) or [""]
            tokens[rng.randrange(len(tokens))] = rng.choice((*VALUES, *words(), ",", "=", "[", '"', "\n", "\ufeff"))
            lines[at] = "".join(tokens)
    parts[part] = "\n".join(lines).encode("utf-8", "replace")
    return CUT.join(parts)


@cache
def _submodels() -> Submodels:
    """Four clients that hold halves of y."""
    shapes = Shapes([slice(0, 3)] * 4, 3, 4, 2)
    everyone = Participation(Clients(), 4, 0)
    setting = Setting(shapes, 1.0, 10, 0, everyone, np.full(4, 0.5), np.array, np.array, lambda: 0.0, 0)
    return Submodels(MaskParameters(masked="y"), setting)


def feed(data: bytes, place: Path) -> None:
    """Load a file and options and build what can be built before clients are asked; read the rows in every way."""
    text, options, rows, *_ = *data.split(CUT), b"", b""
    os.chdir(place)
    (place / "config.toml").write_bytes(text)
    for name in ("rows.csv", "masks.csv", "masks.npz"):
        (place / name).write_bytes(rows)
    for read in (
        lambda: read_schedule("rows.csv", 18), lambda: list(read_rows("rows.csv", "key", "numbers", float)),
        lambda: read_masks("masks.csv", _submodels()), lambda: read_masks("masks.npz", _submodels()),
    ):  # fmt: skip
        with suppress(UserError):
            read()
    words_of = [option.decode("utf-8", "surrogateescape") for option in options.splitlines()]
    config = load("config.toml", words_of)
    (place / "again.toml").write_text(config.text(), encoding="utf-8")
    again = load("again.toml")
    if again != config:
        raise AssertionError(f"{config}\nis stored as\n{again}")
    parts = build(config)
    link_arguments(parts)
    DelayModel(config.delays, parts.clients, config.run.seed).communication(0, 0)
    Participation(config.clients, parts.clients, config.run.seed).invited(0)
    capacities(config.clients, parts.clients)
