"""Scripts for batch systems: what is asked for is in them, mistakes are told before anything waits in a queue."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import h5py
import pytest
from conftest import PYTHONS, ROOT, needs_mpi, options, trajectory
from ranks import Job

from fbompi.errors import UserError
from fbompi.job.script import notice, seconds_of
from fbompi.resume import stored

SCRIPTS = sorted((ROOT / "jobs").glob("*.slurm"))
TEMPLATES = sorted([*(ROOT / "jobs").glob("*.pbs"), *(ROOT / "jobs").glob("*.lsf")])


@pytest.mark.parametrize(
    "time, seconds",
    [("90", 5400), ("90:30", 5430), ("1:30:00", 5400), ("2-12", 216_000), ("2-12:30", 217_800), ("0-0:01:01", 61)],
)
def test_times_are_read_as_slurm_reads_them(time, seconds) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize("time", ["", "soon", "1:2:3:4", "-5", "0", "00:00:30", "1h"])
def test_other_times_are_refused(time) -> None:
    with pytest.raises(UserError, match="--time"):
        seconds_of(time)


def test_a_run_is_told_in_time() -> None:
    assert [notice(time) for time in ("1", "5", "30", "1:00:00", "2-0")] == [30, 60, 180, 360, 600]


def test_a_script_has_what_was_asked_for(here, tmp_path) -> None:
    keys = ["-o", "run.problem=quadratic", "-o", 'run.out="a file.h5"']
    result = here(
        "job", *keys, "--nodes", 2, "--ntasks", 8, "--cpus", 3, "--time", "2-12", "--before", 500, "--gpus", 4,
        "--launcher", "srun", "--mpi", "pmi2", "--bind", "--partition", "long", "--account", "me",
        "--sbatch=--qos=high", "--module", "openmpi/5.0", "--script", "mine.slurm",
    )  # fmt: skip
    assert result.status == 0 and "sbatch mine.slurm" in result.out, result
    text = (tmp_path / "mine.slurm").read_text()
    asked = {"job-name=mine", "nodes=2", "ntasks=8", "cpus-per-task=3", "time=2-12", "signal=B:USR1@500", "requeue",
             "gpus-per-node=4", "partition=long", "account=me", "qos=high", "open-mode=append"}  # fmt: skip
    assert asked <= set(re.findall(r"^#SBATCH --(\S+)", text, re.M))
    assert "module load openmpi/5.0" in text
    line = "srun --mpi=pmi2 --cpus-per-task=$threads --cpu-bind=cores fbompi run -o run.problem=quadratic"
    assert line in text and "--out 'a file.h5' --resume &" in text
    assert subprocess.run(["bash", "-n", tmp_path / "mine.slurm"]).returncode == 0


def test_without_ntasks_there_is_a_rank_for_every_client(here, tmp_path) -> None:
    for count, ranks in ((5, 6), (200, 32)):
        assert here("job", "-o", f"clients.count={count}", "--script", f"{count}.slurm").status == 0
        assert f"--ntasks={ranks}\n" in (tmp_path / f"{count}.slurm").read_text()


def test_one_task_is_one_process(here, tmp_path) -> None:
    assert here("job", "--ntasks", 1).status == 0
    assert "\nfbompi run --out fbompi.h5 --resume &\n" in (tmp_path / "fbompi.slurm").read_text()


@pytest.mark.parametrize(
    "words, told",
    [
        (["-o", "run.roundz=3"], "rounds"),
        (["--array", "run.algorithm=afbo,fedboo"], "fedbo"),
        (["--array", "run.rounds"], "expected section.key="),
        (["--time", "tomorrow"], "--time tomorrow"),
        (["--time", "1", "--before", "60"], "--before 60"),
        (["--nodes", "4", "--ntasks", "2"], "--ntasks 2"),
        (["--sbatch", "qos"], "--sbatch qos"),
        (["no.toml"], "no.toml"),
    ],
)
def test_a_mistake_is_one_line_and_no_script(here, tmp_path, words, told) -> None:
    result = here("job", *words)
    assert result.status == 2 and told in result.err and len(result.err.splitlines()) == 1, result
    assert not list(tmp_path.iterdir())


def test_an_edited_script_is_not_replaced(here, tmp_path) -> None:
    assert here("job", "--ntasks", 2).status == 0
    assert here("job", "--ntasks", 2).status == 0  # the same text
    with open(tmp_path / "fbompi.slurm", "a") as file:
        file.write("# mine\n")
    result = here("job", "--ntasks", 2)
    assert result.status == 2 and "--overwrite" in result.err
    assert "# mine" in (tmp_path / "fbompi.slurm").read_text()
    assert here("job", "--ntasks", 2, "--overwrite").status == 0
    assert "# mine" not in (tmp_path / "fbompi.slurm").read_text()


def test_without_slurm_the_script_is_written_and_the_reason_told(here, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = here("job", "--submit", "--mpi", "pmix")
    assert result.status == 2 and "no sbatch here" in result.err and (tmp_path / "fbompi.slurm").exists()


@pytest.mark.parametrize("script", [path for path in SCRIPTS if "compare" not in path.name], ids=lambda path: path.name)
def test_shipped_scripts_are_what_fbompi_job_writes(here, tmp_path, script) -> None:
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("*.slurm"))
    words = shlex.split(re.search("^# Written by: fbompi (.*)", script.read_text(), re.M)[1])
    assert here(*words, *(["--mpi", "pmix"] if "srun" in words else [])).status == 0
    for written in (tmp_path / "jobs").glob("*.slurm"):
        text = written.read_text().replace(" --mpi pmix", "")
        lines = re.escape((ROOT / "jobs" / written.name).read_text()).split("\n")
        place = next(i for i, line in enumerate(lines) if "module" in line)
        lines[place : place + 2] = ["export PATH=.*"]
        assert re.fullmatch("\n".join(lines), text), written.name


def test_the_commands_about_clusters_are_true(here, tmp_path) -> None:
    """Those of docs/cluster.md, in their order, but for `doctor`, which is asked elsewhere."""
    page = (ROOT / "docs/cluster.md").read_text()
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S))
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    results = [here(*line.split()) for line in re.findall(r"^fbompi (.*)", blocks, re.M) if line != "doctor"]
    assert [result.status for result in results] == [0, 0, 0], results
    assert {"hypercleaning.slurm", "array.slurm", "array-compare.slurm"} <= {path.name for path in tmp_path.iterdir()}
    planned = set(re.findall(r"array-sweep/\S+\.h5", (tmp_path / "array.slurm").read_text()))
    assert len(planned) == 6 and planned == set(re.findall(r"array-sweep/\S+\.h5", results[-1].out))


@needs_mpi
@pytest.mark.slow
def test_a_signal_when_all_is_written_harms_nothing(tmp_path) -> None:
    """The ranks are on their way out of MPI, where one that is killed takes the others with it."""
    path = tmp_path / "run.h5"
    keys = options(run_problem="quadratic", run_rounds=3)
    for _ in range(3):
        with Job("run", "-n", 3, "--quiet", "--overwrite", "--out", path, *keys, cwd=tmp_path) as job:
            job.running(3, path)
            while stored(path)["status"] != "complete":
                assert job.process.poll() is None, job.result()
            job.process.send_signal(signal.SIGUSR1)
            assert job.result().status == 0
            path.unlink()


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_the_other_templates_stop_in_time_and_go_on(tmp_path, template) -> None:
    """As their batch systems would: bash runs them, and runs them again after 75."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    (tmp_path / "qsub").write_text('#!/bin/bash\necho "$@" >> queue\n')
    (tmp_path / "qsub").chmod(0o755)
    path = f"{Path(PYTHONS['default']).parent}:{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PBS_O_WORKDIR": str(tmp_path)}

    def start(seconds: int, rounds: int) -> int:
        text = template.read_text().replace("seconds=1620", f"seconds={seconds}").replace("ranks=4", "ranks=2")
        text = text.replace("hypercleaning.toml", f"hypercleaning.toml -o run.rounds={rounds}")
        return subprocess.run(["bash", "-c", text], cwd=tmp_path, env=environment, timeout=120).returncode

    assert start(10, 10**6) == 75
    assert h5py.File(tmp_path / "hypercleaning.h5", "r").attrs["status"] == "interrupted"
    done = int(trajectory(tmp_path / "hypercleaning.h5", "round")[-1])
    assert start(1000, done + 100) == 0
    assert h5py.File(tmp_path / "hypercleaning.h5", "r").attrs["status"] == "complete"
    assert trajectory(tmp_path / "hypercleaning.h5", "round")[-1] == done + 100
    if template.suffix == ".pbs":
        assert (tmp_path / "queue").read_text() == f"jobs/{template.name}\n"
