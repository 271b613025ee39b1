"""Data sets that are ready for use: one HDF5 file per set in a cache that all runs of a user share.

A file that has its own name is complete and is never written again (see `writing`), so that any number of ranks
may read it at once and without locks. Features lie in it as one uncompressed block, of which only the rows that
are asked for are read.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from fbompi.config import nearest
from fbompi.data import digits
from fbompi.data.known import KNOWN
from fbompi.data.moments import Moments
from fbompi.errors import UserError

FORMAT, FORMAT_VERSION = "fbompi-data", 1
PARTS = ("train", "test")
BUILT_IN = "digits"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
AT_ONCE = 1 << 23  # bytes that are checked at once


def directory() -> Path:
    """Where the sets are: FBOMPI_DATA, or else below the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.path.abspath(os.environ.get("FBOMPI_DATA") or os.path.join(home, "fbompi", "data")))


def path_of(name: str) -> Path:
    """The file of a set in the cache, whether it is there or not."""
    return directory() / f"{name}.h5"


def stored() -> list[str]:
    """Names of the sets in the cache."""
    try:
        found = [path.stem for path in directory().glob("*.h5") if NAME.fullmatch(path.stem) and path.stem != BUILT_IN]
    except OSError as e:
        raise UserError(f"{directory()}: cannot be read: {e.strerror or e}") from None
    return sorted(found)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A set in the cache; the file is open only while something is read.

    Parameters
    ----------
    classes, features
        Numbers of classes and of features of a sample.
    largest
        The largest value a feature can have, 255 for images of bytes; 0.0 where there is none.
    image
        Shape of a sample as an image, or ().
    mean, deviation
        Of every feature over the training part, in stored units.
    parts
        Number of samples of every part.
    """

    name: str
    classes: int
    features: int
    largest: float
    image: tuple[int, ...]
    mean: np.ndarray
    deviation: np.ndarray
    parts: dict[str, int]
    path: Path
    checksum: str

    def labels(self, part: str) -> np.ndarray:
        """All labels of a part, int64."""
        with self._same_file() as file:
            labels = whole(file[part]["labels"], "iu").astype(np.int64)
            if labels.min() < 0 or labels.max() >= self.classes:
                raise ValueError(f"a label of {part} is not one of {self.classes} classes")
            return labels

    def rows(self, part: str, which: np.ndarray) -> np.ndarray:
        """A fresh array of these rows as they are stored; nothing else is read."""
        which = np.asarray(which)
        if which.dtype != bool and which.size == 0:
            which = which.astype(np.intp)
        with self._same_file() as file:
            whole = _mapped(file[part]["features"])
        return np.ascontiguousarray(np.asarray(whole)[which])

    @contextmanager
    def _same_file(self) -> Iterator[h5py.File]:
        """The file, which may have been imported again since, but only with the same content."""
        with reading(self.path) as file:
            if text(file, "checksum") != self.checksum:
                raise UserError(f"{self.path}: was replaced by another set while it was in use")
            yield file


class Digits(DataSet):
    """The set that ships with the package, in memory."""

    def labels(self, part: str) -> np.ndarray:
        """All labels, int64."""
        return digits.load()[1].astype(np.int64)

    def rows(self, part: str, which: np.ndarray) -> np.ndarray:
        """A fresh array of these rows, uint8."""
        return np.ascontiguousarray(digits.load()[0][which])


def open_set(name: str) -> DataSet:
    """A set by its name, or one clear line."""
    if name == BUILT_IN:
        return _digits()
    path = path_of(name)
    if NAME.fullmatch(name) and os.path.lexists(path):
        with reading(path) as file:
            return _data_set(file, path)
    if name in KNOWN:
        raise UserError(
            f'problem.data = "{name}": is not in {directory()}: fbompi data get {name}, '
            "or fbompi data import PATH of its original files"
        )
    there = stored()
    hint = nearest(name, {BUILT_IN, *KNOWN, *there})
    raise UserError(f'problem.data = "{name}": no such set; in {directory()}: {", ".join(there) or "none"}; {hint}')


def _digits() -> DataSet:
    images, labels = digits.load()
    moments = Moments(images.shape[1])
    moments.add(images)
    return Digits(BUILT_IN, 10, images.shape[1], 16.0, (8, 8), moments.mean, moments.deviation(),
                  {"train": len(labels)}, Path(str(digits.PLACE)), "")  # fmt: skip


def _data_set(file: h5py.File, path: Path) -> DataSet:
    attrs, parts = file.attrs, {}
    features = int(attrs["features"])
    for part in PARTS:
        if part in file:
            count = len(file[part]["labels"])
            _mapped(file[part]["features"])
            if file[part]["features"].shape != (count, features) or not count:
                raise ValueError(f"{part} has features of shape {file[part]['features'].shape} for {count} labels")
            parts[part] = count
    if "train" not in parts:
        raise ValueError("there is no part train")
    mean, deviation = whole(file["mean"], "f"), whole(file["deviation"], "f")
    if not mean.shape == deviation.shape == (features,):
        raise ValueError("mean and deviation have other numbers of features")
    image = tuple(int(side) for side in attrs.get("image", ()))
    if image and math.prod(image) != features:
        raise ValueError(f"images of {image} have other numbers of features than {features}")
    return DataSet(path.stem, int(attrs["classes"]), features, float(attrs["largest"]), image, mean, deviation, parts,
                   path, text(file, "checksum"))  # fmt: skip


def whole(dataset: h5py.Dataset, kinds: str) -> np.ndarray:
    """All of a dataset of numbers of these kinds; refused before memory is taken where the file cannot hold it."""
    if dataset.dtype.kind not in kinds:
        raise ValueError(f"{dataset.name} is of type {dataset.dtype}")
    _fits(dataset)
    return dataset[:]


def _fits(dataset: h5py.Dataset) -> None:
    """Nothing is compressed: a dataset that is larger than its file was never written."""
    if dataset.nbytes > dataset.file.id.get_filesize():
        raise ValueError(f"{dataset.name} tells of {dataset.nbytes:,} bytes, more than the file holds")


def _mapped(dataset: h5py.Dataset) -> np.ndarray:
    """A dataset as it lies in the file."""
    offset = dataset.id.get_offset()
    if offset is None or dataset.nbytes != dataset.id.get_storage_size():
        raise ValueError(f"{dataset.name} is not one block of numbers")
    # The file that HDF5 has open: the path may lead to another by now.
    with open(os.dup(dataset.file.id.get_vfd_handle()), "rb") as raw:
        if offset + dataset.nbytes > os.fstat(raw.fileno()).st_size:  # to touch what is not there would kill us
            raise ValueError(f"{dataset.name} is cut off")
        return np.memmap(raw, dataset.dtype, "r", offset, dataset.shape)


@contextmanager
def reading(path: Path) -> Iterator[h5py.File]:
    """A set's file, or one clear line."""
    again = "import it again (fbompi data import or get)"
    try:
        file = h5py.File(path, "r", locking=False)
    except PermissionError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (OSError, ValueError) as e:
        raise UserError(f"{path}: is damaged: {e}; {again}") from None
    try:
        with file:
            if "format" not in file.attrs or text(file, "format") != FORMAT:
                raise UserError(f"{path}: is an HDF5 file, but not a data set of fbompi; {again}")
            version = int(file.attrs["format_version"])
            if version > FORMAT_VERSION:
                raise UserError(
                    f"{path}: has data format {version}, this fbompi reads up to {FORMAT_VERSION}: install a newer "
                    f"fbompi, or {again}"
                )
            yield file
    except UserError:
        raise
    except Exception as e:  # HDF5 and h5py raise almost anything on damaged bytes
        what = e if isinstance(e, ValueError) else f"{type(e).__name__}: {e}"
        raise UserError(f"{path}: is damaged: {what}; {again}") from None


def check(name: str) -> None:
    """Compare everything that is stored with the checksums that were stored with it; one clear line otherwise."""
    path = path_of(name)
    with reading(path) as file:
        sums = {}
        for dataset in datasets(file):
            found, expected = sha256(dataset), text(dataset, "sha256")
            if found != expected:
                raise ValueError(f"{dataset.name[1:]} has SHA-256 {found}, expected {expected}")
            sums[dataset.name[1:]] = found
        if combined(sums) != text(file, "checksum"):
            raise ValueError(f"its checksum is {combined(sums)}, expected {text(file, 'checksum')}")


def text(described: h5py.File | h5py.Dataset, name: str) -> str:
    """An attribute of text, of fixed length as we write it, or of any."""
    found = described.attrs[name]
    return found.decode() if isinstance(found, bytes) else str(found)


def datasets(file: h5py.File) -> list[h5py.Dataset]:
    """Every dataset of a set's file."""
    found = [file[f"{part}/{kind}"] for part in PARTS if part in file for kind in ("features", "labels")]
    return found + [file[name] for name in ("mean", "deviation", "label_values") if name in file]


def sha256(dataset: h5py.Dataset) -> str:
    """Of the bytes of a dataset."""
    _fits(dataset)
    digest = hashlib.sha256()
    step = max(1, AT_ONCE // max(1, dataset.nbytes // max(1, len(dataset))))
    for begin in range(0, len(dataset), step):
        digest.update(np.ascontiguousarray(dataset[begin : begin + step]).data)
    return digest.hexdigest()


def combined(sums: dict[str, str]) -> str:
    """One checksum of a set: SHA-256 of the lines ``SHA-256 of a dataset, two spaces, its name``, as sha256sum has.

    Features and labels only: the last bits of means depend on NumPy.
    """
    lines = [f"{sums[name]}  {name}\n" for name in sorted(sums) if name.rpartition("/")[0] in PARTS]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
