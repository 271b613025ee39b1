"""A file whose changes take effect together or not at all, whenever the writer is killed.

HDF5 writes what changed in several pieces, and a kill between two of them leaves a file that does not open. Here what
is written over the content of the last commit is kept in memory; what is new goes behind it, where nothing points yet.
A commit writes the changes into a journal beside the file, with a checksum, then into the file, then empties the
journal. Whoever opens the file finds the journal complete, and applies it, or does not, and forgets it.

The journal is there as long as its writer, who holds a lock on it: two runs cannot have one file. Another lock, on a
byte of it, is held during a commit, and by readers while they copy the file: they see it as it was between two commits.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fbompi.errors import UserError

PAGE = 4096
_MAGIC = b"fbompi J"
_HEADER = struct.Struct("<8sQQII")  # magic, size of the file before, bytes that follow, their checksum, how many runs
_RUN = struct.Struct("<QQ")  # place in the file, bytes
MOMENT = 0.5  # seconds for which anybody waits for a lock that others hold while they look, copy, mend or commit
COMMIT_BYTE = 1 << 40  # of the journal, far behind its end
LARGEST_COPY = 1 << 30  # bytes of a file that a reader copies
UNLOCKABLE = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)  # file systems without locks
UNRESERVABLE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # that give no room beforehand


def journal_of(path: Path) -> Path:
    """Where the journal of a file lies."""
    return path.with_name(path.name + ".journal")


class Lock:
    """The right to write a file, for as long as this process has it."""

    def __init__(self, path: Path) -> None:
        self.journal, deadline = journal_of(path), time.monotonic() + MOMENT
        while True:
            try:
                self.fd = os.open(self.journal, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as e:
                raise UserError(f"{path}: cannot be written: {self.journal.name}: {e.strerror or e}") from None
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as e:
                if e.errno not in UNLOCKABLE:
                    os.close(self.fd)
                    if time.monotonic() > deadline:
                        line = f"{path}: is being written by another run; wait for its end, or stop it"
                        raise UserError(line) from None
                    time.sleep(MOMENT / 20)
                    continue
            if _is_still(self.journal, self.fd):
                return
            os.close(self.fd)  # whoever had it has taken it away just now

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Readers wait, or are waited for."""
        _wait_for(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, COMMIT_BYTE)

    def release(self) -> None:
        """Give it up; a journal that still holds something stays, for whoever opens the file next."""
        if self.fd >= 0:
            if not os.fstat(self.fd).st_size:
                self.journal.unlink(missing_ok=True)
            os.close(self.fd)
            self.fd = -1


def _wait_for(journal: int, kind: int) -> None:
    """Until no commit is under way, or for a writer no copying, and none begins; not for ever: who commits or copies
    may have been stopped in it, and not every file system has locks."""
    deadline = time.monotonic() + MOMENT
    while time.monotonic() < deadline:
        try:
            return fcntl.lockf(journal, kind | fcntl.LOCK_NB, 1, COMMIT_BYTE)
        except OSError as e:
            if e.errno in UNLOCKABLE:
                return
        time.sleep(MOMENT / 500)


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def is_being_written(path: Path) -> bool:
    """Whether some process holds the lock."""
    try:
        fd = os.open(journal_of(path), os.O_RDONLY | os.O_NONBLOCK)  # it may be anything that has this name
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as e:
        return e.errno not in UNLOCKABLE
    finally:
        os.close(fd)
    return False


def pending(path: Path) -> dict[int, bytes]:
    """The changes that a complete journal holds, by their place in the file; none, if it is not complete.

    All of them lie in what the file had before. One that is smaller by now has had them: it was cut off last.
    """
    try:
        journal = os.open(journal_of(path), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        return _changes(journal, path.stat().st_size)
    except OSError:
        return {}
    finally:
        os.close(journal)


def _changes(journal: int, size: int) -> dict[int, bytes]:
    """The same of an open journal, to a file of this size."""
    header = os.pread(journal, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return {}
    magic, before, length, checksum, count = _HEADER.unpack(header)
    most = before + (before // PAGE + 1) * _RUN.size
    if magic != _MAGIC or before > size or length > most:
        return {}
    body = memoryview(os.pread(journal, length + 1, _HEADER.size))
    if length != len(body) or zlib.crc32(body) != checksum:
        return {}
    runs, place = {}, 0
    for _ in range(count):
        if place + _RUN.size > length:
            return {}
        begin, size = _RUN.unpack_from(body, place)
        place += _RUN.size
        if begin + size > before:
            return {}
        runs[begin] = bytes(body[place : place + size])
        place += size
    return runs if place == length else {}


def recover(path: Path) -> None:
    """Bring a file to its last commit; for who holds the lock."""
    runs = pending(path)
    if runs:
        with open(path, "r+b") as file:
            for begin, content in runs.items():
                file.seek(begin)
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
    os.truncate(journal_of(path), 0)


def image(path: Path) -> io.BytesIO | Path:
    """What a reader is to open: the file; its content between two commits, while it is being written and where its
    writer was killed in one."""
    live = is_being_written(path) and path.stat().st_size <= LARGEST_COPY
    try:
        journal = os.open(journal_of(path), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return path
    try:  # nothing else may open the journal meanwhile: closing it would give up the lock
        _wait_for(journal, fcntl.LOCK_SH)
        runs = _changes(journal, path.stat().st_size)
        if not runs and not live:
            return path
        content = io.BytesIO(path.read_bytes())
    except OSError:  # it is no journal
        return path
    finally:
        os.close(journal)
    for begin, piece in runs.items():
        content.seek(begin)
        content.write(piece)
    content.seek(0)
    return content


def _write(fd: int, content: Any, place: int) -> None:
    """All of it: where the disk takes only a part, the rest raises."""
    view = memoryview(content)
    while len(view):
        done = os.pwrite(fd, view, place)
        view, place = view[done:], place + done


class Journaled:
    """A file object for h5py. Errors of the disk do not reach HDF5, which would not survive them: see `commit`."""

    def __init__(self, path: Path, lock: Lock) -> None:
        recover(path)
        self._lock, self._fd = lock, os.open(path, os.O_RDWR)
        self._committed = self._size = os.fstat(self._fd).st_size
        self._pages: dict[int, bytearray] = {}  # changed, of what was committed
        self._place = 0
        self._error: OSError | None = None
        self._owing = False  # whether the journal holds what could not be written into the file

    # What h5py asks of a file

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, count: int = -1) -> bytes:
        content = bytearray(self._size - self._place if count < 0 else count)
        return bytes(content[: self.readinto(memoryview(content))])

    def readinto(self, buffer: memoryview) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._place))
        content = os.pread(self._fd, count, self._place)
        view[: len(content)] = content
        view[len(content) : count] = bytes(count - len(content))
        for number, inside, outside in self._covered(self._place, min(count, self._committed - self._place)):
            if number in self._pages:
                view[outside] = self._pages[number][inside]
        self._place += count
        return count

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        begin, end = self._place, self._place + len(view)
        old = max(0, min(end, self._committed) - begin)  # bytes that lie over what was committed
        for number, inside, outside in self._covered(begin, old):
            self._page(number)[inside] = view[outside]
        if old < len(view):
            self._try(_write, self._fd, view[old:], begin + old)
        self._place, self._size = end, max(self._size, end)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._size = self._place if size is None else size
        if self._size > self._committed:
            self._try(os.ftruncate, self._fd, self._size)
        return self._size

    def flush(self) -> None:
        """HDF5 may ask for it at any time; what counts is `commit`."""

    # What a writer asks

    def commit(self, durable: bool = False) -> None:
        """Let all changes take effect; where the disk refused one, none does, and its error is raised.

        A kill costs nothing from then on; with `durable` a loss of power neither.
        """
        runs = list(self._runs())
        self._try(self._take_room)
        if runs and self._error is None:
            content = b"".join(part for begin, run in runs for part in (_RUN.pack(begin, len(run)), run))
            header = _HEADER.pack(_MAGIC, self._committed, len(content), zlib.crc32(content), len(runs))
            self._try(_write, self._lock.fd, header + content, 0)
            if durable:
                self._try(os.fsync, self._lock.fd)
        if self._error is not None:
            self._forget()
            raise self._error
        try:
            with self._lock.committing():
                for begin, run in runs:
                    _write(self._fd, run, begin)
                if self._size < self._committed:
                    os.ftruncate(self._fd, self._size)
                if durable:
                    os.fsync(self._fd)
                os.ftruncate(self._lock.fd, 0)
        except OSError as e:  # the room was there: the disk itself fails. Whoever opens the file next has the journal
            self._error, self._owing = e, bool(runs)
            raise
        self._pages.clear()
        self._committed = self._size

    def _take_room(self) -> None:
        """What is new may have holes, into which a later commit could not write when the disk is full."""
        if self._size > self._committed:
            try:
                os.posix_fallocate(self._fd, self._committed, self._size - self._committed)
            except OSError as e:
                if e.errno not in UNRESERVABLE:
                    raise

    def close(self) -> None:
        os.close(self._fd)

    def _runs(self) -> Iterator[tuple[int, bytes]]:
        """The changed pages, those side by side in one piece, with their place in the file."""
        numbers = sorted(self._pages)
        begins = [i for i, number in enumerate(numbers) if not i or number != numbers[i - 1] + 1]
        for begin, end in zip(begins, [*begins[1:], len(numbers)]):
            yield numbers[begin] * PAGE, b"".join(self._pages[number] for number in numbers[begin:end])

    def _forget(self) -> None:
        """Back to the last commit, which also frees what room there was."""
        self._pages.clear()
        if not self._owing:
            os.ftruncate(self._lock.fd, 0)
            os.ftruncate(self._fd, self._committed)

    def _try(self, call: Callable[..., object], *arguments: Any) -> None:
        if self._error is None:
            try:
                call(*arguments)
            except OSError as e:
                self._error = e

    def _page(self, number: int) -> bytearray:
        page = self._pages.get(number)
        if page is None:
            size = min(PAGE, self._committed - number * PAGE)
            page = self._pages[number] = bytearray(os.pread(self._fd, size, number * PAGE))
        return page

    def _covered(self, begin: int, count: int) -> Iterator[tuple[int, slice, slice]]:
        """Pages that a stretch of the file lies in: their number, the part in the page, the part of the stretch."""
        place = 0
        while place < count:
            number, inside = divmod(begin + place, PAGE)
            size = min(PAGE - inside, count - place)
            yield number, slice(inside, inside + size), slice(place, place + size)
            place += size
