"""Running fbompi as its users do: real commands, real ranks, real files, each with a bound on its time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: the bits must not depend on the number of cores

import h5py
import pytest
from hypothesis import settings

settings.register_profile("busy", deadline=None)  # the machine may have other things to do
settings.load_profile("busy")

ROOT = Path(__file__).resolve().parent.parent

# Pythons whose environments hold other MPI libraries, e.g. "mpich:/path/to/python"; the one running is always tried.
PYTHONS = {"default": sys.executable}
for entry in filter(None, os.environ.get("FBOMPI_TEST_PYTHONS", "").split(",")):
    name, _, path = entry.partition(":")
    PYTHONS[name] = path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Of the workers that share the tests, one waits for the others where a test is marked to run alone."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    with open(Path(tempfile.gettempdir(), f"fbompi-tests-{run}"), "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What spends its time waiting goes first, so that there are other tests meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


class Result:
    """A finished command."""

    def __init__(self, done: subprocess.CompletedProcess) -> None:
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __repr__(self) -> str:
        return f"status {self.status}\n--- out\n{self.out}\n--- err\n{self.err}"


def command(*arguments: Any, cwd: Path, python: str = sys.executable, timeout: float = 120, **env: str) -> Result:
    """``fbompi ARGUMENTS`` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    for variable in [v for v in environment if v.startswith(("OMPI_COMM", "PMI", "PMIX"))]:
        del environment[variable]
    words = [python, "-m", "fbompi", *map(str, arguments)]
    done = subprocess.run(
        words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
    )
    return Result(done)


@pytest.fixture
def fbompi(tmp_path: Path) -> Callable[..., Result]:
    """Run a command in an empty directory and return its result."""

    def run(*arguments: Any, **options: Any) -> Result:
        return command(*arguments, cwd=options.pop("cwd", tmp_path), **options)

    return run


@pytest.fixture
def here(capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """``fbompi ARGUMENTS`` in this process, which is quicker; `alarm` sends it a signal (see stopping.py)."""
    from fbompi import kernels, registry
    from fbompi.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file that is changed within a second is another file

    def run(*arguments: Any, alarm: str = "") -> Result:
        registry._from_file.cache_clear()  # a new process would have none of the user's files
        monkeypatch.setattr(kernels, "before_compiling", [])
        monkeypatch.setenv("FBOMPI_TEST_SIGNAL", alarm)
        monkeypatch.setattr(sys, "argv", ["fbompi", *map(str, arguments)])
        capfd.readouterr()
        try:
            main()
            status = 0
        except SystemExit as e:
            status = int(e.code or 0)
        out, err = capfd.readouterr()
        return Result(subprocess.CompletedProcess(arguments, status, out, err))

    return run


@pytest.fixture
def run_file(fbompi: Callable[..., Result], here: Callable[..., Result], tmp_path: Path) -> Callable[..., Path]:
    """Run a configuration that must succeed, and return the path of its run file.

    In this process, unless it is to run on ranks or in another environment.
    """

    def run(*arguments: Any, **options: Any) -> Path:
        path = tmp_path / options.pop("name", "run.h5")
        words = ["run", "--quiet", "--overwrite", "--out", path, *arguments]
        result = fbompi(*words, **options) if options or "-n" in arguments else here(*words)
        assert result.status == 0, result
        return path

    return run


@pytest.fixture(scope="session", autouse=True)
def no_data_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever sets a user has imported, tests find none but their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FBOMPI_DATA", str(tmp_path_factory.mktemp("no-data")))
        yield


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Import a set once from the originals that may lie beside the repository, and return the cache it is in."""
    cache = tmp_path_factory.mktemp("data")

    def place(name: str) -> Path:
        originals = ROOT.parent / "shared" / "data" / name
        if not originals.is_dir():
            pytest.skip(f"the original files of {name} are not in {originals}")
        if not (cache / f"{name}.h5").exists():
            from fbompi.data.importing import find, import_set

            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FBOMPI_DATA", str(cache))
                import_set(find([originals])[name])
        return cache

    return place


@pytest.fixture
def real_data(imported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Have a set of real data in the cache during a test, or skip it; the set's name."""

    def use(name: str) -> str:
        monkeypatch.setenv("FBOMPI_DATA", str(imported(name)))
        return name

    return use


def options(**keys: Any) -> list[str]:
    """``options(run_rounds=5)`` as ``-o run.rounds=5``."""
    words = []
    for key, value in keys.items():
        section, _, name = key.partition("_")
        text = str(value).lower() if isinstance(value, bool) else value
        words += ["-o", f"{section}.{name}={text}"]
    return words


def trajectory(path: Path, name: str) -> Any:
    """One column of a run file."""
    with h5py.File(path, "r") as file:
        return file["trajectory"][name][:]


def has_mpirun() -> bool:
    from fbompi.launch import find_launcher

    return find_launcher() is not None


needs_mpi = pytest.mark.skipif(not has_mpirun(), reason="there is no mpirun here")
