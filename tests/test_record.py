"""The run file is the whole record of a run, for anyone with h5py, and a kill never costs more than the last rows."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import ROOT, command, needs_mpi, options, trajectory
from numpy.lib.recfunctions import repack_fields

from fbompi.config import tomllib
from fbompi.errors import UserError
from fbompi.summary import page, summary

SMALL = options(run_problem="quadratic", run_rounds=4, record_every=1, clients_count=5, run_seed=3)
RANDOM = [*options(problem_noise=1.0, clients_batch=4, delays_stragglers=2), "-o", "clients.local_steps=[1, 3]"]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small finished run with all kinds of randomness in it; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("complete")
    result = command("run", *SMALL, *RANDOM, "--quiet", "--out", "run.h5", cwd=folder)
    assert result.status == 0, result
    return folder / "run.h5"


@pytest.fixture
def opened(complete: Path) -> Iterator[h5py.File]:
    with h5py.File(complete, "r") as file:
        yield file


# The layout that others rely on


def test_the_file_says_what_it_is_and_where_it_comes_from(opened):
    a = opened.attrs
    assert (a["format"], a["status"], a["seed"], a["ranks"], a["mpi"]) == ("fbompi-run", "complete", 3, 1, "")
    assert a["format_version"] >= 1 and a["fbompi_version"] and a["host"]
    assert datetime.fromisoformat(a["created"]).tzinfo is not None
    config = tomllib.loads(a["config"])
    assert config["run"]["rounds"] == 4 and config["clients"]["count"] == 5
    assert config["delays"]["model"] == "lognormal"  # a default, stored all the same


def test_a_trajectory_has_one_row_per_record_and_every_column_is_described(opened):
    columns = opened["trajectory"]
    assert {"round", "time", "x", "y", "upper", "lower", "grad_norm", "x_error"} <= set(columns)
    assert {len(column) for column in columns.values()} == {5}
    assert (columns["x"].shape, columns["y"].shape) == ((5, 10), (5, 20))
    assert columns["round"][:].tolist() == [0, 1, 2, 3, 4]
    assert np.all(np.diff(columns["time"]) > 0)
    for name, column in columns.items():
        assert isinstance(column.attrs["meaning"], str) and column.attrs["meaning"], name
        assert isinstance(column.attrs["unit"], str), name
    assert "seconds" in columns["time"].attrs["unit"]


def test_every_value_of_a_finished_run_is_there(opened):
    for name, column in opened["trajectory"].items():
        begin = 1 if name == "grad_norm" else 0  # there is no step before the first round
        assert np.all(np.isfinite(column[begin:])), name
    assert opened["final/x"][:].tobytes() == opened["trajectory/x"][-1].tobytes()
    assert opened["final/y"][:].tobytes() == opened["trajectory/y"][-1].tobytes()


def test_there_is_one_event_per_arrival(opened):
    events = opened["events"][:]
    wanted = {"client", "kind", "task", "sent_round", "arrived_round", "age", "local_steps", "bytes", "time_sent",
              "time_arrived"}  # fmt: skip
    assert wanted <= set(events.dtype.names)
    assert np.array_equal(events["age"], events["arrived_round"] - events["sent_round"]) and events["age"].min() >= 0
    assert np.all(np.diff(events["take"]) >= 0) and np.all(events["time_arrived"] >= events["time_sent"])
    for kind in set(events["kind"]):
        assert np.all(np.diff(events["time_arrived"][events["kind"] == kind]) >= 0)
    assert len(set(events["task"])) == len(events)
    assert set(events["client"]) == set(range(5)) and set(events["local_steps"]) == {1, 2, 3}
    assert np.all(events["bytes"] > 0)
    kinds = h5py.check_enum_dtype(opened["events"].dtype["kind"])
    assert {"lower", "product", "cross"} <= set(kinds) and set(events["kind"]) <= set(kinds.values())


def test_there_is_one_row_per_client(opened):
    clients, events = opened["clients"][:], opened["events"][:]
    assert {"shard_size", "rank", "tasks_done", "state"} <= set(clients.dtype.names)
    assert clients["shard_size"].tolist() == [32] * 5 and clients["rank"].tolist() == [0] * 5
    assert clients["tasks_done"].tolist() == np.bincount(events["client"], minlength=5).tolist()
    states = h5py.check_enum_dtype(opened["clients"].dtype["state"])
    assert {"alive", "lost", "adopted"} <= set(states) and set(clients["state"]) == {states["alive"]}


@needs_mpi
def test_a_run_on_ranks_leaves_the_same_layout(complete, run_file):
    path = run_file("-n", 3, *SMALL, *RANDOM)
    with h5py.File(complete) as one, h5py.File(path) as many:
        assert set(one["trajectory"]) == set(many["trajectory"]) and set(one.attrs) == set(many.attrs)
        assert one["events"].dtype == many["events"].dtype and one["clients"].dtype == many["clients"].dtype
        assert many.attrs["ranks"] == 3 and "MPI" in many.attrs["mpi"].upper()
        assert many["clients"]["rank"].tolist() == [1, 2, 1, 2, 1]
        assert many["clients"]["tasks_done"].tolist() == np.bincount(many["events"]["client"], minlength=5).tolist()
        assert np.all(np.isfinite(many["trajectory/upper"][:]))


# Repeating


MEASURED = {"seconds", "memory", "peak_memory", "client_seconds", "server_seconds"}  # no two runs have them alike


def numbers(file: h5py.File, name: str) -> np.ndarray:
    """What a dataset of a run file holds, but for what was measured."""
    fields = [field for field in file[name].dtype.names or () if field not in MEASURED]
    return repack_fields(file[name][()][fields]) if fields else file[name][()]


def same(one: Path, other: Path) -> None:
    """Every number of two runs, bit for bit."""
    with h5py.File(one) as a, h5py.File(other) as b:
        names: tuple[list[str], list[str]] = [], []
        a.visit(names[0].append)
        b.visit(names[1].append)
        assert names[0] == names[1]
        for name in (n for n in names[0] if isinstance(a[n], h5py.Dataset) and n.rpartition("/")[2] not in MEASURED):
            if name.startswith(("starts", "checkpoint/")):  # when, and what was measured on the way
                continue
            assert numbers(a, name).tobytes() == numbers(b, name).tobytes(), name


def test_the_stored_configuration_repeats_the_run_bit_for_bit(complete, here, tmp_path):
    with h5py.File(complete) as file:
        (tmp_path / "stored.toml").write_text(file.attrs["config"], encoding="utf-8")
    result = here("run", "stored.toml", "--quiet", "--out", "again.h5")
    assert result.status == 0, result
    same(complete, tmp_path / "again.h5")


def test_how_often_a_run_is_looked_at_does_not_change_it(complete, run_file):
    path = run_file(*SMALL, *RANDOM, *options(record_every=3, record_metrics=False, record_iterates=False))
    with h5py.File(complete) as often, h5py.File(path) as seldom:
        for name in ("final/x", "final/y", "events", "clients"):
            assert numbers(often, name).tobytes() == numbers(seldom, name).tobytes(), name


# What is recorded


@pytest.mark.parametrize(("every", "rounds"), [(3, [0, 3, 6, 7]), (50, [0, 7])])
def test_rows_are_taken_as_often_as_asked_and_at_both_ends(run_file, every, rounds):
    path = run_file(*SMALL, *options(run_rounds=7, record_every=every))
    assert trajectory(path, "round").tolist() == rounds


def test_without_iterates_only_the_last_one_is_kept(run_file):
    with h5py.File(run_file(*SMALL, *options(record_iterates=False))) as file:
        assert not {"x", "y"} & set(file["trajectory"])
        assert (file["final/x"].shape, file["final/y"].shape) == ((10,), (20,))


def test_without_metrics_nothing_is_evaluated(run_file):
    path = run_file(*SMALL, *options(record_metrics=False))
    assert np.all(np.isnan(trajectory(path, "upper"))) and np.all(np.isnan(trajectory(path, "lower")))
    assert np.all(np.isfinite(trajectory(path, "x")))
    assert summary(path)["metrics"]["upper"]["last"] is None


# Names


def test_numbered_names_never_overwrite(here, tmp_path):
    (tmp_path / "afbo-quadratic-2.h5").write_text("mine")
    for number in (1, 3):
        result = here("run", *SMALL, "--quiet")
        assert result.status == 0 and result.out.endswith(f"\nafbo-quadratic-{number}.h5\n"), result
    assert (tmp_path / "afbo-quadratic-2.h5").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"afbo-quadratic-{n}.h5" for n in (1, 2, 3)]


def test_runs_started_together_do_not_take_each_others_name(tmp_path):
    runs = [start(tmp_path, *SMALL) for _ in range(4)]
    said = [run.communicate(timeout=60) for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, said
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"afbo-quadratic-{n}.h5" for n in (1, 2, 3, 4)]


def test_overwriting_replaces_the_file_whole(complete, here, tmp_path):
    (tmp_path / "run.h5").write_bytes(b"x" * 10_000_000)
    result = here("run", *SMALL, *RANDOM, "--quiet", "--overwrite", "--out", "run.h5")
    assert result.status == 0, result
    same(complete, tmp_path / "run.h5")


def test_a_run_file_may_have_a_name_in_any_script(run_file):
    path = run_file(*SMALL, name="ü 😀 'quoted'.h5")
    assert summary(path)["config"]["run"]["out"] == str(path)


# inspect


def test_inspect_tells_what_was_run_and_how_it_went(complete, here):
    result = here("inspect", complete)
    assert result.status == 0 and result.err == ""
    for words in ("afbo on quadratic: complete, 4 of 4 rounds", "seed 3", "5 clients with 160 samples", "virtual",
                  "x_error", "staleness", "MB moved", "gradients"):  # fmt: skip
        assert words in result.out


def test_inspect_gives_the_same_to_machines(complete, here):
    result = here("inspect", complete, "--json")
    assert result.status == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    figures = json.loads(result.out, parse_constant=refuse)
    assert (figures["status"], figures["rounds"], figures["rows"], figures["clients"]["count"]) == ("complete", 4, 5, 5)
    assert figures["metrics"]["x_error"]["last"] == trajectory(complete, "x_error")[-1]
    with h5py.File(complete) as file:
        events = file["events"][:]
        assert figures["config"] == tomllib.loads(file.attrs["config"])
    assert (figures["answers"], figures["bytes"]) == (len(events), events["bytes"].sum())
    assert figures["oracle_calls"]["gradients"] == events["gradients"].sum()
    assert figures["age"]["mean"] == pytest.approx(events["age"].mean())


def test_run_gives_machines_what_inspect_gives_them(here, tmp_path):
    ran = here("run", *SMALL, "--json", "--out", "run.h5")
    assert json.loads(ran.out) == json.loads(here("inspect", "run.h5", "--json").out)


def test_a_run_can_be_looked_at_while_it_runs(here, tmp_path):
    run = start(tmp_path, *ENDLESS)
    try:
        wait_for_rows(run, tmp_path / "run.h5", 0.3)
        result, to_machines = here("inspect", "run.h5"), here("inspect", "run.h5", "--json")
    finally:
        run.kill()
        run.communicate()
    assert result.status == 0 and ": running, " in result.out, result
    assert json.loads(to_machines.out)["being_written"]
    afterwards = here("inspect", "run.h5").out
    assert "killed while it ran; fbompi resume goes on. " in afterwards and "running" not in afterwards


def note(path: Path, *incidents: tuple) -> Path:
    """Add incidents to a run file: what, client, rank, text."""
    with h5py.File(path, "r+") as file:
        table = file["incidents"]
        rows = [(0.5 * k, k, 2 * k, what, *rest) for k, (what, *rest) in enumerate(incidents)]
        table.resize(len(table) + len(rows), axis=0)
        table[len(table) - len(rows) :] = np.array(rows, table.dtype)
    return path


def test_inspect_tells_of_incidents_in_a_few_lines(complete, here, tmp_path):
    path = note(
        Path(shutil.copy(complete, tmp_path / "run.h5")), ("rank lost", -1, 2, "MPI reports it dead"),
        ("client adopted", 1, 3, ""), *[("answer rejected", c, -1, "lower: not finite") for c in (4, 3, 4)],
        *[("rank silent", -1, rank, "no sign of life") for rank in range(4, 20)],
    )  # fmt: skip
    lines = here("inspect", path).out.splitlines()
    assert lines[-7:] == [
        "  0 virtual s: rank 2 lost: MPI reports it dead",
        "  0.5 virtual s: client 1 adopted by rank 3",
        "  3 answers of clients 3, 4 rejected, the first at 1 virtual s: lower: not finite",
        *[f"  {2.5 + 0.5 * k:.4g} virtual s: rank {4 + k} silent: no sign of life" for k in range(3)],
        "  … and 13 more",
    ]
    figures = json.loads(here("inspect", path, "--json").out)
    assert len(figures["incidents"]) == 21
    assert figures["incidents"][1] == {
        "time": 0.5, "round": 1, "take": 2, "what": "client adopted", "client": 1, "rank": 3, "text": "",
    }  # fmt: skip


def test_inspect_tells_when_a_run_was_resumed(here, run_file):
    path = run_file(*SMALL)
    assert "resumed" not in here("inspect", path).out
    for rounds in (6, 9):
        assert here("resume", path, "--quiet", "-o", f"run.rounds={rounds}").status == 0
    said = here("inspect", path).out
    assert "resumed in round 4 on 1 rank, 2" in said and "resumed in round 6 on 1 rank, 2" in said
    starts = json.loads(here("inspect", path, "--json").out)["starts"]
    assert [start["round"] for start in starts] == [0, 4, 6]


def test_inspect_reads_the_first_format(complete, here, tmp_path):
    """Which had no incidents and no starts, and less in its other tables."""
    path = Path(shutil.copy(complete, tmp_path / "run.h5"))
    with h5py.File(path, "r+") as file:
        for name, lacking in (("events", ("take", "rejected")), ("clients", ("rejected",))):
            rows, attributes = file[name][:], dict(file[name].attrs)
            kept = repack_fields(rows[[k for k in rows.dtype.names if k not in lacking]])
            del file[name]
            file[name] = kept
            file[name].attrs.update(attributes)
        for name in ("incidents", "starts", "checkpoint"):
            del file[name]
        del file.attrs["run"]
        file.attrs.update(format_version=1, status="running")
    result = here("inspect", path)
    assert result.status == 0 and ": killed while it ran, 4 of 4 rounds" in result.out, result
    figures = json.loads(here("inspect", path, "--json").out)
    assert figures["incidents"] == figures["starts"] == [] and figures["clients"]["states"]["alive"] == 5


def truncated(complete: Path, path: Path) -> None:
    path.write_bytes(complete.read_bytes()[: complete.stat().st_size // 2])


def beheaded(complete: Path, path: Path) -> None:
    path.write_bytes(complete.read_bytes()[:10])


def foreign(complete: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)


def of_another_format(complete: Path, path: Path) -> None:
    shutil.copy(complete, path)
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = 5


def newer(complete: Path, path: Path) -> None:
    shutil.copy(complete, path)
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = 99


UNREADABLE: dict[str, tuple[Any, str]] = {
    "a truncated file": (truncated, "truncated"),
    "the first bytes of a file": (beheaded, "HDF5"),
    "garbage": (lambda _, path: path.write_bytes(random.Random(0).randbytes(5000)), "HDF5"),
    "a text": (lambda _, path: path.write_text("round,time\n0,0\n"), "HDF5"),
    "an empty file": (lambda _, path: path.touch(), "HDF5"),
    "another HDF5 file": (foreign, "not a run file"),
    "an HDF5 file of another format": (of_another_format, "not a run file"),
    "a file of a newer format": (newer, "99"),
    "no file": (lambda _, path: None, "no such file"),
    "a directory": (lambda _, path: path.mkdir(), "directory"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_inspect_refuses_with_one_clear_line(complete, here, tmp_path, what):
    make, word = UNREADABLE[what]
    make(complete, tmp_path / "odd.h5")
    result = here("inspect", "odd.h5", *(["--json"] if what == "garbage" else []))
    assert result.status == 2 and result.out == "", result
    assert result.err.startswith("fbompi: odd.h5: ") and result.err.count("\n") == 1 and word in result.err, result


def looked_at(path: Path) -> None:
    """A page, or one clear line; anything else is an error of ours."""
    try:
        assert page(summary(path))
    except UserError as e:
        assert str(path) in str(e) and "\n" not in str(e), repr(str(e))


def test_a_file_with_any_part_missing_is_told_or_lived_with(complete, tmp_path):
    with h5py.File(complete) as file:
        parts: list[str] = []
        file.visit(parts.append)
        attributes = [("/", name) for name in file.attrs]
        attributes += [(part, name) for part in parts for name in file[part].attrs]
    path, failed = tmp_path / "part.h5", []
    for part, attribute in [*((part, None) for part in parts), *attributes]:
        shutil.copy(complete, path)
        with h5py.File(path, "r+") as file:
            if attribute:
                del file[part].attrs[attribute]
            else:
                del file[part]
        try:
            looked_at(path)
        except Exception as e:
            failed.append(f"without {part} {attribute or ''}: {e!r}")
    assert not failed, "\n".join(failed)


def test_a_damaged_file_is_told_or_lived_with(complete, tmp_path):
    content, chance, path, failed = complete.read_bytes(), random.Random(5), tmp_path / "damaged.h5", []
    config = content.index(b"[run]")
    for number in range(150):
        damaged = bytearray(content)
        end = len(content) if number % 3 else config + 2000  # where most of the meaning is
        for _ in range(chance.choice([1, 8, 64])):
            damaged[chance.randrange(end)] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            looked_at(path)
        except Exception as e:
            failed.append(f"damage {number}: {e!r}")
    assert not failed, "\n".join(failed)


# Kills and Ctrl-C

ENDLESS = [*options(run_problem="quadratic", run_rounds=10**6, record_every=1, clients_count=3), "--out", "run.h5"]


def start(folder: Path, *arguments: Any, **how: Any) -> subprocess.Popen:
    """``fbompi run`` in the background."""
    words = [sys.executable, "-m", "fbompi", "run", "--quiet", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, **how)


def wait_for_rows(run: subprocess.Popen, path: Path, seconds: float) -> None:
    """Until the file has its name, and then so many seconds."""
    deadline = time.monotonic() + 30
    while not path.exists() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert path.exists() and run.poll() is None
    time.sleep(seconds)


def assert_readable(path: Path) -> int:
    """Everything in a run file can be read and fits together; the number of its rows."""
    figures = summary(path)
    assert page(figures)
    with h5py.File(path, "r") as file:
        columns = {name: column[:] for name, column in file["trajectory"].items()}
        assert np.array_equal(columns["round"], np.arange(len(columns["round"])))
        assert len(set(map(len, columns.values()))) == 1
        assert np.all(np.diff(columns["time"]) >= 0) and np.all(np.isfinite(columns["x"]))
        assert sorted(file["events"]["task"]) == sorted(set(file["events"]["task"]))
    return len(columns["round"])


def test_a_run_killed_at_any_moment_leaves_a_file_that_opens(tmp_path):
    chance, found = random.Random(), []
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        run = start(folder, *ENDLESS)
        if attempt:
            wait_for_rows(run, folder / "run.h5", chance.uniform(0, 0.25))
        else:
            time.sleep(chance.uniform(0.1, 0.5))  # perhaps before the file has its name
        run.send_signal(signal.SIGKILL)
        run.communicate()
        beside = {f"run.h5{end}" for end in ("", ".journal", ".checkpoint", ".checkpoint.old", ".checkpoint.new")}
        assert {p.name for p in folder.iterdir() if not p.name.endswith(".partial")} <= beside
        assert all(p.name.startswith(".") for p in folder.glob("*.partial"))
        if (folder / "run.h5").exists():
            figures = summary(folder / "run.h5")
            assert (figures["status"], figures["config"]["run"]["rounds"]) == ("running", 10**6)
            found.append(assert_readable(folder / "run.h5"))
    assert len(found) >= 5 and max(found) > 1


@pytest.mark.slow
def test_whichever_write_the_kill_falls_on_the_file_opens(tmp_path):
    """The run is stopped at each of its system calls, and what a kill there would leave, the journal too, is read."""
    path, lost, rows = tmp_path / "run.h5", [], [0]
    for number, (image, journal) in enumerate(images(path, *SMALL, "--out", "run.h5")):
        (tmp_path / "image.h5").write_bytes(image)
        (tmp_path / "image.h5.journal").write_bytes(journal)
        try:
            figures = summary(tmp_path / "image.h5")
            assert page(figures)
            rows.append(figures["rows"])
        except (UserError, AssertionError) as e:
            lost.append(f"image {number}: {e}")
    assert rows == sorted(rows) and rows[-1] == 5, "rows were lost on the way"
    assert not lost, "\n".join(lost)


def images(path: Path, *arguments: Any) -> list[tuple[bytes, bytes]]:
    """Every content that the run file of a command and its journal have from their first name to the last write."""
    trace, trace_me, go_on = ctypes.CDLL(None, use_errno=True).ptrace, 0, 24
    trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    run = start(path.parent, *arguments, preexec_fn=lambda: trace(trace_me, 0, None, None))
    seen: list[tuple[bytes, bytes]] = []
    journal = path.with_name(path.name + ".journal")
    while True:
        _, status = os.waitpid(run.pid, 0)
        if not os.WIFSTOPPED(status):
            break
        if path.exists():
            content = path.read_bytes(), journal.read_bytes() if journal.exists() else b""
            if content not in seen[-1:]:
                seen.append(content)
        passed_on = os.WSTOPSIG(status) if os.WSTOPSIG(status) != signal.SIGTRAP else None
        if trace(go_on, run.pid, None, passed_on):
            run.kill()
            pytest.skip("processes may not be traced here")
    run.returncode = os.waitstatus_to_exitcode(status)
    out, err = run.communicate()
    assert run.returncode == 0 and seen, (out, err)
    if len(seen) < 10:
        pytest.skip("processes may not be traced here")
    return seen


def test_what_a_kill_left_behind_does_not_disturb_the_next_run(complete, here, tmp_path):
    (tmp_path / ".run.h5.77.partial").write_bytes(complete.read_bytes()[:1000])
    (tmp_path / ".afbo-quadratic-1.h5.77.partial").touch()
    assert here("run", *SMALL, "--quiet", "--out", "run.h5").status == 0
    assert here("run", *SMALL, "--quiet").out.endswith("\nafbo-quadratic-1.h5\n")


def interrupted(run: subprocess.Popen, path: Path, seconds: float) -> str:
    """Ctrl-C after so many seconds of running; what the run then says."""
    wait_for_rows(run, path, seconds)
    run.send_signal(signal.SIGINT)
    try:
        _, err = run.communicate(timeout=8)
    except subprocess.TimeoutExpired:
        run.terminate()
        run.communicate(timeout=10)
        pytest.fail("Ctrl-C did not end the run")
    return err


@pytest.mark.parametrize("seconds", [0.0, 0.07, 0.19, 0.31])
def test_ctrl_c_ends_a_run_in_order(tmp_path, seconds):
    path = tmp_path / "run.h5"
    run = start(tmp_path, *ENDLESS)
    err = interrupted(run, path, seconds)
    assert run.returncode == 75 and "Traceback" not in err and "fbompi resume run.h5" in err, err
    assert summary(path)["status"] == "interrupted"
    assert_readable(path)
    assert {p.name for p in tmp_path.iterdir()} <= {"run.h5", "run.h5.checkpoint", "run.h5.checkpoint.old"}


@needs_mpi
def test_ctrl_c_ends_a_run_on_ranks_in_order(tmp_path):
    path = tmp_path / "run.h5"
    run = start(tmp_path, *ENDLESS, "-n", 3)
    interrupted(run, path, 0.5)
    assert run.returncode == 75
    assert summary(path)["status"] == "interrupted"
    assert assert_readable(path) > 0
