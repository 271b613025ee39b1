"""Storing a set: complete and checked under a temporary name before it gets its own.

A kill at any moment leaves the set that was there, or none. The temporary file is locked by its writer for as long
as it lives, so that the next import knows what a dead process has left, and removes only that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np

import fbompi
from fbompi.data.content import SILENT, Content, Part, Progress, label_type
from fbompi.data.moments import Moments
from fbompi.data.store import FORMAT, FORMAT_VERSION, combined, directory, path_of
from fbompi.errors import UserError

SUFFIX = ".partial"


def store(content: Content, progress: Progress = SILENT) -> Path:
    """Put a set into the cache, in place of one of the same name; `progress` hears of every block."""
    place, path = directory(), path_of(content.name)
    progress.expect(content.bytes())
    try:
        place.mkdir(parents=True, exist_ok=True)
        remove_leftovers(place)
        with _temporary(place, content.name) as (file, temporary), _ctrl_c_waits():
            sink = Sink(file)
            with h5py.File(sink, "w", libver="v108") as h5:  # HDF5 1.8 is the first to put checksums on its headers
                _write(h5, content, sink, progress)
            sink.finish()
            os.replace(temporary, path)
        _sync(place)
    except OSError as e:
        raise UserError(f"{path}: cannot be written: {e.strerror or e}") from None
    return path


class Sink:
    """The file below HDF5. HDF5 cannot close a file that fails to be written: it meets no failure here.

    The first one is kept, and raised by `check` between blocks and by `finish`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.failure: OSError | None = None
        self.seek, self.tell, self.read = file.seek, file.tell, file.read
        self.readinto = file.readinto  # type: ignore[attr-defined]

    def write(self, data: bytes) -> int:
        self._try(lambda: self.file.write(data))
        return len(data)

    def truncate(self, size: int) -> int:
        self._try(lambda: self.file.truncate(size))
        return size

    def flush(self) -> None:
        self._try(self.file.flush)

    def check(self) -> None:
        """Raise what has failed, or the interrupt that has waited."""
        if self.failure is not None:
            raise self.failure
        held = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def finish(self) -> None:
        """Everything is on the disk, or the reason is raised."""
        self.flush()
        self.check()
        os.fsync(self.file.fileno())

    def _try(self, action: Callable[[], object]) -> None:
        if self.failure is None:
            try:
                action()
            except OSError as e:
                self.failure = e


def _write(file: h5py.File, content: Content, sink: Sink, progress: Progress) -> None:
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    _describe(file, format=FORMAT, name=content.name, title=content.title, description=content.description,
              source=content.sources, fbompi_version=fbompi.__version__, created=created)  # fmt: skip
    file.attrs.update(format_version=FORMAT_VERSION, classes=content.classes, features=content.features,
                      largest=content.largest)  # fmt: skip
    if content.image:
        file.attrs["image"] = content.image
    moments = Moments(content.features)
    sums = {}
    for name, part in content.parts.items():
        digests = _write_part(file, name, part, content, moments if name == "train" else None, sink, progress)
        sums.update({f"{name}/{kind}": digest for kind, digest in digests.items()})
    meaning = "SHA-256 of lines 'SHA-256  NAME' of features and labels, in order of the names"
    _describe(file, checksum=combined(sums), checksum_meaning=meaning)
    mean, deviation = moments.mean, moments.deviation()
    if not (np.isfinite(mean).all() and np.isfinite(deviation).all()):
        raise UserError(f"{', '.join(content.sources)}: has features so large that their deviation is not finite")
    over = "of every feature over the training part, in stored units"
    sums["mean"] = _write_array(file, "mean", mean, f"mean {over}")
    sums["deviation"] = _write_array(file, "deviation", deviation, f"standard deviation {over}")
    if content.label_values is not None:
        meaning = "what the original files have for labels 0, 1, ..."
        sums["label_values"] = _write_array(file, "label_values", content.label_values, meaning)
    for name, digest in sums.items():
        _describe(file[name], sha256=digest)


def _write_array(file: h5py.File, name: str, values: np.ndarray, meaning: str) -> str:
    """Write a small dataset; its SHA-256."""
    dtype = values.dtype
    if dtype.kind == "U":
        values, dtype = _fixed(values)
    _describe(file.create_dataset(name, data=values, dtype=dtype), meaning=meaning)
    return hashlib.sha256(values.tobytes()).hexdigest()


def _describe(target: h5py.Group | h5py.Dataset, **texts: str | list[str]) -> None:
    """Attributes of text."""
    for name, text in texts.items():
        values, dtype = _fixed(np.array(text))
        target.attrs.create(name, values, dtype=dtype)


def _fixed(text: np.ndarray) -> tuple[np.ndarray, np.dtype]:
    """Text of fixed length: that of variable length lies apart in the file, without the checksums of headers.

    One wrong bit there can make HDF5 search forever.
    """
    encoded = np.char.encode(text, "utf-8", "backslashreplace")
    dtype = h5py.string_dtype("utf-8", encoded.itemsize)
    return encoded.astype(dtype), dtype


def _write_part(file: h5py.File, name: str, part: Part, content: Content, moments: Moments | None, sink: Sink,
                progress: Progress) -> dict[str, str]:  # fmt: skip
    """Write a part block by block; the SHA-256 of its datasets."""
    group = file.create_group(name)
    shape = part.samples, content.features
    features = group.create_dataset("features", shape, content.dtype)  # contiguous: rows can be mapped
    labels = group.create_dataset("labels", shape[:1], label_type(content.classes))
    _describe(features, meaning="one row per sample")
    _describe(labels, meaning="class of every sample, from 0")
    digests = {"features": hashlib.sha256(), "labels": hashlib.sha256()}
    begin = 0
    for values, classes in part.blocks:
        end = begin + len(values)
        for dataset, block in ((features, values), (labels, classes)):
            block = np.ascontiguousarray(block, dataset.dtype)
            dataset[begin:end] = block
            digests[dataset.name.rpartition("/")[2]].update(block.data)
        if moments is not None:
            moments.add(values)
        sink.check()
        progress.advance(values.nbytes)
        begin = end
    assert begin == part.samples, (begin, part.samples)
    return {kind: digest.hexdigest() for kind, digest in digests.items()}


@contextlib.contextmanager
def _temporary(place: Path, name: str) -> Iterator[tuple[BinaryIO, Path]]:
    """A new locked file, removed in the end unless it has got another name."""
    while True:
        path = place / f".{name}.{secrets.token_hex(8)}{SUFFIX}"
        try:  # around the opening: an interrupt may come at once
            with open(path, "x+b") as file:
                with contextlib.suppress(OSError):  # a file system without locks: nobody removes leftovers there
                    fcntl.flock(file, fcntl.LOCK_EX)
                if path.exists():  # or another import took it for a leftover before it was locked
                    yield file, path
                    return
        finally:
            with contextlib.suppress(OSError):  # there is none, and the reason is told
                path.unlink()


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Until the end, or the next check: HDF5 does not bear an interrupt in the middle of a call to `Sink`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def remove_leftovers(place: Path) -> None:
    """Remove the temporary files of processes that were killed."""
    for path in place.glob(f".*{SUFFIX}"):
        with contextlib.suppress(OSError), open(path, "r+b") as file:  # also: locked, and so in use; gone already
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _sync(place: Path) -> None:
    """The new name itself is on the disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system has this for directories
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
