"""Where disk, directory or clock set limits: one clear line, what was recorded stands, and the run goes on later."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import ROOT, Result, command, needs_mpi, options
from shims import built
from test_errors import without_privileges

from fbompi import checkpoint, journal
from fbompi.summary import summary

ROUNDS = 60
RUN = [
    *options(run_problem="quadratic", run_rounds=ROUNDS, run_algorithm="fedmbo", record_every=1, clients_count=4),
    *options(problem_noise=1.0, clients_batch=4),
]
OFTEN = options(record_checkpoint_every=3)


def iterates(path: Path) -> tuple[bytes, ...]:
    names = ("trajectory/round", "trajectory/x", "trajectory/y", "final/x")
    with h5py.File(path, "r") as file:
        return tuple(file[name][()].tobytes() for name in names)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ...]:
    """What the run gives where nothing is in its way."""
    folder = tmp_path_factory.mktemp("undisturbed")
    result = command("run", "--quiet", *RUN, "--out", "run.h5", cwd=folder)
    assert result.status == 0, result
    return iterates(folder / "run.h5")


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte, where mounting one is permitted."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a file system may not be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def assert_stopped_for_want_of_room(result: Result, path: Path) -> None:
    assert result.status == 75, result
    lines = result.err.splitlines()
    assert all(line.startswith("fbompi: ") for line in lines) and "Traceback" not in result.err, result
    assert str(path) in lines[-1] and "fbompi resume" in lines[-1] and "cannot be written any more" in lines[-1], result
    found = summary(path)
    assert found["status"] == "interrupted" and found["rows"] >= 1
    assert not journal.journal_of(path).exists()
    for beside in checkpoint.beside(path):
        if beside.exists():
            checkpoint.verify(beside)
    assert not list(path.parent.glob(".*partial"))


def kilobytes_left(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize // 1024


@pytest.mark.parametrize(
    "room", [450, pytest.param(620, marks=pytest.mark.slow), pytest.param(700, marks=pytest.mark.slow)]
)
def test_a_full_disk_stops_a_run_that_goes_on_when_there_is_room(small_disk, undisturbed, room):
    """Where the disk is full at the first row, in the middle of the file, and by a checkpoint."""
    (small_disk / "other").write_bytes(bytes(1024 * (kilobytes_left(small_disk) - room)))
    path = small_disk / "run.h5"
    assert_stopped_for_want_of_room(command("run", "--quiet", *RUN, *OFTEN, "--out", path, cwd=small_disk), path)
    assert summary(path)["rounds"] < ROUNDS
    (small_disk / "other").unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    result = command("resume", "--quiet", path, cwd=small_disk)
    assert result.status == 0, result
    assert iterates(path) == undisturbed


def test_a_disk_without_room_for_a_run_file_is_told_and_left_empty(small_disk):
    (small_disk / "other").write_bytes(bytes(1024 * (kilobytes_left(small_disk) - 16)))
    result = command("run", "--quiet", *RUN, "--out", small_disk / "run.h5", cwd=small_disk)
    assert result.status == 2 and "No space left on device" in result.err and result.err.count("\n") == 1, result
    assert [path.name for path in small_disk.iterdir()] == ["other"]


def test_a_checkpoint_for_which_there_is_no_room_is_told_and_done_without(small_disk, tmp_path):
    """The vectors of thirty clients take more room than the log of their answers."""
    seldom = options(record_every=1000, record_metrics=False, record_iterates=False, record_checkpoint_every=3)
    keys = [
        *options(run_problem="quadratic", problem_dim_x=1000, problem_dim_y=2, clients_count=30, run_rounds=9),
        *seldom,
    ]
    assert command("run", "--quiet", *keys, "--out", "run.h5", cwd=tmp_path).status == 0
    path = small_disk / "run.h5"
    (small_disk / "other").write_bytes(bytes(1024 * (kilobytes_left(small_disk) - 400)))
    result = command("run", "--quiet", *keys, "--out", path, cwd=small_disk)
    told = "fbompi: no checkpoint could be written: No space left on device; the last stands\n"
    assert result.err.startswith(told) and result.err.count("\n") == 2, result
    assert_stopped_for_want_of_room(result, path)
    (small_disk / "other").unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert command("resume", "--quiet", path, cwd=small_disk).status == 0
    with h5py.File(path) as one, h5py.File(tmp_path / "run.h5") as other:
        assert one["final/x"][:].tobytes() == other["final/x"][:].tobytes()


def test_a_pending_commit_on_a_full_disk_is_read_all_the_same(small_disk):
    """The journal of a killed writer; there is room neither to complete it nor to make it again."""
    path = small_disk / "run.h5"
    assert command("run", "--quiet", *RUN, *options(run_rounds=2), "--out", path, cwd=small_disk).status == 0
    before = path.read_bytes()
    half = len(before) // 2
    with open(path, "r+b") as file:  # a hole, for which there is no room
        file.truncate(0)
        file.truncate(len(before))
        file.seek(half)
        file.write(before[half:])
    from hostile.runs import journal_of

    journal.journal_of(path).write_bytes(journal_of(len(before), [(0, half, before[:half])]))
    (small_disk / "other").write_bytes(bytes(1024 * kilobytes_left(small_disk)))
    assert summary(path)["rounds"] == 2
    result = command("resume", path, *options(run_rounds=4), cwd=small_disk)
    assert result.status == 2 and "No space left on device" in result.err and result.err.count("\n") == 1, result
    (small_disk / "other").unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert command("resume", "--quiet", path, *options(run_rounds=4), cwd=small_disk).status == 0
    assert summary(path)["rounds"] == 4


@needs_mpi
@pytest.mark.slow
def test_a_full_disk_stops_a_run_on_ranks_that_goes_on_when_there_is_room(small_disk, undisturbed):
    path = small_disk / "run.h5"
    (small_disk / "other").write_bytes(bytes(1024 * (kilobytes_left(small_disk) - 620)))
    assert_stopped_for_want_of_room(
        command("run", "-n", 3, "--quiet", *RUN, *OFTEN, "--out", path, cwd=small_disk), path
    )
    (small_disk / "other").unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    result = command("resume", "-n", 3, "--quiet", path, cwd=small_disk)
    assert result.status == 0, result
    assert iterates(path) == undisturbed
    assert command("replay", "--verify", "--quiet", path, cwd=small_disk).status == 0


def limited(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def started(folder: Path, *arguments: Any, **how: Any) -> subprocess.Popen:
    words = [sys.executable, "-m", "fbompi", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **how.pop("env", {})}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, **how)


def ended(process: subprocess.Popen, timeout: float = 60) -> Result:
    out, err = process.communicate(timeout=timeout)
    return Result(subprocess.CompletedProcess(process.args, process.returncode, out, err))


@pytest.mark.parametrize("size", [480_000, pytest.param(600_000, marks=pytest.mark.slow)])
def test_a_limit_on_the_size_of_files_is_as_a_full_disk(tmp_path, undisturbed, size):
    """RLIMIT_FSIZE, as batch systems and shells set it; it needs no rights."""
    path = tmp_path / "run.h5"
    result = ended(started(tmp_path, "run", "--quiet", *RUN, *OFTEN, "--out", path, preexec_fn=limited(size)))
    assert_stopped_for_want_of_room(result, path)
    assert "File too large" in result.err
    assert command("resume", "--quiet", path, cwd=tmp_path).status == 0
    assert iterates(path) == undisturbed


# Directories and files that may not be written


@pytest.mark.slow
def test_a_read_only_file_system_is_told(small_disk):
    path = small_disk / "run.h5"
    assert command("run", "--quiet", *RUN, *options(run_rounds=2), "--out", path, cwd=small_disk).status == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert command("inspect", path, cwd=small_disk).status == 0
    assert command("replay", "--quiet", path, cwd=small_disk).status == 0
    for words in (["resume", path, *options(run_rounds=4)], ["run", *RUN, "--out", small_disk / "other.h5"]):
        result = command(*words, "--quiet", cwd=small_disk)
        assert result.status == 2 and result.err.count("\n") == 1, result
        assert "Read-only file system" in result.err or "no permission" in result.err, result


@pytest.mark.skipif(sys.platform != "linux", reason="root gives up its privileges as Linux has them")
def test_a_directory_that_may_not_be_written_is_told(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    words = ["run", "--quiet", *RUN, *options(run_rounds=2), "--out", folder / "run.h5"]
    assert command(*words, cwd=tmp_path).status == 0
    folder.chmod(0o555)
    inspected = ended(started(tmp_path, "inspect", folder / "run.h5", preexec_fn=without_privileges))
    if inspected.status == 77:
        pytest.skip("root may not give up its privileges here")
    assert inspected.status == 0, inspected
    words = ["resume", folder / "run.h5", *options(run_rounds=4)]
    result = ended(started(tmp_path, *words, "--quiet", preexec_fn=without_privileges))
    assert result.status == 2 and "cannot be written" in result.err and result.err.count("\n") == 1, result


# Files that are missing, damaged or of a later time


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in the middle by a limit, with two generations of checkpoints."""
    path = tmp_path_factory.mktemp("stopped") / "run.h5"
    result = ended(started(path.parent, "run", "--quiet", *RUN, *OFTEN, "--out", path, preexec_fn=limited(600_000)))
    assert result.status == 75 and all(beside.exists() for beside in checkpoint.beside(path)), result
    return path


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    for path in stopped_once.parent.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path / "run.h5"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


MORE_LOSSES = [(truncated, 2), (flipped, 1), (emptied, 1), (emptied, 2), (Path.unlink, 1), (Path.unlink, 2)]


@pytest.mark.parametrize(
    ("damage", "which"),
    [(truncated, 1), (flipped, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_LOSSES)],
)
def test_a_checkpoint_that_is_lost_costs_time_and_nothing_else(stopped, undisturbed, damage, which):
    for path in checkpoint.beside(stopped)[:which]:
        damage(path)
    result = command("resume", "--quiet", stopped, cwd=stopped.parent)
    assert result.status == 0 and iterates(stopped) == undisturbed, result
    lines = result.err.splitlines()
    assert all(str(stopped) in line or "from the start" in line for line in lines), result
    assert len(lines) == (0 if damage is Path.unlink else which) + (which == 2), result


@pytest.mark.parametrize("words", [["resume"], ["replay"], ["inspect"]], ids=lambda words: words[0])
def test_a_run_file_that_is_missing_or_damaged_or_newer_is_told(stopped, words):
    def refused(expected: str) -> None:
        result = command(*words, "run.h5", cwd=stopped.parent)
        assert result.status == 2 and result.err.startswith("fbompi: run.h5: ") and expected in result.err, result
        assert result.err.count("\n") == 1 and not journal.journal_of(stopped).exists()

    content = stopped.read_bytes()
    with h5py.File(stopped, "r+") as file:
        file.attrs["format_version"] = 99
    refused("has run-file format 99")
    stopped.write_bytes(content[: len(content) // 2])
    refused("HDF5")
    stopped.unlink()
    refused("there is no such file")


# Two at once

ENDLESS = [*options(run_problem="quadratic", run_rounds=10**6, record_every=1, clients_count=3), "--quiet"]


def test_a_file_that_is_being_written_is_nobody_elses(tmp_path):
    path = tmp_path / "run.h5"
    first = started(tmp_path, "run", *ENDLESS, "--out", "run.h5")
    try:
        deadline = time.monotonic() + 30
        while not path.exists() and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        for words in (["run", *ENDLESS, "--out", "run.h5"], ["run", *ENDLESS, "--overwrite", "--out", "run.h5"],
                      ["resume", "run.h5"]):  # fmt: skip
            result = command(*words, cwd=tmp_path, timeout=30)
            assert result.status == 2 and result.err.count("\n") == 1, result
            assert "run.h5" in result.err and "is being written by another run" in result.err, result
        assert command("inspect", "run.h5", cwd=tmp_path).status == 0
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGINT)
    result = ended(first)
    assert result.status == 75 and summary(path)["status"] == "interrupted", result


@pytest.mark.slow
def test_a_run_can_be_looked_at_at_any_moment(tmp_path):
    """HDF5 reads piece by piece: a commit between two pieces made 1 of 200 looks find the file damaged."""
    path = tmp_path / "run.h5"
    run = started(tmp_path, "run", *ENDLESS, "--out", "run.h5")
    try:
        while not path.exists() and run.poll() is None:
            time.sleep(0.01)
        rows = [summary(path)["rows"] for _ in range(400)]
        assert run.poll() is None and rows == sorted(rows) and rows[-1] > rows[0]
    finally:
        run.kill()
        run.communicate()


def test_of_two_that_go_on_with_a_run_one_does(stopped, undisturbed):
    both = [started(stopped.parent, "resume", "--quiet", "run.h5") for _ in range(2)]
    results = sorted((ended(process) for process in both), key=lambda result: result.status)
    assert [result.status for result in results] == [0, 2], results
    assert "run.h5: is " in results[1].err  # being written, or complete already
    assert iterates(stopped) == undisturbed


@pytest.mark.slow
def test_a_run_that_is_stopped_while_a_row_is_evaluated_goes_on(tmp_path):
    """The evaluation is in the checkpoint, and was asked for twice."""
    for number in range(3):
        path = tmp_path / f"{number}.h5"
        first = started(tmp_path, "run", *ENDLESS, "--out", path)
        while not path.exists() and first.poll() is None:
            time.sleep(0.01)
        time.sleep(0.1 * number)
        first.send_signal(signal.SIGINT)
        assert ended(first).status == 75
        done = summary(path)["rounds"]
        result = command("resume", "--quiet", path, *options(run_rounds=done + 5), cwd=tmp_path)
        assert result.status == 0 and result.err == "", result
        with h5py.File(path, "r") as file:
            assert np.isfinite(file["trajectory/upper"][:]).all()


# Clocks

JUMPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
/* The time of day jumps by hours, back and forth, every few calls; what counts intervals does not. */
static int calls;
static long jump(void) { return (calls++ / 3 % 2 ? 1 : -1) * 7 * 3600; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int status = next(clock, now);
    if (!status && clock == CLOCK_REALTIME) now->tv_sec += jump();
    return status;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *result) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (result) *result = found.tv_sec;
    return found.tv_sec;
}
"""


def test_the_clock_that_jumps_does_jump(tmp_path):
    shim = built("jumping", JUMPING, tmp_path)
    code = "import time; print(len({round(time.time() / 3600) for _ in range(20)}), time.monotonic() > 0)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **shim}, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "True"], done


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=[needs_mpi, pytest.mark.slow])])
def test_a_time_of_day_that_jumps_by_hours_changes_nothing(tmp_path, undisturbed, ranks):
    """Intervals, pulses and checkpoints go by clocks that only go forward."""
    shim = built("jumping", JUMPING, tmp_path)
    begin = time.monotonic()
    words = ["run", "-n", ranks, "--quiet", *RUN, *options(faults_silence=3), "--out", "run.h5"]
    result = command(*words, cwd=tmp_path, **shim)
    seconds = time.monotonic() - begin
    assert result.status == 0 and result.err == "", result
    assert iterates(tmp_path / "run.h5") == undisturbed
    found = summary(tmp_path / "run.h5")
    assert 0 <= found["costs"]["server_seconds"] <= seconds and 0 <= found["costs"]["client_seconds"] <= 4 * seconds
    with h5py.File(tmp_path / "run.h5", "r") as file:
        assert (np.diff(file["trajectory/time"]) >= 0).all()
        assert (file["events"]["seconds"] >= 0).all()


# Clients that have to be done without

OWN = """
from fbompi.algorithms.fedmbo import FedMbo
from fbompi.problems.quadratic import Quadratic


class Mine(FedMbo):
    name = "mine"


class Poor(Quadratic):
    def shard(self, client, clients):
        shard = super().shard(client, clients)
        if client == 2:
            shard.c[:] = float("nan")
        return shard
"""


def test_a_method_of_ones_own_goes_on_without_clients_that_are_left_out(here, tmp_path):
    """The round that begins anew was taken for an error of the method."""
    (tmp_path / "own.py").write_text(OWN)
    small = options(run_algorithm="own.py:Mine", run_problem="own.py:Poor", run_rounds=3, clients_count=5)
    result = here("run", "--quiet", "--out", "run.h5", *small)
    assert result.status == 4 and "1 client was left out" in result.err, result
