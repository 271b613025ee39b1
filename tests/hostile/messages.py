"""Messages between server and clients."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

import numpy as np

from fbompi.messages import HEADER_WORDS, Layout, Shapes, pack, split, unpack, unpack_mask
from hostile.content import NUMBERS, bytes_changed

SHAPES = Shapes([slice(0, 3), slice(3, 7), slice(7, 7)], 7, 5, 4)
ALL = ("x", "y", "1", "yy", "xy", "metrics", "held_x", "held_y", "part_x", "part_y")
LENGTHS = (0.0, -0.0, 1.0, 2.5, -1.0, math.nan, math.inf, 1e300, 2.0**48)


def seeds() -> list[bytes]:
    found = []
    for client in range(3):
        for taken in (("x",), ("y", "1"), ("xy", "yy"), ("held_x", "part_x"), ("part_x", "part_y", "1"), ("metrics",)):
            layout = SHAPES.layout(taken, client)
            buffer = np.zeros(HEADER_WORDS + layout.numbers)
            lengths = [np.array([float(layout.places[i][2][0]) for i in layout.parts])]
            arrays = [*lengths, *(np.ones(shape) for _, _, shape in layout.places)]
            size = pack(buffer, 2, client, 7, arrays, costs=range(5))
            head = bytes([client, len(taken), *(ALL.index(word) for word in taken), 0])
            found.append(head + buffer.tobytes()[:size])
    return found


def changed(data: bytes, rng: random.Random) -> bytes:
    """Fields of the header and lengths of the payload."""
    begin = 3 + (data[1] if len(data) > 1 else 0)
    out = bytearray(data)
    if len(out) < begin + 8 * HEADER_WORDS:
        return bytes_changed(data, rng)
    what = rng.randrange(5)
    if what <= 1:
        word = begin + 8 * rng.randrange(HEADER_WORDS)
        odd = struct.pack("<d", rng.choice(LENGTHS))
        out[word : word + 8] = struct.pack("<q", rng.choice(NUMBERS)) if what else odd
    elif what == 2:
        numbers = rng.randrange(30)
        out[begin + 8 * HEADER_WORDS :] = rng.randbytes(8 * numbers)
        out[begin + 32 : begin + 40] = struct.pack("<q", numbers)
    elif what == 3 and len(out) > begin + 8 * HEADER_WORDS:
        word = begin + 8 * HEADER_WORDS + 8 * rng.randrange(3)
        out[word : word + 8] = struct.pack("<d", rng.choice(LENGTHS))
    else:
        return bytes_changed(data, rng)
    return bytes(out)


def feed(data: bytes, place: Path) -> None:
    """Unpack a message as any words to any client, and what in it may be a mask."""
    if len(data) < 3:
        return
    client, count = data[0] % 3, data[1] % 5
    taken = tuple(ALL[code % len(ALL)] for code in data[2 : 2 + count])
    body = data[3 + count :]
    buffer = np.zeros(-(-len(body) // 8))
    buffer.view(np.uint8)[: len(body)] = np.frombuffer(body, np.uint8)
    header, payload = unpack(buffer, len(body))
    assert payload.size == header.length
    layout: Layout = SHAPES.layout(taken, client)
    for word, array in zip(taken, split(payload, layout)):
        if word in ("held_x", "held_y"):
            size = SHAPES.held(client) if word == "held_x" else SHAPES.dim_y
            held = unpack_mask(array, size)
            assert held.size <= size and (np.diff(held) > 0).all()
