"""fbompi sweep runs what is missing, resumes what was stopped, skips what is complete, and compares."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import ROOT, needs_mpi, options, trajectory

from fbompi.errors import UserError
from fbompi.journal import Lock
from fbompi.sweep.plan import plan, values_of

SMALL = options(run_problem="quadratic", run_rounds=4, clients_count=3)
OWN = """
from fbompi.problems import quadratic

class Moody(quadratic.Quadratic):
    def shard(self, client, clients):
        if self.seed == 2:
            raise RuntimeError("not today")
        return super().shard(client, clients)
"""


def test_values_are_split_at_commas_outside_of_brackets_and_quotes() -> None:
    assert values_of("1,5,[1,5]") == ["1", "5", "[1,5]"]
    assert values_of("afbo, fedmbo") == ["afbo", "fedmbo"]
    assert values_of("\"a,b\",'c,d',[[1,2],[3]]") == ['"a,b"', "'c,d'", "[[1,2],[3]]"]
    assert values_of("7") == ["7"]


def test_a_plan_has_all_combinations_times_seeds_with_a_name_for_each(tmp_path: Path) -> None:
    given = ["run.problem=quadratic", "run.algorithm=memfbo,fedavg", "clients.local_steps=1,[1,5]"]
    runs = plan(None, given, 3, tmp_path)
    assert len(runs) == len({run.path for run in runs}) == 12
    assert runs[0].path.name == "algorithm=memfbo,local_steps=1,seed=0.h5"
    assert runs[5].path.name == "algorithm=memfbo,local_steps=1-5,seed=2.h5"
    assert runs[5].config.clients.local_steps == [1, 5] and runs[5].config.run.seed == 2
    (tmp_path / "base.toml").write_text("[run]\nseed = 7\n")
    assert [run.config.run.seed for run in plan(str(tmp_path / "base.toml"), [], 2, tmp_path)] == [7, 8]
    alike = plan(None, ["run.problem=quadratic,'quadratic'", "run.seed=1,2"], None, tmp_path)
    assert len({run.path for run in alike}) == 4


@pytest.mark.parametrize(
    ("given", "seeds", "said"),
    [
        (["run.rounds=4,,5"], None, "expected section.key=value"),
        (["rounds=4,5"], None, "expected section.key=value"),
        (["run.rounds=4,5", "run.rounds=6"], None, "given twice"),
        (["run.rounds=4,4"], None, "given twice"),
        (["run.seed=1,2"], 2, "--seeds 2"),
        (["run.out=a,b"], None, "--out is their directory"),
        (["run.rouds=4,5"], None, 'did you mean "rounds"'),
        (["run.rounds=4,none"], None, "expected a whole number"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(tmp_path: Path, given: list[str], seeds: int | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(None, given, seeds, tmp_path)


def test_a_sweep_runs_what_is_missing_skips_what_is_complete_and_refuses_another_one(here, tmp_path: Path) -> None:
    words = ["sweep", *SMALL, "-o", "run.algorithm=afbo,fedmbo", "--seeds", 1, "--out", "deep/s"]
    dry = here(*words, "--dry-run")
    assert dry.status == 0 and dry.out.count("run     deep/s/algorithm=") == 2 and not (tmp_path / "deep").exists()
    done = here(*words)
    assert done.status == 0 and done.out.count(": complete, ") == 2 and "2 runs in 2 groups" in done.out, done
    first = tmp_path / "deep/s/algorithm=afbo,seed=0.h5"
    marks = {path: path.stat().st_mtime_ns for path in first.parent.iterdir()}
    assert len(marks) == 2
    again = json.loads(here(*words, "--json").out)
    assert [run["outcome"] for run in again["runs"]] == ["complete already"] * 2
    assert [len(group["files"]) for group in again["comparison"]["groups"]] == [1, 1]
    assert marks == {path: path.stat().st_mtime_ns for path in first.parent.iterdir()}
    with h5py.File(first, "r+") as file:
        file.attrs["status"] = "running"
    lock = Lock(first)  # as somebody else's run
    assert here(*words, "--dry-run").out.split()[0] == "leave"
    lock.release()
    assert here(*words, "--dry-run").out.split()[0] == "resume"
    other = here(*[word.replace("rounds=4", "rounds=5") if isinstance(word, str) else word for word in words])
    assert other.status == 2 and "run.rounds is 4 there, 5 here" in other.err and len(other.err.splitlines()) == 1


def test_a_failed_run_does_not_keep_the_others_from_running(here, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    words = [*options(run_rounds=2, clients_count=2), "-o", "run.problem=own.py:Moody", "-o", "problem.seed=1,2,3"]
    result = here("sweep", *words, "--out", "s")
    assert result.status == 1 and "1 of 3 runs failed: s/seed=2" in result.err.replace("problem.", ""), result
    assert result.out.count(": complete, ") == 2 and "not today" in result.err and "2 runs in" in result.out


def test_ctrl_c_finishes_the_round_and_the_same_command_goes_on_to_the_same_bits(here, tmp_path: Path) -> None:
    words = ["sweep", *options(run_problem="quadratic", run_rounds=100, record_every=1, clients_count=3)]
    words += ["--seeds", "2", "--out", "s"]
    first, second = (tmp_path / f"s/seed={seed}.h5" for seed in (0, 1))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "fbompi", *words]
    sweep = subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 30
        while not first.exists() and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.1)
        sweep.send_signal(signal.SIGINT)
        out, err = sweep.communicate(timeout=30)
    finally:
        sweep.kill()
    assert sweep.returncode == 75 and b"goes on" in err and not second.exists(), (out, err)
    with h5py.File(first) as file:
        assert file.attrs["status"] == "interrupted"
    assert here(*words, "--dry-run").out.split() == ["resume", "s/seed=0.h5", "run", "s/seed=1.h5"]
    done = here(*words)
    assert done.status == 0 and done.out.count(": complete, ") == 2 and "1 groups" in done.out, done
    alone = here("run", "--quiet", *words[1:-4], "--out", "alone.h5")
    assert alone.status == 0, alone
    for name in ("x", "y"):
        np.testing.assert_array_equal(trajectory(first, name), trajectory(tmp_path / "alone.h5", name))


@needs_mpi
@pytest.mark.slow
def test_a_sweep_on_ranks_resumes_a_killed_run(fbompi, tmp_path: Path) -> None:
    words = ["sweep", *SMALL, "-o", "run.algorithm=fedmbo,fedavg", "-n", 3, "--out", "s"]
    assert fbompi(*words).status == 0
    path = tmp_path / "s/algorithm=fedmbo,seed=0.h5"
    with h5py.File(path, "r+") as file:  # as a killed one is found
        file.attrs["status"] = "running"
    result = fbompi(*words)
    assert result.status == 0 and "fedmbo,seed=0.h5: complete, " in result.out and "complete already" in result.out
    refused = fbompi(*[word for word in words if word not in ("-n", 3)])
    assert refused.status == 2 and "was run on MPI" in refused.err
