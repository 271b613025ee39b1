"""HDF5 files, written so that errors of the disk are told in order, and read so that nothing in them is believed."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py

from fbompi.data.originals import sensible

SMALL = 1 << 20  # bytes that may be taken on a header's word


class _Sheltering(io.FileIO):
    """A file whose errors do not reach HDF5, which would not survive them; the first is kept."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while len(view) and self.error is None:
                view = view[super().write(view) :]
        except OSError as e:
            self.error = e
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as e:
            self.error = self.error or e
            return self.tell() if size is None else size


@contextmanager
def created(path: Path) -> Iterator[h5py.File]:
    """A new HDF5 file, on the disk when this is left; an error of the disk is raised then, and as what it is."""
    with _Sheltering(path, "w+") as raw:
        with h5py.File(raw, "w") as file:
            yield file
        if raw.error is not None:
            raise raw.error
        os.fsync(raw.fileno())


def keep_names(directory: Path) -> None:
    """Let a loss of power not undo what was renamed in a directory; where that cannot be asked for, it is not."""
    with suppress(OSError):
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def contained(file: h5py.File) -> None:
    """Refuse a file whose parts lie in other files, or claim more memory than they can fill."""
    seen: set[int] = set()
    groups: list[h5py.Group] = [file]
    while groups:
        group = groups.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise ValueError(f"{group.name}/{name} lies in another file, {link.filename}")
            if not isinstance(link, h5py.HardLink):
                continue  # inside of this file
            part = group[name]
            address = h5py.h5o.get_info(part.id).addr
            if address in seen:
                continue
            seen.add(address)
            if isinstance(part, h5py.Group):
                groups.append(part)
            elif isinstance(part, h5py.Dataset):
                measured(part)


def measured(dataset: h5py.Dataset) -> h5py.Dataset:
    """A dataset whose numbers are all in its own file; others are refused before memory is taken for them."""
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"{dataset.name} lies in other files")
    needed = math.prod(dataset.shape or ()) * dataset.dtype.itemsize
    if needed > SMALL:
        there = min(dataset.id.get_storage_size(), dataset.file.id.get_filesize())
        if dataset.id.get_create_plist().get_nfilters():
            there = sensible(there)
        if needed > there:
            raise ValueError(f"{dataset.name} tells of {needed:,} bytes, more than the file holds")
    return dataset
