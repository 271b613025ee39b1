"""Data: original files, and sets in the cache."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import re
import struct
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fbompi.data import store
from fbompi.data.importing import find, import_set
from fbompi.errors import UserError
from hostile.content import CUT, NUMBERS, bytes_changed
from hostile.hdf5 import hdf5_changed

IMAGES = struct.pack(">BBBBIII", 0, 0, 8, 3, 6, 2, 3) + bytes(range(36))
LABELS = struct.pack(">BBBBI", 0, 0, 8, 1, 6) + bytes([0, 1, 2, 0, 1, 2])
LIBSVM = b"+1 1:0.5 3:-1e3\n-1 2:7 # a comment\n+1\n"
PACKERS: tuple[tuple[bytes, Callable, Callable], ...] = (
    (b"\x1f\x8b", gzip.compress, gzip.decompress),
    (b"BZh", bz2.compress, bz2.decompress),
    (b"\xfd7zXZ\x00", lzma.compress, lzma.decompress),
)
FORMS: dict[bytes, tuple[str, ...]] = {
    b"idx": ("own-train-images-idx3-ubyte", "own-train-labels-idx1-ubyte", "own-t10k-images-idx3-ubyte",
             "own-t10k-labels-idx1-ubyte"),
    b"mnist": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
               "t10k-labels-idx1-ubyte"),
    b"covtype": ("covtype.data",),
    b"tar": ("cifar-10-binary.tar.gz",),
    b"batch": ("data_batch_1.bin", "test_batch.bin"),
    b"zips": ("images_background.zip", "images_evaluation.zip"),
    b"libsvm": ("own", "own.t"),
    b"npz": ("own.npz",),
}  # fmt: skip


def _npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def _tar(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _zip(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, b"\x89PNG\r\n\x1a\n" + name.encode() * 9)
    return out.getvalue()


@cache
def stored_set() -> bytes:
    """A small set as it lies in the cache."""
    with tempfile.TemporaryDirectory() as place:
        rng = np.random.default_rng(0)
        path = Path(place, "own.npz")
        x, y = rng.normal(size=(6, 4)).astype(np.float32), np.arange(6) % 3
        path.write_bytes(_npz(X=x, y=y, X_test=x[:2], y_test=y[:2]))
        with cached_in(Path(place)):
            return import_set(find([path])["own"]).read_bytes()


@contextmanager
def cached_in(place: Path) -> Iterator[None]:
    """The cache of data sets is this directory."""
    before = os.environ.get("FBOMPI_DATA")
    os.environ["FBOMPI_DATA"] = str(place)
    try:
        yield
    finally:
        os.environ.pop("FBOMPI_DATA")
        if before is not None:
            os.environ["FBOMPI_DATA"] = before


def seeds() -> list[bytes]:
    x, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 0, 1])
    drawings = _zip(*(f"images_background/Greek/character0{i}/000{i}_01.png" for i in (1, 2)))
    files: list[tuple[bytes, ...]] = [
        (b"idx", IMAGES, LABELS), (b"idx", IMAGES, LABELS, IMAGES, LABELS), (b"idx", gzip.compress(IMAGES), LABELS),
        (b"mnist", IMAGES, LABELS, IMAGES, LABELS), (b"covtype", b"1,2,3\n" * 9), (b"covtype", gzip.compress(b"1,2\n")),
        (b"tar", gzip.compress(_tar(data_batch_1=b"x" * 99))), (b"tar", _tar(test_batch=b"x" * 99, data_batch_2=b"")),
        (b"batch", bytes(3073), bytes(3073)), (b"zips", drawings, drawings), (b"libsvm", LIBSVM, LIBSVM),
        *((b"libsvm", pack_(LIBSVM)) for _, pack_, _ in PACKERS),
        (b"npz", _npz(X=x, y=y)),
        (b"npz", _npz(X=x.reshape(2, 2, 3), y=y[:2], X_test=x[:1].reshape(1, 1, 3), y_test=y[:1])),
        (b"npz", _npz(features=x.astype(np.uint8), labels=np.array(["a", "b", "c", "d"]))),
        (b"npz", _npz(X=x.astype(">f2"), y=y.astype(bool))), (b"stored", stored_set()),
    ]  # fmt: skip
    return [CUT.join(parts) for parts in files]


def changed(data: bytes, rng: random.Random) -> bytes:
    """Header fields, members of archives, text tokens, or the bytes below a compression."""
    form, *files = data.split(CUT)
    if rng.random() < 0.03:
        form = rng.choice([*FORMS, b"stored"])
    if not files:
        return CUT.join((form, rng.randbytes(20)))
    at = rng.randrange(len(files))
    files[at] = file_changed(files[at], rng)
    return CUT.join((form, *files))


def file_changed(content: bytes, rng: random.Random) -> bytes:
    for magic, packed, unpacked in PACKERS:
        if content.startswith(magic) and rng.random() < 0.7:
            with suppress(Exception):
                return packed(file_changed(unpacked(content)[: 1 << 20], rng))
    if content.startswith(b"\x89HDF") and rng.random() < 0.8:
        return hdf5_changed(stored_set(), rng)
    if content.startswith(b"PK") and rng.random() < 0.8:
        with suppress(Exception):
            return _zip_changed(content, rng)
    if rng.random() < 0.02:
        return rng.choice(PACKERS)[1](content)
    text = content.isascii() and len(content) < 5000
    if text and rng.random() < 0.7:
        tokens = re.findall(rb"[^\s:,]+|[\s:,]", content) or [b""]
        for _ in range(rng.choice((1, 2))):
            tokens[rng.randrange(len(tokens))] = rng.choice(TOKENS)
        return b"".join(tokens)
    return bytes_changed(content, rng)


TOKENS = (
    b"nan", b"inf", b"-inf", b"1e39", b"1e400", b"1:1e39", b"16777216:1", b"16777217:1", b"9" * 5000,
    b"1:" + b"9" * 5000,
    b"1", b"-1", b"0", b"1.5", b"\n", b"#", b":", b"1:", b":1", b"2:1", b" ", b"", b"\x00", b"1_0", b"0x10",
    b"9007199254740993",
    b"1e308", b"-1e308", b"1e19", b"\t", b"\r", b"\x0c", b",", b"\xc2\xa0",
)  # fmt: skip
# Types and shapes of arrays, as the headers of .npy files tell them
CLAIMS = (
    ("<f8", "(4, 3)"), ("|O", "(4,)"), ("<f8", "(4, 1000000000000)"), ("<c16", "(4, 3)"), ("<f8", "(40000000, 1)"),
    ("|V9999999", "(9,)"), ("<U99999999", "(4,)"), ("<i8", "(-4,)"), ("<f8", "()"), ("<i8", "(0, 3)"),
    ("<M8[s]", "(4,)"), ("<f8", "(4, 0)"), ("<f16", "(1, 3)"), ("<f8", "(True, 3)"), ("|S0", "(4,)"),
    ("|V0", "(1000000000,)"), ("<f8", "(0, 1000000000000, 1000000000000)"),
)  # fmt: skip
HEADERS = (
    *(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}" for kind, shape in CLAIMS),
    "{'descr': '<f8', 'fortran_order': True, 'shape': (4, 3), }",
    "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (4, 3), }",
    "__import__('os').system('true')",
)
NAMES = ("X.npy", "y.npy", "X_test.npy", "y_test.npy", "X", "../x", "a/b/c/d.png", "\0")


def _zip_changed(content: bytes, rng: random.Random) -> bytes:
    """A member changed inside of an archive, renamed, doubled or left out."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = rng.randrange(len(members))
    name, inner = members[at]
    what = rng.randrange(7)
    if what <= 2 and inner.startswith(b"\x93NUMPY"):
        length = 10 + int.from_bytes(inner[8:10], "little")
        header = rng.choice((*HEADERS, inner[10:length].decode("latin1").strip()))
        if rng.random() < 0.4:
            header = re.sub(r"\d+", lambda m: str(rng.choice(NUMBERS)) if rng.random() < 0.3 else m[0], header)
        text = header.encode() + b"\n"
        members[at] = name, inner[:8] + struct.pack("<H", len(text)) + text + inner[length:]
    elif what == 3:
        members[at] = rng.choice(NAMES), inner
    elif what == 4:
        del members[at]
    elif what == 5:
        members.append(members[at])
    else:
        members[at] = name, bytes_changed(inner, rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, inner in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = archive.compression
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a name is there twice
                archive.writestr(info, inner)
    return out.getvalue()


def feed(data: bytes, place: Path) -> None:
    """Import files into an empty cache and use what came of it, or use a set that lies in the cache."""
    form, *files = data.split(CUT)
    inside, cached = place / "in", place / "cache"
    for directory in (inside, cached):
        directory.mkdir(exist_ok=True)
        for path in directory.iterdir():
            path.unlink()
    with cached_in(cached):
        if form not in FORMS:
            (cached / "own.h5").write_bytes(b"".join(files[:1]))
            return use_set("own")
        for name, content in zip(FORMS[form], files):
            (inside / name).write_bytes(content)
        paths = sorted(inside.iterdir())
        if not paths:
            return None
        for name, reader in find(paths).items():
            import_set(reader)
            try:
                use_set(name)
            except UserError as e:  # what was imported can be used
                raise AssertionError(str(e)) from e


def use_set(name: str) -> None:
    """Everything that is done with a set of the cache."""
    opened = store.open_set(name)
    store.stored()
    for part, count in opened.parts.items():
        labels = opened.labels(part)
        rows = opened.rows(part, np.array([0, count - 1]))
        assert len(labels) == count and rows.shape == (2, opened.features)
    store.check(name)
