"""Omniglot: drawings of characters as PNG files, in one archive of zip for each part."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from fbompi.data.content import SILENT, Content, Part, Progress
from fbompi.data.known import KNOWN, Original
from fbompi.errors import UserError

KNOWN_SET = KNOWN["omniglot"]
PARTS = {"train": "images_background.zip", "test": "images_evaluation.zip"}
DRAWN, SIDE = 105, 28
LARGEST_PNG = 4096  # bytes; the authors' have at most 522
AT_ONCE = 1000  # images

Drawings = list[tuple[PurePosixPath, bytes]]


def omniglot(files: dict[str, Path], progress: Progress = SILENT) -> Content:
    """The set out of its two archives, given by their names, if they are the authors'."""
    missing = [name for name in PARTS.values() if name not in files]
    if missing:
        raise UserError(f"{next(iter(files.values())).parent}: {', '.join(missing)} of Omniglot missing")
    _pillow(files[PARTS["train"]])
    progress.expect(sum(original.size for original in KNOWN_SET.files))
    drawings = {part: archived(files[name], KNOWN_SET.file(name), progress) for part, name in PARTS.items()}
    characters = [str(name) for part in PARTS for name in dict.fromkeys(_character(path) for path, _ in drawings[part])]
    numbers = {name: number for number, name in enumerate(characters)}
    parts = {part: Part(len(drawn), _blocks(drawn, numbers)) for part, drawn in drawings.items()}
    sources = [f"{original.name} ({original.sha256} of names and images)" for original in KNOWN_SET.files]
    return Content("omniglot", KNOWN_SET.title, KNOWN_SET.description, len(characters), SIDE * SIDE, np.dtype(np.uint8),
                   parts, sources, (SIDE, SIDE), np.array(characters))  # fmt: skip


def archived(path: Path, original: Original, progress: Progress = SILENT) -> Drawings:
    """The images of an archive in the order of alphabet, character and file, checked against the authors'."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if _drawing(member.filename)]
            if sum(min(member.file_size, LARGEST_PNG) for member in members) > original.size + LARGEST_PNG:
                raise UserError(f"{path}: is not {original.name} of {KNOWN_SET.title}: it holds more than expected")
            drawings = []
            for member in members:
                with archive.open(member) as file:
                    drawings.append((PurePosixPath(member.filename), file.read(LARGEST_PNG)))
                progress.advance(len(drawings[-1][1]))
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror or e}") from None
    except UserError:
        raise
    except Exception as e:  # zipfile raises almost anything on damaged bytes
        raise UserError(f"{path}: is damaged, or not a zip archive: {e}; expected {original.name}") from None
    drawings.sort(key=lambda drawing: drawing[0].parts)
    found = _digest(drawings)
    if found != original.sha256:
        raise UserError(
            f"{path}: is not {original.name} of {KNOWN_SET.title}: its {len(drawings):,} images have SHA-256 {found}, "
            f"expected {original.sha256} (of their names and bytes)"
        )
    return drawings


def _drawing(name: str) -> bool:
    """Whether a member is an image of the set, and not what an operating system adds to archives."""
    path = PurePosixPath(name)
    return len(path.parts) == 4 and path.suffix == ".png" and not path.name.startswith(".")


def _digest(drawings: Drawings) -> str:
    """SHA-256 of every name, a zero and the bytes of the image, in the order of the names."""
    digest = hashlib.sha256()
    for path, data in sorted(drawings, key=lambda drawing: str(drawing[0])):
        digest.update(str(path).encode() + b"\0" + data)
    return digest.hexdigest()


def _character(path: PurePosixPath) -> str:
    return f"{path.parts[-3]}/{path.parts[-2]}"


def _blocks(drawings: Drawings, numbers: dict[str, int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for begin in range(0, len(drawings), AT_ONCE):
        block = drawings[begin : begin + AT_ONCE]
        ink = np.stack([_ink(data) for _, data in block])
        yield reduced(ink).reshape(len(block), -1), np.array([numbers[_character(path)] for path, _ in block])


def _ink(png: bytes) -> np.ndarray:
    """1 where there is ink."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return ~np.asarray(image.convert("1"))


def reduced(ink: np.ndarray) -> np.ndarray:
    """Images of 105×105 averaged over the areas of 28×28 pixels: the share of ink, from 0 to 255.

    A pixel is 105/28 = 15/4 drawn ones wide, so that areas are whole numbers of quarter pixels, and all sums are exact.
    """
    quarters = np.arange(4 * DRAWN)
    widths = np.zeros((SIDE, DRAWN), np.float32)
    np.add.at(widths, (quarters // 15, quarters // 4), 1)
    area = widths @ ink.astype(np.float32) @ widths.T  # up to 15²: whole numbers, exact in float32
    return ((2 * 255 * area.astype(np.int32) + 225) // 450).astype(np.uint8)


def _pillow(path: Path) -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise UserError(f"{path}: its PNG images are read with Pillow: pip install 'fbompi[images]'") from None
