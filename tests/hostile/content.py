"""Changes of any bytes."""

from __future__ import annotations

import random
import struct

CUT = b"\n%%%%\n"  # between the files that make up one input
NUMBERS = (0, 1, 2, 3, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -1, -(2**63), 10**12)


def bytes_changed(data: bytes, rng: random.Random) -> bytes:
    """Some bytes or a number replaced, a stretch cut out, doubled or swapped."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not out:
            return rng.randbytes(rng.randrange(1, 32))
        a = rng.randrange(len(out))
        b = min(len(out), a + rng.choice((1, 2, 4, 8, 64)))
        what = rng.randrange(6)
        if what == 0:
            out[a] = rng.randrange(256)
        elif what == 1:
            packed = struct.pack(rng.choice("<>") + "q", rng.choice(NUMBERS))
            size = rng.choice((1, 2, 4, 8))
            out[a : a + size] = packed[:size] if rng.random() < 0.5 else packed[-size:]
        elif what == 2:
            del out[a:b]
        elif what == 3:
            out[a:a] = out[a:b]
        elif what == 4:
            out[a] ^= 1 << rng.randrange(8)
        else:
            del out[a:]
    return bytes(out)
