"""The log of arrivals makes any run repeatable in one process, bit for bit, however it came about on its ranks."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import PYTHONS, ROOT, command, needs_mpi, options, trajectory
from stopping import VARIABLE
from test_methods import problem_for
from test_resume import METHODS, keys_for

from fbompi.errors import UserError
from fbompi.replay import replay
from fbompi.summary import summary

REPLAYS = int(os.environ.get("FBOMPI_TEST_REPLAYS", 1))
ROUNDS = 12
LATE = {"delays_inject": 0.002, "delays_model": "pareto", "delays_stragglers": 2, "clients_local_steps": "[1,5]"}
ANARCHY = options(
    run_algorithm="afbo", run_problem="quadratic", run_rounds=ROUNDS, record_every=1, clients_count=7, clients_batch=4,
    problem_noise=0.5, **LATE,
)  # fmt: skip


@pytest.fixture(scope="module")
def anarchic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An asynchronous run on four ranks, with delays; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("anarchic")
    result = command("run", "-n", 4, "--quiet", *ANARCHY, "--out", "run.h5", cwd=folder)
    assert result.status == 0, result
    return folder / "run.h5"


@pytest.fixture
def copy(anarchic: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(anarchic, tmp_path / "run.h5"))


# The same bits


@needs_mpi
def test_an_asynchronous_run_on_ranks_is_repeated_bit_for_bit(anarchic, here):
    with h5py.File(anarchic) as file:
        assert file["events"]["age"].max() > 1, "answers were stale"
        answers = np.bincount(file["events"]["take"])
        order = file["events"]["task"][:]
        assert answers.max() > 1 and np.any(np.diff(order) < 0), "and came as they liked"
    result = here("replay", anarchic, "--verify")
    assert (result.status, result.out) == (0, f"round {ROUNDS}: all {ROUNDS + 1} recorded rounds have the same bits\n")
    result = here("replay", anarchic, "--verify", "--json", "--quiet")
    assert result.status == 0 and result.err == ""
    assert json.loads(result.out) == {
        "round": ROUNDS, "compared": ROUNDS + 1, "different": 0, "first": None, "largest_difference": 0.0,
    }  # fmt: skip


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_run_after_run_on_ranks_is_repeated_bit_for_bit(fbompi, tmp_path, python):
    """FBOMPI_TEST_REPLAYS=20 takes so many."""
    ages = []
    for number in range(REPLAYS):
        path = tmp_path / f"{number}.h5"
        keys = [*ANARCHY, *options(run_seed=number, run_rounds=25)]
        result = fbompi("run", "-n", 4, "--quiet", *keys, "--out", path, python=python)
        assert result.status == 0, result
        result = fbompi("replay", "--verify", path, python=python)
        assert result.status == 0 and "all 26 recorded rounds have the same bits" in result.out, result
        with h5py.File(path) as file:
            ages.append(file["events"]["age"][:])
            mpi = file.attrs["mpi"]
    every = np.concatenate(ages)
    print(f"REPLAYS {mpi}: {REPLAYS} runs, {len(every)} answers, mean age {every.mean():.2f}, largest {every.max()}")
    assert every.max() > 1


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", ["adbo", "afl", "fism", "rafbo"])
def test_other_methods_on_ranks_are_repeated_too(run_file, name):
    keys = options(run_algorithm=name, run_rounds=10, record_every=3, clients_count=7, delays_inject=0.002)
    keys += options(algorithm_mode="asynchronous") if name == "fism" else []
    found = replay(run_file("-n", 4, *keys, *problem_for(name)))
    assert (found.comparison.rounds, found.comparison.different, found.state.round) == (5, 0, 10)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_on_the_virtual_link_is_repeated_too(here, tmp_path, name):
    path = tmp_path / "run.h5"
    assert here("run", "--quiet", *keys_for(name, record_every=3), "--out", path).status == 0
    result = here("replay", "--verify", "--quiet", path)
    assert result.status == 0 and result.out == "round 8: all 4 recorded rounds have the same bits\n", result


def test_without_iterates_the_last_one_is_compared(here, tmp_path):
    path = tmp_path / "run.h5"
    assert here("run", "--quiet", *keys_for("afbo", record_iterates=False), "--out", path).status == 0
    assert here("replay", "--verify", path).status == 0
    with h5py.File(path, "r+") as file:
        file["final/y"][3] = np.nextafter(file["final/y"][3], 1)
    result = here("replay", "--verify", path)
    assert result.status == 1 and "1 of 9 recorded rounds have other bits, the first is round 8" in result.out, result


def test_a_killed_run_is_repeated_as_far_as_it_goes(fbompi, here, tmp_path):
    killed = fbompi("run", "--quiet", *keys_for("afbo"), "--out", "run.h5", **{VARIABLE: "SIGKILL@150"})
    assert killed.status == -signal.SIGKILL
    last = trajectory(tmp_path / "run.h5", "round")[-1]
    result = here("replay", "--verify", "run.h5")
    assert result.status == 0 and f"round {last}: all {last + 1} recorded rounds" in result.out, result


@needs_mpi
@pytest.mark.slow
def test_a_run_that_was_stopped_and_resumed_on_other_ranks_is_repeated_as_one(fbompi, here, tmp_path):
    keys = keys_for("afbo", run_rounds=20, record_checkpoint_every=2, **LATE)
    result = fbompi("run", "-n", 4, "--quiet", *keys, "--out", "run.h5", **{VARIABLE: "SIGTERM@80@2"})
    assert result.status == 75, result
    shutil.copy(tmp_path / "run.h5", tmp_path / "stopped.h5")
    assert here("replay", "--verify", "stopped.h5").status == 0
    for name in ("run.h5.checkpoint", "run.h5.checkpoint.old"):  # all of it is gone through again, in the same order
        (tmp_path / name).unlink(missing_ok=True)
    result = fbompi("resume", "-n", 3, "--quiet", "run.h5")
    assert result.status == 0 and "other bits" not in result.err, result
    result = here("replay", "--verify", "run.h5")
    assert result.status == 0 and "all 21 recorded rounds have the same bits" in result.out, result
    with h5py.File(tmp_path / "stopped.h5") as before, h5py.File(tmp_path / "run.h5") as after:
        rows, events = len(before["trajectory/x"]), len(before["events"])
        assert before["trajectory/x"][:].tobytes() == after["trajectory/x"][:rows].tobytes()
        assert before["events"][:].tobytes() == after["events"][:events].tobytes()
        assert np.all(np.diff(after["trajectory/time"]) >= 0) and rows < 21


# Stopping on the way


@needs_mpi
@pytest.mark.parametrize("until", [0, 1, 7, ROUNDS])
def test_a_replay_hands_over_the_state_of_any_round(anarchic, until):
    found = replay(anarchic, until=until)
    assert found.state.round == until and found.comparison.rounds == until + 1 and not found.comparison.different
    assert found.state.x.tobytes() == trajectory(anarchic, "x")[until].tobytes()
    assert set(found.state.recent) == {"lower", "product", "cross"} and found.driver.setting.clients == 7


@needs_mpi
def test_a_replay_goes_on_from_there(anarchic):
    shown: list[tuple[int, int]] = []
    found = replay(anarchic, until=3, show=lambda *progress: shown.append(progress))
    assert shown == [(1, 3), (2, 3), (3, 3)]
    found.driver.advance()
    assert found.state.x.tobytes() == trajectory(anarchic, "x")[4].tobytes()


@needs_mpi
def test_rounds_between_rows_can_be_stopped_at(anarchic, copy):
    with h5py.File(copy, "r+") as file:
        for name, column in file["trajectory"].items():
            kept = column[::4]
            file["trajectory"][name].resize(len(kept), axis=0)
            file["trajectory"][name][:] = kept
    found = replay(copy, until=6)
    assert found.comparison.rounds == 2 and found.state.x.tobytes() == trajectory(anarchic, "x")[6].tobytes()


@needs_mpi
def test_the_command_stops_there_too_and_opens_python(anarchic, here, tmp_path):
    result = here("replay", anarchic, "--until", 5)
    assert (result.status, result.out) == (0, "round 5: all 6 recorded rounds have the same bits\n")
    words = [sys.executable, "-m", "fbompi", "replay", str(anarchic), "--until", "5", "--python"]
    asked = "print('is', state.round, driver.state is state, float(state.x[0]))\n"
    done = subprocess.run(
        words, input=asked, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0 and f"is 5 True {float(trajectory(anarchic, 'x')[5][0])}" in done.stdout, done
    assert "state after round 5: x, y, round" in done.stderr
    result = here("replay", anarchic, "--until", ROUNDS + 1)
    assert result.status == 2 and f"--until {ROUNDS + 1}: {anarchic} has rounds up to {ROUNDS}" in result.err, result


# What does not fit


@needs_mpi
def test_one_bit_of_one_iterate_is_found(copy, here):
    with h5py.File(copy, "r+") as file:
        file["trajectory/y"][4, 7] = np.nextafter(file["trajectory/y"][4, 7], 1)
        file["trajectory/x"][9, 0] += 0.25
    said = f"round {ROUNDS}: 2 of {ROUNDS + 1} recorded rounds have other bits, the first is round 4"
    for arguments, status in (((), 0), (("--verify",), 1)):
        result = here("replay", copy, *arguments)
        assert result.status == status and said in result.out and "difference is 0.25" in result.out, result


def swapped(file: h5py.File) -> None:
    """Answers of neighbouring steps, each in the other's place: ten pairs, since one may make no difference."""
    events = file["events"][:]
    kinds, tasks = events["kind"], events["task"]
    pairs = [i for i in range(60, len(events) - 1, 2) if kinds[i] == kinds[i + 1]]
    for place in [i for i in pairs if events["take"][i + 1] > events["take"][i]][:10]:
        tasks[[place, place + 1]] = tasks[[place + 1, place]]
    events["task"] = tasks
    file["events"][:] = events


def never_sent(file: h5py.File) -> None:
    event = file["events"][50]
    event["task"] = 10**6
    file["events"][50] = event


def without_a_step(file: h5py.File) -> None:
    events = file["events"][:]
    events["take"][events["take"] >= events["take"][50]] += 1
    file["events"][:] = events


def cut_short(file: h5py.File) -> None:
    file["events"].resize(100, axis=0)


def rejected(file: h5py.File) -> None:
    event = file["events"][70]
    event["rejected"] = 1
    file["events"][70] = event


def other_seed(file: h5py.File) -> None:
    file.attrs["config"] = file.attrs["config"].replace("seed = 0", "seed = 1", 1)


TAMPERED = {
    "answers in each other's place": (swapped, ""),
    "an answer to a task that was never sent": (never_sent, "takes answers to tasks that were not sent"),
    "a step is missing": (without_a_step, "the log of arrivals has no step"),
    "the log is cut short": (cut_short, "log of arrivals ends in round"),
    "an answer was rejected": (rejected, ""),
    "another seed": (other_seed, ""),
}


@needs_mpi
@pytest.mark.parametrize("what", TAMPERED)
def test_a_log_that_is_not_that_of_the_run_never_verifies(copy, here, what):
    change, says = TAMPERED[what]
    with h5py.File(copy, "r+") as file:
        change(file)
    result = here("replay", copy, "--verify", "--quiet")
    assert result.status in ((2,) if says else (1, 2)), result
    assert (result.status == 1 and "have other bits" in result.out) or (
        result.err.startswith(f"fbompi: {copy}: ") and says in result.err and result.err.count("\n") == 1
    ), result


@needs_mpi
def test_whatever_the_log_says_the_replay_is_right_or_says_that_it_is_not(anarchic, copy):
    """A number of the log is another: what still verifies has the recorded bits, and nothing else goes wrong."""
    chance, path, outcomes = random.Random(11), copy, set()
    for _ in range(25):
        shutil.copy(anarchic, path)
        with h5py.File(path, "r+") as file:
            place, field = chance.randrange(len(file["events"])), chance.choice(["task", "take", "rejected"])
            event = file["events"][place]
            event[field] = {"task": chance.randrange(300), "take": chance.randrange(300), "rejected": 1}[field]
            file["events"][place] = event
        try:
            found = replay(path)
            outcomes.add("verifies" if not found.comparison.different else "other bits")
            assert found.state.round == ROUNDS
        except UserError as e:
            outcomes.add("refused")
            assert str(path) in str(e) and "\n" not in str(e), str(e)
    assert "refused" in outcomes or "other bits" in outcomes


def test_what_is_no_run_file_is_refused_with_one_clear_line(here, tmp_path):
    (tmp_path / "text.h5").write_text("no\n")
    for name, word in (("text.h5", "HDF5"), ("none.h5", "no such file")):
        result = here("replay", name, "--verify")
        assert result.status == 2 and result.err.startswith(f"fbompi: {name}: ") and word in result.err, result


@needs_mpi
def test_a_run_that_has_lost_its_configuration_or_method_is_told(copy, here):
    with h5py.File(copy, "r+") as file:
        file.attrs["config"] = file.attrs["config"].replace('"afbo"', '"afbox"')
    result = here("replay", copy)
    assert result.status == 2 and "afbox" in result.err and result.err.count("\n") == 1, result
    assert summary(copy)["status"] == "complete"
