"""fbompi watch follows a run while it is written, ends with it, and is not felt by it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import ROOT, command, needs_mpi, options, trajectory
from federation import ran
from ranks import Job

from fbompi import record
from fbompi.errors import UserError
from fbompi.record import reading
from fbompi.watch import follow as following
from fbompi.watch import look as looking
from fbompi.watch.follow import SHARE, follow
from fbompi.watch.look import Watched
from fbompi.watch.page import duration, page, sparkline
from fbompi.watch.screen import Plain

SMALL = options(run_problem="quadratic", run_rounds=12, record_every=1, clients_count=4)
ENDLESS = options(run_problem="quadratic", run_rounds=10**6, record_every=1, clients_count=4)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run; tests copy it before they change it."""
    return ran(tmp_path_factory.mktemp("complete") / "run.h5", *SMALL)


@pytest.fixture
def run_file(complete: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(complete, tmp_path / "run.h5"))


@contextmanager
def started(*words: Any, cwd: Path, **streams: Any) -> Iterator[subprocess.Popen]:
    """``fbompi WORDS`` under way, and gone at the end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    line = [sys.executable, "-m", "fbompi", *map(str, words)]
    process = subprocess.Popen(line, cwd=cwd, env=environment, **{"stdin": subprocess.DEVNULL, **streams})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_run_is_followed_from_before_its_beginning_until_it_is_killed(tmp_path: Path) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started("watch", "run.h5", "--json", "--every", "0.1", cwd=tmp_path, **pipes) as watch:
        assert watch.stderr and "run.h5: is not there yet; waiting" in watch.stderr.readline()
        with started("run", "--quiet", "--out", "run.h5", *ENDLESS, cwd=tmp_path, stderr=subprocess.PIPE) as run:
            looks: list[dict] = []
            while not looks or looks[-1]["round"] < 20:
                looks.append(json.loads(watch.stdout.readline()))  # type: ignore[union-attr]
            run.kill()
        out, err = watch.communicate(timeout=20)
    looks += map(json.loads, out.splitlines())
    rounds = [look["round"] for look in looks]
    assert rounds == sorted(rounds) and len(set(rounds)) > 1
    assert [look["status"] for look in looks[:-1]] == ["running"] * (len(looks) - 1)
    assert looks[-1]["status"] == "killed" and watch.returncode == 75
    assert err == "fbompi: run.h5: killed; fbompi resume run.h5 goes on\n"
    last = looks[-1]
    assert last["rounds"] == 10**6 and last["clients"]["count"] == 4 and last["metrics"]["x_error"]["last"] is not None
    assert last["clients"]["worst"][0]["tasks_done"] >= 20 and last["time"] > 0


def test_a_terminal_is_drawn_in_place_and_ctrl_c_leaves_the_run_alone(tmp_path: Path) -> None:
    with started("run", "--quiet", "--out", "run.h5", *ENDLESS, cwd=tmp_path, stderr=subprocess.PIPE) as run:
        while not (tmp_path / "run.h5").exists():
            time.sleep(0.02)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 11, 60, 0, 0))
        ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        with started("watch", "run.h5", "--every", "0.1", cwd=tmp_path, start_new_session=True, **ends) as watch:
            drawn = read_until(ours, lambda text: text.count("\x1b[J") >= 4)
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
            larger = read_until(ours, lambda text: text.count("\x1b[J") >= 4)
            watch.send_signal(signal.SIGINT)
            rest = read_until(ours, lambda text: False, 0.5)
            assert watch.wait(10) == 130
        os.close(ours)
        os.close(theirs)
        assert run.poll() is None  # it goes on
    assert drawn.startswith("\x1b[2J\x1b[H") and drawn.count("\x1b[2J") == 1
    for text, width, height in ((drawn, 60, 11), (larger.split("\x1b[J", 2)[2], 100, 30)):
        for frame in text.split("\x1b[J")[:-1]:
            lines = re.sub(r"\x1b\[[0-9]*[A-Z]", "", frame).split("\r\n")
            assert len(lines) < height and max(map(len, lines)) < width, frame
    assert "quadratic: running, round" in drawn and "Ctrl-C" in drawn and "Traceback" not in rest
    assert "tasks" in larger and "4 clients: all alive" in larger


def read_until(end: int, enough: Any, most: float = 20.0) -> str:
    """What a terminal is sent."""
    text, until = b"", time.monotonic() + most
    os.set_blocking(end, False)
    while time.monotonic() < until and not enough(text.decode(errors="replace")):
        try:
            text += os.read(end, 1 << 16)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            break
    return text.decode(errors="replace")


@needs_mpi
@pytest.mark.slow
def test_a_synchronous_run_that_is_watched_has_the_same_bits_and_outlives_its_watcher(tmp_path: Path) -> None:
    words = options(run_algorithm="fedmbo", run_problem="quadratic", run_rounds=150, record_every=1, clients_count=4)
    assert command("run", "-n", 4, "--quiet", "--out", "alone.h5", *words, cwd=tmp_path).status == 0
    silent = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started("watch", "run.h5", "--json", "--every", "0.05", cwd=tmp_path, **silent) as watch:
        with (
            started("watch", "run.h5", "--every", "0.05", cwd=tmp_path, **silent) as other,
            started("run", "-n", 4, "--quiet", "--out", "run.h5", *words, cwd=tmp_path, **silent) as run,
        ):
            assert watch.stdout
            while json.loads(watch.stdout.readline())["round"] < 5:
                pass
            other.kill()
            assert run.wait(60) == 0
        last = json.loads(watch.communicate(timeout=20)[0].splitlines()[-1])
        assert (watch.returncode, last["status"], last["round"], last["unit"]) == (0, "complete", 150, "s")
    for name in ("x", "y", "upper", "x_error"):
        np.testing.assert_array_equal(trajectory(tmp_path / "run.h5", name), trajectory(tmp_path / "alone.h5", name))


@needs_mpi
@pytest.mark.slow
def test_a_watcher_sees_the_server_die_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    words = options(run_problem="quadratic", run_rounds=10**6, record_every=1, clients_count=6)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        started("watch", "run.h5", "--json", "--every", "0.1", cwd=tmp_path, **pipes) as watch,
        Job("run", "-n", 4, "--quiet", "--out", "run.h5", *words, cwd=tmp_path) as job,
    ):
        job.running(4, tmp_path / "run.h5")
        while json.loads(watch.stdout.readline())["round"] < 5:  # type: ignore[union-attr]
            pass
        job.kill(0)
        out, err = watch.communicate(timeout=60)
    last = json.loads(out.splitlines()[-1])
    assert watch.returncode == 75 and last["status"] == "killed" and "resume run.h5 goes on" in err
    result = command("resume", "run.h5", "-n", 4, "-o", f"run.rounds={last['round'] + 3}", cwd=tmp_path)
    assert result.status == 0 and "complete" in result.out, result


@needs_mpi
@pytest.mark.slow
@pytest.mark.alone
def test_a_run_of_four_ranks_does_not_feel_that_it_is_watched(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """One run, and a watcher that is stopped and continued in turn: how fast rounds go with it, and without."""
    words = options(run_algorithm="fedmbo", run_problem="quadratic", run_rounds=10**7, record_every=1, clients_count=9)
    turns = int(os.environ.get("FBOMPI_TEST_TURNS", 4))
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def pace() -> tuple[int, float]:
        with reading(tmp_path / "run.h5") as file:
            return int(file["trajectory/round"][-1]), float(file["trajectory/time"][-1])

    with (
        Job("run", "-n", 4, "--quiet", "--out", "run.h5", *words, cwd=tmp_path) as job,
        started("watch", "run.h5", cwd=tmp_path, **silent) as watch,
    ):
        job.running(4, tmp_path / "run.h5")
        time.sleep(5)
        marks, begun = [pace()], on_cpu(watch.pid)
        for turn in range(2 * turns + 1):  # without it at both ends
            watch.send_signal(signal.SIGCONT if turn % 2 else signal.SIGSTOP)
            time.sleep(2)
            marks.append(pace())
        share = (on_cpu(watch.pid) - begun) / (2 * turns)
    assert watch.returncode == -signal.SIGKILL  # it was there to the end
    rates = np.diff([np.array(mark) for mark in marks], axis=0)
    speed = np.log(rates[:, 0] / rates[:, 1])
    felt = (speed[:-2:2] + speed[2::2]) / 2 - speed[1:-1:2]  # against the turns before and after
    mean, error = felt.mean(), felt.std(ddof=1) / np.sqrt(turns)
    with capsys.disabled():
        print(f"\na round takes {np.exp(mean):.4f} ± {error:.4f} times as long while it is watched (standard error, "
              f"{turns} turns, {np.exp(speed.mean()):.0f} rounds/s); it takes {share:.2%} of a core")  # fmt: skip
    assert mean - 3 * error < np.log(1.02) and share < 0.04  # a look in every turn


def on_cpu(process: int) -> float:
    """Seconds that a process has computed; one that has ended, too, until it is waited for."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("status", "exit_status"), [("complete", 0), ("interrupted", 75), ("failed", 1), ("running", 75)]
)
def test_the_exit_status_says_how_the_run_ended(here, run_file: Path, status: str, exit_status: int) -> None:
    with h5py.File(run_file, "r+") as file:
        file.attrs["status"] = status
    for words in (["--every", "0.05"], ["--once"]):
        result = here("watch", run_file, *words)
        assert result.status == exit_status, result
        assert f"quadratic: {'killed' if status == 'running' else status}, round 12 of 12" in result.out
        assert ("resume" in result.err) == (exit_status == 75)


def test_losses_on_the_way_are_told(here, run_file: Path) -> None:
    with h5py.File(run_file, "r+") as file:
        clients = file["clients"][:]
        clients["state"][2] = 1
        file["clients"][:] = clients
        file["incidents"].resize(2, axis=0)
        file["incidents"][:] = np.array(
            [(1.0, 1, 3, "rank lost", -1, 2, "gone"), (1.0, 1, 3, "client left out", 2, -1, "\x1b[2J its rank\n")],
            file["incidents"].dtype,
        )
    result = here("watch", run_file)
    assert result.status == 4 and "3 alive, 1 lost" in result.out and "client 2 left out" in result.out, result
    assert "rank 2 lost: gone" in result.out and "\x1b" not in result.out


def test_what_is_no_run_file_and_what_will_never_be_one_are_told_in_one_line(here, tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no")
    for words in (["text.h5"], ["nothing.h5", "--once"], ["nowhere/run.h5"], ["."]):
        result = here("watch", *words)
        assert result.status == 2 and len(result.err.splitlines()) == 1 and not result.out, result


def test_of_the_log_only_what_is_new_is_read_and_it_gives_the_same(run_file: Path, complete: Path) -> None:
    whole = Watched(complete).look()
    with h5py.File(run_file, "r+") as file:
        events = file["events"][:]
        half = len(events) // 2
        file["events"].resize(half, axis=0)
        watched = Watched(run_file)
    assert watched.look() and watched._events == half
    with h5py.File(run_file, "r+") as file:
        file["events"].resize(len(events), axis=0)
        file["events"][:] = events
    look = watched.look()
    assert look and whole and watched._events == len(events)
    for name, values in vars(whole.clients).items():
        np.testing.assert_array_equal(getattr(look.clients, name), values)
    with h5py.File(run_file, "r+") as file:  # as of a run that was begun anew
        file["events"].resize(0, axis=0)
    look = watched.look()
    assert look and np.isnan(look.clients.heard).all() and look.clients.oldest == 0


def test_what_has_not_changed_is_not_read_again(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "is_being_written", lambda path: True)
    watched = Watched(run_file)
    first = watched.look()
    assert first and first.changed
    monkeypatch.setattr(looking, "reading", lambda path: pytest.fail("it was read"))
    second = watched.look()
    assert second and not second.changed and second.rounds == first.rounds


def test_the_whole_content_is_searched_once_while_one_run_writes_it(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[Any] = []
    monkeypatch.setattr(record, "contained", searched.append)
    monkeypatch.setattr(looking, "is_being_written", lambda path: True)
    watched = Watched(run_file)
    for moment in range(3):
        os.utime(run_file, (moment, moment))  # as if it had grown
        assert watched.look()
    assert len(searched) == 1
    shutil.copy(run_file, tmp_path / "other.h5")
    os.replace(tmp_path / "other.h5", run_file)
    assert watched.look() and len(searched) == 2
    monkeypatch.setattr(looking, "is_being_written", lambda path: False)
    assert watched.look() and len(searched) == 3


def test_a_file_that_takes_long_to_look_at_is_looked_at_seldom(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(Plain):
        waits: list[float] = []

        def show(self, look: Any) -> None:
            pass

        def wait(self, seconds: float) -> None:
            self.waits.append(seconds)

    looks = iter([None, Watched(run_file).look()])
    monkeypatch.setattr(following.Watched, "look", lambda self: time.sleep(0.05) or next(looks))
    assert follow(run_file, 0.1, False, Screen()) == 0
    assert len(Screen.waits) == 1 and Screen.waits[0] >= 0.05 / SHARE


def test_a_look_that_fails_while_the_file_is_written_is_taken_again(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_file.write_bytes(run_file.read_bytes()[:5000])
    with pytest.raises(UserError):
        Watched(run_file).look()
    monkeypatch.setattr(looking, "is_being_written", lambda path: True)
    watched = Watched(run_file)
    assert [watched.look() for _ in range(looking.FAILURES - 1)] == [None] * (looking.FAILURES - 1)
    with pytest.raises(UserError):
        watched.look()


def test_of_many_clients_the_worst_are_shown(complete: Path) -> None:
    look = Watched(complete).look()
    assert look
    count = 1000
    clients = look.clients
    clients.state = np.array(["alive"] * count)
    clients.state[700] = "lost"
    clients.rank, clients.tasks = np.ones(count, int), np.full(count, 7)
    clients.rejected, clients.age, clients.mean_age = np.zeros(count, int), np.ones(count), np.ones(count)
    clients.rejected[300] = 2
    clients.heard = np.full(count, look.time)
    clients.heard[[5, 6]] = np.nan, look.time - 9
    assert clients.worst(look.time, 4).tolist()[:2] == [700, 300]
    assert clients.worst(look.time, 4).tolist()[2:] == [5, 6]
    for width, height in ((80, 24), (40, 10), (20, 3), (5, 1)):
        lines = page(look, width, height)
        assert len(lines) <= height and max(map(len, lines)) <= width
    text = "\n".join(page(look, 120, 24, fancy=False))
    assert text.isascii() and "999 alive, 1 lost" in text and "worst" in text and "not yet" in text


def test_courses_and_durations_in_few_characters() -> None:
    assert sparkline(np.arange(8.0), 8) == "▁▂▃▄▅▆▇█" and sparkline(np.arange(8.0)[::-1], 4, fancy=False)[0] == "@"
    assert len(sparkline(np.random.default_rng(0).random(1000), 40)) == 40
    assert sparkline(np.ones(3), 40) == "▁▁▁" and len(sparkline(np.array([1e308, -1e308]), 9)) == 2
    assert [duration(s) for s in (0.4, 61, 3720, 200000)] == ["0 s", "1 min 1 s", "1 h 2 min", "2 d 7 h"]
