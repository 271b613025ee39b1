"""HDF5 files that are whole and hold what nobody expects."""

from __future__ import annotations

import io
import math
import random
from contextlib import suppress
from typing import Any

import h5py
import numpy as np


def hdf5_changed(content: bytes, rng: random.Random) -> bytes:
    """Attributes and datasets of other types, shapes and sizes, gone, or put elsewhere, in a file that is whole.

    HDF5 does not bear changes of damaged files: it may crash.
    """
    image = io.BytesIO(content)
    with h5py.File(image, "r+") as file:
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            with suppress(Exception):
                _object_changed(file, rng)
    return image.getvalue()


def _object_changed(file: h5py.File, rng: random.Random) -> None:
    names: list[str] = ["/"]
    file.visit(names.append)
    name = rng.choice(names)
    object_, what = file[name], rng.randrange(8)
    if what <= 3 and len(object_.attrs):
        key = rng.choice(list(object_.attrs))
        if what == 0:
            del object_.attrs[key]
        else:
            object_.attrs[key] = rng.choice(ATTRIBUTES)
    elif name != "/" and what == 4:
        del file[name]
        if rng.random() < 0.3:
            elsewhere = (h5py.ExternalLink("other.h5", "/x"), h5py.SoftLink("/nowhere"), h5py.SoftLink("/" + name))
            file[name] = rng.choice((*elsewhere, file["/"]))
    elif name != "/" and isinstance(object_, h5py.Dataset):
        before, attrs = object_, dict(object_.attrs)
        shape, dtype = before.shape, before.dtype
        values = before[...]
        del file[name]
        made = _dataset(file, name, shape, dtype, values, rng)
        made.attrs.update(attrs)
    else:
        file.create_group(rng.choice(names) + rng.choice(("x", "/a", "trajectory", "train", "partition")))


ATTRIBUTES: tuple[Any, ...] = (
    0, -1, 2**63 - 1, 10**12, math.nan, math.inf, "", "text", "running", "x" * 5000, "fbompi-run",
    "fbompi-data", b"\xff\xfe",
    np.zeros(0), np.arange(3), np.array([b"a", b"b"]), h5py.Empty("f8"), h5py.Empty("S9"), True, 1 + 2j,
    "\ud7ff\u202e\n",
    np.zeros((2, 2)), "[run]\nrounds = 1", "[", np.array([(1, 2.0)], "i4,f8"), "nan = nan", np.float16(1), [4], (2, 2),
)  # fmt: skip
TYPES: tuple[Any, ...] = (
    "f8", "f4", ">f8", "i8", "u1", "i1", "S5", "V3", "c16", "?", h5py.string_dtype(), h5py.ref_dtype, "f2", "i4,f8",
    h5py.vlen_dtype("i4"), h5py.enum_dtype({"a": 0, "b": 1}, basetype="u1"), ("f8", (3,)), "u8",
)  # fmt: skip


def _dataset(file: h5py.File, name: str, shape: Any, dtype: Any, values: Any, rng: random.Random) -> h5py.Dataset:
    what = rng.randrange(6)
    if what == 0:
        return file.create_dataset(name, shape, np.dtype(rng.choice(TYPES)))
    if what == 1:
        sizes = (0, 1, 2, 5, 10**7, 2**27, 10**9, 10**12, 2**62)
        shape = tuple(rng.choice(sizes) for _ in range(rng.choice((0, 1, 1, 2, 3, len(shape)))))
        return file.create_dataset(name, shape, dtype, chunks=(1,) * len(shape) or None)
    if what == 2:
        packing: Any = rng.choice(({"compression": "gzip"}, {"shuffle": True}))
        return file.create_dataset(name, data=values, chunks=True, **packing)
    if what == 3 and dtype.names:
        kept = [n for n in dtype.names if rng.random() < 0.9]
        fields = [(n, rng.choice((dtype[n], "f8", "S3", ("i8", (2,))))) for n in kept]
        return file.create_dataset(name, shape, np.dtype(fields))
    if what == 4 and shape:
        return file.create_dataset(name, data=values[: rng.randrange(len(values) + 1)])
    values = values.copy()
    for _ in range(rng.choice((1, 1, 3)) if values.size else 0):
        field = values[rng.choice(dtype.names)] if dtype.names else values
        if field.dtype.kind in "iuf" and field.size:
            number = rng.choice((0, 1, 2, 127, -1, 2**31 - 1, 2**62, math.nan, math.inf))
            with suppress(ValueError, OverflowError):
                field.flat[rng.randrange(field.size)] = number
    maxshape = (None, *shape[1:]) if shape and rng.random() < 0.8 else None
    return file.create_dataset(name, data=values, dtype=dtype, maxshape=maxshape)
