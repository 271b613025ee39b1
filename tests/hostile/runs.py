"""Run files with what lies beside them: read by `inspect`, gone on with by `resume`, run again by `replay`."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import cache
from pathlib import Path
from typing import Any

import h5py

from fbompi import checkpoint, journal, record, server, start
from fbompi.config import resolve
from fbompi.links.virtual import VirtualLink
from fbompi.progress import Progress
from fbompi.recorder import Recorder
from fbompi.replay import replay
from fbompi.resume import resumed_config
from fbompi.run import Driver, build, link_arguments
from fbompi.summary import page, summary
from hostile.content import CUT, NUMBERS, bytes_changed
from hostile.hdf5 import hdf5_changed

RUNS: tuple[dict[str, dict[str, Any]], ...] = (
    {"run": {"problem": "quadratic"}, "algorithm": {"quorum": 2}, "clients": {"count": 5}},
    {"run": {"problem": "quadratic", "algorithm": "fedmbo"}, "clients": {"count": 3, "aggregate": "median"}},
    {"run": {"problem": "quadratic", "algorithm": "adbo"}},
    {"run": {"problem": "location", "algorithm": "fism"}},
)
WHERE = {"mpi": "", "ranks": 1}


@cache
def seeds() -> list[bytes]:
    """Runs of four rounds, stopped in the third, with a checkpoint of the second beside them."""
    with tempfile.TemporaryDirectory() as place:
        return [_begun(tables, Path(place, f"{i}.h5")) for i, tables in enumerate(RUNS)]


def _begun(tables: dict[str, dict[str, Any]], path: Path) -> bytes:
    settings = {"run": {**tables["run"], "rounds": 4, "out": str(path)}, "record": {"every": 2}}
    parts = build(resolve({"clients": {"count": 3}, **tables, **settings}))
    link = VirtualLink([parts.client(i) for i in range(parts.clients)], *link_arguments(parts))
    driver = Driver(parts, link)
    file = record.create(server.destination(parts.config, False), server._layout(parts, driver, link, WHERE))
    file.begin({**WHERE, "config": parts.config.text()}, 0)
    recorder = Recorder(file, driver, Progress(4, "", quiet=True))
    recorder.see(driver.state, link)
    for _ in range(3):
        driver.advance()
        recorder.see(driver.state, link)
        if driver.state.round == 2:
            recorder.keep(driver.state, link)
    file.close()
    return CUT.join((path.read_bytes(), checkpoint.beside(path)[0].read_bytes(), b""))


@cache
def configurations() -> set[str]:
    """Those of the good runs; what others may ask for is another target's."""
    found = set()
    for seed in seeds():
        with h5py.File(io.BytesIO(seed.split(CUT)[0]), "r") as file:
            found.add(file.attrs["config"])
    return found


def changed(data: bytes, rng: random.Random) -> bytes:
    """One of the files changed, by one who knows how to seal it again, or not."""
    run, last, pending, *_ = *data.split(CUT), b"", b""
    what = rng.randrange(10)
    if what in (0, 1, 2, 3, 4, 6, 7):  # HDF5 itself must open it
        run, last, pending = rng.choice(seeds()).split(CUT)
    if what <= 4:
        run = hdf5_changed(run, rng)
    elif what == 5:
        run = bytes_changed(run, rng)
    elif what <= 7:
        last = sealed(hdf5_changed(last[: -checkpoint._TRAILER_SIZE], rng))
    elif what == 8:
        last = bytes_changed(last, rng)
    else:
        pending = journal_changed(len(run), rng)
    return CUT.join((run, last, pending))


def sealed(content: bytes) -> bytes:
    """A checkpoint with the checksum that belongs to it."""
    numbers = len(content).to_bytes(8, "little") + zlib.crc32(content).to_bytes(4, "little")
    return content + checkpoint._TRAILER + numbers


def journal_of(size: int, runs: list[tuple[int, int, bytes]], count: int | None = None) -> bytes:
    """A journal for a file of this size: places, lengths as told, contents."""
    body = b"".join(journal._RUN.pack(place, length) + content for place, length, content in runs)
    count = len(runs) if count is None else count
    return journal._HEADER.pack(journal._MAGIC, size, len(body), zlib.crc32(body), count) + body


def journal_changed(size: int, rng: random.Random) -> bytes:
    runs = []
    for _ in range(rng.randrange(4)):
        content = rng.randbytes(rng.choice((0, 1, 8, 100)))
        place = rng.choice((rng.randrange(size + 1), *map(abs, NUMBERS)))
        runs.append((place, rng.choice((len(content), len(content), abs(rng.choice(NUMBERS)))), content))
    made = journal_of(rng.choice((size, size, abs(rng.choice(NUMBERS)))), runs, rng.choice((None, 2**32 - 1)))
    return made if rng.random() < 0.8 else bytes_changed(made, rng)


def laid_out(data: bytes, place: Path) -> Path:
    """The files of an input, and nothing else."""
    for path in place.glob("*run.h5*"):
        path.unlink()
    run, last, pending, *_ = *data.split(CUT), b"", b""
    path = place / "run.h5"
    path.write_bytes(run)
    checkpoint.beside(path)[0].write_bytes(last)
    if pending:
        journal.journal_of(path).write_bytes(pending)
    return path


def feed_inspect(data: bytes, place: Path) -> None:
    """All that `fbompi inspect` says."""
    figures = summary(laid_out(data, place))
    try:
        json.dumps(figures)
        page(figures)
    except Exception as e:
        raise AssertionError(f"{type(e).__name__}: {e}") from e


class Endless(BaseException):
    """A run that does not end."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Numbers that fit may still make no sense, and a method go round in circles: until somebody stops it."""

    def end(*_: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def feed_resume(data: bytes, place: Path) -> None:
    """Go on to the end; where the configuration is not that of a good run, only up to the configuration."""
    path = laid_out(data, place)
    os.chdir(place)
    with redirect_stderr(io.StringIO()) as said:
        if resumed_config(path, [], 1).text() in configurations():
            with suppress(SystemExit, Endless), at_most(2):
                start.resume(path, [], quiet=True)
    if "Traceback" in said.getvalue():
        raise AssertionError(said.getvalue())


def feed_replay(data: bytes, place: Path) -> None:
    """Run the log again; where the configuration is not that of a good run, nothing."""
    path = laid_out(data, place)
    os.chdir(place)
    with record.reading(path) as file:
        config = file.attrs["config"]
    if config in configurations():
        with suppress(Endless), at_most(2), redirect_stderr(io.StringIO()):
            replay(path)
