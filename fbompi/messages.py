"""What travels between server and clients: a fixed header and one flat run of float64 numbers.

A kind of task is declared by the client function that answers it (`task`), with the shapes it takes and gives.
Sizes are therefore known before the first message, buffers can be made once, and a message that does not fit
its declaration is refused. Nothing is ever pickled.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from fbompi.config import MOST_STEPS

Array = np.ndarray

COSTS = ("gradients", "hvps", "crosses", "work", "memory")  # what a task took, as its answer says: see `Client`
NO_COSTS = (0,) * len(COSTS)

# magic, kind, client, task number, payload count, local steps, injected delay, compute seconds, curvature, costs
_HEADER = struct.Struct(f"<8sqqqqqddd{len(COSTS)}q")
HEADER_WORDS = 16  # 128 bytes, with room to grow
_MAGIC = b"fbompi 2"
assert _HEADER.size <= 8 * HEADER_WORDS

BITS = 48  # of a mask in one number: whole numbers of so many bits are exact in float64
WORDS = ("x", "y", "1", "yy", "xy", "metrics", "held_x", "held_y", "part_x", "part_y")  # see `task`
PARTS = ("part_x", "part_y")  # words of any length up to that of the client's x or y; the payload begins with theirs


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
    place: int  # in the order in which sums run: its number, or that of the task it repeats


@dataclass(slots=True)
class Update:
    """A client's answer, with the task it answers."""

    task: Task
    arrays: tuple[Array, ...]
    costs: Sequence[int]  # in the order of COSTS
    compute: float  # seconds the client computed, on the link's clock
    time: float  # arrival
    seconds: float  # the client really computed
    curvature: float = 0.0  # of the lower objective, the largest that the task has met

    @property
    def client(self) -> int:
        return self.task.client

    @property
    def kind(self) -> str:
        return self.task.kind


Plausible = Callable[[Sequence[Array], Sequence[Array]], bool]  # of the arrays of a task and of its answer


class TaskFunction(Protocol):
    """A client function with the shapes it takes and gives (see `task`)."""

    takes: tuple[str, ...]
    gives: tuple[str, ...]
    local_steps: bool
    plausible: Plausible | None

    def __call__(self, client: Any, *arrays: Array) -> Any: ...


def task(
    takes: str, gives: str, local_steps: bool = False, plausible: Plausible | None = None
) -> Callable[[Callable], TaskFunction]:
    """Declare a client function: the shapes of its arguments and of its result, as words.

    ``x`` the client's block of the upper variable, ``y`` the lower variable, ``1`` a number,
    ``yy`` and ``xy`` matrices, ``metrics`` the parts of an evaluation. For submodels: ``held_x`` and ``held_y`` say
    which coordinates a client holds (`pack_mask`), ``part_x`` and ``part_y`` are vectors of any length up to that of x
    and y. `local_steps`: whether it takes any. `plausible`: false of an answer that no honest client can give, as the
    arrays of the task (as the client was sent them) and of the answer show.
    """

    def declare(function: Any) -> TaskFunction:
        function.takes, function.gives = tuple(takes.split()), tuple(gives.split())
        function.local_steps, function.plausible = local_steps, plausible
        return function

    return declare


class Layout(NamedTuple):
    """Where the words of a message lie in its payload; where some may be shorter (`parts`), at their longest."""

    places: tuple[tuple[int, int, tuple[int, ...]], ...]  # (begin, end, shape) of each word
    numbers: int
    parts: tuple[int, ...] = ()  # which of the words are of any length


class Shapes:
    """The length of every word of `task` for one problem; blocks of x differ between clients."""

    def __init__(self, blocks: Sequence[slice], dim_x: int, dim_y: int, metrics: int) -> None:
        self.blocks = list(blocks)
        self.dim_x, self.dim_y, self.metrics = dim_x, dim_y, metrics
        self._layouts: dict[tuple[tuple[str, ...], int], Layout] = {}

    def held(self, client: int) -> int:
        """How much of x this client owns."""
        block = self.blocks[client]
        return block.stop - block.start

    @cached_property
    def owners(self) -> Array:
        """How many clients have each coordinate of x."""
        owners = np.zeros(self.dim_x)
        for block in self.blocks:
            owners[block] += 1
        return owners

    def layout(self, words: tuple[str, ...], client: int) -> Layout:
        """Where these words lie in a message to or from this client."""
        key = words, self.held(client)
        found = self._layouts.get(key)
        if found is None:
            held, q = key[1], self.dim_y
            shape = {
                "x": (held,), "y": (q,), "1": (1,), "yy": (q, q), "xy": (held, q), "metrics": (self.metrics,),
                "held_x": (mask_size(held),), "held_y": (mask_size(q),), "part_x": (held,), "part_y": (q,),
            }  # fmt: skip
            parts = tuple(i for i, word in enumerate(words) if word in PARTS)
            ends = np.cumsum([len(parts), *(math.prod(shape[word]) for word in words)]).tolist()
            places = tuple((a, b, shape[word]) for a, b, word in zip(ends, ends[1:], words))
            found = self._layouts[key] = Layout(places, ends[-1], parts)
        return found

    def largest(self, functions: Sequence[TaskFunction]) -> int:
        """Bytes of the largest message that any of these tasks or their answers can be."""
        widest = max(range(len(self.blocks)), key=self.held)
        sides = [words for f in functions for words in (f.takes, f.gives)]
        return 8 * HEADER_WORDS + 8 * max(self.layout(words, widest).numbers for words in sides)


class Header(NamedTuple):
    """The fixed part of a message."""

    kind: int
    client: int
    number: int
    length: int  # of the payload, in numbers
    local_steps: int
    delay: float
    compute: float
    curvature: float
    costs: Sequence[int]


def empty_buffer(size: int) -> Array:
    """Room for a message of `size` bytes."""
    return np.empty(size // 8)


def pack(
    buffer: Array, kind: int, client: int, number: int, arrays: Sequence[Array],
    local_steps: int = 1, delay: float = 0.0, compute: float = 0.0, curvature: float = 0.0,
    costs: Sequence[int] = NO_COSTS,
) -> int:  # fmt: skip
    """Write a message into `buffer` and return its length in bytes."""
    end = HEADER_WORDS
    for array in arrays:
        begin, end = end, end + array.size
        buffer[begin:end] = array if array.ndim == 1 else array.ravel()
    write_header(buffer, kind, client, number, end - HEADER_WORDS, local_steps, delay, compute, curvature, *costs)
    return 8 * end


def write_header(buffer: Array, *fields: Any) -> None:
    """Write the fixed part, whose fields are those of `Header`, costs apart, at the beginning of a buffer."""
    _HEADER.pack_into(buffer.data, 0, _MAGIC, *fields)


def unpack(buffer: Array, size: int) -> tuple[Header, Array]:
    """The header and a view of the payload of a message of `size` bytes; anything malformed is refused."""
    if size > buffer.nbytes:
        raise ValueError(f"a message of {size} bytes where there is room for {buffer.nbytes}")
    return read_header(buffer, size), buffer[HEADER_WORDS : size // 8]


def read_header(buffer: Array, size: int) -> Header:
    """The header of a message of `size` bytes, of which `buffer` need hold no more than that."""
    if size < 8 * HEADER_WORDS:
        raise ValueError(f"a message of {size} bytes: shorter than a header")
    fields = _HEADER.unpack_from(buffer.data)
    header = Header._make((*fields[1:9], fields[9:]))
    if fields[0] != _MAGIC or size != 8 * (HEADER_WORDS + header.length):
        raise ValueError(f"a message of {size} bytes that begins with {fields[0]!r}: not of this version of fbompi")
    if header.kind < 0 or header.client < 0 or not 0 <= header.local_steps <= MOST_STEPS:
        raise ValueError(f"a message with a header that cannot be: {header}")
    return header


def read_only(array: Array) -> Array:
    """A view that an oracle cannot change by accident: on the virtual link it would be the server's own array."""
    view = array.view()
    view.flags.writeable = False
    return view


def split(payload: Array, layout: Layout) -> tuple[Array, ...]:
    """The arrays of a payload, as views."""
    if layout.parts:
        return _split_parts(payload, layout)
    if payload.size != layout.numbers:
        raise ValueError(f"a payload of {payload.size} numbers where {layout.numbers} were expected")
    places = layout.places
    if len(places) == 1 and len(places[0][2]) == 1:
        return (payload,)
    return tuple([payload[a:b].reshape(shape) for a, b, shape in places])


def _split_parts(payload: Array, layout: Layout) -> tuple[Array, ...]:
    """The arrays of a payload that begins with the lengths of those of its words that may be shorter."""
    count = len(layout.parts)
    given = [float(n) for n in payload[:count]]
    most = [layout.places[i][2][0] for i in layout.parts]
    if len(given) < count or not all(n.is_integer() and 0 <= n <= longest for n, longest in zip(given, most)):
        raise ValueError(f"a payload with parts of {given} numbers where at most {most} were expected")
    shapes = [shape for _, _, shape in layout.places]
    for i, n in zip(layout.parts, given):
        shapes[i] = (int(n),)
    ends = np.cumsum([count, *map(math.prod, shapes)]).tolist()
    if payload.size != ends[-1]:
        raise ValueError(f"a payload of {payload.size} numbers where {ends[-1]} were expected")
    return tuple([payload[a:b].reshape(shape) for a, b, shape in zip(ends, ends[1:], shapes)])


def check_shapes(
    arrays: Sequence[Array], words: tuple[str, ...], layout: Layout, what: str, kind: str, client: int
) -> None:  # fmt: skip
    """Refuse arrays that are not what a task declares; a vector of one entry would otherwise spread over all."""
    shapes = [getattr(array, "shape", None) for array in arrays]
    if len(shapes) != len(words):
        expected_words = f"expected {len(words)}: {' '.join(words)}"
        raise ValueError(f'{what} "{kind}", client {client}: {len(shapes)} arrays, {expected_words}')
    for i, (shape, (_, _, expected)) in enumerate(zip(shapes, layout.places)):
        short = i in layout.parts and shape is not None and len(shape) == 1 and shape[0] <= expected[0]
        if shape != expected and not short:
            raise ValueError(f'{what} "{kind}", client {client}: shape {shape} for "{words[i]}", expected {expected}')


def framed(arrays: Sequence[Array], layout: Layout) -> Sequence[Array]:
    """The arrays of a message as `pack` wants them: where some may be shorter, their lengths first."""
    if not layout.parts:
        return arrays
    return [np.array([float(arrays[i].size) for i in layout.parts]), *arrays]


def mask_size(n: int) -> int:
    """Numbers that a mask over n coordinates takes."""
    return -(-n // BITS)


def pack_mask(held: Array) -> Array:
    """A mask, true where a coordinate is held, as the numbers in which it travels."""
    bits = np.zeros(mask_size(held.size) * BITS, np.bool_)
    bits[: held.size] = held
    return bits.reshape(-1, BITS) @ 2.0 ** np.arange(BITS)


def unpack_mask(numbers: Array, n: int) -> Array:
    """The coordinates, of n, that a mask holds, in rising order."""
    numbers = np.asarray(numbers)
    if not ((numbers >= 0) & (numbers < 2.0**BITS) & (numbers == np.floor(numbers))).all():
        raise ValueError(f"a mask of numbers that are not whole ones of {BITS} bits")
    whole = numbers.astype(np.int64)
    bits = whole[:, None] >> np.arange(BITS) & 1
    return np.flatnonzero(bits.ravel()[:n])
