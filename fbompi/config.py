"""The configuration: what can be set, its types, defaults and meanings, all in one place.

A section is a dataclass (or the signature of a problem's `__init__`) whose fields are annotated with their
meaning: ``rounds: Annotated[int, "outer rounds", AtLeast(1)] = 100``. The same annotations check what a user
writes, fill the tables of ``fbompi run --help`` and ``fbompi list``, and say in an error what was expected.
"""

from __future__ import annotations

import difflib
import inspect
import math
import sys
import types
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import tomli_w

from fbompi.errors import UserError


@dataclass(frozen=True)
class AtLeast:
    """A lower bound in an annotation."""

    bound: float

    def __str__(self) -> str:
        return f"at least {self.bound:g}"

    def allows(self, value: float) -> bool:
        return value >= self.bound


@dataclass(frozen=True)
class Above:
    """A strict lower bound in an annotation."""

    bound: float

    def __str__(self) -> str:
        return f"above {self.bound:g}"

    def allows(self, value: float) -> bool:
        return value > self.bound


@dataclass(frozen=True)
class AtMost:
    """An upper bound in an annotation."""

    bound: float

    def __str__(self) -> str:
        return f"at most {self.bound:g}"

    def allows(self, value: float) -> bool:
        return value <= self.bound


@dataclass
class Run:
    """What is run."""

    algorithm: Annotated[str, "the method (fbompi list algorithms)"] = "afbo"
    problem: Annotated[str, 'a name (fbompi list problems) or "file.py:Class"'] = "hypercleaning"
    rounds: Annotated[int, "outer rounds", AtLeast(1)] = 300
    seed: Annotated[int, "seed of sampling, minibatches and delays", AtLeast(0)] = 0
    link: Annotated[Literal["auto", "mpi", "virtual"], "auto: mpi under mpirun, virtual in one process"] = "auto"
    out: Annotated[str, "run file; empty: ALGORITHM-PROBLEM-NUMBER.h5 in the current directory"] = ""


@dataclass
class Clients:
    """Who takes part."""

    count: Annotated[int | Literal["auto"], "clients; auto: 18, or one per client rank if more", AtLeast(1)] = "auto"
    local_steps: Annotated[int | list[int], "local steps per task, or [low, high] drawn per task", AtLeast(1)] = 1
    batch: Annotated[int, "samples per oracle call; 0: the whole shard", AtLeast(0)] = 0
    participation: Annotated[float, "sampled clients per round, as a fraction of all", Above(0), AtMost(1)] = 1.0
    replacement: Annotated[bool, "sample clients with replacement"] = False


@dataclass
class Delays:
    """How long an answer takes on the virtual link (and on mpi, where injected)."""

    model: Annotated[
        Literal["none", "exponential", "lognormal", "pareto", "trace"], "distribution of the communication time"
    ] = "lognormal"
    mean: Annotated[float, "mean communication time of a task and its answer, seconds", AtLeast(0)] = 1.0
    sigma: Annotated[float, "lognormal: spread of the logarithm", AtLeast(0)] = 1.0
    tail: Annotated[float, "pareto: tail index; the mean is finite above 1", Above(1)] = 1.5
    trace: Annotated[str, "trace: CSV of seconds, one row per client, used in turn"] = ""
    compute: Annotated[float, "seconds of computing per local step", AtLeast(0)] = 0.0
    stragglers: Annotated[int, "how many clients are slow, drawn by the seed", AtLeast(0)] = 0
    factor: Annotated[float, "how many times slower a straggler is", AtLeast(1)] = 5.0
    inject: Annotated[float, "mpi: real seconds to hold an answer per second of the model", AtLeast(0)] = 0.0


@dataclass
class Record:
    """What is kept."""

    every: Annotated[int, "a row of the trajectory every so many outer rounds", AtLeast(1)] = 10
    iterates: Annotated[bool, "keep x and y in every row, not only in the last"] = True
    metrics: Annotated[bool, "evaluate objectives and metrics in every row"] = True


@dataclass
class Config:
    """A whole configuration; `problem` and `algorithm` belong to the classes named in `run`."""

    run: Run = field(default_factory=Run)
    problem: dict[str, Any] = field(default_factory=dict)
    clients: Clients = field(default_factory=Clients)
    algorithm: Any = None
    delays: Delays = field(default_factory=Delays)
    record: Record = field(default_factory=Record)

    def text(self) -> str:
        """This configuration as TOML, defaults included; running on it repeats the run."""
        return tomli_w.dumps(asdict(self))


SECTIONS = {"run": Run, "clients": Clients, "delays": Delays, "record": Record}


@dataclass(frozen=True)
class Key:
    """One key of a section, as its annotation describes it."""

    name: str
    type: Any
    meaning: str
    bounds: tuple[Any, ...]
    default: Any

    def expected(self) -> str:
        """What a value must be, in words."""
        return ", ".join([_type_words(self.type), *map(str, self.bounds)])


def keys_of(section: Any) -> dict[str, Key] | None:
    """The keys of a dataclass or of a class's `__init__`; None where it takes any (``**params``)."""
    keys: dict[str, Key] = {}
    if is_dataclass(section):
        hints = get_type_hints(section, include_extras=True)
        for f in fields(section):
            default = f.default if f.default_factory is MISSING else f.default_factory()
            keys[f.name] = _key(f.name, hints[f.name], default)
        return keys
    if section.__init__ is object.__init__:
        return {}
    signature = inspect.signature(section.__init__)
    hints = get_type_hints(section.__init__, include_extras=True)
    for p in list(signature.parameters.values())[1:]:
        if p.kind is p.VAR_KEYWORD:
            return None
        keys[p.name] = _key(p.name, hints.get(p.name, Any), MISSING if p.default is p.empty else p.default)
    return keys


def _key(name: str, hint: Any, default: Any) -> Key:
    kind: Any = hint
    extras: list[Any] = []
    if get_origin(hint) is Annotated:
        kind, *extras = get_args(hint)
    meaning = next((e for e in extras if isinstance(e, str)), "")
    return Key(name, kind, meaning, tuple(e for e in extras if not isinstance(e, str)), default)


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _type_words(kind: Any) -> str:
    words = []
    for member in _members(kind):
        if get_origin(member) is Literal:
            words += [f'"{v}"' for v in get_args(member)]
        elif get_origin(member) is list:
            words.append(f"a list of {_type_words(get_args(member)[0])}s".replace("list of a ", "list of "))
        else:
            names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Any: "any value"}
            words.append(names.get(member, str(member)))
    return " or ".join(words)


def _fitted(value: Any, kind: Any) -> Any:
    """The value as this type, or MISSING where it does not fit."""
    for member in _members(kind):
        if member is Any:
            return value
        if get_origin(member) is Literal and isinstance(value, str) and value in get_args(member):
            return value
        if get_origin(member) is list and isinstance(value, list):
            items = [_fitted(v, get_args(member)[0]) for v in value]
            if MISSING not in items:
                return items
        if member is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) if math.isfinite(value) else MISSING
        if member in (int, str) and type(value) is member:
            return value
        if member is bool and isinstance(value, bool):
            return value
    return MISSING


def nearest(name: str, names: Any) -> str:
    """A hint at what was probably meant."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(names)}"


def check_section(name: str, given: Any, keys: dict[str, Key] | None, source: str) -> dict[str, Any]:
    """The values of one section, checked and with defaults."""
    if not isinstance(given, dict):
        raise UserError(f"{source}: [{name}] must be a table of keys, not {given!r}")
    if keys is None:
        return dict(given)
    for key in given:
        if key not in keys:
            raise UserError(f'{source}: unknown key "{name}.{key}": {nearest(key, keys)}')
    values = {}
    for key, spec in keys.items():
        if key not in given:
            if spec.default is MISSING:
                raise UserError(f'{source}: key "{name}.{key}" is missing: expected {spec.expected()}')
            values[key] = spec.default
            continue
        value = _fitted(given[key], spec.type)
        numbers = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int | float)]
        if value is MISSING or not all(bound.allows(v) for bound in spec.bounds for v in numbers):
            raise UserError(f"{source}: {name}.{key} = {given[key]!r}: expected {spec.expected()}")
        values[key] = value
    return values


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as tables, or one clear line."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
        return tomllib.loads(text)
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text, so not a TOML configuration") from None
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise UserError(f"{path}: is not valid TOML: {e}") from None


def apply_option(tables: dict[str, Any], option: str) -> None:
    """Put one ``-o section.key=value`` into the tables; the value is TOML, or a bare word."""
    name, equals, text = option.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        raise UserError(f"-o {option}: expected section.key=value, for example -o run.rounds=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text.strip()
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise UserError(f"-o {option}: [{section}] is not a table")
    table[key] = value


def resolve(tables: dict[str, Any], source: str = "configuration") -> Config:
    """A checked configuration with all defaults from tables as read from TOML."""
    from fbompi import registry

    known = {f.name for f in fields(Config)}
    for name in tables:
        if name not in known:
            raise UserError(f'{source}: unknown section "[{name}]": {nearest(name, known)}')
    checked = {
        name: section(**check_section(name, tables.get(name, {}), keys_of(section), source))
        for name, section in SECTIONS.items()
    }
    run, clients = checked["run"], checked["clients"]
    if isinstance(clients.local_steps, list) and (
        len(clients.local_steps) != 2 or clients.local_steps[0] > clients.local_steps[1]
    ):
        raise UserError(f"{source}: clients.local_steps = {clients.local_steps}: expected a number or [low, high]")
    method = registry.algorithm(run.algorithm)
    parameters = check_section("algorithm", tables.get("algorithm", {}), keys_of(method.Parameters), source)
    problem = check_section("problem", tables.get("problem", {}), keys_of(registry.problem(run.problem)), source)
    return Config(problem=problem, algorithm=method.Parameters(**parameters), **checked)


def load(path: str | Path | None, options: tuple[str, ...] | list[str] = ()) -> Config:
    """The configuration of a file (or the built-in default) with options on top."""
    tables = read_toml(path) if path else {}
    for option in options:
        apply_option(tables, option)
    return resolve(tables, str(path) if path else "configuration")
