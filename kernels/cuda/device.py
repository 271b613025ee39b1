"""The device that the kernels run on.

Host code asks `current()` for a `Device` and never for CuPy, so that a test can put another one in its place.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fbompi.errors import UserError

Array = Any  # the device's, or NumPy's

HERE = Path(__file__).parent
KERNELS = {
    "features.cu": ("gather_rows",),
    "rows.cu": ("softmax_rows", "residual_rows", "jacobian_rows", "along_rows"),
    "sweeps.cu": ("logistic_sweep", "location_sweep"),
    "coordinates.cu": ("perturbed_copies", "difference_quotients"),
}
FILE_OF = {kernel: file for file, kernels in KERNELS.items() for kernel in kernels}
C_NAMES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(np.uint8): "unsigned char"}

LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
SHARED_BYTES = 48 * 1024  # what every GPU gives a block without being asked for more


def source(file: str, dtypes: Sequence[Any]) -> str:
    """The text of one source for REAL and, where it has one, FEATURE.

    One text without #include: CuPy keeps compiled code by the text alone, and would not see a header change.
    """
    names = (C_NAMES[np.dtype(dtype)] for dtype in dtypes)
    defines = "".join(f"#define {macro} {name}\n" for macro, name in zip(("REAL", "FEATURE"), names))
    parts = (f'#line 1 "{name}"\n{(HERE / name).read_text(encoding="utf-8")}' for name in ("block.cuh", file))
    return defines + "".join(parts)


class Device(ABC):
    """What host code needs of a GPU."""

    xp: Any  # the array library: CuPy, or something that behaves like it

    def launch(
        self, name: str, dtypes: Sequence[Any], grid: tuple[int, ...], block: int, args: Sequence[Any], shared: int = 0
    ) -> None:
        """Run a kernel. Arguments are arrays, None for no array, and NumPy scalars of the exact type.

        A grid without blocks does nothing (CUDA would refuse it).
        """
        for number, argument in enumerate(args):
            if not (argument is None or isinstance(argument, np.generic) or argument.flags.c_contiguous):
                raise ValueError(f"{name}: argument {number} is not contiguous")
        if min(grid) > 0:
            self.run(name, tuple(np.dtype(dtype) for dtype in dtypes), grid, block, args, shared)

    @abstractmethod
    def run(
        self, name: str, dtypes: tuple, grid: tuple[int, ...], block: int, args: Sequence[Any], shared: int
    ) -> None:
        """As `launch`, with everything checked."""

    @abstractmethod
    def load(self, name: str, dtypes: Sequence[Any]) -> None:
        """Compile a kernel now rather than at its first launch."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything launched so far."""

    def asarray(self, array: Any, dtype: Any = None) -> Array:
        """On the device, contiguous, of that type; the same array where it is so already."""
        return self.xp.asarray(array, dtype, order="C")

    @abstractmethod
    def to_host(self, array: Array, out: np.ndarray | None = None) -> np.ndarray:
        """A NumPy array with the same numbers, there when this returns."""

    @abstractmethod
    def fill(self, array: Array, host: np.ndarray) -> None:
        """Put the numbers of a NumPy array into one of the device; `host` is free when this returns."""

    @abstractmethod
    def pinned(self, shape: Any, dtype: Any) -> np.ndarray:
        """An empty NumPy array that the device copies from and to at full speed."""


class Cuda(Device):
    """CuPy's current GPU and current stream."""

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise UserError('backend = "cuda": CuPy is not installed: pip install "fbompi[cuda12]"') from error
        try:
            found = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise UserError(f'backend = "cuda": CuPy is installed but finds no GPU ({error})') from error
        if found == 0:
            raise UserError('backend = "cuda": CuPy is installed but finds no GPU')
        cupy.cuda.Device(local_rank() % found).use()
        self.xp = cupy
        self.kernel = lru_cache(maxsize=None)(self._kernel)

    def _kernel(self, name: str, dtypes: tuple) -> Callable:
        # CuPy compiles for the GPU in use, keeps the result in memory for each GPU and on disk.
        from fbompi.kernels.cpu.compiling import one_at_a_time

        kernel = self.xp.RawModule(code=source(FILE_OF[name], dtypes)).get_function(name)
        with one_at_a_time():  # the first rank of a node compiles, the others find it on disk
            kernel.compile()
        return kernel

    def load(self, name: str, dtypes: Sequence[Any]) -> None:
        self.kernel(name, tuple(np.dtype(dtype) for dtype in dtypes))

    def run(
        self, name: str, dtypes: tuple, grid: tuple[int, ...], block: int, args: Sequence[Any], shared: int
    ) -> None:
        # CuPy would pass on None as no argument at all, rather than as a null pointer.
        values = tuple(np.uint64(0) if argument is None else argument for argument in args)
        self.kernel(name, dtypes)(grid, (block,), values, shared_mem=shared)

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()

    def to_host(self, array: Array, out: np.ndarray | None = None) -> np.ndarray:
        return self.xp.asnumpy(array, out=out)

    def fill(self, array: Array, host: np.ndarray) -> None:
        array.set(host)
        self.synchronize()  # a copy from pinned memory returns before it is done

    def pinned(self, shape: Any, dtype: Any) -> np.ndarray:
        return import_module("cupyx").empty_pinned(shape, dtype)


def local_rank() -> int:
    """Which of this node's ranks we are, as its launcher says: the ranks of a node share its GPUs out."""
    return next((int(os.environ[v]) for v in LOCAL_RANK_VARIABLES if os.environ.get(v, "").isdigit()), 0)


@lru_cache(maxsize=1)
def cuda() -> Device:
    """The GPU, or a clear error where there is no CuPy or no GPU."""
    return Cuda()


_instead: list[Device] = []


def current() -> Device:
    """The device in use: the GPU, or what `using` has put in its place."""
    return _instead[-1] if _instead else cuda()


@contextlib.contextmanager
def using(device: Device) -> Iterator[Device]:
    """Run what is inside on another device."""
    _instead.append(device)
    try:
        yield device
    finally:
        _instead.pop()


def threads_for(count: int, most: int = 256) -> int:
    """Threads of a block that has `count` things to do: whole warps, which the sums over a block rely on."""
    return min(most, -(-max(count, 1) // 32) * 32)
