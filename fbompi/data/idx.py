"""Sets in the IDX format of MNIST: a file of images and a file of labels for each part.

A header of big-endian numbers (two zeros, the type of the elements, the number of dimensions, then their sizes), and
then the bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fbompi.data.content import SILENT, Content, Part, Progress, rows_per_block
from fbompi.data.known import KNOWN
from fbompi.data.originals import Stream, opened, plain_name, verified
from fbompi.errors import UserError

FILE = re.compile(r"(?P<set>.*?)[-_.]?(?P<part>train|t10k|test)-(?P<kind>images|labels)[-.]idx[13]-ubyte")
PARTS = {"train": "train", "t10k": "test", "test": "test"}
UNSIGNED_BYTE = 8

Files = dict[tuple[str, str], Path]  # by part ("train", "test") and kind ("images", "labels")


def recognised(path: Path) -> tuple[str, str, str] | None:
    """What precedes the part in a file's name (nothing for MNIST), the part and the kind."""
    found = FILE.fullmatch(plain_name(path))
    return (found["set"], PARTS[found["part"]], found["kind"]) if found else None


def mnist(files: Files, progress: Progress = SILENT) -> Content:
    """MNIST out of its four files, if they are the authors'."""
    known = KNOWN["mnist"]
    found = {original: recognised(Path(original.name)) for original in known.files}
    paths = {original: files.get(key[1:]) for original, key in found.items() if key}
    missing = [original.name for original, path in paths.items() if path is None]
    if missing:
        raise UserError(f"{_folder(files)}: {', '.join(missing)} of MNIST missing (each with or without .gz)")
    progress.expect(sum(original.size for original in known.files))
    for original, path in paths.items():
        if path is not None:
            try:
                verified(path, original, "MNIST", progress)
            except UserError as e:
                raise UserError(f"{e.line}; another set in this form takes --name NAME") from None
    content = idx("mnist", files)
    content.title, content.description, content.label_values = known.title, known.description, None
    content.sources = [f"{original.name} ({original.sha256})" for original in known.files]
    return content


def idx(name: str, files: Files, progress: Progress = SILENT) -> Content:
    """Any set in this form, for instance Fashion-MNIST; labels are counted from 0 in the order of their values."""
    parts = [part for part in ("train", "test") if part == "train" or (part, "images") in files]
    for part in parts:
        for kind in ("images", "labels"):
            if (part, kind) not in files:
                raise UserError(f"{_folder(files)}: the {kind} of part {part} of {name} missing (IDX files)")
    labels = {part: _labels(files[part, "labels"]) for part in parts}
    values = np.unique(np.concatenate(list(labels.values())))
    classes = np.searchsorted(values, np.arange(256)).astype(np.uint8)  # by value, where there is one
    shapes = {part: _images_shape(files[part, "images"]) for part in parts}
    for part, (count, *sides) in shapes.items():
        if count != len(labels[part]):
            raise UserError(
                f"{files[part, 'images']}: has {count:,} images, but {files[part, 'labels']} has "
                f"{len(labels[part]):,} labels"
            )
        if sides != shapes["train"][1:]:
            raise UserError(
                f"{files[part, 'images']}: has images of {_times(sides)}, expected {_times(shapes['train'][1:])} as "
                f"in {files['train', 'images']}"
            )
    image = tuple(shapes["train"][1:])
    described = "images in IDX files, imported without a known checksum"
    blocks = {part: _blocks(files[part, "images"], classes[of]) for part, of in labels.items()}
    return Content(
        name, name, described, len(values), math.prod(image), np.dtype(np.uint8),
        {part: Part(len(of), blocks[part]) for part, of in labels.items()},
        [files[key].name for key in sorted(files)], image, values,
    )  # fmt: skip


def _blocks(path: Path, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    with opened(path) as stream:
        count, *image = _header(stream, 3)
        row = math.prod(image)
        for begin in range(0, count, step := rows_per_block(row)):
            rows = min(step, count - begin)
            data = stream.exactly(rows * row, f"{count:,} images")
            yield np.frombuffer(data, np.uint8).reshape(rows, row), labels[begin : begin + rows]
        stream.end(f"{count:,} images of {_times(image)}")


def _labels(path: Path) -> np.ndarray:
    with opened(path) as stream:
        (count,) = _header(stream, 1)
        labels = np.frombuffer(stream.exactly(count, f"{count:,} labels"), np.uint8)
        stream.end(f"{count:,} labels")
    return labels


def _images_shape(path: Path) -> list[int]:
    with opened(path) as stream:
        return _header(stream, 3)


def _header(stream: Stream, dimensions: int) -> list[int]:
    """The sizes that an IDX header tells."""
    zeros, element, told = (*stream.exactly(4, "an IDX header"),)[1:]
    if zeros or element != UNSIGNED_BYTE or told != dimensions:
        raise UserError(
            f"{stream.path}: is not an IDX file of unsigned bytes in {dimensions} dimension{'s' * (dimensions > 1)}"
        )
    sizes = np.frombuffer(stream.exactly(4 * dimensions, "an IDX header"), ">u4").tolist()
    if not all(sizes):
        raise UserError(f"{stream.path}: holds nothing: its sizes are {_times(sizes)}")
    if math.prod(sizes) > stream.limit:
        raise UserError(f"{stream.path}: is cut off or damaged: it cannot hold the {_times(sizes)} bytes it tells of")
    return sizes


def _times(sizes: list[int]) -> str:
    return "×".join(str(size) for size in sizes)


def _folder(files: Files) -> Path:
    return next(iter(files.values())).parent
