"""Compiling a kernel once per kind of CPU, and loading it ever after.

Numba's own cache mixes signatures up when several processes write it at once. Here every (kernel, signature, CPU,
versions, sources) has a directory of its own, which one process fills under a lock and then moves into place: a
directory that is there is complete, and never written again. The others wait on the lock, without using the CPU.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba import types
from numba.core import config as numba_config

from fbompi.kernels import before_compiling


class Kernel:
    """A function compiled for element types on first use: `kernel[np.uint8, np.float64](...)`."""

    def __init__(self, function: Callable, signature: Callable, sources: str = "", **options: Any) -> None:
        self.function, self.signature, self.sources = function, signature, sources
        self.options = {"error_model": "numpy", "nogil": True, **options}
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self.compiled: dict[Any, Callable] = {}

    def __getitem__(self, dtypes: Any) -> Callable:
        found = self.compiled.get(dtypes)
        if found is None:
            kinds = dtypes if isinstance(dtypes, tuple) else (dtypes,)
            found = self.compiled[dtypes] = self._load(
                self.signature(*(numba.from_dtype(np.dtype(kind)) for kind in kinds))
            )
        return found

    def _load(self, signature: Any) -> Callable:
        directory = cache_directory()
        if directory is None:
            self._announce()
            return _compile(self.function, signature, self.options, None)
        place = directory / self._key(signature)
        if _complete(place):
            try:
                return _compile(self.function, signature, self.options, place)
            except Exception:  # damaged after it was written: whatever that raises, compiling again is the answer
                with _locked(directory):
                    shutil.rmtree(place, ignore_errors=True)
        with _locked(directory):
            if not _complete(place):
                self._announce()
                for left in (place, *directory.glob("compiling-*")):  # by processes that were killed: we have the lock
                    shutil.rmtree(left, ignore_errors=True)
                scratch = Path(tempfile.mkdtemp(dir=directory, prefix="compiling-"))
                try:
                    result = _compile(self.function, signature, self.options, scratch)
                except OSError:  # a full disk: the kernel is used all the same, and compiled again next time
                    return _compile(self.function, signature, self.options, None)
                else:
                    with contextlib.suppress(OSError):  # another node was first, where locks do not reach that far
                        scratch.rename(place)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
                return result
        return self._load(signature)

    def _key(self, signature: Any) -> str:
        options = [(name, sorted(v) if isinstance(v, set) else v) for name, v in sorted(self.options.items())]
        parts = (self.__name__, str(signature), str(options), _environment(), self.sources)
        return f"{self.__name__}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"

    def _announce(self) -> None:
        for tell in list(before_compiling):
            tell(self.__name__)


def kernel(signature: Callable, **options: Any) -> Callable[[Callable], Kernel]:
    """Decorator: `signature` makes Numba's signature out of the element types the kernel is asked for."""
    return lambda function: Kernel(function, signature, **options)


def given(dtype: Any, dimensions: int, layout: str = "C") -> Any:
    """The type of an array that a kernel only reads; writeable ones are taken too."""
    return types.Array(dtype, dimensions, layout, readonly=True)


def cpu() -> tuple[str, str]:
    """Name and features of the CPU that code is compiled for."""
    name = numba_config.CPU_NAME or llvm.get_host_cpu_name()
    features = numba_config.CPU_FEATURES
    return name, llvm.get_host_cpu_features().flatten() if features is None else features


@lru_cache(maxsize=1)
def cache_directory() -> Path | None:
    """Where compiled kernels are kept: FBOMPI_CACHE, or the user's cache, or else a private place on this node, which
    FBOMPI_CACHE=node has at once."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    user = os.environ.get("FBOMPI_CACHE") or os.path.join(home, "fbompi")
    # On the node directly below a directory that is sticky: nobody else can put another in its place.
    on_node = Path(tempfile.gettempdir()) / f"fbompi-kernels-{os.getuid()}"
    for place in (on_node,) if user == "node" else (Path(user) / "kernels", on_node):
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = place.lstat()
            # Compiled code is executed: a directory that others can write to is no place for it.
            private = owner.st_uid == os.getuid() and not owner.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if private and stat.S_ISDIR(owner.st_mode):
                with contextlib.suppress(BlockingIOError), _locked(place, fcntl.LOCK_NB):
                    return place
                return place  # somebody is compiling, so locks work
        except OSError:  # read-only, full, or a file system without locks
            continue
    return None


@contextlib.contextmanager
def _locked(directory: Path, how: int = 0) -> Iterator[None]:
    with open(directory / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | how)  # released by the kernel when the holder dies
        yield


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Of all processes that share the cache, one is inside; for compilers that keep what they make themselves."""
    directory = cache_directory()
    with contextlib.nullcontext() if directory is None else _locked(directory):
        yield


def _complete(place: Path) -> bool:
    """Whether a directory holds a compiled kernel: Numba's index and its code."""
    return any(place.rglob("*.nbi")) and any(place.rglob("*.nbc"))


_setting = threading.Lock()  # Numba's setting is the whole process's


def _compile(function: Callable, signature: Any, options: dict, cache: Path | None) -> Callable:
    """Numba's compiled function, taken from or put into `cache`."""
    dispatcher = numba.njit(**options)(function)
    if cache is not None:
        with _setting:
            before = numba_config.CACHE_DIR
            numba_config.CACHE_DIR = str(cache)
            try:
                dispatcher.enable_caching()
            finally:
                numba_config.CACHE_DIR = before
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


@lru_cache(maxsize=1)
def _environment() -> str:
    """Everything besides the kernel itself that its machine code depends on."""
    here = Path(__file__).parent
    sources = hashlib.sha256()
    for file in sorted(here.glob("*.py")):
        # Numba keeps the time of the source beside the code and takes no other for its own.
        sources.update(f"{file} {file.stat().st_mtime_ns}\n".encode())
        sources.update(file.read_bytes())
    versions = numba.__version__, llvmlite.__version__, np.__version__, platform.python_version()
    return repr((cpu(), versions, sources.hexdigest()))
