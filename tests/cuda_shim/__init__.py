"""A GPU that is not there: the text that NVRTC compiles, compiled by g++ and run on the CPU (see `shim.h`)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cuda_shim.arrays import GpuArray, GpuLibrary
from fbompi.kernels.cuda.device import C_NAMES, FILE_OF, KERNELS, SHARED_BYTES, Device, source

HERE = Path(__file__).parent
ORDERS = ("forward", "reversed", "random")
MARGIN = 256  # bytes on both sides of every array that no kernel may touch


class Shim(Device):
    """NumPy made strict for CuPy, fibers for threads.

    Parameters
    ----------
    build
        A directory for the compiled libraries; what is there already is used.
    order
        In which order the threads of a block run.
    """

    def __init__(self, build: Path, order: str = "forward", seed: int = 0) -> None:
        self.xp = GpuLibrary()
        self.build, self.order, self.seed = build, ORDERS.index(order), seed
        self.launches: list[str] = []
        self.libraries: dict[Path, ctypes.CDLL] = {}

    def run(
        self, name: str, dtypes: tuple, grid: tuple[int, ...], block: int, args: Sequence[Any], shared: int
    ) -> None:
        self.launches.append(name)
        self.call(self.load(name, dtypes), name, grid, block, args, shared)

    def load(self, name: str, dtypes: Sequence[Any]) -> ctypes.CDLL:
        """The library that holds a kernel."""
        file = FILE_OF[name]
        return self.library(file, source(file, dtypes), KERNELS[file], "-".join(C_NAMES[np.dtype(t)] for t in dtypes))

    def library(self, file: str, text: str, kernels: Sequence[str], tag: str) -> ctypes.CDLL:
        """A source as a library for this machine."""
        stem = f"{Path(file).stem}-{tag}".replace(" ", "-")
        path = self.build / f"{stem}.so"
        if path not in self.libraries:
            if not path.exists():
                fibers = self.build / "shim.o"
                if not fibers.exists():
                    compile_("-c", HERE / "shim.cpp", "-o", fibers)
                exports = "\n".join(f"SHIM_KERNEL({kernel})" for kernel in kernels)
                code = f'#include "shim.h"\n{text}\nSHIM_SHARED({SHARED_BYTES})\n{exports}\n'
                path.with_suffix(".cpp").write_text(code, encoding="utf-8")
                compile_("-shared", path.with_suffix(".cpp"), fibers, "-o", path)
            self.libraries[path] = ctypes.CDLL(str(path))
        return self.libraries[path]

    def call(self, library: ctypes.CDLL, name: str, grid: tuple[int, ...], block: int, args: Any, shared: int) -> None:
        """Check every argument's type, run the kernel on copies with margins, and check those."""
        args = [argument.values if isinstance(argument, GpuArray) else argument for argument in args]
        run, type_of = library[f"run_{name}"], library[f"type_{name}"]
        run.restype = type_of.restype = ctypes.c_char_p
        guarded: dict[tuple[int, int], Guarded] = {}
        values = []
        for number, argument in enumerate(args):
            found = type_of(number)
            assert found is not None, f"{name} has {number} parameters, {len(args)} were given"
            kind = found.decode()
            assert _fits(kind, argument), f"{name}: parameter {number} is {kind}, given was {argument!r}"
            if argument is None:
                values.append(np.zeros(1, np.uint64))
            elif isinstance(argument, np.generic):
                values.append(np.array([argument]))
            else:
                place = guarded.setdefault((argument.ctypes.data, argument.nbytes), Guarded(argument))
                place.written |= not kind.startswith("const ")
                values.append(np.array([place.inside.ctypes.data], np.uint64))
        assert type_of(len(args)) is None, f"{name} has more parameters than the {len(args)} given"
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        sizes = (ctypes.c_uint * 3)(*grid, *(1,) * (3 - len(grid)))
        launch = Launch(sizes, block, shared, SHARED_BYTES, self.order, self.seed)
        failure = run(ctypes.byref(launch), pointers).decode()
        assert not failure, f"{name}: {failure}"
        for place in guarded.values():
            place.finish(name)

    def synchronize(self) -> None:
        self.launches.append("synchronize")

    def to_host(self, array: Any, out: np.ndarray | None = None) -> np.ndarray:
        self.launches.append("to_host")
        assert isinstance(array, GpuArray)
        if out is None:
            return array.values.copy()
        assert out.flags.c_contiguous and (out.shape, out.dtype) == (array.shape, array.dtype)
        out[...] = array.values
        return out

    def fill(self, array: Any, host: np.ndarray) -> None:
        self.launches.append("fill")
        assert type(host) is np.ndarray and (host.shape, host.dtype) == (array.shape, array.dtype)
        array.values[...] = host

    def pinned(self, shape: Any, dtype: Any) -> np.ndarray:
        self.launches.append("pinned")
        return np.empty(shape, dtype)


class Launch(ctypes.Structure):
    """As in `shim.h`."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
        ("asked", ctypes.c_ulong),
        ("capacity", ctypes.c_ulong),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_uint),
    ]


class Guarded:
    """A copy of an array between margins of ones: NaN, 255 or −1 to whoever reads them."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.written = array, False
        self.bytes = np.full(array.nbytes + 2 * MARGIN, 0xFF, np.uint8)
        self.inside = self.bytes[MARGIN : MARGIN + array.nbytes]
        self.inside[:] = array.reshape(-1).view(np.uint8)

    def finish(self, name: str) -> None:
        margins = np.concatenate([self.bytes[:MARGIN], self.bytes[-MARGIN:]])
        assert (margins == 0xFF).all(), f"{name}: written outside of an array of shape {self.array.shape}"
        if self.written:
            self.array.reshape(-1).view(np.uint8)[:] = self.inside


def compile_(*words: Any) -> None:
    warnings = ("-Wall", "-Wextra", "-Werror")
    done = subprocess.run(
        ["g++", "-std=c++17", "-O1", "-fPIC", *warnings, "-I", str(HERE), *map(str, words)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def _fits(kind: str, argument: Any) -> bool:
    """Whether CUDA would read the argument as what it is: it takes the bytes and asks no questions."""
    if isinstance(argument, np.generic):
        return argument.dtype.str[1:] == kind
    element = kind.removeprefix("const ").rpartition("*")[2]
    return "*" in kind and (argument is None or argument.dtype.str[1:] == element)
