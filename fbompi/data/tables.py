"""Sets in forms that anyone can write: LIBSVM's text, and NumPy's archives without pickles."""

from __future__ import annotations

import itertools
import math
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fbompi.archive import Archive
from fbompi.data.content import MOST_FEATURES, SILENT, Content, Part, Progress, in_blocks, rows_per_block
from fbompi.data.originals import AT_ONCE, Stream, opened
from fbompi.errors import UserError

LONGEST_LINE = 1 << 26
MOST_CLASSES = 1 << 16  # more are hardly classes
NAMES = [
    *itertools.product(("X", "x", "features", "images"), ("y", "labels")),
    *itertools.product(("X_train", "x_train"), ("y_train",)),
]
EXPECTED = "expected arrays X and y, or features and labels, or images and labels, and for a test part X_test and so on"


def libsvm(name: str, files: dict[str, Path], progress: Progress = SILENT) -> Content:
    """Lines of LABEL INDEX:VALUE..., given by part; what is not named is zero, and rows become dense."""
    tables = {}
    for part, path in files.items():
        progress.expect(path.stat().st_size)
        with opened(path, progress) as stream:
            tables[part] = Sparse(stream)
    features = max(table.features for table in tables.values())
    labels = {part: np.array(table.labels) for part, table in tables.items()}
    values = _values(np.concatenate(list(labels.values())), files["train"])
    parts = {
        part: Part(len(labels[part]), table.blocks(features, np.searchsorted(values, labels[part])))
        for part, table in tables.items()
    }
    sources = [path.name for path in files.values()]
    return Content(name, name, "dense rows of a set in LIBSVM's text format", len(values), features,
                   np.dtype(np.float32), parts, sources, label_values=values)  # fmt: skip


class Sparse:
    """The numbers of a file of LIBSVM's, row after row."""

    def __init__(self, stream: Stream) -> None:
        self.path = stream.path
        self.labels, self.ends = array("d"), array("q")
        self.columns, self.values = array("q"), array("f")
        self.features = 0
        for number, line in enumerate(_lines(stream), 1):
            try:
                self._add(line.decode("ascii").partition("#")[0].split())
            except (ValueError, OverflowError) as e:
                why = "is not text" if isinstance(e, UnicodeDecodeError) else e
                raise UserError(
                    f"{self.path}: line {number}: {why}; expected LABEL INDEX:VALUE INDEX:VALUE ... as in LIBSVM"
                ) from None
        if not self.columns:
            raise UserError(f"{self.path}: holds no numbers; expected lines LABEL INDEX:VALUE ... as in LIBSVM")

    def _add(self, words: list[str]) -> None:
        if not words:
            return
        label = float(words[0])
        if not label.is_integer():
            raise ValueError(f"label {words[0]} is not a whole number")
        last = 0
        for word in words[1:]:
            index, _, value = word.partition(":")
            column, number = int(index), float(value)
            if not last < column <= MOST_FEATURES:
                raise ValueError(f"index {index}: indices must rise, from 1 to at most {MOST_FEATURES:,}")
            self.values.append(number)
            if not math.isfinite(self.values[-1]):
                raise ValueError(f"{word}: not a finite number of single precision")
            self.columns.append(column - 1)
            last = column
        self.features = max(self.features, last)
        self.labels.append(label)
        self.ends.append(len(self.columns))

    def blocks(self, features: int, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Dense rows."""
        columns, values = np.frombuffer(self.columns, np.int64), np.frombuffer(self.values, np.float32)
        ends = np.concatenate([[0], np.frombuffer(self.ends, np.int64)])
        for begin in range(0, len(labels), step := rows_per_block(4 * features)):
            bounds = ends[begin : begin + step + 1]
            dense = np.zeros((len(bounds) - 1, features), np.float32)
            inside = slice(bounds[0], bounds[-1])
            dense[np.repeat(np.arange(len(dense)), np.diff(bounds)), columns[inside]] = values[inside]
            yield dense, labels[begin : begin + step]


def _lines(stream: Stream) -> Iterator[bytes]:
    begun: list[bytes] = []  # pieces of a line
    while data := stream.read(AT_ONCE):
        first, *lines = data.split(b"\n")
        begun.append(first)
        if lines:
            yield b"".join(begun)
            yield from lines[:-1]
            begun = lines[-1:]
        if len(begun) * AT_ONCE > LONGEST_LINE:
            raise UserError(f"{stream.path}: has a line of more than {LONGEST_LINE:,} bytes; expected LIBSVM's text")
    yield b"".join(begun)


def npz(name: str, path: Path, progress: Progress = SILENT) -> Content:
    """Arrays of an archive of NumPy's; samples of more than one dimension are images."""
    try:
        with open(path, "rb") as raw:
            archive = Archive(raw, path)
            names = _names(archive.names, path)
            arrays = {part: (archive.array(x), archive.array(y)) for part, (x, y) in names.items()}
    except UserError:
        raise
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror or e}") from None
    except Exception as e:  # NumPy and zipfile raise almost anything on damaged bytes
        why = "it holds Python objects (pickles), which are not read" if "allow_pickle" in str(e) else e
        raise UserError(f"{path}: cannot be read as an .npz archive: {why}") from None
    for x, y in arrays.values():
        _check_arrays(x, y, path)
    shape = arrays["train"][0].shape[1:]
    if any(x.shape[1:] != shape for x, _ in arrays.values()):
        raise UserError(f"{path}: samples have other shapes in the test part than in the training part")
    values = _values(np.concatenate([y for _, y in arrays.values()]), path)
    dtype = _stored_type(np.result_type(*(x.dtype for x, _ in arrays.values())))
    parts = {
        part: Part(len(x), in_blocks(x.reshape(len(x), -1).astype(dtype, copy=False), np.searchsorted(values, y)))
        for part, (x, y) in arrays.items()
    }
    return Content(name, name, "arrays of an .npz archive", len(values), math.prod(shape), dtype, parts, [path.name],
                   shape if len(shape) > 1 else (), values)  # fmt: skip


def _names(there: list[str], path: Path) -> dict[str, tuple[str, str]]:
    """Names of features and labels of every part."""
    for x, y in NAMES:
        if x in there and y in there:
            test = [name.removesuffix("_train") + "_test" for name in (x, y)]
            found = [name for name in test if name in there]
            if len(found) == 1:
                raise UserError(f"{path}: has {found[0]} but not {(set(test) - set(found)).pop()}")
            return {"train": (x, y), "test": (test[0], test[1])} if found else {"train": (x, y)}
    raise UserError(f"{path}: has arrays {', '.join(there) or 'none'}; {EXPECTED}")


def _check_arrays(x: np.ndarray, y: np.ndarray, path: Path) -> None:
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        raise UserError(f"{path}: holds something else than arrays; {EXPECTED}")
    if x.ndim < 2 or not x.size or x.dtype.kind not in "buif":
        raise UserError(f"{path}: features of shape {x.shape} and type {x.dtype}: expected a row of numbers per sample")
    if y.shape != (len(x),):
        raise UserError(f"{path}: has labels of shape {y.shape} for {len(x):,} samples; expected ({len(x)},)")
    if y.dtype.kind not in "buifUS" or (y.dtype.kind == "f" and not _whole(y)):
        raise UserError(f"{path}: has labels of type {y.dtype}; expected whole numbers or words")
    if y.dtype.kind == "U" and y.size and _code_points(y).max(initial=0) > sys.maxunicode:
        raise UserError(f"{path}: has labels that are not text")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise UserError(f"{path}: has features that are not finite numbers")


def _code_points(words: np.ndarray) -> np.ndarray:
    """The characters of words, as numbers that may be none of Unicode's."""
    return np.ascontiguousarray(words).view(np.dtype(np.uint32).newbyteorder(words.dtype.byteorder))


def _whole(numbers: np.ndarray) -> bool:
    return bool(np.isfinite(numbers).all() and (numbers == np.floor(numbers)).all())


def _stored_type(dtype: np.dtype) -> np.dtype:
    """The type as it is stored: of this machine's byte order, and one that everyone can read."""
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind == "f":
        return np.dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
    return dtype.newbyteorder("=")


def _values(labels: np.ndarray, path: Path) -> np.ndarray:
    """The different labels in their order."""
    values = np.unique(labels)
    if len(values) > MOST_CLASSES:
        raise UserError(f"{path}: has {len(values):,} different labels; expected at most {MOST_CLASSES:,} classes")
    if values.dtype.kind == "f" and (abs(values) < 2**53).all():
        return values.astype(np.int64)
    return values
