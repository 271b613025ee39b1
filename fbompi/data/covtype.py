"""Covertype: lines of 54 whole numbers and a class from 1 to 7."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fbompi.data.content import BLOCK, SILENT, Content, Part, Progress
from fbompi.data.known import KNOWN
from fbompi.data.originals import verified

SAMPLES, FEATURES, CLASSES = 581_012, 54, 7


def covtype(path: Path, progress: Progress = SILENT) -> Content:
    """The set out of covtype.data, if it is the authors'."""
    known = KNOWN["covtype"]
    progress.expect(known.files[0].size)
    data = verified(path, known.files[0], known.title, progress)
    parts = {"train": Part(SAMPLES, _blocks(data))}
    sources = [f"{path.name} ({known.files[0].sha256})"]
    return Content("covtype", known.title, known.description, CLASSES, FEATURES, np.dtype("<i2"), parts, sources)


def _blocks(data: bytes) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Numbers of whole lines; the checksum has shown that there is nothing else."""
    begin = 0
    while begin < len(data):
        end = data.rfind(b"\n", begin, begin + BLOCK) + 1
        numbers = np.fromstring(data[begin:end].replace(b"\n", b",").decode("ascii"), np.int16, sep=",")
        rows = numbers.reshape(-1, FEATURES + 1)
        yield rows[:, :FEATURES], rows[:, FEATURES] - 1
        begin = end
