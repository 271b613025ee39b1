"""From paths that a user names to sets in the cache: which files belong to which set, and who reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fbompi.data import cifar, covtype, idx, omniglot, tables
from fbompi.data.content import MOST_FEATURES, SILENT, Content, Progress
from fbompi.data.known import KNOWN
from fbompi.data.originals import plain_name, verified
from fbompi.data.store import BUILT_IN, NAME, directory
from fbompi.data.writing import store
from fbompi.errors import UserError

Reader = Callable[[Progress], Content]
EXPECTED = (
    "expected original files of MNIST (*-ubyte, *-ubyte.gz), Covertype (covtype.data.gz), CIFAR-10 "
    "(cifar-10-binary.tar.gz) or Omniglot (images_background.zip, images_evaluation.zip), "
    "or the name of a file in LIBSVM's text format or of an .npz archive"
)


def find(paths: list[Path], name: str = "") -> dict[str, Reader]:
    """The sets that the files at these paths make up, by name; nothing is read yet."""
    searched = Search(name)
    for path in paths:
        for file in _files(path):
            searched.take(file, explicit=file == path)
    readers = searched.readers()
    if not readers:
        raise UserError(f"{', '.join(str(path) for path in paths)}: no files of a data set; {EXPECTED}")
    return readers


def import_set(reader: Reader, progress: Progress = SILENT) -> Path:
    """Read a set and store it; the path of its file."""
    content = reader(progress)
    room(content)
    return store(content, progress)


def room(content: Content) -> None:
    """Refuse what cannot fit, before anything is written."""
    if content.features > MOST_FEATURES:
        raise UserError(
            f"{', '.join(content.sources)}: has {content.features:,} features; expected at most {MOST_FEATURES:,}"
        )
    place = directory()
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    system = os.statvfs(place)
    free = system.f_bavail * system.f_frsize
    if content.bytes() > free:
        raise UserError(
            f"{directory()}: has {free / 1e6:,.0f} MB free; {content.name} needs {content.bytes() / 1e6:,.0f} MB"
        )


class Search:
    """Sorts files by the set they belong to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.idx: dict[str, dict[tuple[str, str], Path]] = {}
        self.covtype: dict[str, Path] = {}
        self.archives: dict[str, Path] = {}
        self.batches: dict[str, Path] = {}
        self.pickled: list[Path] = []
        self.omniglot: dict[str, Path] = {}
        self.tables: list[Path] = []

    def take(self, path: Path, explicit: bool) -> None:
        """Put a file where it belongs; what nobody knows is left alone unless the user named it."""
        plain = plain_name(path)
        if found := idx.recognised(path):
            _keep(self.idx.setdefault(found[0], {}), found[1:], path)
        elif plain == KNOWN["covtype"].files[0].name:
            _keep(self.covtype, plain, path)
        elif cifar.ARCHIVE.fullmatch(path.name):
            _keep(self.archives, "archive", path)
        elif cifar.BATCH.fullmatch(plain):
            _keep(self.batches, plain, path)
        elif cifar.PICKLED.fullmatch(path.name):
            self.pickled.append(path)
            if explicit:
                raise cifar.refused(path)
        elif path.name in omniglot.PARTS.values():
            _keep(self.omniglot, path.name, path)
        elif explicit:
            self.tables.append(path)

    def readers(self) -> dict[str, Reader]:
        """How to read each set that was found."""
        readers: dict[str, Reader] = {}
        if self.covtype:
            readers["covtype"] = partial(covtype.covtype, next(iter(self.covtype.values())))
        if self.archives or self.batches:
            readers["cifar10"] = partial(cifar.cifar, self.archives.get("archive"), self.batches)
        if self.omniglot:
            readers["omniglot"] = partial(omniglot.omniglot, self.omniglot)
        if self.name and readers:
            raise UserError(f"--name {self.name}: {', '.join(readers)} keeps its own name: leave --name out")
        for prefix, files in self.idx.items():
            if prefix or self.name:
                self._add(readers, prefix, next(iter(files.values())), idx.idx, files)
            else:
                readers["mnist"] = partial(idx.mnist, files)
        for path, test in _pairs(self.tables):
            if path.suffix.lower() == ".npz":
                self._add(readers, path.stem, path, tables.npz, path)
            else:
                parts = {"train": path, "test": test} if test else {"train": path}
                plain = plain_name(path)
                # A test part alone, as in LIBSVM's collection, does not take the name of the whole.
                stem = plain if plain.endswith(".t") else Path(plain).stem
                self._add(readers, stem, path, tables.libsvm, parts)
        if not readers and self.pickled:
            raise cifar.refused(self.pickled[0])
        return readers

    def _add(self, readers: dict[str, Reader], stem: str, path: Path, read: Callable, files: Any) -> None:
        """A set that this project does not know, under the user's name for it or that of its file."""
        name = self.name or stem
        if not NAME.fullmatch(name):
            raise UserError(
                f'{path}: "{name}" cannot be the name of a set: expected letters, digits and .-_+, at most 64; choose '
                "one with --name"
            )
        if name in KNOWN or name == BUILT_IN:
            raise UserError(f'{path}: "{name}" is the name of another set: choose one with --name')
        if name in readers:
            raise UserError(f'{path}: there is more than one set to be called "{name}": import them one by one')
        readers[name] = partial(read, name, files)


def check_download(name: str, path: Path) -> None:
    """One clear line if a downloaded file is not what its authors distribute."""
    known = KNOWN[name]
    if name == "cifar10":
        cifar.archived(path)
    elif name == "omniglot":
        omniglot.archived(path, known.file(path.name))
    else:
        verified(path, known.file(plain_name(path)), known.title, SILENT)


def _files(path: Path) -> Iterator[Path]:
    """A file, or all files of a directory and of those below it, in the order of their names."""

    def complain(e: OSError) -> None:
        raise UserError(f"{e.filename}: cannot be read: {e.strerror or e}")

    try:
        mode = os.stat(path).st_mode
    except OSError as e:
        complain(e)
    if stat.S_ISREG(mode):
        yield path
        return
    if not stat.S_ISDIR(mode):  # a pipe would be read to its end by whoever looks first
        raise UserError(f"{path}: is neither a file nor a directory")
    for folder, below, names in os.walk(path, onerror=complain):
        below.sort()
        for name in sorted(names):
            if os.path.isfile(file := Path(folder, name)):
                yield file


def _keep(files: dict, key: object, path: Path) -> None:
    """One file of a kind: the same with and without compression, side by side, is one."""
    if key not in files:
        files[key] = path
    elif files[key].parent != path.parent:
        raise UserError(f"{path}: is there a second time: {files[key]}; name the directory of one of them")


def _pairs(paths: list[Path]) -> Iterator[tuple[Path, Path | None]]:
    """Tables, each with its test part where one of the same name with .t was named, as in LIBSVM's collection."""
    named = {plain_name(path): path for path in paths}
    for path in dict.fromkeys(paths):
        plain = plain_name(path)
        if not (plain.endswith(".t") and plain.removesuffix(".t") in named):
            yield path, named.get(f"{plain}.t")
