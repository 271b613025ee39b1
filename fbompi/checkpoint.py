"""Checkpoints: the server's whole state in HDF5, from which a run goes on as if nothing had happened.

A checkpoint lies beside its run file while the run is under way, in two generations, each written under a temporary
name, with a checksum behind it, then renamed. A run that is complete keeps its last one under /checkpoint, so that it
can be prolonged.

What is kept is arrays, numbers, texts, and lists, dictionaries and objects of these. What kind of object goes where is
known from a state that a method has just begun, never from the file: reading one runs nothing.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fbompi.errors import UserError
from fbompi.hdf5 import contained, created, keep_names, measured
from fbompi.links.link import LinkState

FORMAT, FORMAT_VERSION = "fbompi-checkpoint", 1
_TRAILER = b"fbompi checkpoint"  # then the length of what is before it, and its checksum
_TRAILER_SIZE = len(_TRAILER) + 12
SHARE = 0.01  # of a run's time that checkpoints may take
AT_LEAST = 1.0  # seconds between two of them
PLAIN = (bool, int, float, str)


@dataclass
class Checkpoint:
    """A run between two outer rounds."""

    run: str  # which run it belongs to, as its file is marked
    rows: int  # of the trajectory, and of the log of arrivals
    events: int
    ages: list[float]  # sum and number of those since the last row
    server_seconds: float
    state: Any  # the method's
    link: LinkState


# In and out of HDF5


def pack(group: h5py.Group, name: str, value: Any) -> None:
    """Put a value into a group."""
    if value is None or isinstance(value, (*PLAIN, np.generic)):
        plain = value.item() if isinstance(value, np.generic) else value
        group.attrs[name] = h5py.Empty("f") if plain is None else plain
    elif isinstance(value, np.ndarray):
        group.create_dataset(name, data=value)
    elif isinstance(value, set):
        group.create_dataset(name, data=np.array(sorted(value), np.int64))
    else:
        part = group.create_group(name, track_order=True)
        for key, member in _members(value, name):
            pack(part, key, member)


def check(value: Any, name: str = "state") -> None:
    """Refuse what could not be kept: better before the first round than after an hour."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biuf":
            raise _unkeepable(f"{name} has numbers of kind {value.dtype}")
    elif isinstance(value, set):
        if not all(isinstance(member, int | np.integer) for member in value):
            raise _unkeepable(f"{name} is a set of other things than whole numbers")
    elif value is not None and not isinstance(value, PLAIN):
        for key, member in _members(value, name):
            check(member, f"{name}.{key}")


def _unkeepable(what: str) -> UserError:
    return UserError(
        f"{what}, which cannot be kept in a checkpoint: expected arrays of numbers, numbers, texts, sets of whole "
        "numbers, or lists, dictionaries and dataclasses of these"
    )


def _members(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The parts of a value that has any, by name."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) and key and "/" not in key for key in value):
            raise _unkeepable(f"{name} has keys that are no texts, or with a slash")
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from ((str(i), member) for i, member in enumerate(value))
    elif (names := _fields(value)) is not None:
        yield from ((key, getattr(value, key)) for key in names)
    else:
        raise _unkeepable(f"{name} is a {type(value).__name__}")


def _fields(value: Any) -> tuple[str, ...] | None:
    """What of an object is its state: all fields of a dataclass, or what its class names as `kept`."""
    if hasattr(type(value), "kept"):
        return type(value).kept
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value))
    return None


def unpack(group: h5py.Group, name: str, like: Any) -> Any:
    """The value of this name, of the kind that `like` is; whatever does not fit is refused."""
    if name in group.attrs:
        return _plain(group.attrs[name], name, like)
    part = group[name]
    if isinstance(part, h5py.Dataset):
        array = _array(part, name)
        if isinstance(like, set):
            return set(array.astype(np.int64).tolist())
        if like is not None and (not isinstance(like, np.ndarray) or like.dtype.kind != array.dtype.kind):
            raise ValueError(f"{name} is an array of {array.dtype}, expected {_kind(like)}")
        if like is not None and not _same_shape(array.shape, like.shape):
            raise ValueError(f"{name} has shape {array.shape}, expected {like.shape}")
        return array
    if isinstance(like, dict):
        return {key: unpack(part, key, like.get(key, next(iter(like.values()), None))) for key in _names(part)}
    if isinstance(like, list | tuple):
        members = [unpack(part, str(i), like[i] if i < len(like) else None) for i in range(len(_names(part)))]
        return members if isinstance(like, list) else tuple(members)
    names = _fields(like)
    if names is None:
        raise ValueError(f"{name} has parts, expected {_kind(like)}")
    found = copy.copy(like)
    for key in names:
        before = getattr(like, key)
        member = unpack(part, key, before)
        if hasattr(type(like), "kept"):
            _complete(member, before, key)
        setattr(found, key, member)
    return found


def _plain(stored: Any, name: str, like: Any) -> Any:
    like = like.item() if isinstance(like, np.generic) else like
    if like is not None and not isinstance(like, PLAIN):
        raise ValueError(f"{name} has no parts, expected {_kind(like)}")
    if isinstance(stored, h5py.Empty) and like is None:
        return None
    value = stored.item() if isinstance(stored, np.generic) else stored
    if isinstance(like, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    kind = next((plain for plain in PLAIN if isinstance(like, plain)), None)
    if not isinstance(value, PLAIN) or (kind and type(value) is not kind):
        raise ValueError(f"{name} is {value!r}, expected {_kind(like)}")
    return value


def _array(part: h5py.Dataset, name: str) -> np.ndarray:
    """A dataset of numbers."""
    if part.dtype.kind not in "biuf" or part.shape is None:
        raise ValueError(f"{name} is not an array of numbers")
    return measured(part)[()]


def _same_shape(found: tuple[int, ...], begun: tuple[int, ...]) -> bool:
    """Whether an array can be what another has become: axes that begin with nothing may grow, others stay."""
    return len(found) == len(begun) and all(n == m or not m for n, m in zip(found, begun))


def _complete(found: Any, before: Any, name: str) -> None:
    """Lists and dictionaries of objects that name their parts as `kept` neither grow nor shrink."""
    if isinstance(before, list | dict) and len(found) != len(before):
        raise ValueError(f"{name} has {len(found)} parts, expected {len(before)}")
    if isinstance(before, dict) and found.keys() != before.keys():
        raise ValueError(f"{name} has parts {', '.join(found)}, expected {', '.join(before)}")


def _names(part: h5py.Group) -> list[str]:
    return [*part.attrs, *part]


def _kind(like: Any) -> str:
    return "an array" if isinstance(like, np.ndarray) else f"a {type(like).__name__}"


# Files


def beside(run_file: Path) -> tuple[Path, Path]:
    """Where the last checkpoint of a run lies, and the one before."""
    return run_file.with_name(run_file.name + ".checkpoint"), run_file.with_name(run_file.name + ".checkpoint.old")


def _begun(run_file: Path) -> Path:
    """Where one is written; who writes it holds the lock on the run file, so that there is never another."""
    return run_file.with_name(run_file.name + ".checkpoint.new")


def write(run_file: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint beside a run file; whatever happens, the last one stays until this one is there."""
    last, before = beside(run_file)
    temporary = _begun(run_file)
    try:
        with created(temporary) as file:
            file.attrs.update(format=FORMAT, format_version=FORMAT_VERSION)
            pack(file, "checkpoint", checkpoint)
        with open(temporary, "r+b") as written:
            length, checksum = _checksum(written)
            written.write(_TRAILER + length.to_bytes(8, "little") + checksum.to_bytes(4, "little"))
            written.flush()
            os.fsync(written.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.replace(last, before)
        os.replace(temporary, last)
        keep_names(last.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _checksum(file: Any, length: int | None = None) -> tuple[int, int]:
    """Of the first bytes of a file, or of all: how many they are, and their checksum; the place is behind them."""
    checksum, done = 0, 0
    file.seek(0)
    while piece := file.read(1 << 20 if length is None else min(1 << 20, length - done)):
        checksum, done = zlib.crc32(piece, checksum), done + len(piece)
    return done, checksum


def candidates(path: Path, run_file: h5py.File) -> Iterator[tuple[str, Path]]:
    """Where the checkpoints of a run are, the newest first, each with how to call it."""
    yield from ((str(place), place) for place in beside(path) if place.exists())
    if "checkpoint" in run_file:
        yield f"{path}, /checkpoint", path


class Newer(UserError):
    """A checkpoint that only a newer fbompi can read."""


def read(name: str, path: Path, run_file: h5py.File, like: Checkpoint) -> Checkpoint:
    """A checkpoint of a run whose file is open: from there or beside it. Anything wrong with it is one clear line."""
    try:
        if str(path) == name:
            verify(path)
            with h5py.File(path, "r", locking=False) as file:
                if file.attrs["format"] != FORMAT:
                    raise ValueError("it is another HDF5 file")
                if int(file.attrs["format_version"]) > FORMAT_VERSION:
                    raise Newer(f"{name}: is a checkpoint of a newer fbompi; install that one")
                contained(file)
                return unpack(file, "checkpoint", like)
        return unpack(run_file, "checkpoint", like)
    except UserError:
        raise
    except Exception as e:  # HDF5 and h5py raise almost anything on damaged bytes
        raise unusable(name, e) from None


def unusable(name: str, error: Exception) -> UserError:
    """One line for a checkpoint that is left aside."""
    why = (str(error).splitlines() or [repr(error)])[0]
    return UserError(f"{name}: is no checkpoint that can be used: {why[:200]}")


def verify(path: Path) -> None:
    """Refuse a checkpoint of which not every byte is as it was written."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _TRAILER_SIZE:
            raise ValueError("it is truncated")
        file.seek(size - _TRAILER_SIZE)
        trailer = file.read()
        length, checksum = (int.from_bytes(part, "little") for part in (trailer[-12:-4], trailer[-4:]))
        if trailer[: len(_TRAILER)] != _TRAILER or length != size - _TRAILER_SIZE:
            raise ValueError("it is truncated")
        if _checksum(file, length)[1] != checksum:
            raise ValueError("its checksum is wrong")


def remove(run_file: Path) -> None:
    """Take away what lies beside a run file."""
    for path in (_begun(run_file), *beside(run_file)):
        path.unlink(missing_ok=True)
