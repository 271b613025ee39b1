"""What travels between server and clients: a fixed header and one flat run of float64 numbers.

A kind of task is declared by the client function that answers it (`task`), with the shapes it takes and gives.
Sizes are therefore known before the first message, buffers can be made once, and a message that does not fit
its declaration is refused. Nothing is ever pickled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

Array = np.ndarray

# magic, kind, client, task number, payload count, local steps, injected delay, compute seconds, oracle counts
_HEADER = struct.Struct("<4sHHqqqqdd4q")
HEADER_BYTES = 128  # a multiple of 64, so that the payload is aligned for vector loads
_MAGIC = b"FBO1"
assert _HEADER.size <= HEADER_BYTES


@dataclass
class Counts:
    """Oracle evaluations, each counted per sample touched."""

    values: int = 0
    gradients: int = 0
    hvps: int = 0
    crosses: int = 0

    def as_tuple(self) -> tuple[int, int, int, int]:
        return self.values, self.gradients, self.hvps, self.crosses


@dataclass(slots=True)
class Task:
    """One piece of work for one client; `stamp` is the server's own note of when, in its own count of steps."""

    number: int
    client: int
    kind: str
    arrays: tuple[Array, ...]
    stamp: int
    round: int
    local_steps: int
    time_sent: float
    delay: float  # seconds on the way and waiting, from the delay model
    compute: float  # seconds of computing, from the delay model


@dataclass(slots=True)
class Update:
    """A client's answer, with the task it answers."""

    task: Task
    arrays: tuple[Array, ...]
    counts: Counts
    compute: float  # seconds the client computed
    time: float  # arrival
    size: int  # bytes of task and answer together

    @property
    def client(self) -> int:
        return self.task.client

    @property
    def kind(self) -> str:
        return self.task.kind


def task(takes: str, gives: str) -> Callable:
    """Declare a client function: the shapes of its arguments and of its result, as words.

    ``x`` the client's block of the upper variable, ``y`` the lower variable, ``1`` a number,
    ``yy`` and ``xy`` matrices, ``metrics`` the parts of an evaluation.
    """

    def declare(function: Callable) -> Callable:
        function.takes = takes.split()  # type: ignore[attr-defined]
        function.gives = gives.split()  # type: ignore[attr-defined]
        return function

    return declare


class Shapes:
    """The length of every word of `task` for one problem; blocks of x differ between clients."""

    def __init__(self, blocks: Sequence[slice], dim_x: int, dim_y: int, metrics: int) -> None:
        self.blocks = list(blocks)
        self.dim_x, self.dim_y, self.metrics = dim_x, dim_y, metrics

    def shape(self, word: str, client: int) -> tuple[int, ...]:
        """The shape this word stands for, at this client."""
        block = self.blocks[client]
        return self._shapes_for(block.stop - block.start)[word]

    @lru_cache(maxsize=None)  # noqa: B019  (one Shapes lives as long as its run)
    def _shapes_for(self, held: int) -> dict[str, tuple[int, ...]]:
        q = self.dim_y
        return {"x": (held,), "y": (q,), "1": (1,), "yy": (q, q), "xy": (held, q), "metrics": (self.metrics,)}

    def count(self, words: Sequence[str], client: int) -> int:
        """How many float64 numbers these words take."""
        return sum(int(np.prod(self.shape(word, client))) for word in words)

    def largest(self, functions: Sequence[Callable]) -> int:
        """Bytes of the largest message that any of these tasks or their answers can be."""
        widest = max(range(len(self.blocks)), key=lambda c: self.blocks[c].stop - self.blocks[c].start)
        sides = [words for f in functions for words in (f.takes, f.gives)]  # type: ignore[attr-defined]
        return HEADER_BYTES + 8 * max(self.count(words, widest) for words in sides)


class Header(NamedTuple):
    """The fixed part of a message."""

    kind: int
    client: int
    number: int
    count: int
    local_steps: int = 1
    delay: float = 0.0
    compute: float = 0.0
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)


def pack(buffer: Array, header: Header, arrays: Sequence[Array]) -> int:
    """Write a message into `buffer` (uint8) and return its length in bytes."""
    _HEADER.pack_into(
        buffer, 0, _MAGIC, header.kind, 0, header.client, header.number, header.count,
        header.local_steps, header.delay, header.compute, *header.counts,
    )  # fmt: skip
    end = HEADER_BYTES + 8 * header.count
    payload = buffer[HEADER_BYTES:end].view(np.float64)
    at = 0
    for array in arrays:
        payload[at : at + array.size] = array if array.ndim == 1 else array.ravel()
        at += array.size
    if at != header.count:
        raise ValueError(f"message of kind {header.kind} for client {header.client}: {at} numbers, not {header.count}")
    return end


def unpack(buffer: Array, size: int) -> tuple[Header, Array]:
    """The header and a view of the payload of a message of `size` bytes; anything malformed is refused."""
    if size < HEADER_BYTES:
        raise ValueError(f"a message of {size} bytes is shorter than its header of {HEADER_BYTES}")
    magic, kind, _, client, number, count, steps, delay, compute, *counts = _HEADER.unpack_from(buffer, 0)
    if magic != _MAGIC:
        raise ValueError(f"a message that does not begin with {_MAGIC!r}: not sent by this version of fbompi")
    if count < 0 or HEADER_BYTES + 8 * count != size:
        raise ValueError(f"a message of {size} bytes says that it holds {count} numbers")
    payload = buffer[HEADER_BYTES:size].view(np.float64)
    return Header(kind, client, number, count, steps, delay, compute, tuple(counts)), payload


def split(payload: Array, words: Sequence[str], shapes: Shapes, client: int) -> tuple[Array, ...]:
    """The arrays of a payload, as views."""
    arrays, at = [], 0
    for word in words:
        shape = shapes.shape(word, client)
        length = int(np.prod(shape)) if len(shape) > 1 else shape[0]
        arrays.append(payload[at : at + length].reshape(shape) if len(shape) > 1 else payload[at : at + length])
        at += length
    if at != payload.size:
        raise ValueError(f"client {client}: a payload of {payload.size} numbers where {words} takes {at}")
    return tuple(arrays)
