"""The configuration: what can be set, its types, defaults and meanings, all in one place.

A section is a dataclass (or the signature of a problem's `__init__`) whose fields are annotated with their
meaning: ``rounds: Annotated[int, "outer rounds", AtLeast(1)] = 100``. The same annotations check what a user
writes, fill the tables of ``fbompi run --help`` and ``fbompi list``, and say in an error what was expected.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import types
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import tomli_w

from fbompi.errors import UserError

MOST_CLIENTS = 10**6  # the server has some kB for each
MOST_STEPS = 10**9  # local steps of a task


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

    algorithm: Annotated[str, 'a name (fbompi list algorithms) or "file.py:Class"'] = "afbo"
    problem: Annotated[str, 'a name (fbompi list problems) or "file.py:Class"'] = "hypercleaning"
    rounds: Annotated[int, "outer rounds", AtLeast(1)] = 300
    seed: Annotated[int, "seed of sampling, minibatches and delays", AtLeast(0)] = 0
    link: Annotated[Literal["auto", "mpi", "virtual"], "auto: mpi under mpirun, virtual in one process"] = "auto"
    out: Annotated[str, "run file; empty: ALGORITHM-PROBLEM-NUMBER.h5 in the current directory"] = ""


@dataclass
class Clients:
    """Who takes part."""

    count: Annotated[
        int | Literal["auto"], "clients; auto: 18, or one per client rank if more", AtLeast(1), AtMost(MOST_CLIENTS)
    ] = "auto"
    local_steps: Annotated[
        int | list[int], "local steps per task, or [low, high] drawn per task", AtLeast(1), AtMost(MOST_STEPS)
    ] = 1
    steps_by: Annotated[
        Literal["task", "client"], "local_steps [low, high]: drawn for every task, or for every client"
    ] = "task"
    batch: Annotated[int, "samples per oracle call; 0: the whole shard", AtLeast(0)] = 0
    participation: Annotated[float, "sampled clients per round, as a fraction of all", Above(0), AtMost(1)] = 1.0
    replacement: Annotated[bool, "sample clients with replacement"] = False
    presence: Annotated[
        Literal["always", "anarchic", "schedule"], "who can be asked: all; those who come and go; those of a file"
    ] = "always"
    stay: Annotated[float, "presence anarchic: mean rounds of communication that a client stays", AtLeast(1)] = 20.0
    away: Annotated[float, "presence anarchic: mean rounds of communication that it is away", AtLeast(1)] = 10.0
    schedule: Annotated[str, "presence schedule: CSV of client numbers, one row per round, used in turn"] = ""
    capacity: Annotated[
        float | list[float],
        "fraction of the model that clients can hold, or several, dealt out in turn",
        Above(0),
        AtMost(1),
    ] = 1.0
    aggregate: Annotated[
        Literal["mean", "clip", "trimmed", "median"], "how vectors of clients are averaged; all but mean stand garbage"
    ] = "mean"
    clip: Annotated[float, "aggregate clip: the longest vector, in median lengths", Above(0)] = 3.0
    trim: Annotated[float, "aggregate trimmed: part of the clients cut off at either end", Above(0), AtMost(0.5)] = 0.2


@dataclass
class Faults:
    """What is done about ranks and clients that fail."""

    lost: Annotated[
        Literal["adopt", "leave", "stop"],
        "clients of a lost rank: other ranks adopt them; they are left out; the run stops, resumable",
    ] = "adopt"
    silence: Annotated[float, "seconds without a sign of life until a rank counts as lost; 0: never", AtLeast(0)] = 30.0
    absurd: Annotated[
        float, "an answer this many times as long as is usual is rejected, as one that is not finite; 0: none is",
        AtLeast(0),
    ] = 1e6  # fmt: skip
    offences: Annotated[int, "rejected answers in a row until a client is left out", AtLeast(1)] = 3


@dataclass
class Delays:
    """How long an answer takes on the virtual link (and on mpi, where injected)."""

    model: Annotated[
        Literal["none", "exponential", "lognormal", "pareto", "trace"], "distribution of the communication time"
    ] = "lognormal"
    mean: Annotated[float, "mean communication time of a task and its answer, seconds", AtLeast(0)] = 1.0
    sigma: Annotated[float, "lognormal: spread of the logarithm", AtLeast(0), AtMost(10)] = 1.0
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
    checkpoint_every: Annotated[
        int | Literal["auto"],
        "a checkpoint every so many outer rounds; 0: only when stopped; auto: as often as takes 1 % of the time",
        AtLeast(0),
    ] = "auto"


@dataclass
class Source:
    """Where keys come from, for error messages: a file, the command line, or neither."""

    file: str = "configuration"
    options: set[tuple[str, str]] = field(default_factory=set)

    def of(self, section: str, key: str = "") -> str:
        return "command line" if (section, key) in self.options else self.file

    def locate(self, error: UserError) -> UserError:
        """An error found later, of the form "section.key = value: ...", told with where the key came from."""
        found = re.match(r"(\w+)\.(\w+) = ", error.line)
        return UserError(f"{self.of(*found.groups())}: {error.line}", error.frames) if found else error


@dataclass
class Config:
    """A whole configuration; `problem` and `algorithm` belong to the classes named in `run`."""

    run: Run = field(default_factory=Run)
    problem: dict[str, Any] = field(default_factory=dict)
    clients: Clients = field(default_factory=Clients)
    algorithm: Any = None
    delays: Delays = field(default_factory=Delays)
    faults: Faults = field(default_factory=Faults)
    record: Record = field(default_factory=Record)
    source: Source = field(default_factory=Source, repr=False, compare=False)

    def text(self) -> str:
        """This configuration as TOML, defaults included; running on it repeats the run."""
        tables = asdict(self)
        del tables["source"]
        return tomli_w.dumps(_without_none(tables))


def _without_none(tables: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: a key whose default is None is left out, and is None again when read."""
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in tables.items() if v is not None}


SECTIONS = {"run": Run, "clients": Clients, "delays": Delays, "faults": Faults, "record": Record}


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
    try:
        hints = get_type_hints(section.__init__, include_extras=True)
    except NameError as e:
        where = f"{Path(inspect.getfile(section)).name}:{section.__name__}"
        raise UserError(f"{where}, __init__: an annotation names nothing: {e}") from None
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
            return float(value) if abs(value) <= sys.float_info.max else MISSING
        if member is int and type(value) is int:
            return value if abs(value) < 1 << 63 else MISSING
        if member is str and isinstance(value, str):
            return value
        if member is bool and isinstance(value, bool):
            return value
    return MISSING


def nearest(name: str, names: Any) -> str:
    """A hint at what was probably meant."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(names)}"


def check_section(name: str, given: Any, keys: dict[str, Key] | None, source: Source) -> dict[str, Any]:
    """The values of one section, checked and with defaults."""
    if not isinstance(given, dict):
        raise UserError(f"{source.of(name)}: [{name}] must be a table of keys, not {given!r}")
    if keys is None:
        return dict(given)
    for key in given:
        if key not in keys:
            raise UserError(f'{source.of(name, key)}: unknown key "{name}.{key}": {nearest(key, keys)}')
    values = {}
    for key, spec in keys.items():
        if key not in given:
            if spec.default is MISSING:
                raise UserError(f'{source.of(name)}: key "{name}.{key}" is missing: expected {spec.expected()}')
            values[key] = spec.default
            continue
        value = _fitted(given[key], spec.type)
        numbers = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int | float)]
        if value is MISSING or not all(bound.allows(v) for bound in spec.bounds for v in numbers):
            raise UserError(f"{source.of(name, key)}: {name}.{key} = {given[key]!r}: expected {spec.expected()}")
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
    except (ValueError, RecursionError) as e:  # a number of thousands of digits is a plain ValueError
        raise UserError(f"{path}: is not valid TOML: {e}") from None


def apply_option(tables: dict[str, Any], option: str, source: Source) -> None:
    """Put one ``-o section.key=value`` into the tables; the value is TOML, or a bare word."""
    name, equals, text = option.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        raise UserError(f"-o {option}: expected section.key=value, for example -o run.rounds=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()
    put(tables, section, key, value, source)


def put(tables: dict[str, Any], section: str, key: str, value: Any, source: Source) -> None:
    """Set a key from the command line."""
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise UserError(f"{source.file}: [{section}] must be a table of keys, not {table!r}")
    table[key] = value
    source.options |= {(section, key), (section, "")} if len(table) == 1 else {(section, key)}


def resolve(tables: dict[str, Any], source: Source | str = "configuration") -> Config:
    """A checked configuration with all defaults from tables as read from TOML."""
    from fbompi import registry

    source = Source(source) if isinstance(source, str) else source
    known = {*SECTIONS, "problem", "algorithm"}
    for name in tables:
        if name not in known:
            raise UserError(f'{source.of(name)}: unknown section "[{name}]": {nearest(name, known)}')
    checked = {
        name: section(**check_section(name, tables.get(name, {}), keys_of(section), source))
        for name, section in SECTIONS.items()
    }
    run, clients = checked["run"], checked["clients"]
    steps = clients.local_steps
    if isinstance(steps, list) and (len(steps) != 2 or steps[0] > steps[1]):
        where = source.of("clients", "local_steps")
        raise UserError(f"{where}: clients.local_steps = {steps}: expected a number or [low, high]")
    try:
        method = registry.algorithm(run.algorithm)
        problem_keys = keys_of(registry.problem(run.problem))
    except UserError as e:
        raise source.locate(e) from None
    _refuse_unused(clients, method, source)
    parameters = check_section("algorithm", tables.get("algorithm", {}), keys_of(method.Parameters), source)
    checked["problem"] = check_section("problem", tables.get("problem", {}), problem_keys, source)
    return Config(algorithm=method.Parameters(**parameters), source=source, **checked)


def _refuse_unused(clients: Clients, method: Any, source: Source) -> None:
    """A key that would change nothing is a mistake of the user's, or a wrong comparison."""
    from fbompi.algorithms.method import ANYONE

    used_keys = {"count", *ANYONE, *method.client_keys, *(["steps_by"] if "local_steps" in method.client_keys else [])}
    needs = {  # keys that mean something only with another one
        "stay": ("presence", "anarchic"), "away": ("presence", "anarchic"), "schedule": ("presence", "schedule"),
        "clip": ("aggregate", "clip"), "trim": ("aggregate", "trimmed"),
    }  # fmt: skip
    for key, spec in (keys_of(Clients) or {}).items():
        value = getattr(clients, key)
        if key in needs and value != spec.default and getattr(clients, needs[key][0]) != needs[key][1]:
            where, other = source.of("clients", key), f'clients.{needs[key][0]} = "{needs[key][1]}"'
            raise UserError(f"{where}: clients.{key} = {value}: has no effect without {other}")
        if key == "steps_by" and value != spec.default and not isinstance(clients.local_steps, list):
            where = source.of("clients", key)
            raise UserError(
                f"{where}: clients.steps_by = {value}: has no effect without clients.local_steps = [low, high]"
            )
        if key not in used_keys and value != spec.default:
            used = ", ".join((*method.client_keys, *ANYONE))
            raise UserError(
                f"{source.of('clients', key)}: clients.{key} = {value}: {method.name} does not use it; it uses {used}"
            )


def load(path: str | Path | None, options: Sequence[str] = (), out: str | None = None) -> Config:
    """The configuration of a file (or the built-in default) with options on top."""
    for word in (str(path or ""), out or "", *options):
        if not word.isascii() and word != word.encode("utf-8", "replace").decode():
            raise UserError(f"command line: {word!r} is not UTF-8 text")
    tables = read_toml(path) if path else {}
    source = Source(str(path)) if path else Source()
    for option in options:
        apply_option(tables, option, source)
    if out is not None:
        put(tables, "run", "out", out, source)
    return resolve(tables, source)
