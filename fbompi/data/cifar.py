"""CIFAR-10 in its binary version: six files of records, each a label byte and 3072 bytes of colour planes."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np

from fbompi.data.content import SILENT, Content, Part, Progress, in_blocks
from fbompi.data.known import KNOWN
from fbompi.data.originals import check, opened, verified
from fbompi.errors import UserError

KNOWN_SET = KNOWN["cifar10"]
ARCHIVE = re.compile(r"cifar-10-binary(\.tar(\.\w+)?|\.tgz|\.txz|\.tbz2?)")
BATCH = re.compile(r"(data_batch_[1-5]|test_batch)\.bin")
PICKLED = re.compile(r"data_batch_[1-5]|test_batch|cifar-10-python(\.tar(\.\w+)?|\.tgz)")
IMAGE = 3, 32, 32
PER_BATCH, RECORD = 10_000, 3073
OVERHEAD = 1 << 20  # bytes of the archive besides the batches: headers, the names of the classes, a page of text


def cifar(archive: Path | None, batches: dict[str, Path], progress: Progress = SILENT) -> Content:
    """The set out of the authors' archive, or of the files that were in it."""
    progress.expect(sum(original.size for original in KNOWN_SET.files))
    if archive is not None:
        data = archived(archive, progress)
    else:
        missing = [original.name for original in KNOWN_SET.files if original.name not in batches]
        if missing:
            folder = next(iter(batches.values())).parent
            raise UserError(f"{folder}: {', '.join(missing)} of {KNOWN_SET.title} missing")
        data = {o.name: verified(batches[o.name], o, KNOWN_SET.title, progress) for o in KNOWN_SET.files}
    train = [original.name for original in KNOWN_SET.files if original.name != "test_batch.bin"]
    parts = {"train": _part(data, train), "test": _part(data, ["test_batch.bin"])}
    sources = [f"{original.name} ({original.sha256})" for original in KNOWN_SET.files]
    features = RECORD - 1
    return Content("cifar10", KNOWN_SET.title, KNOWN_SET.description, 10, features, np.dtype(np.uint8), parts, sources,
                   IMAGE)  # fmt: skip


def archived(path: Path, progress: Progress = SILENT) -> dict[str, bytes]:
    """The batches of a tar file, each checked; nothing is unpacked to the disk."""
    data = {}
    names = []
    wanted = {original.name: original for original in KNOWN_SET.files}
    with opened(path, progress, sum(original.size for original in KNOWN_SET.files) + OVERHEAD) as stream:
        try:
            with tarfile.open(fileobj=cast("None", stream), mode="r|") as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    names.append(name)
                    content = archive.extractfile(member) if name in wanted and member.isreg() else None
                    if content is not None:
                        data[name] = content.read(wanted[name].size + 1)
                        check(f"{path}: {member.name}", data[name], wanted[name], KNOWN_SET.title)
        except UserError:
            raise
        except Exception as e:  # tarfile raises almost anything on damaged bytes
            raise UserError(f"{path}: is damaged, or not a tar archive: {e}") from None
    if not data and any(PICKLED.fullmatch(name) for name in names):
        raise refused(path)
    if missing := [name for name in wanted if name not in data]:
        raise UserError(f"{path}: {', '.join(missing)} of {KNOWN_SET.title} missing in the archive")
    return data


def refused(path: Path) -> UserError:
    """Pickles can run any code: they are not opened."""
    return UserError(
        f"{path}: is the pickled version of CIFAR-10 for Python, which is not read: take the binary version, "
        f"{KNOWN_SET.downloads[0]} (fbompi data get cifar10)"
    )


def _part(data: dict[str, bytes], names: list[str]) -> Part:
    return Part(PER_BATCH * len(names), _blocks([data[name] for name in names]))


def _blocks(batches: list[bytes]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for batch in batches:
        records = np.frombuffer(batch, np.uint8).reshape(PER_BATCH, RECORD)
        yield from in_blocks(records[:, 1:], records[:, 0])
