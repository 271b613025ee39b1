"""What is held against a reader."""

from __future__ import annotations

import gc
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fbompi
from fbompi.errors import UserError


@dataclass(frozen=True)
class Target:
    """A reader: inputs it accepts, a change that knows their form, and how one is fed to it in a directory."""

    seeds: Callable[[], list[bytes]]
    changed: Callable[[bytes, random.Random], bytes]
    feed: Callable[[bytes, Path], None]
    refusal: type[Exception] = UserError


@dataclass(frozen=True)
class Finding:
    """What went wrong, and where: one finding however many inputs lead to it."""

    what: str
    where: str
    details: str = ""


def finding(target: Target, data: bytes, place: Path, again: bool = True) -> Finding | None:
    """Feed an input, and tell what is wrong with the reader, if anything is."""
    with watching(place) as seen:
        try:
            target.feed(data, place)
            error = None
        except Exception as e:
            error = e
    if seen:
        return Finding(seen[0], "", "\n".join(seen))
    if error is None:
        return None
    type_ = type(error).__name__
    said, trace = str(error), "".join(traceback.format_exception(error))
    refused, where = isinstance(error, target.refusal), _where(error)
    del error
    if _of_memory(trace) and again:  # what earlier inputs have left behind is not this one's fault
        gc.collect()
        return finding(target, data, place, again=False)
    if refused and not _of_memory(said):
        return None if "\n" not in said else Finding("more than one line", where, said)
    return Finding(f"{type_} {'of memory' if _of_memory(said) else ''}", where, trace)


def _of_memory(said: str) -> bool:
    """Whether memory was asked for that there is not; what a configuration asks for is told so, and in order."""
    words = ("MemoryError", "Unable to allocate", "Cannot allocate")
    return any(word in said for word in words) and "there is not enough memory" not in said


def _where(error: BaseException) -> str:
    """The last line of ours that led to an error."""
    ours = str(Path(fbompi.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    inner = [f for f in frames if f.filename.startswith(ours)] or list(frames)
    return f"{Path(inner[-1].filename).name}:{inner[-1].lineno}" if inner else ""


_seen: list[str] | None = None  # what the watch has seen, while there is one
_place = ""
# Annotations and dataclasses of our own source are evaluated by these; modules are loaded by importlib.
_TRUSTED = ("typing.py", "dataclasses.py", "importlib", "collections/__init__.py", "numba", "inspect.py", "enum.py")
_NEVER = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class", "socket.connect",
)  # fmt: skip
_hooked = False


@contextmanager
def watching(place: Path) -> Iterator[list[str]]:
    """What is done that no reader should do: writing outside of `place`, running code, starting processes."""
    global _seen, _place, _hooked
    if not _hooked:
        sys.addaudithook(_watch)
        _hooked = True
    _place, _seen = str(place), []
    try:
        yield _seen
    finally:
        _seen = None


def _watch(event: str, arguments: tuple) -> None:
    if _seen is None:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, str) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _outside(f"writes {path}", path)
    elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"):
        _outside(f"{event} {arguments}", *(a for a in arguments[:2] if isinstance(a, str)))
    elif event in _NEVER:
        _seen.append(f"{event} {arguments!r:.200}")
    elif event == "exec":  # what is only compiled, as by ast.literal_eval, does not run
        frame: Any = sys._getframe(1)
        while frame is not None and not any(t in frame.f_code.co_filename for t in _TRUSTED):
            frame = frame.f_back
        if frame is None:
            _seen.append(f"{event} {arguments!r:.200}")


def _outside(what: str, *paths: str) -> None:
    for path in paths:
        whole = os.path.abspath(path)
        if not whole.startswith((_place, "/dev/null")) and "__pycache__" not in whole and _seen is not None:
            _seen.append(what)
