"""Reading original files: compressed or not, never more than is expected, checked byte for byte."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fbompi.data.content import SILENT, Progress
from fbompi.data.known import Original
from fbompi.errors import UserError

OPENERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
COMPRESSED = (".gz", ".bz2", ".xz")
AT_ONCE = 1 << 20
# A compressed file of a few bytes can hold more than any disk. Of one without a known size no more is read than so many
# times its own size, or this much: text and images are packed tenfold at best.
FATTEST, SMALL = 100, 1 << 28


class Stream:
    """The content of a file, counted and hashed while it is read; an error names the file."""

    def __init__(self, path: Path, raw: IO[bytes], progress: Progress, limit: int) -> None:
        self.path, self.raw, self.progress, self.limit = path, raw, progress, limit
        self.count = 0
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        pieces, missing = [], size
        while missing > 0 and (piece := self._piece(min(missing, AT_ONCE))):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def exactly(self, size: int, what: str) -> bytes:
        """So many bytes, or one clear line."""
        data = self.read(size)
        if len(data) < size:
            raise UserError(f"{self.path}: ends after {self.count:,} bytes, in the middle of {what}")
        return data

    def end(self, what: str) -> None:
        """There must be nothing more."""
        if self.read(1):
            raise UserError(f"{self.path}: goes on after {self.count - 1:,} bytes; expected {what}")

    def _piece(self, size: int) -> bytes:
        try:
            data = self.raw.read(size)
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as e:
            raise UserError(f"{self.path}: is damaged: cannot be decompressed: {e}") from None
        except OSError as e:  # of the disk, or bz2's word for damage
            raise UserError(f"{self.path}: cannot be read: {e.strerror or e}") from None
        self.count += len(data)
        self.digest.update(data)
        self.progress.advance(len(data))
        if self.count > self.limit:
            raise UserError(
                f"{self.path}: holds more than {self.limit:,} bytes, far more than expected; if it is to be so, "
                "decompress it first"
            )
        return data


@contextmanager
def opened(path: Path, progress: Progress = SILENT, limit: int = 0) -> Iterator[Stream]:
    """A file's content, decompressed where its first bytes say that it is compressed; no more than can be right."""
    try:
        with open(path, "rb") as file:
            head, size = file.read(6), os.fstat(file.fileno()).st_size
        opener = next((opener for magic, opener in OPENERS.items() if head.startswith(magic)), None)
        raw = opener(path) if opener else open(path, "rb")  # noqa: SIM115
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror or e}") from None
    with raw:
        yield Stream(path, raw, progress, limit or (sensible(size) if opener else size))


def sensible(size: int) -> int:
    """How many bytes a compressed file of this size may hold."""
    return max(SMALL, FATTEST * size)


def verified(path: Path, original: Original, title: str, progress: Progress) -> bytes:
    """The whole content of an original file, or one clear line that it is another's or damaged."""
    with opened(path, progress) as stream:
        data = stream.read(original.size + 1)
        check(f"{path}", data, original, title, stream.digest.hexdigest())
    return data


def check(where: str, data: bytes, original: Original, title: str, digest: str = "") -> None:
    """Compare bytes with what the authors distribute."""
    if len(data) != original.size:
        size = f"{len(data):,}" if len(data) < original.size else "more"
        raise UserError(
            f"{where}: is not {original.name} of {title}: it has {size} bytes uncompressed, expected {original.size:,}"
        )
    digest = digest or hashlib.sha256(data).hexdigest()
    if digest != original.sha256:
        raise UserError(
            f"{where}: is not {original.name} of {title}: it has SHA-256 {digest} uncompressed, expected "
            f"{original.sha256}"
        )


def plain_name(path: Path) -> str:
    """The name of a file without the ending of its compression."""
    return path.stem if path.suffix.lower() in COMPRESSED else path.name
