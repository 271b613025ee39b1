"""What is installed, what the README says, and what the jobs do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import click
import h5py
import pytest
from conftest import ROOT, command, needs_mpi

from fbompi import doctor
from fbompi.config import read_toml

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """A command of the README, as a reader would copy it."""
    found = re.search(rf"<!-- {name} command -->\n```sh\n(.*?)\n```", README, re.S)
    assert found
    return found[1]


def jobs() -> list:
    """All jobs with the data they need; those on large sets take a while to import."""
    files = sorted((ROOT / "jobs").glob("*.toml"))
    sets = {path: read_toml(path).get("problem", {}).get("data", "digits") for path in files}
    return [
        pytest.param(path, data, id=path.stem, marks=[] if data == "digits" else [pytest.mark.slow])
        for path, data in sets.items()
    ]


@pytest.mark.parametrize(("job", "data"), jobs())
def test_every_job_runs(here, real_data, job: Path, data: str) -> None:
    if data != "digits":
        real_data(data)
    result = here("run", "--quiet", job, "-o", "run.rounds=3", "-o", "record.every=1")
    assert result.status == 0, result


def test_the_default_job_is_the_built_in_default() -> None:
    from fbompi.config import load

    job = load(ROOT / "jobs/hypercleaning.toml")
    job.clients.count = "auto"
    assert job.text() == load(None).text()


def test_the_figures_of_the_readme_are_those_of_the_run(here) -> None:
    said = here("run", "--quiet").out
    for line in re.search(r"```text\n(.*?)\n```", README, re.S)[1].splitlines():
        for part in line.split("..."):
            assert part.strip() in said, part


def test_the_python_of_the_readme_runs(here, tmp_path: Path) -> None:
    assert here("run", "--quiet", "-o", "run.rounds=20").status == 0
    code = re.search(r"```python\n(.*?)\n```", README, re.S)[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "rounds = 20" in done.stdout, done.stderr


def story(page: str, file: str) -> list[str]:
    """The commands of a page about a file, in their order."""
    return [line.strip() for line in re.findall(r"^(fbompi [^#\n]*)", page, re.M) if file in line]


def commands() -> list:
    """Those of the README that stand alone; measuring takes a while, and submitting a Slurm (test_slurm.py)."""
    told = {*story(README, "long.h5"), *story(README, "digits-"), *story(README, "--submit")}
    lines = sorted({w.strip() for w in re.findall(r"^(fbompi [^#\n]*)", README, re.M)} - told)
    return [pytest.param(line, marks=[pytest.mark.slow] if " bench " in line else []) for line in lines]


@pytest.mark.parametrize("line", commands())
def test_the_commands_of_the_readme_run(fbompi, here, real_data, line: str) -> None:
    words = line.split()[1:]
    if words[:2] in (["data", "import"], ["data", "get"]):  # with the originals at hand, and nothing left to download
        downloads = ROOT.parent / "shared" / "data" / real_data("mnist")
        words = [str(downloads) if word == "~/downloads" else word for word in words]
    words += ["--repeats", "2"] if "kernels" in words and "bench" in words else []
    words += ["--balls", "1000"] if "location" in words and "bench" in words else []
    words += ["-o", "run.rounds=2"] if words[0] == "run" and "--help" not in words else []
    apart = "-n" in words or words[0] in ("sweep", "bench", "doctor")  # they start other processes
    words = [str(ROOT / w) if w.startswith("jobs/") else w for w in words]
    result = fbompi(*words, timeout=600) if apart else here(*words)
    assert result.status == 0, result
    if words[:2] == ["bench", "kernels"]:
        assert all(kernel in result.out for kernel in ("hessian product", "logistic sweep", "location sweep")), result


@needs_mpi
def test_the_story_of_the_long_run_in_the_readme_is_true(fbompi, tmp_path: Path) -> None:
    """It is interrupted for real; of its many rounds a few more are enough."""
    begin, resume, watch, verify, until = story(README, "long.h5")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", *begin.split()]
    run = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (tmp_path / "long.h5.checkpoint").exists() and run.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    assert run.communicate(timeout=20)[1].strip().endswith("fbompi resume long.h5 goes on") and run.returncode == 75
    with h5py.File(tmp_path / "long.h5") as file:
        done = int(file["trajectory/round"][-1])
    assert done > 0
    result = fbompi(*resume.split()[1:], "-o", f"run.rounds={done + 20}")
    assert result.status == 0 and f"complete, {done + 20} of {done + 20} rounds" in result.out, result
    result = fbompi(*watch.split()[1:])
    assert result.status == 0 and f"complete, round {done + 20} of {done + 20}" in result.out, result
    for line in (verify, until):
        result = fbompi(*line.split()[1:])
        assert result.status == 0 and "recorded rounds have the same bits" in result.out, result


def test_the_story_of_looking_at_runs_in_the_readme_is_true(here, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = story(README, "digits-")
    assert len(lines) == 6
    for line in lines:
        result = here(*line.split()[1:])
        assert result.status == 0, result
    made = {path.name for path in tmp_path.iterdir()}
    assert {"digits-afbo-overview.png", "costs.pdf", "compared.svg", "report.html"} <= made
    code = re.findall(r"```python\n(.*?)\n```", README, re.S)[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "fraction of test images" in done.stdout, done.stderr


def docs() -> dict[str, list[str]]:
    """The commands of every page of the documentation that has some, in their order."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    blocks = {name: "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)) for name, page in pages.items()}
    return {name: story(block, "") for name, block in blocks.items() if "fbompi " in block}


def test_the_commands_of_every_page_are_run_by_a_test() -> None:
    tests = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*.py")}
    for page in docs():
        assert any(f"docs/{page}" in text for text in tests.values()), page


@needs_mpi
def test_the_commands_about_runs_are_true(fbompi, here, tmp_path: Path) -> None:
    """Those of docs/runs.md, in their order, with fewer rounds and seeds."""
    resume, on_mpi, sweep, verify, until = (line.split()[1:] for line in docs()["runs.md"])
    few = ["--quiet", "--overwrite", "--out", "run.h5", "-o", "run.problem=quadratic", "-o", "run.rounds=15"]
    more = ["-o", "run.rounds=21"]
    shorter = {
        "jobs/hypercleaning.toml": str(ROOT / "jobs/hypercleaning.toml"),
        "5": "1",
        "clients.count=9,18": "clients.count=9",
        "run.algorithm=afbo,fedmbo": "run.algorithm=afbo",
    }
    for result in (
        here("run", *few), here(*resume, *more), fbompi("run", "-n", 3, *few), fbompi(*on_mpi, *more),
        fbompi(*(shorter.get(word, word) for word in sweep), "-o", "run.rounds=2"),
        here(*verify), fbompi(*until),
    ):  # fmt: skip
        assert result.status == 0, result
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {"seed=0.h5"}
    code = re.search(r"```python\n(.*?)\n```", (ROOT / "docs/runs.md").read_text(encoding="utf-8"), re.S)[1]
    found: dict = {}
    exec(code, found)  # here, where run.h5 is
    assert found["state"].round == 20


def leaves(command: click.Command, *words: str) -> list[tuple[list[str], click.Command]]:
    """All commands below one, groups included, with their words."""
    below = command.commands.items() if isinstance(command, click.Group) else ()
    return [([*words], command), *(leaf for name, member in below for leaf in leaves(member, *words, name))]


def test_help_has_an_example_for_every_command() -> None:
    from fbompi.cli import fbompi as root

    commands = leaves(root)
    assert {"bench link", "data show", "watch"} <= {" ".join(words) for words, _ in commands}
    for words, found in commands:
        said = found.get_help(click.Context(found, info_name="fbompi"))
        assert re.search(rf"^  fbompi {' '.join(words)}", said, re.M), words


def test_doctor_ends_with_what_to_do() -> None:
    findings = {
        "fbompi": "1", "python": "3", "executable": "python", "cores": 2, "root": False, "threads": "8", "slurm": False,
        "packages": {"numpy": "2", "matplotlib": None}, "hdf5": "1", "gpu": "none", "mpi": {"error": "no libmpi"},
        "launcher": None, "two_ranks": None, "lost_rank": None,
        "kernels": {"cpu": "x", "vector_bits": 256, "threads": 1, "cache": "there", "kept": 1},
    }  # fmt: skip
    findings["advice"], findings["hints"] = doctor._advice(findings, None), doctor._hints(findings)
    *_, end = doctor.page(findings).split("\n\n")
    title, *items = end.splitlines()
    assert title == "what to mend, and what to do next" and all(item.startswith("  - ") for item in items)
    for text in ("MPI does not load (no libmpi)", "no mpirun", "OMP_NUM_THREADS is 8", "fbompi run is", "fbompi[plot]"):
        assert text in end, text
    findings["advice"], findings["threads"] = [], ""
    assert "all is well; what to do next\n  - " in doctor.page(findings)


@pytest.mark.slow
def test_a_wheel_installs_one_name_and_the_command(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("fbompi-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"fbompi"}
    assert {
        "fbompi/kernels/regression.py",
        "fbompi/data/digits.npz",
        "fbompi/py.typed",
        "fbompi/report/report.js",
    } <= set(names)


@pytest.mark.slow
def test_the_run_command_of_the_readme_works_word_for_word(tmp_path: Path) -> None:
    """In a fresh clone and a fresh environment."""
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "clone"], check=True)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", "-c", block("run")], cwd=tmp_path / "clone", env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "afbo on hypercleaning: complete" in done.stdout and "4 ranks of Open MPI" in done.stdout
    installed = subprocess.run(
        [tmp_path / "clone/.venv/bin/python", "-c", "import fbompi, fbompi.kernels.regression; print(fbompi.__file__)"],
        cwd="/", env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert "site-packages/fbompi" in installed.stdout, installed.stderr
    listed = [tmp_path / "clone/.venv/bin/fbompi", "list"]
    done = subprocess.run(listed, cwd="/", env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "hypercleaning" in done.stdout


def test_the_module_runs_from_the_checkout() -> None:
    assert command("--version", cwd=ROOT).out.strip().endswith("0.1.0")
