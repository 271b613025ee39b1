"""Where a host's messages lie, and how they get to clients that compute on a GPU.

A client takes and gives arrays of the library that its problem computes with (`backend`). The server is on the CPU.
MPI knows nothing of a GPU's streams: whatever computes an array is finished before MPI is given it, and whatever may
still read a buffer is finished before MPI may write there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fbompi.kernels import on_gpu
from fbompi.messages import (
    HEADER_WORDS,
    NO_COSTS,
    Array,
    Header,
    empty_buffer,
    pack,
    read_header,
    read_only,
    unpack,
    write_header,
)


class Memory(Protocol):
    """What a host needs for its messages; arguments are those of the functions in `fbompi.messages`."""

    def empty(self, size: int) -> Any: ...
    def pack(self, buffer: Any, *message: Any) -> int: ...
    def unpack(self, buffer: Any, size: int) -> tuple[Header, Any]: ...


class HostMemory:
    """Ordinary memory, for clients that compute on the CPU."""

    empty = staticmethod(empty_buffer)
    pack = staticmethod(pack)

    def unpack(self, buffer: Array, size: int) -> tuple[Header, Array]:
        header, payload = unpack(buffer, size)
        return header, read_only(payload)


class _GpuMemory(ABC):
    """Messages of clients that compute on a GPU."""

    def __init__(self) -> None:
        from fbompi.kernels.cuda.device import current

        self.device = current()

    def pack(
        self, buffer: Any, kind: int, client: int, number: int, arrays: Sequence[Any],
        local_steps: int = 1, delay: float = 0.0, compute: float = 0.0, curvature: float = 0.0,
        costs: Sequence[int] = NO_COSTS,
    ) -> int:  # fmt: skip
        end = HEADER_WORDS
        for array in arrays:
            begin, end = end, end + array.size
            self._put(buffer[begin:end], array.ravel())
        fields = kind, client, number, end - HEADER_WORDS, local_steps, delay, compute, curvature, *costs
        self._write_header(buffer, *fields)
        return 8 * end

    @abstractmethod
    def _put(self, place: Any, array: Any) -> None:
        """Copy a flat array of the GPU, or of the host, to its place in a buffer."""

    @abstractmethod
    def _write_header(self, buffer: Any, *fields: Any) -> None:
        """Put the header before what `_put` has put, and see that all of it is there."""


class PinnedMemory(_GpuMemory):
    """Memory of the host that the GPU copies from and to at full speed: for an MPI that cannot read a GPU's own."""

    def empty(self, size: int) -> Array:
        return self.device.pinned(size // 8, np.float64)

    def unpack(self, buffer: Array, size: int) -> tuple[Header, Any]:
        header, payload = unpack(buffer, size)
        there = self.device.xp.empty(payload.size)
        self.device.fill(there, payload)
        return header, there

    def _put(self, place: Array, array: Any) -> None:
        if on_gpu(array):
            self.device.to_host(array, out=place)
        else:
            place[:] = array

    def _write_header(self, buffer: Array, *fields: Any) -> None:
        write_header(buffer, *fields)


class DeviceMemory(_GpuMemory):
    """The GPU's own memory, for an MPI that reads and writes it: of a message only the header visits the host."""

    def empty(self, size: int) -> Any:
        buffer = self.device.xp.empty(size // 8)
        self.device.synchronize()  # kernels launched earlier may still be using this memory
        return buffer

    def unpack(self, buffer: Any, size: int) -> tuple[Header, Any]:
        header = self.device.to_host(buffer[:HEADER_WORDS])
        return read_header(header, size), buffer[HEADER_WORDS : size // 8]

    def _put(self, place: Any, array: Any) -> None:
        place[:] = array if on_gpu(array) else self.device.asarray(array)

    def _write_header(self, buffer: Any, *fields: Any) -> None:
        header = empty_buffer(8 * HEADER_WORDS)
        write_header(header, *fields)
        self.device.fill(buffer[:HEADER_WORDS], header)
        self.device.synchronize()


def computes_on_gpu(problem: Any) -> bool:
    """Whether this problem's oracles take and give arrays of a GPU."""
    return getattr(problem, "backend", "cpu") == "cuda"


def memory_for(problem: Any, cuda_aware: bool) -> Memory:
    """The memory for the messages of a rank that hosts clients of this problem."""
    if not computes_on_gpu(problem):
        return HostMemory()
    return DeviceMemory() if cuda_aware else PinnedMemory()
