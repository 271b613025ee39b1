"""Fetching original files: from several places in turn, going on where a broken download stopped."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import fbompi
from fbompi.data.content import SILENT, Progress
from fbompi.data.importing import check_download
from fbompi.data.known import KNOWN
from fbompi.data.store import directory
from fbompi.errors import UserError

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 20  # at one place, as long as each brings the file forward
AT_ONCE = 1 << 17
PARTIAL = ".partial"


class Failed(Exception):
    """A place does not give a file; why."""


class BrokenOff(Failed):
    """It gave less than all; what came is kept."""


@contextlib.contextmanager
def downloaded(name: str, prefix: str = "", progress: Progress = SILENT) -> Iterator[list[Path]]:
    """The original files of a known set, checked; removed in the end, but for parts of files that did not come whole.

    Parameters
    ----------
    prefix
        Where to find them, instead of the places that are known.
    """
    known = KNOWN[name]
    places = [_prefix(prefix)] if prefix else list(known.places)
    folder = directory() / "downloads" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, name):
            files = [folder / file for file in known.downloads]
            for file in files:
                _fetch(name, file, places, progress)
            yield files
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # others are being downloaded
                folder.parent.rmdir()
    except OSError as e:
        raise UserError(f"{folder}: cannot be written: {e.strerror or e}") from None


def _fetch(name: str, file: Path, places: list[str], progress: Progress) -> None:
    """One file, from the first place that gives the right one."""
    if file.exists() and _wrong(name, file) is None:  # from a time before, when another file did not come
        return
    failures = []
    for place in places:
        try:
            _fetch_from(name, place + file.name, file, progress)
            return
        except Failed as e:
            failures.append(f"{place}: {e}")
    known = KNOWN[name]
    raise UserError(
        f"{name}: {file.name} cannot be downloaded ({'; '.join(failures)}); by hand: bring "
        f"{', '.join(known.downloads)} from {places[0]} here by other means, then fbompi data import PATH of them"
    )


def _fetch_from(name: str, address: str, file: Path, progress: Progress) -> None:
    """A checked file, or `Failed`."""
    partial = file.with_name(file.name + PARTIAL)
    begun = partial.exists()  # perhaps of another place, whose file may have been packed differently
    for fresh in (False, True):
        _complete(name, address, partial, progress)
        os.replace(partial, file)
        why = _wrong(name, file)
        if why is None:
            return
        file.unlink()
        if fresh or not begun:
            raise Failed(why)


def _complete(name: str, address: str, partial: Path, progress: Progress) -> None:
    """Bring a partial file to its end, with as many connections as that takes."""
    limit = 4 * sum(original.size for original in KNOWN[name].files)
    for _ in range(ATTEMPTS):
        before = _size(partial)
        try:
            return _receive(address, partial, limit, progress)
        except BrokenOff:
            if _size(partial) <= before:
                raise
    raise Failed(f"broke off {ATTEMPTS} times")


def _receive(address: str, partial: Path, limit: int, progress: Progress) -> None:
    """Append what is missing to a partial file."""
    have = _size(partial)
    try:
        response = _answer(address, have)
    except urllib.error.HTTPError as e:
        e.close()
        if e.code == 416 and have and e.headers.get("Content-Range") == f"bytes */{have}":
            return  # nothing is missing
        if e.code == 416 and have:
            partial.unlink()
            return _receive(address, partial, limit, progress)
        raise Failed(f"{e.code} {e.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as e:  # ValueError: not an address
        why = getattr(e, "reason", e)
        raise Failed(f"no answer: {getattr(why, 'strerror', None) or why}") from None
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        length = response.headers.get("Content-Length", "")
        missing = int(length) if length.isdigit() else None
        have = have if resumed else 0
        if have + (missing or 0) > limit:
            raise Failed(f"gives {have + (missing or 0):,} bytes, more than the file can have")
        progress.expect(missing or 0)
        _append(response, partial, have, missing, limit, progress)


def _answer(address: str, have: int) -> http.client.HTTPResponse:
    """The answer to a request for what follows the bytes that are there."""
    request = urllib.request.Request(address, headers={"User-Agent": f"fbompi/{fbompi.__version__}"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    return urllib.request.urlopen(request, timeout=TIMEOUT)


def _append(response: http.client.HTTPResponse, partial: Path, have: int, missing: int | None, limit: int,
            progress: Progress) -> None:  # fmt: skip
    with open(partial, "r+b" if have else "wb") as file:
        file.seek(have)
        while True:
            try:
                data = response.read(AT_ONCE)
            except (http.client.HTTPException, OSError) as e:
                raise BrokenOff(f"broke off: {getattr(e, 'strerror', None) or e}") from None
            if not data:
                break
            file.write(data)
            progress.advance(len(data))
            if file.tell() > limit:
                raise Failed("gives more than the file can have")
        got = file.tell() - have
    if missing is not None and got < missing:
        raise BrokenOff(f"broke off after {have + got:,} of {have + missing:,} bytes")


def _wrong(name: str, file: Path) -> str | None:
    """Why a file is not the authors'."""
    try:
        check_download(name, file)
    except UserError as e:
        return f"gives a wrong file: {e.line.removeprefix(f'{file}: ')}"
    return None


def _prefix(given: str) -> str:
    if not given.startswith(("http://", "https://", "file://")):
        raise UserError(f"--from {given}: expected an address such as https://mirror.example.org/mnist/")
    return given if given.endswith("/") else f"{given}/"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextlib.contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Two downloads into the same files would spoil each other."""
    with open(folder / "lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: {name} is being downloaded by another process") from None
        except OSError:  # a file system without locks
            pass
        yield
