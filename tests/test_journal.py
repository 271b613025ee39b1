"""Changes of a file take effect together or not at all, whichever of its writes is a writer's last."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import ROOT, options
from hypothesis import given, settings
from hypothesis import strategies as st
from shims import built

from fbompi import journal
from fbompi.errors import UserError
from fbompi.journal import PAGE, Journaled, Lock, image, is_being_written, journal_of, pending, recover
from fbompi.summary import summary


@contextmanager
def writing(path: Path) -> Iterator[Journaled]:
    lock = Lock(path)
    file = Journaled(path, lock)
    yield file
    file.close()
    lock.release()


def content_for_readers(path: Path) -> bytes:
    found = image(path)
    return found.read_bytes() if isinstance(found, Path) else found.read()


# What a file object does

PLACES = st.integers(0, 3 * PAGE)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PLACES, st.integers(1, PAGE + 100)),
        st.tuples(st.just("truncate"), PLACES, st.just(0)),
        st.tuples(st.just("commit"), st.just(0), st.just(0)),
        st.tuples(st.just("read"), PLACES, st.integers(1, 2 * PAGE)),
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(begin=st.integers(0, 2 * PAGE + 5), operations=OPERATIONS, chance=st.randoms(use_true_random=False))
def test_it_is_a_file_whose_last_commit_stays(tmp_path_factory, begin, operations, chance):
    """Beside a list of bytes, None where nothing was ever written: what is read, and what is left in the end."""
    path = tmp_path_factory.mktemp("file") / "file"
    path.write_bytes(chance.randbytes(begin))
    model: list[int | None] = list(path.read_bytes())
    committed = list(model)
    with writing(path) as file:
        for what, place, count in operations:
            file.seek(place)
            if what == "write":
                data = chance.randbytes(count)
                model += [None] * (place - len(model))
                model[place : place + count] = data
                assert file.write(data) == count
            elif what == "truncate" and place <= len(model):
                del model[place:]
                file.truncate(place)
            elif what == "commit":
                file.commit()
                committed = list(model)
            elif what == "read" and place < len(model):
                assert_is(file.read(count), model[place : place + count])
        assert_is(content_for_readers(path)[: len(committed)], committed)
    assert_is(path.read_bytes()[: len(committed)], committed)
    assert not journal_of(path).exists()


def assert_is(found: bytes, expected: list[int | None]) -> None:
    assert len(found) == len(expected)
    assert all(a == b for a, b in zip(found, expected) if b is not None)


# Kills

TAKEN = ("pwrite", "ftruncate", "truncate", "posix_fallocate", "unlink", "fsync")


class Mortal:
    """The system calls of `os`; at the n-th that changes a file the process kills itself, before it or half-way."""

    def __init__(self, at: int, halfway: bool) -> None:
        self.left, self.halfway = at, halfway

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        return self._counted(name, call) if name in TAKEN else call

    def _counted(self, name: str, call: Callable) -> Callable:
        def counted(*arguments: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                if self.halfway and name == "pwrite":
                    fd, data, place = arguments
                    os.pwrite(fd, bytes(data)[: len(data) // 2], place)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return counted


def killed_at(path: Path, work: Callable[[Journaled, Callable[[], None]], None], at: int, halfway: bool) -> int | None:
    """How many commits a process was told of before it was killed at a system call; None, if it came to its end."""
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            journal.os = Mortal(at, halfway)  # type: ignore[assignment]
            lock = Lock(path)
            file = Journaled(path, lock)
            work(file, lambda: os.write(told, b"."))
            file.close()
            lock.release()
            os.write(told, b"!")
        os._exit(0)
    os.close(told)
    _, status = os.waitpid(child, 0)
    with open(heard, "rb") as pipe:
        said = pipe.read()
    assert os.WIFSIGNALED(status) or said.endswith(b"!"), "the writer failed"
    return None if said.endswith(b"!") else len(said)


def states() -> list[bytes]:
    """What a file holds after each of some commits: it is changed here and there, grows, and shrinks."""
    rng = random.Random(4)
    found = [rng.randbytes(2 * PAGE + 77)]
    for size in (2 * PAGE + 77, 5 * PAGE, 5 * PAGE + 1, 3 * PAGE - 9, 4 * PAGE):
        last = bytearray(found[-1][:size])
        last.extend(rng.randbytes(size - len(last)))
        for _ in range(3):
            place = rng.randrange(size - 20)
            last[place : place + 20] = rng.randbytes(20)
        found.append(bytes(last))
    return found


@pytest.mark.parametrize("halfway", [False, True])
def test_whichever_call_is_the_last_the_last_commit_is_there(tmp_path, halfway):
    path, contents = tmp_path / "file", states()

    def work(file: Journaled, say: Callable[[], None]) -> None:
        for content in contents[1:]:
            for place in range(0, len(content), 1000):
                file.seek(place)
                file.write(content[place : place + 1000])
            file.truncate(len(content))
            file.commit()
            say()

    for at in range(1000):
        for leftover in tmp_path.iterdir():
            leftover.unlink()
        path.write_bytes(contents[0])
        done = killed_at(path, work, at, halfway)
        if done is None:
            break
        seen = content_for_readers(path)
        assert any(seen[: len(content)] == content for content in contents[done : done + 2]), at
        if pending(path):
            assert seen[: len(contents[done + 1])] == contents[done + 1]
        lock = Lock(path)
        recover(path)
        assert path.read_bytes()[: len(seen)] == seen and not pending(path)
        recover(path)  # again is no harm
        assert path.read_bytes()[: len(seen)] == seen
        lock.release()
        assert not journal_of(path).exists()
    assert at > 30, "there were no calls to be killed at"


def test_whichever_call_is_the_last_hdf5_opens_the_file(tmp_path):
    path = tmp_path / "file.h5"

    def work(file: Journaled, say: Callable[[], None]) -> None:
        with h5py.File(file, "r+") as h5:
            for row in range(6):
                h5["rows"].resize(row + 1, axis=0)
                h5["rows"][row] = np.full(300, row)
                h5.attrs["count"] = row + 1
                if row == 3:
                    h5["more"] = np.arange(5000)
                if row == 4:
                    del h5["more"]
                h5.flush()
                file.commit()
                say()

    for at in range(0, 1000):
        for leftover in tmp_path.iterdir():
            leftover.unlink()
        with h5py.File(path, "w") as h5:
            h5.create_dataset("rows", (0, 300), "i8", maxshape=(None, 300), chunks=(2, 300))
            h5.attrs["count"] = 0
        done = killed_at(path, work, at, halfway=at % 2 == 1)
        if done is None:
            break
        with h5py.File(image(path), "r") as h5:
            count = h5.attrs["count"]
            assert count in (done, done + 1) and len(h5["rows"]) == count, at
            assert np.array_equal(h5["rows"][:], np.repeat(np.arange(count), 300).reshape(-1, 300)), at
            assert ("more" in h5) == (count == 4)
    assert at > 20


# Readers


def test_a_reader_sees_whole_commits_while_they_are_made(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(8 * PAGE))
    processes = multiprocessing.get_context("fork")
    stop = processes.Event()

    def write() -> None:
        with writing(path) as file:
            for number in range(1, 10**6):
                if stop.is_set():
                    return
                file.seek(0)
                file.write(bytes([number % 256]) * 8 * PAGE)
                file.commit()

    writer = processes.Process(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert len(set(content_for_readers(path))) == 1, "a reader saw half of a commit"
    finally:
        stop.set()
        writer.join()


def test_a_pending_commit_is_read_but_not_made_where_nobody_may_write(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old" * 100)
    journal_of(path).write_bytes(_pending(path, b"new"))
    before = path.read_bytes()
    assert content_for_readers(path) == b"new" + before[3:]
    assert path.read_bytes() == before and isinstance(image(path), io.BytesIO)


def _pending(path: Path, content: bytes) -> bytes:
    from hostile.runs import journal_of as made

    return made(path.stat().st_size, [(0, len(content), content)])


def test_a_journal_of_another_content_is_left_aside(tmp_path):
    """As when the run file was replaced by a shorter copy, and the journal was left lying."""
    path = tmp_path / "file"
    path.write_bytes(b"old" * 100)
    journal_of(path).write_bytes(_pending(path, b"new"))
    path.write_bytes(b"other")
    assert content_for_readers(path) == b"other"


# Locks


def test_a_second_writer_is_refused_by_name(tmp_path):
    path = tmp_path / "run.h5"
    path.touch()
    lock = Lock(path)
    assert is_being_written(path)
    with pytest.raises(UserError, match=r"run\.h5: is being written by another run"):
        Lock(path)
    lock.release()
    assert not is_being_written(path)
    Lock(path).release()
    assert not journal_of(path).exists()


def test_a_killed_writer_has_no_lock(tmp_path):
    path = tmp_path / "run.h5"
    path.touch()
    child = os.fork()
    if not child:
        Lock(path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert journal_of(path).exists() and not is_being_written(path)
    Lock(path).release()
    assert not journal_of(path).exists()


CONTENDER = """
import os, sys, time
from pathlib import Path
from fbompi.errors import UserError
from fbompi.journal import Lock
path, had = Path(sys.argv[1]), 0
while had < 60:
    try:
        lock = Lock(path)
    except UserError:
        continue
    os.close(os.open(str(path) + ".mine", os.O_CREAT | os.O_EXCL))  # fails if another has it too
    os.unlink(str(path) + ".mine")
    lock.release()
    had += 1
"""


def test_of_many_writers_one_has_the_lock(tmp_path):
    path = tmp_path / "run.h5"
    path.touch()
    words = [sys.executable, "-c", CONTENDER, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    contenders = [subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for contender in contenders:
        _, err = contender.communicate(timeout=60)
        assert contender.returncode == 0, err


def test_a_journal_that_holds_a_commit_outlives_its_writer(tmp_path):
    """Where the file could not be written, the journal is all there is."""
    path = tmp_path / "run.h5"
    path.write_bytes(b"old")
    lock = Lock(path)
    os.pwrite(lock.fd, _pending(path, b"new"), 0)
    lock.release()
    assert content_for_readers(path) == b"new"


NO_LOCKS = """
#include <errno.h>
#include <sys/types.h>
int flock(int fd, int operation) { errno = ENOLCK; return -1; }
int posix_fallocate(int fd, off_t offset, off_t length) { return EOPNOTSUPP; }
int posix_fallocate64(int fd, long offset, long length) { return EOPNOTSUPP; }
"""
SMALL = [*options(run_problem="quadratic", run_rounds=3, record_every=1, clients_count=3), "--quiet"]


def test_a_file_system_without_locks_and_reservations_is_lived_with(fbompi, tmp_path):
    shim = built("nolocks", NO_LOCKS, tmp_path)
    result = fbompi("run", *SMALL, "--out", "run.h5", **shim)
    assert result.status == 0 and result.err == "", result
    assert fbompi("inspect", "run.h5", **shim).status == 0
    assert fbompi("resume", "run.h5", "--quiet", *options(run_rounds=4), **shim).status == 0
    assert summary(tmp_path / "run.h5")["rounds"] == 4


# A disk that fails

FAILING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
static int left = -1;
static int fails(void) {
    if (left < 0) left = getenv("FAIL_AT") ? atoi(getenv("FAIL_AT")) : 1000000;
    if (left > 0) { left--; return 0; }
    errno = EIO;
    return 1;
}
ssize_t pwrite(int fd, const void *data, size_t count, off_t place) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "pwrite64");
    return fails() ? -1 : next(fd, data, count, place);
}
ssize_t pwrite64(int fd, const void *data, size_t count, off_t place) { return pwrite(fd, data, count, place); }
"""


@pytest.mark.slow
def test_whichever_write_the_disk_fails_at_the_run_is_told_and_goes_on_later(fbompi, here, tmp_path):
    shim = built("failing", FAILING, tmp_path)
    assert here("run", *SMALL, "--out", "whole.h5").status == 0
    whole = h5py.File(tmp_path / "whole.h5", "r")["trajectory/x"][:]
    seen = set()
    for at in range(0, 400, 11):
        result = fbompi("run", *SMALL, "--overwrite", "--out", "run.h5", **shim, FAIL_AT=str(at))
        seen.add(result.status)
        assert "Traceback" not in result.err, (at, result)
        if result.status == 0:
            break
        assert "Input/output error" in result.err and result.err.count("\n") == 1, (at, result)
        assert here("inspect", "run.h5").status == 0
        assert here("resume", "--quiet", "run.h5").status == 0, at
        with h5py.File(tmp_path / "run.h5", "r") as file:
            assert np.array_equal(file["trajectory/x"][:], whole)
    assert {0, 75} <= seen <= {0, 2, 75}
