"""A mistake costs one clear line and status 2, on one process as on many ranks, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from conftest import ROOT, Result, needs_mpi

from fbompi import launch
from fbompi.config import Delays
from fbompi.delays import DelayModel
from fbompi.errors import UserError

PROBLEMS = '''
import sys

from fbompi.problems.quadratic import Quadratic


def helper(what):
    raise RuntimeError(f"no {what} today")


class BadInit(Quadratic):
    def __init__(self):
        helper("init")


class BadShard(Quadratic):
    def shard(self, client, clients):
        helper("shard")


class OneBadShard(Quadratic):
    def shard(self, client, clients):
        return helper("shard") if client == 1 else super().shard(client, clients)


class BadStart(Quadratic):
    def start(self, rng):
        helper("start")


class BadDealing(Quadratic):
    def dealing(self, clients):
        helper("dealing")


class ShortDealing(Quadratic):
    def dealing(self, clients):
        return "by lot", {"train": [1, 2, 3]}


class BadAnnotation(Quadratic):
    def __init__(self, file: "Nowhere" = 3):
        super().__init__()


class Leaves(Quadratic):
    def __init__(self):
        sys.exit(0)


class Tired(Quadratic):
    """An oracle that fails in the middle of a run."""

    calls = 0

    def hvp(self, shard, x, y, v, batch=None):
        self.calls += 1
        return helper("hvp") if self.calls > 400 else super().hvp(shard, x, y, v, batch)


class Lacking:
    dim_x = 3

    def shard(self, client, clients): ...
    def size(self, shard): ...
'''

FILES = {
    "problems.py": PROBLEMS,
    "syntax.py": "class Quadratic:\n    def shard(self:\n",
    "raises.py": "def helper():\n    raise RuntimeError('no import today')\n\n\nhelper()\n",
    "leaves.py": "import sys\nsys.exit(0)\n",
    "key.toml": "[run]\nround = 3\n",
    "type.toml": '[run]\nrounds = "many"\n',
    "method.toml": '[run]\nalgorithm = "afb0"\n',
    "quorum.toml": "[algorithm]\nquorum = 50\n",
    "stragglers.toml": "[delays]\nstragglers = 50\n",
    "words.csv": "1.0,2.0\n1.0,soon\n",
    "taken.h5": "an older result",
    "folder/inside.txt": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with every kind of mistake in it."""
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def problem(name: str) -> list[str]:
    return ["-o", f"run.problem=problems.py:{name}"]


def trace(name: str) -> list[str]:
    return ["-o", "delays.model=trace", "-o", f"delays.trace={name}"]


# what is wrong: (arguments, what the line must name)
MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "an unknown key": (["-o", "run.round=3"], ["run.round", '"rounds"']),
    "an unknown key in a file": (["key.toml"], ["key.toml", "run.round", '"rounds"']),
    "a wrong type": (["type.toml"], ["type.toml", "run.rounds", "'many'", "a whole number", "at least 1"]),
    "an unknown method in a file": (["method.toml"], ["method.toml", "run.algorithm", "afb0", '"afbo"']),
    "a configuration that is not there": (["nowhere.toml"], ["nowhere.toml", "No such file"]),
    "no problem file": (["-o", "run.problem=nowhere.py:P"], ["run.problem", "nowhere.py"]),
    "a problem file with an endless name": (["-o", f"run.problem={300 * 'a'}.py:P"], ["run.problem", "aaa.py"]),
    "a directory as problem file": (["-o", "run.problem=folder:P"], ["run.problem", "folder"]),
    "no such class": (problem("Lackin"), ["problems.py", "Lackin", '"Lacking"']),
    "a problem file with a syntax error": (
        ["-o", "run.problem=syntax.py:Quadratic"],
        ["syntax.py", "line 2", "Syntax"],
    ),
    "a problem that lacks methods": (problem("Lacking"), ["problems.py:Lacking", "start", "upper_grad", "dim_y"]),
    "an annotation that names nothing": (problem("BadAnnotation"), ["problems.py:BadAnnotation", "Nowhere"]),
    "a run file in no directory": (["--out", "nowhere/run.h5"], ["run.out", "nowhere/run.h5", "no directory"]),
    "a run file that is a directory": (["--out", "folder"], ["run.out", "folder", "is a directory"]),
    "a directory to overwrite": (["--out", "folder", "--overwrite"], ["run.out", "folder", "is a directory"]),
    "a run file that exists": (["--out", "taken.h5"], ["run.out", "taken.h5", "exists", "--overwrite"]),
    "a run file below a file": (["--out", "taken.h5/run.h5"], ["run.out", "taken.h5/run.h5", "no directory"]),
    "a run file with an endless name": (["--out", 300 * "a"], ["run.out", "aaa", "name too long"]),
    "a run file with a zero in its name": (["-o", r'run.out="a\u0000b"'], ["run.out"]),
    "a directory that takes no files": (["--out", "/proc/run.h5"], ["run.out", "/proc/run.h5", "cannot be written"]),
    "a quorum that cannot meet": (["-o", "algorithm.quorum=50"], ["algorithm.quorum", "50", "18 clients"]),
    "a quorum of a file that cannot meet": (["quorum.toml"], ["quorum.toml", "algorithm.quorum", "50"]),
    "a bad start of what was to be replaced": (["--out", "taken.h5", "--overwrite", "quorum.toml"], ["quorum = 50"]),
    "too many stragglers": (["-o", "delays.stragglers=50"], ["delays.stragglers", "50", "18 clients"]),
    "too many stragglers in a file": (["stragglers.toml"], ["stragglers.toml", "delays.stragglers", "50"]),
    "more clients than samples": (["-o", "clients.count=9999"], ["clients.count", "9999"]),
    "a data set nobody knows": (["-o", "problem.data=digit"], ["problem.data", '"digit"', '"digits"']),
    "a data set that is not there": (["-o", "problem.data=mnist"], ["problem.data", "fbompi data get mnist", "import"]),
    "a data set by a path": (["-o", "problem.data=../digits"], ["problem.data", "../digits"]),
    "more samples than there are": (["-o", "problem.train=1700"], ["problem.train", "1700", "1797", "test"]),
    "a problem of another family": (["-o", "run.problem=location"], ["run.problem", "location", "nonsmooth", "afbo"]),
    "a table without a row per client": (problem("ShortDealing"), ["ShortDealing", "dealing", "18 clients"]),
    "no trace": (["-o", "delays.model=trace"], ["delays.trace", "CSV"]),
    "a trace that is not there": (trace("nowhere.csv"), ["delays.trace", "nowhere.csv", "No such file"]),
    "a trace of words": (trace("words.csv"), ["words.csv", "line 2", "soon", "seconds"]),
    "a seed that no file can hold": (["-o", f"run.seed={10**30}"], ["run.seed"]),
    "the link of many ranks on one": (["-o", "run.link=mpi"], ["run.link", "mpi", "-n 4"]),
}

# user code that raises: (arguments, file, the functions whose frames are shown, what the line must name)
RAISING: dict[str, tuple[list[str], str, list[str], list[str]]] = {
    "import": (["-o", "run.problem=raises.py:P"], "raises.py", ["<module>", "helper"], ["raises.py", "no import"]),
    "__init__": (problem("BadInit"), "problems.py", ["__init__", "helper"], ["problems.py:BadInit", "no init"]),
    "shard": (problem("BadShard"), "problems.py", ["shard", "helper"], ["BadShard", "client 0", "no shard"]),
    "start": (problem("BadStart"), "problems.py", ["start", "helper"], ["problems.py:BadStart", "no start"]),
    "dealing": (problem("BadDealing"), "problems.py", ["dealing", "helper"], ["BadDealing", "dealing", "no dealing"]),
    "exit at import": (["-o", "run.problem=leaves.py:P"], "leaves.py", ["<module>"], ["leaves.py", "SystemExit"]),
    "exit in __init__": (problem("Leaves"), "problems.py", ["__init__"], ["problems.py:Leaves", "SystemExit"]),
    "the host of one client": (problem("OneBadShard"), "problems.py", ["shard", "helper"], ["client 1", "no shard"]),
}


def complaint(result: Result) -> str:
    """The one line that tells what is wrong."""
    lines = [line for line in result.err.splitlines() if line.startswith("fbompi: ")]
    assert len(lines) == 1, result
    assert result.out == "" and "Traceback" not in result.err, result
    return lines[0]


def test_the_examples_run_where_nothing_is_wrong(here, folder):
    """Or the tests below would prove nothing."""
    result = here("run", "-o", "run.problem=problems.py:Quadratic", "-o", "run.rounds=1", "--quiet")
    assert result.status == 0, result


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_line(here, folder, mistake):
    arguments, words = MISTAKES[mistake]
    before = contents(folder)
    result = here("run", *arguments)
    line = complaint(result)
    assert result.status == 2 and result.err == f"{line}\n", result
    assert all(word in line for word in words), line
    assert contents(folder) == before


@pytest.mark.parametrize("where", RAISING)
def test_an_error_in_a_users_code_is_shown_with_the_users_lines_only(here, folder, where):
    arguments, file, functions, words = RAISING[where]
    before = contents(folder)
    result = here("run", *arguments)
    assert result.status == 2, result
    assert_users_frames(result, folder / file, functions)
    assert all(word in complaint(result) for word in words), result
    assert contents(folder) == before


def assert_users_frames(result: Result, file: Path, functions: list[str]) -> None:
    frames = [line.strip() for line in result.err.splitlines() if 'File "' in line]
    shown = [(frame.split('"')[1], frame.rpartition(" in ")[2]) for frame in frames]
    assert shown == [(str(file), function) for function in functions], result


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"# seconds\n1.0,-2.0\n", "line 2: .*not negative"), (b"1.0,nan\n", "line 1: .*finite"),
     (b"1.0,inf\n", "line 1: .*finite"), (b"1.0,,2.0\n", "line 1: expected seconds"), (b"# none\n\n", "no row"),
     (b"\xff\xfe\x00", "cannot be read")],
)  # fmt: skip
def test_a_trace_of_anything_but_seconds_is_refused(tmp_path, content, words):
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"trace\.csv.*{words}"):
        DelayModel(Delays(model="trace", trace=str(path)), clients=3, seed=0)


def without_privileges() -> None:
    """In a child of root: permissions of files hold for it too (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH dropped)."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (1, 2):
            if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
                os._exit(77)


@pytest.mark.skipif(sys.platform != "linux", reason="root gives up its privileges as Linux has them")
@pytest.mark.parametrize(("out", "word"), [("locked/run.h5", "permission"), ("secret/below/run.h5", "secret/below")])
def test_a_directory_without_permission_is_told(tmp_path, out, word):
    (tmp_path / "locked").mkdir(mode=0o555)
    (tmp_path / "secret/below").mkdir(parents=True)
    (tmp_path / "secret").chmod(0)
    words = [sys.executable, "-m", "fbompi", "run", "--out", out]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
                              preexec_fn=without_privileges)  # fmt: skip
    finally:
        (tmp_path / "secret").chmod(0o755)
    if done.returncode == 77:
        pytest.skip("root may not give up its privileges here")
    line = complaint(Result(done))
    assert done.returncode == 2 and done.stderr == f"{line}\n", Result(done)
    assert "run.out" in line and out in line and word in line
    assert sorted(contents(tmp_path)) == ["locked", "secret", "secret/below"]


# The same on many ranks


@pytest.fixture
def ranks(folder: Path) -> Callable[..., Result]:
    """``mpirun -n 3 fbompi ARGUMENTS`` with the flags of this machine; ended in order if it does not end."""

    def run(*arguments: Any, mpirun: bool = True, timeout: float = 30) -> Result:
        words = [str(a) for a in arguments]
        line = launch.command(3, words) if mpirun else [sys.executable, "-m", "fbompi", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(line, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # mpirun takes its ranks along; killed, it would leave them
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
            process.kill()
            pytest.fail(f"the ranks were still there after {timeout} s: {' '.join(words)}")
        return Result(subprocess.CompletedProcess(line, process.returncode, out, err))

    return run


def status_of_mistakes() -> tuple[int, ...]:
    launcher = launch.find_launcher()
    return (2,) if launcher and launcher.family == "openmpi" else tuple(range(1, 256))


@needs_mpi
@pytest.mark.parametrize(
    "mistake",
    ["an unknown key in a file", "a run file that exists", "a quorum that cannot meet", "a trace of words"],
)
def test_a_mistake_is_one_clear_line_of_all_ranks_together(ranks, folder, mistake):
    arguments, words = MISTAKES[mistake]
    before = contents(folder)
    result = ranks("run", *arguments)
    assert all(word in complaint(result) for word in words), result
    assert result.status in status_of_mistakes(), result
    assert contents(folder) == before


@needs_mpi
@pytest.mark.parametrize("mistake", ["an unknown key", "a configuration that is not there", "too many stragglers"])
def test_a_mistake_is_one_clear_line_with_n(ranks, folder, mistake):
    arguments, words = MISTAKES[mistake]
    before = contents(folder)
    result = ranks("run", "-n", 3, *arguments, mpirun=False)
    assert all(word in complaint(result) for word in words), result
    assert result.status in status_of_mistakes(), result
    assert contents(folder) == before


@needs_mpi
@pytest.mark.parametrize("where", ["the host of one client", "start", "exit in __init__"])
def test_an_error_in_a_users_code_on_any_rank_is_shown_once(ranks, folder, where):
    """One that only a host meets, one that only the server meets, and one that all of them meet."""
    arguments, file, functions, words = RAISING[where]
    before = contents(folder)
    result = ranks("run", *arguments, timeout=15)
    assert result.status in status_of_mistakes(), result
    assert_users_frames(result, folder / file, functions)
    assert all(word in complaint(result) for word in words), result
    assert contents(folder) == before


@needs_mpi
def test_n_under_mpirun_is_refused_once(ranks):
    result = ranks("run", "-n", 3)
    assert "mpirun is running already" in complaint(result) and result.status in status_of_mistakes()


# In the middle of a run

MIDDLE = ["run", *problem("Tired"), "-o", "run.rounds=100000", "-o", "record.every=1", "--quiet", "--out", "tired.h5"]


def status_of_run(path: Path) -> str:
    with h5py.File(path, "r") as file:
        assert len(file["trajectory/round"]) > 1
        return file.attrs["status"]


def test_an_oracle_that_raises_ends_the_run_and_the_file_says_so(fbompi, folder):
    result = fbompi(*MIDDLE)
    assert result.status == 1, result
    assert f'File "{folder / "problems.py"}"' in result.err and "no hvp today" in result.err
    assert status_of_run(folder / "tired.h5") == "failed"


@needs_mpi
def test_an_oracle_that_raises_on_a_rank_ends_the_job_and_the_file_says_so(ranks, folder):
    begin = time.monotonic()
    result = ranks(*MIDDLE, timeout=15)
    assert time.monotonic() - begin < 15 and result.status != 0
    assert "rank 1 failed" in result.err or "rank 2 failed" in result.err, result
    assert f'File "{folder / "problems.py"}"' in result.err and "no hvp today" in result.err
    assert status_of_run(folder / "tired.h5") == "failed"
