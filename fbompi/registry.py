"""Finding methods, problems and experiments by name: adding one is adding a file.

Problems may also come from a package (entry point group ``fbompi.problems``), problems and methods from the user's own
file (``path/to/file.py:Class``), which is the only code of a user that is ever loaded, and only when named.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fbompi.config import nearest
from fbompi.errors import UserError


@cache
def _named_classes(package: str) -> dict[str, type]:
    """Every class with a `name` in the modules of a package of ours."""
    found: dict[str, type] = {}
    module = importlib.import_module(package)
    for info in pkgutil.iter_modules(module.__path__):
        for member in vars(importlib.import_module(f"{package}.{info.name}")).values():
            ours = isinstance(member, type) and member.__module__.startswith(f"{package}.")
            if ours and isinstance(member.__dict__.get("name"), str):
                found[member.name] = member
    return found


def algorithms() -> dict[str, Any]:
    """All methods by name."""
    return dict(sorted(_named_classes("fbompi.algorithms").items()))


def problems() -> dict[str, Any]:
    """All problems by name, those of installed packages included (not loaded before they are used)."""
    found: dict[str, Any] = dict(sorted(_named_classes("fbompi.problems").items()))
    for entry in entry_points(group="fbompi.problems"):
        found.setdefault(entry.name, entry)
    return found


def experiments() -> dict[str, Any]:
    """All experiments of papers by name."""
    return dict(sorted(_named_classes("fbompi.reproduce.papers").items()))


def algorithm(name: str) -> Any:
    """The class of a method: built in, or from the user's file."""
    if ":" in name:
        return _method_of(name)
    if name not in algorithms():
        raise UserError(f'run.algorithm = "{name}": no such method: {nearest(name, algorithms())}')
    return algorithms()[name]


def problem(name: str) -> Any:
    """The class of a problem: built in, from a package, or from the user's file."""
    if ":" in name:
        return _from_file("run.problem", name)
    if name not in problems():
        raise UserError(f'run.problem = "{name}": no such problem: {nearest(name, problems())}')
    found = problems()[name]
    if isinstance(found, type):
        return found
    with told(f"loading problem {name} of {found.value}"):
        return found.load()


def _method_of(name: str) -> Any:
    """A user's method; told where it lacks something."""
    from fbompi.algorithms.method import Method
    from fbompi.messages import WORDS

    found = _from_file("run.algorithm", name)
    if not isinstance(found, type) or not issubclass(found, Method):
        raise UserError(f'run.algorithm = "{name}": expected a subclass of fbompi.algorithms.method.Method')
    missing = [part for part in ("name", "Parameters", "tasks") if not hasattr(found, part)]
    missing += sorted(found.__abstractmethods__)
    if missing:
        raise UserError(f'run.algorithm = "{name}": lacks {", ".join(missing)}; docs/methods.md has an example')
    if not is_dataclass(found.Parameters):
        raise UserError(f'run.algorithm = "{name}": Parameters is not a dataclass; docs/methods.md has an example')
    for kind, function in found.tasks.items():
        words = (*getattr(function, "takes", ()), *getattr(function, "gives", ()))
        if not words:
            raise UserError(f'run.algorithm = "{name}": task "{kind}" is not declared with @task(takes=..., gives=...)')
        if unknown := set(words) - set(WORDS):
            known = ", ".join(WORDS)
            raise UserError(f'run.algorithm = "{name}": task "{kind}": no word {", ".join(unknown)}; known: {known}')
        if kind in ("hello", "evaluate"):
            raise UserError(f'run.algorithm = "{name}": task "{kind}": the run itself has one of that name')
    return found


@cache
def _from_file(key: str, name: str) -> Any:
    path, _, attribute = name.rpartition(":")
    file = Path(path)
    try:
        there = file.is_file()
    except (OSError, ValueError):  # a name no file can have
        there = False
    if not there:
        raise UserError(f'{key} = "{name}": there is no file {path}')
    module_name = f"fbompi_user_{file.stem}_{zlib.crc32(bytes(file.resolve())):x}"  # two files may have one name
    spec = importlib.util.spec_from_file_location(module_name, file.resolve())
    if spec is None or spec.loader is None:
        raise UserError(f'{key} = "{name}": {path} is not a Python file (.py)')
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with told(f"loading {path}"):
        spec.loader.exec_module(module)
    if not hasattr(module, attribute):
        classes = [k for k, v in vars(module).items() if isinstance(v, type)]
        raise UserError(f'{key} = "{name}": {path} has no class {attribute}: {nearest(attribute, classes)}')
    return getattr(module, attribute)


@contextmanager
def told(doing: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Whatever a problem's code raises in here becomes an error for the user, but for what is `passing` through."""
    try:
        yield
    except (Exception, SystemExit) as e:
        if isinstance(e, (UserError, *passing)):
            raise
        raise user_failure(e, doing) from None


_OURS = str(Path(__file__).resolve().parent)


def user_failure(error: BaseException, doing: str) -> UserError:
    """An error raised by a user's code, told with the frames of that code and none of ours."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith(_OURS) and not f.filename.startswith("<frozen")
    ]  # fmt: skip
    if isinstance(error, SyntaxError):
        return UserError(f"{doing}: {error.filename}, line {error.lineno}: SyntaxError: {error.msg}")
    text = "".join(traceback.format_list(frames))
    if isinstance(error, MemoryError):
        return UserError(f"{doing}: there is not enough memory: {error or 'sizes do not fit'}", text)
    return UserError(f"{doing}: {type(error).__name__}: {error}", text)
