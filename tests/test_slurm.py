"""A real Slurm: jobs are submitted, run out of time, are queued again and go on; arrays are compared."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import PYTHONS, ROOT, Result, command, needs_mpi, options, trajectory
from slurm import Slurm, running

pytestmark = [needs_mpi, pytest.mark.slow, pytest.mark.early]
SCRIPTS = sorted((path.name for path in (ROOT / "jobs").glob("*.slurm")), key=lambda name: "-compare" in name)
SYNCHRONOUS = options(run_algorithm="fedmbo", run_problem="quadratic", clients_count=4)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as place, running(Path(place)) as started:
        yield started


@pytest.fixture
def job(slurm: Slurm, tmp_path: Path) -> Callable[..., dict]:
    """``fbompi job --submit``; what it says."""

    def submit(*arguments: object, python: str = PYTHONS["default"]) -> dict:
        result = command("job", *arguments, "--submit", "--json", cwd=tmp_path, python=python,
                         SLURM_CONF=slurm.environment["SLURM_CONF"])  # fmt: skip
        assert result.status == 0, result
        return json.loads(result.out)

    return submit


def logs(place: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(place.glob("*.log")))


def here(tmp_path: Path, *arguments: object) -> Path:
    """The same run in one process: a synchronous method has the same bits there."""
    path = tmp_path / "here.h5"
    result: Result = command("run", "--quiet", "--out", path, *arguments, cwd=tmp_path)
    assert result.status == 0, result
    return path


@pytest.mark.parametrize("python", sorted(PYTHONS))
def test_mpirun_and_srun_give_the_same_bits_as_one_process(slurm, job, tmp_path, python) -> None:
    keys = [*SYNCHRONOUS, *options(run_rounds=4)]
    jobs = [
        job(*keys, "--ntasks", 3, "--time", 5, "--launcher", launcher, "--script", f"{launcher}.slurm",
            python=PYTHONS[python])["jobs"][0]
        for launcher in ("mpirun", "srun")
    ]  # fmt: skip
    assert slurm.ended(jobs) == ["COMPLETED"] * 2, logs(tmp_path)
    expected = trajectory(here(tmp_path, *keys), "x")
    for name in ("mpirun", "srun"):
        with h5py.File(tmp_path / f"{name}.h5", "r") as file:
            assert file.attrs["status"] == "complete" and file.attrs["ranks"] == 3
        assert np.array_equal(trajectory(tmp_path / f"{name}.h5", "x"), expected)


def test_jobs_whose_time_is_up_again_and_again_end_with_the_same_bits(slurm, job, tmp_path) -> None:
    """Slurm sends the signal when a quarter of the minute is over, give or take ten seconds."""
    keys = [*SYNCHRONOUS, *options(run_rounds=160, delays_model="none")]
    slow = options(delays_compute=1.0, delays_inject=0.02)  # a round is a dozen exchanges of 0.02 s
    submitted = {
        name: job(*keys, *slow, "--ntasks", 2, "--time", 1, "--before", 45, "--launcher", launcher,
                  "--script", f"{name}.slurm", python=PYTHONS.get(name, PYTHONS["default"]))["jobs"][0]
        for name, launcher in (("default", "mpirun"),)
    }  # fmt: skip
    assert slurm.ended(list(submitted.values()), 240) == ["COMPLETED"], logs(tmp_path)
    expected = trajectory(here(tmp_path, *keys), "x")
    for name, number in submitted.items():
        restarts = int(slurm.figure(number, "Restarts"))
        log = (tmp_path / f"{name}-{number}.log").read_text()
        interrupted = log.count("fbompi: interrupted after round")  # not where the signal came before the first round
        assert restarts >= interrupted >= 2 and log.count("time is up, back into the queue") == restarts, log
        with h5py.File(tmp_path / f"{name}.h5", "r") as file:
            assert len(file["starts"]) == interrupted + 1
        assert np.array_equal(trajectory(tmp_path / f"{name}.h5", "x"), expected)


def test_a_cancelled_job_is_not_queued_again_and_can_go_on(slurm, job, tmp_path) -> None:
    keys = [*SYNCHRONOUS, *options(run_rounds=1600, delays_model="none", delays_compute=1.0, delays_inject=0.01)]
    asked = [*keys, "--ntasks", 2, "--time", 5, "--script", "long.slurm"]
    number = job(*asked)["jobs"][0]
    slurm.wait("the run file", (tmp_path / "long.h5").exists)
    slurm.ask("scancel", number)
    assert slurm.ended([number]) == ["CANCELLED"], logs(tmp_path)
    assert slurm.figure(number, "Restarts") == "0"
    again = job(*asked)["jobs"][0]  # the same line
    slurm.wait("the second start", lambda: "resumed" in str(watched(tmp_path / "long.h5")))
    slurm.ask("scancel", again)
    assert slurm.ended([again]) == ["CANCELLED"]


def watched(path: Path) -> str:
    result = command("inspect", path, cwd=path.parent)
    return result.out


def test_an_array_of_six_runs_is_compared_when_all_have_ended(slurm, job, tmp_path) -> None:
    asked = options(run_problem="quadratic", run_rounds=4, clients_count=4)
    told = job(*asked, "--array", "run.algorithm=fedmbo,afbo", "--seeds", 3, "--ntasks", 2, "--time", 5)
    assert len(told["runs"]) == 6
    assert slurm.ended(told["jobs"]) == ["COMPLETED"] * 2, logs(tmp_path)
    for name in told["runs"]:
        assert h5py.File(tmp_path / name, "r").attrs["status"] == "complete"
    figures = json.loads((tmp_path / "fbompi-sweep" / "comparison.json").read_text())
    assert [len(group["seeds"]) for group in figures["groups"]] == [3, 3]
    assert "<html" in (tmp_path / "fbompi-sweep" / "report.html").read_text()
    assert (tmp_path / "fbompi-sweep" / "comparison.png").stat().st_size > 10_000


def test_what_the_readme_submits_runs(slurm, job, tmp_path) -> None:
    """On fewer ranks, for fewer rounds."""
    lines = re.findall(r"^fbompi job (.*) --submit", (ROOT / "README.md").read_text(), re.M)
    jobs = []
    for number, line in enumerate(lines):
        small = {"nodes": 1, "ntasks": 2, "seeds": 1}
        for name, count in small.items():
            line = re.sub(rf"--{name} \d+", f"--{name} {count}", line)
        words = [ROOT / word if word.startswith("jobs/") else word for word in line.split()]
        jobs += job(*words, *options(run_rounds=3), "--script", f"{number}.slurm")["jobs"]
    assert len(jobs) == 3 and slurm.ended(jobs) == ["COMPLETED"] * 3, logs(tmp_path)


def test_every_shipped_script_runs_as_it_is(slurm, tmp_path) -> None:
    """With fewer rounds; what compares an array after that array."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    config = tmp_path / "jobs" / "hypercleaning.toml"
    config.write_text(config.read_text().replace("rounds = 300", "rounds = 5"))
    environment = {**slurm.environment, "PATH": f"{Path(PYTHONS['default']).parent}:{slurm.environment['PATH']}",
                   "PYTHONPATH": str(ROOT)}  # fmt: skip
    numbers: dict[str, str] = {}
    for name in SCRIPTS:
        first = name.replace("-compare", "")
        after = [f"--dependency=afterany:{numbers[first]}"] if first in numbers else []
        words = ["sbatch", "--parsable", *after, f"jobs/{name}"]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        numbers[name] = done.stdout.strip()
    assert slurm.ended(list(numbers.values()), 240) == ["COMPLETED"] * len(numbers), logs(tmp_path)
