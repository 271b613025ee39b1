"""Ranks that die, fail, or fall silent: the others go on or all end, soon, and the run file tells what happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import PYTHONS, needs_mpi, options, trajectory
from ranks import Job

from fbompi.errors import UserError
from fbompi.launch import find_launcher, flags
from fbompi.record import reading

KILLS = int(os.environ.get("FBOMPI_TEST_LOSSES", "3"))  # random kills; 30 for a campaign


def tolerates_faults() -> bool:
    launcher = find_launcher()
    return launcher is not None and "--with-ft" in flags(launcher, 2)


needs_fault_tolerance = pytest.mark.skipif(not tolerates_faults(), reason="jobs do not outlive a rank with this MPI")
pytestmark = needs_mpi

PROBLEM = """
import ctypes, os, signal, sys, time
from fbompi.links.mpi import launched_rank
from fbompi.problems.quadratic import Quadratic

class Acting(Quadratic):
    "On some ranks the n-th call of an oracle does something that it should not."

    def __init__(self, ranks: list[int] = [], oracle: str = "lower_grad", call: int = 40, act: str = "",
                 pause: float = 0.0, dim_x: int = 10, dim_y: int = 20):
        super().__init__(dim_x, dim_y)
        self.acting = launched_rank() in ranks
        self.oracle, self.call, self.act, self.pause, self.calls = oracle, call, act, pause, 0

    def lower_grad(self, shard, x, y, batch):
        time.sleep(self.pause)
        self.count("lower_grad")
        return super().lower_grad(shard, x, y, batch)

    def smoothness(self, shard):
        self.count("smoothness")
        return super().smoothness(shard)

    def shard(self, client, clients):
        self.count("shard")
        return super().shard(client, clients)

    def count(self, oracle):
        self.calls += oracle == self.oracle
        if self.acting and oracle == self.oracle and self.calls == self.call:
            getattr(self, "do_" + self.act)()

    def do_kill(self): os.kill(os.getpid(), signal.SIGKILL)
    def do_raise(self): raise ArithmeticError("no answer to this")
    def do_exit(self): sys.exit(3)
    def do_exit_at_once(self): os._exit(3)
    def do_exit_in_c(self): ctypes.CDLL(None).exit(3)
    def do_exit_in_c_at_once(self): ctypes.CDLL(None)._exit(0)
    def do_crash(self): ctypes.string_at(0)

class Last(Acting):
    "Rank 2 dies when all is done, before it says good-bye."

    def __init__(self, pause: float = 0.0):
        super().__init__(pause=pause)
        from fbompi.links import mpi
        if launched_rank() == 2:
            mpi.Host._say_goodbye = self.do_kill

class Wide(Acting):
    "Without the closed form, which takes a matrix of all coordinates of x."

    def exact(self, x, y, clients): return {}
"""

RANKS = 4
# About a second; pauses leave the cores to others.
ASYNC = options(run_rounds=12, clients_count=9, algorithm_quorum=6, problem_pause=0.002, record_every=1)
SYNC = options(run_algorithm="fedmbo", run_rounds=8, clients_count=9, problem_pause=0.002, record_every=1)
LONG = options(run_rounds=100_000, clients_count=9, algorithm_quorum=6, problem_pause=0.002, record_every=1)


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """Start a run of several ranks into run.h5, with a problem that misbehaves as it is told."""
    (tmp_path / "acting.py").write_text(PROBLEM)
    jobs: list[Job] = []

    def start(*arguments: Any, ranks: int = RANKS, out: str = "run.h5", **env: str) -> Job:
        words = ["run", "-n", ranks, "--quiet", "--overwrite", "-o", "run.problem=acting.py:Acting", "--out", out]
        jobs.append(Job(*words, *arguments, cwd=tmp_path, **env))
        return jobs[-1]

    yield start
    for one in jobs:
        one.__exit__()


def incidents(path: Path, what: str) -> Any:
    with h5py.File(path, "r") as file:
        rows = file["incidents"][:]
    return rows[rows["what"] == what.encode()]


def clients(path: Path) -> Any:
    with h5py.File(path, "r") as file:
        return file["clients"][:]


def status(path: Path) -> str:
    with h5py.File(path, "r") as file:
        return str(file.attrs["status"])


def same_bits(one: Path, other: Path) -> None:
    for name in ("round", "x", "y", "grad_norm"):
        np.testing.assert_array_equal(trajectory(one, name), trajectory(other, name))


def in_words(path: Path, here: Any) -> str:
    """What inspect says of losses."""
    return here("inspect", path).out.partition("clients: ")[2]


def verified(path: Path, here: Any) -> None:
    replayed = here("replay", path, "--verify", "--quiet")
    assert replayed.status == 0 and "same bits" in replayed.out, replayed


def killed(ranks: str, **keys: Any) -> list[str]:
    """Options by which ranks die in the middle of a run."""
    return options(problem_ranks=ranks, problem_act="kill", **keys)


# A killed rank


@needs_fault_tolerance
def test_the_clients_of_a_killed_rank_are_adopted_and_go_on_working(job, here, tmp_path) -> None:
    result = job(*ASYNC, *killed("[2]"), "--json").result()
    assert result.status == 4 and "rank 2 was lost, 3 clients were adopted" in result.err, result
    path = tmp_path / "run.h5"
    assert status(path) == "complete"
    (lost,), adopted = incidents(path, "rank lost"), incidents(path, "client adopted")
    assert lost["rank"] == 2 and lost["text"].endswith(b"it hosted clients 1, 4, 7")
    assert sorted(adopted["client"]) == [1, 4, 7] and set(adopted["rank"]) == {1, 3}
    with h5py.File(path, "r") as file:
        events = file["events"][:]
    for client in (1, 4, 7):
        assert (events["time_arrived"][events["client"] == client] > lost["time"]).sum() > 20
    table = clients(path)
    assert table["state"].tolist() == [0, 2, 0] * 3 and set(table["rank"]) == {1, 3}
    figures = json.loads(result.out)
    assert figures == json.loads(here("inspect", "run.h5", "--json").out)
    assert figures["clients"]["states"] == {"alive": 6, "lost": 0, "adopted": 3}
    assert [i["what"] for i in figures["incidents"]] == ["rank lost"] + 3 * ["client adopted"]
    said = in_words(path, here)
    assert "3 adopted" in said and "rank 2 lost" in said and "clients 1, 4, 7 adopted by ranks 1, 3" in said
    verified(path, here)


@needs_fault_tolerance
@pytest.mark.slow
def test_a_synchronous_run_with_losses_has_the_bits_of_one_without(job, run_file, tmp_path) -> None:
    """FedMBO's too: it is among those that are killed at any moment, below."""
    sync = [*SYNC, *options(run_algorithm="memfbo", clients_batch=6)]
    result = job(*sync, *killed("[1, 3]", problem_call=20)).result()
    assert result.status == 4, result
    same_bits(tmp_path / "run.h5", run_file(*sync, "-o", "run.problem=acting.py:Acting", name="alone.h5"))


@needs_fault_tolerance
@pytest.mark.slow
def test_clients_left_out_are_asked_no_more_and_the_rest_goes_on(job, here, tmp_path) -> None:
    result = job(*ASYNC, *killed("[2]", faults_lost="leave")).result()
    assert result.status == 4 and "rank 2 was lost, 3 clients were left out" in result.err, result
    path = tmp_path / "run.h5"
    left_out, table = incidents(path, "client left out"), clients(path)
    assert sorted(left_out["client"]) == [1, 4, 7] and table["state"].tolist() == [0, 1, 0] * 3
    with h5py.File(path, "r") as file:
        events = file["events"][:]
    late = events["take"] > left_out["take"].max()
    assert late.sum() > 100 and not set(events["client"][late]) & {1, 4, 7}
    said = in_words(path, here)
    assert "3 lost" in said and "clients 1, 4, 7 left out: its rank 2 was lost" in said
    verified(path, here)


@needs_fault_tolerance
@pytest.mark.slow
def test_a_synchronous_round_begins_anew_without_the_clients_left_out(job, here, tmp_path) -> None:
    result = job(*SYNC, *killed("[2]", faults_lost="leave")).result()
    assert result.status == 4 and "3 clients were left out" in result.err, result
    verified(tmp_path / "run.h5", here)


@needs_fault_tolerance
@pytest.mark.slow
def test_a_run_that_is_to_stop_for_a_lost_rank_can_be_resumed(job, fbompi, run_file, tmp_path) -> None:
    result = job(*SYNC, *killed("[2]", faults_lost="stop")).result()
    assert result.status == 75 and "rank 2 lost, and faults.lost is stop" in result.err, result
    path = tmp_path / "run.h5"
    assert status(path) == "interrupted" and incidents(path, "rank lost")["rank"].tolist() == [2]
    # With other ranks: the same one would act as before.
    resumed = fbompi("resume", path, "-n", 2, "--quiet")
    assert resumed.status == 0, resumed
    same_bits(path, run_file(*SYNC, "-o", "run.problem=acting.py:Acting", name="alone.h5"))


@needs_fault_tolerance
@pytest.mark.slow
def test_without_any_client_rank_a_run_stops_and_can_be_resumed(job, fbompi, here, tmp_path) -> None:
    result = job(*ASYNC, *killed("[1, 2]", faults_lost="leave"), ranks=3).result()
    assert result.status == 75 and "ranks 1, 2 lost, and no other hosts clients" in result.err, result
    path = tmp_path / "run.h5"
    assert status(path) == "interrupted" and set(incidents(path, "rank lost")["rank"]) == {1, 2}
    # Ranks 1 and 2 die once more, be it while what was recorded is gone through again; rank 3 does not.
    resumed = fbompi("resume", path, "-n", 4, "--quiet")
    assert resumed.status == 4 and status(path) == "complete", resumed
    assert "resumed in round" in here("inspect", path).out
    verified(path, here)


@needs_fault_tolerance
@pytest.mark.slow
def test_a_rank_that_dies_before_the_first_round_is_replaced(job, here, tmp_path) -> None:
    """Everyone is asked once before the run begins: who is left out then would be missing from that for good."""
    result = job(*ASYNC, *killed("[2]", problem_oracle="smoothness", problem_call=1, faults_lost="leave")).result()
    assert result.status == 4 and "3 clients were adopted" in result.err, result
    assert incidents(tmp_path / "run.h5", "rank lost")["time"].tolist() == [0.0]
    verified(tmp_path / "run.h5", here)


@needs_fault_tolerance
@pytest.mark.slow
def test_ranks_may_die_with_long_messages_under_way(job, here, tmp_path) -> None:
    """Short messages are sent whether the receiver is there or not; long ones wait for it."""
    wide = options(run_problem="acting.py:Wide", problem_dim_x=100_000, problem_dim_y=2, algorithm_quorum=6)
    slow = options(run_rounds=12, clients_count=9, record_every=4, problem_pause=0.005)
    under_way = job(*wide, *slow).running(RANKS, tmp_path / "run.h5")
    time.sleep(0.3)
    under_way.kill(1, 3)
    result = under_way.result(90)
    assert result.status == 4 and "6 clients were adopted" in result.err, result
    verified(tmp_path / "run.h5", here)


@needs_fault_tolerance
@pytest.mark.slow
def test_a_rank_that_dies_when_all_is_done_is_missed_but_does_no_harm(job, tmp_path) -> None:
    result = job(*ASYNC, *options(run_problem="acting.py:Last")).result(30)
    assert result.status == 4 and result.err.endswith("rank 2 was lost\n"), result
    path = tmp_path / "run.h5"
    assert status(path) == "complete" and incidents(path, "rank lost")["rank"].tolist() == [2]
    assert not clients(path)["state"].any()


# Ranks that fail in other ways


@pytest.mark.parametrize("act", ["raise", pytest.param("exit", marks=pytest.mark.slow)])
def test_a_rank_that_raises_ends_the_job_with_its_own_words(job, here, tmp_path, act: str) -> None:
    begin = time.monotonic()
    result = job(*LONG, *options(problem_ranks="[2]", problem_act=act)).result(30)
    assert result.status == 1 and "rank 2 failed:" in result.err and f"in do_{act}" in result.err, result
    assert time.monotonic() - begin < 15
    assert status(tmp_path / "run.h5") == "failed"
    assert ": failed, " in here("inspect", "run.h5").out


@needs_fault_tolerance
@pytest.mark.slow
def test_a_shard_that_cannot_be_read_by_who_adopts_it_ends_the_job(job, tmp_path) -> None:
    """Ranks read three shards each; the fourth on rank 1 is an adopted one."""
    under_way = job(*LONG, *options(problem_ranks="[1]", problem_act="raise", problem_oracle="shard", problem_call=4))
    under_way.running(RANKS, tmp_path / "run.h5").kill(2, 3)
    result = under_way.result(30)
    assert result.status == 1 and "rank 1 failed:" in result.err and "no answer to this" in result.err, result
    assert status(tmp_path / "run.h5") == "failed"


@needs_fault_tolerance
@pytest.mark.slow
@pytest.mark.parametrize("act", ["exit_at_once", "exit_in_c_at_once", "crash"])
def test_a_rank_that_leaves_without_a_word_is_noticed_at_once(job, tmp_path, act: str) -> None:
    result = job(*ASYNC, *options(problem_ranks="[2]", problem_act=act)).result(30)
    assert result.status == 4 and "3 clients were adopted" in result.err, result
    assert incidents(tmp_path / "run.h5", "rank lost")["rank"].tolist() == [2]


@needs_fault_tolerance
@pytest.mark.slow
def test_a_rank_that_exits_behind_pythons_back_is_found_by_its_silence(job, tmp_path) -> None:
    """Open MPI tells nobody of a rank that exits with another status than 0."""
    result = job(*ASYNC, *options(problem_ranks="[2]", problem_act="exit_in_c", faults_silence=1.5)).result(30)
    assert result.status == 4 and "rank 2 was lost, 3 clients were adopted" in result.err, result
    (silent,) = incidents(tmp_path / "run.h5", "rank silent")
    assert silent["rank"] == 2 and silent["text"].startswith(b"no sign of life for")


@pytest.mark.slow
def test_one_rank_that_dies_before_all_have_met_is_not_waited_for(job) -> None:
    under_way = job(*LONG, FBOMPI_START_SECONDS="5").started(RANKS)
    under_way.kill(2)
    assert under_way.result(30).status not in (0, 4)


# Ranks that stand still


STOPPED = [*LONG, *options(faults_silence=1.5, run_rounds=36)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wakes", "tolerance", "python"),
    [(True, "1", "default"), (False, "1", "default"), *((True, "0", python) for python in PYTHONS)],
)
def test_a_rank_that_stands_still_is_given_up_and_does_no_harm_when_it_wakes(
    job, here, tmp_path, wakes: bool, tolerance: str, python: str
) -> None:
    path = tmp_path / "run.h5"
    under_way = job(*STOPPED, python=PYTHONS[python], FBOMPI_FAULT_TOLERANCE=tolerance).running(RANKS, path)
    under_way.kill(2, by=signal.SIGSTOP)
    if wakes:
        time.sleep(2.5)
        under_way.kill(2, by=signal.SIGCONT)
    result = under_way.result(60)
    assert result.status == 4 and "rank 2 was lost, 3 clients were adopted" in result.err, result
    (silent,) = incidents(path, "rank silent")
    assert silent["rank"] == 2 and 1.5 <= float(re.search(rb"for (.*) s;", silent["text"])[1]) < 3
    assert status(path) == "complete"
    verified(path, here)
    assert not under_way.alive()


@pytest.mark.slow
def test_a_rank_that_stands_still_for_a_moment_is_not_given_up(job, tmp_path) -> None:
    under_way = job(*STOPPED, *options(faults_silence=6)).running(RANKS, tmp_path / "run.h5")
    under_way.kill(2, by=signal.SIGSTOP)
    time.sleep(2)
    under_way.kill(2, by=signal.SIGCONT)
    result = under_way.result()
    assert result.status == 0 and not len(incidents(tmp_path / "run.h5", "rank silent")), result


@pytest.mark.slow
def test_nobody_is_given_up_for_the_silence_of_the_server(job, tmp_path) -> None:
    under_way = job(*STOPPED).running(RANKS, tmp_path / "run.h5")
    under_way.kill(0, by=signal.SIGSTOP)
    time.sleep(4)
    under_way.kill(0, by=signal.SIGCONT)
    result = under_way.result()
    assert result.status == 0, result


@pytest.mark.slow
def test_nobody_is_given_up_for_computing_longer_than_silence_may_last(job, tmp_path) -> None:
    """Signs of life do not wait for the end of a task."""
    result = job(*options(run_rounds=1, clients_count=6, algorithm_inner_rounds=1, algorithm_terms=1,
                          problem_pause=2.5, faults_silence=1)).result()  # fmt: skip
    assert result.status == 0, result


# The server, and jobs that do not outlive a rank


def resumed_to_the_end(path: Path, fbompi: Any, **options: Any) -> None:
    with h5py.File(path, "r") as file:
        done = int(file["trajectory/round"][-1])
    resumed = fbompi("resume", path, "-n", 3, "--quiet", "-o", f"run.rounds={done + 5}", **options)
    assert resumed.status == 0 and status(path) == "complete", resumed
    assert trajectory(path, "round").tolist() == list(range(done + 6))


@needs_fault_tolerance
def test_without_its_server_a_job_ends_and_can_be_resumed(job, fbompi, here, tmp_path) -> None:
    path = tmp_path / "run.h5"
    under_way = job(*LONG).running(RANKS, path)
    time.sleep(0.5)
    under_way.kill(0)
    result = under_way.result(30)
    assert result.status == 1 and "the server, rank 0, was killed" in result.err, result
    assert "killed while it ran; fbompi resume goes on" in here("inspect", path).out
    resumed_to_the_end(path, fbompi)


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHONS)
def test_where_jobs_do_not_outlive_a_rank_they_end_and_can_be_resumed(job, fbompi, here, tmp_path, name: str) -> None:
    path = tmp_path / "run.h5"
    under_way = job(*LONG, python=PYTHONS[name], FBOMPI_FAULT_TOLERANCE="0").running(RANKS, path)
    time.sleep(1.5)
    under_way.kill(2)
    result = under_way.result(60)
    assert result.status not in (0, 4), result
    assert "fbompi resume goes on" in result.err, result
    assert "killed while it ran; fbompi resume goes on" in here("inspect", path).out
    resumed_to_the_end(path, fbompi, python=PYTHONS[name])


# Any ranks, at any moment


# With a quorum that hardly lets anyone be late: on few cores the number of ranks alone changes ages, and so the rounds.
CAMPAIGN = {
    "afbo": options(run_algorithm="afbo", algorithm_quorum=16, run_rounds=100),
    "fedmbo": options(run_algorithm="fedmbo", run_rounds=100),
}
QUADRATIC = options(run_problem="quadratic", clients_count=18, algorithm_step_x=0.014, record_every=1)
REACHED = {"afbo": 1e-2, "fedmbo": 5e-2}  # of ‖x − x*‖ / ‖x*‖


def rounds_to(path: Path, error: float) -> int:
    found = np.flatnonzero(trajectory(path, "x_error") <= error)
    assert len(found), f"{path}: an error of {error} was never reached"
    return int(found[0])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run file of a method without losses; in a campaign, of three asynchronous runs that of median rounds."""
    runs: dict[str, Path] = {}

    def run(method: str) -> Path:
        if method not in runs:
            count = 3 if KILLS > 6 and method == "afbo" else 1
            paths = [tmp_path_factory.mktemp("undisturbed") / "run.h5" for _ in range(count)]
            for path in paths:
                with Job("run", "-n", 8, "--quiet", *QUADRATIC, *CAMPAIGN[method], "--out", path, cwd=path.parent) as j:
                    assert j.result(120).status == 0
            runs[method] = sorted(paths, key=lambda path: rounds_to(path, REACHED[method]))[len(paths) // 2]
        return runs[method]

    return run


def wait_for_round(path: Path, number: int) -> None:
    """Until a run that goes on has recorded this round."""
    end, done = time.monotonic() + 60, -1
    while done < number:
        assert time.monotonic() < end, f"round {number} is not over"
        time.sleep(0.03)
        with contextlib.suppress(UserError), reading(path) as file:  # it may just be being written
            done = int(file["trajectory/round"][-1])


@needs_fault_tolerance
@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
def test_any_ranks_may_be_killed_at_any_moment(undisturbed, here, tmp_path, number: int) -> None:
    """One, two or three of seven: the run completes, in about as many rounds."""
    rng = random.Random(number)
    method, count = ("afbo", "fedmbo")[number % 2], 1 + number % 3
    reference = undisturbed(method)
    path = tmp_path / "run.h5"
    begin = time.monotonic()
    with Job("run", "-n", 8, "--quiet", *QUADRATIC, *CAMPAIGN[method], "--out", path, cwd=tmp_path) as job:
        job.running(8, path)
        moments = sorted(rng.randrange(85) for _ in range(count))  # rounds, of 100
        ranks = rng.sample(range(1, 8), count)
        for moment, rank in zip(moments, ranks):
            wait_for_round(path, moment)
            time.sleep(rng.uniform(0, 0.03))
            job.kill(rank)
        result = job.result(120)
        assert not job.alive()
    took = time.monotonic() - begin
    assert result.status == 4 and f"{'were' if count > 1 else 'was'} lost" in result.err, result
    lost, adopted = incidents(path, "rank lost"), set(incidents(path, "client adopted")["client"])
    assert sorted(lost["rank"]) == sorted(ranks) and len(adopted) >= 2 * count
    table = clients(path)
    assert not set(table["rank"]) & set(ranks) and set(np.flatnonzero(table["state"] == 2)) == adopted
    with h5py.File(path, "r") as file:
        events = file["events"][:]
    late = events["time_arrived"] > lost["time"].max()
    assert adopted <= set(events["client"][late]), "adopted clients did no work"
    said = in_words(path, here)
    assert all(f"rank {rank} lost" in said for rank in ranks), said
    rounds, before = rounds_to(path, REACHED[method]), rounds_to(reference, REACHED[method])
    print(f"{method}: killed {ranks} in rounds {moments}; {took:.1f} s in all; {rounds} rounds "
          f"to {REACHED[method]:g}, {before} without: {rounds / before:.3f}")  # fmt: skip
    assert rounds <= 1.1 * before
    if method == "fedmbo":
        same_bits(path, reference)
    else:
        verified(path, here)
