"""Arrays of an .npz archive that a user gives, each measured before memory is taken for it."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fbompi.data.originals import sensible
from fbompi.errors import UserError

_MAGIC = b"\x93NUMPY"
_HEADERS: dict[tuple[int, int], Callable] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Archive:
    """An archive without pickles: nothing in it is run, and nothing is believed of its sizes.

    NumPy takes the memory that an array's header tells of before it looks for the numbers.
    """

    def __init__(self, raw: Any, path: str | Path) -> None:
        if not zipfile.is_zipfile(raw):  # NumPy would take it for a pickle
            raise UserError(f"{path}: is damaged, or not an .npz archive")
        raw.seek(0)
        self._arrays: Any = np.load(raw, allow_pickle=False)
        self._members = {member.filename: member for member in self._arrays.zip.infolist()}
        self.names: list[str] = self._arrays.files
        size = sum(member.file_size for member in self._members.values())
        if size > sensible(raw.seek(0, 2)):
            raise UserError(f"{path}: holds {size:,} bytes, far more than expected; if it is to be so, use np.savez")

    def array(self, name: str) -> Any:
        """An array, or the bytes of a member that is none."""
        member = self._members.get(f"{name}.npy") or self._members[name]
        with self._arrays.zip.open(member) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return self._arrays[name]
            version = (*file.read(2),)
            if version not in _HEADERS:
                raise ValueError(f"{name} has a header of another kind: {version}")
            shape, _, dtype = _HEADERS[version](file)
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{name} tells of {shape} numbers of {dtype}, more than the archive holds")
        array = self._arrays[name]
        return array.view(np.uint8) != 0 if dtype == np.bool_ else array  # bytes that are neither 0 nor 1 are true
