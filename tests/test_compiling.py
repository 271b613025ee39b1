"""Kernels are compiled once per kind of CPU, whatever happens meanwhile, and never loaded for the wrong one."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from fbompi import kernels
from fbompi.kernels.cpu import compiling
from fbompi.kernels.cpu.compiling import Kernel, kernel

DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)


def halves() -> Kernel:
    """A kernel that no process has in memory; its result tells which precision it was compiled for."""

    @kernel(lambda real: real(real[::1]))
    def third_of_sum(values):
        total = values.dtype.type(0)
        for value in values:
            total += value / values.dtype.type(3)
        return total

    return third_of_sum


def right(compiled, dtype: np.dtype) -> bool:
    values = np.arange(1, 8, dtype=dtype)
    expected = dtype.type(0)
    for value in values:
        expected += value / dtype.type(3)
    return compiled(values) == expected


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FBOMPI_CACHE", str(tmp_path / "cache"))
    compiling.cache_directory.cache_clear()
    yield tmp_path / "cache" / "kernels"
    compiling.cache_directory.cache_clear()


@pytest.fixture
def compiled_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(kernels, "before_compiling", kernels.before_compiling)
    kernels.before_compiling.append(names.append)
    yield names
    kernels.before_compiling.remove(names.append)


def entries(cache: Path) -> list[Path]:
    return [entry for entry in cache.iterdir() if entry.is_dir()]


def test_a_kernel_is_compiled_once_and_then_loaded(cache: Path, compiled_names: list[str]) -> None:
    assert right(halves()[DOUBLE], DOUBLE)
    assert right(halves()[DOUBLE], DOUBLE)
    assert compiled_names == ["third_of_sum"] and len(entries(cache)) == 1
    assert right(halves()[SINGLE], SINGLE)
    assert len(compiled_names) == 2 and len(entries(cache)) == 2


def test_a_damaged_entry_is_compiled_again(cache: Path, compiled_names: list[str]) -> None:
    halves()[DOUBLE]
    for damage in (b"", b"\x80\x04nonsense"):
        for file in entries(cache)[0].rglob("*.nb*"):
            file.write_bytes(damage)
        assert right(halves()[DOUBLE], DOUBLE)
    before = len(compiled_names)
    assert right(halves()[DOUBLE], DOUBLE) and len(compiled_names) == before


def test_another_kind_of_cpu_has_entries_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves()[DOUBLE]
    monkeypatch.setattr(compiling, "cpu", lambda: ("another", "+feature"))
    compiling._environment.cache_clear()
    halves()[DOUBLE]
    compiling._environment.cache_clear()
    assert len(entries(cache)) == 2


def test_a_directory_that_others_may_write_to_is_not_used(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert compiling.cache_directory() != cache


def test_nobody_waits_for_a_compiler_to_find_what_is_there(cache: Path) -> None:
    halves()[DOUBLE]
    with compiling._locked(cache):
        compiling.cache_directory.cache_clear()
        assert compiling.cache_directory() == cache and right(halves()[DOUBLE], DOUBLE)


def test_an_entry_without_its_code_is_compiled_again_and_told(cache: Path, compiled_names: list[str]) -> None:
    halves()[DOUBLE]
    for file in entries(cache)[0].rglob("*.nbc"):
        file.unlink()
    assert right(halves()[DOUBLE], DOUBLE) and len(compiled_names) == 2


def test_what_killed_compilers_left_is_cleared_away(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    (cache / "compiling-left").mkdir()
    halves()[DOUBLE]
    assert [entry.name.split("-")[0] for entry in entries(cache)] == ["third_of_sum"]


def test_numbas_own_setting_is_as_before_whoever_loads(cache: Path) -> None:
    before = compiling.numba_config.CACHE_DIR
    halves()[DOUBLE]
    threads = [threading.Thread(target=lambda: halves()[DOUBLE]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert before == compiling.numba_config.CACHE_DIR


@pytest.mark.slow
def test_a_run_says_that_it_compiles_and_the_next_has_nothing_to_say(fbompi, tmp_path: Path) -> None:
    times = []
    for said in (True, False):
        begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime  # others may have their share of the cores
        result = fbompi("run", "-o", "run.rounds=1", FBOMPI_CACHE=str(tmp_path / "new"))
        times.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin)
        assert result.status == 0 and ("compiling kernels for this CPU" in result.err) == said, result
    assert times[1] < times[0] < times[1] + 15  # seconds of compiling


def test_where_nothing_can_be_kept_kernels_work_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled_names: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FBOMPI_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(compiling.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    compiling.cache_directory.cache_clear()
    try:
        assert compiling.cache_directory() is None
        assert right(halves()[DOUBLE], DOUBLE) and right(halves()[DOUBLE], DOUBLE)
        assert len(compiled_names) == 2
    finally:
        compiling.cache_directory.cache_clear()


def test_a_full_disk_costs_the_cache_and_not_the_kernel(cache: Path) -> None:
    def fill_up() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        os._exit(0 if right(halves()[DOUBLE], DOUBLE) and not entries(cache) else 1)

    assert compiling.cache_directory() == cache
    child = get_context("fork").Process(target=fill_up)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_a_killed_compiler_leaves_the_way_free(cache: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fbompi import kernels; kernels.before_compiling.append(lambda name: print(name, flush=True))\n"
        "import test_compiling as t; assert t.right(t.halves()[t.DOUBLE], t.DOUBLE); print('done')\n"
    )
    words = [sys.executable, "-c", program, str(Path(__file__).parent)]
    victim = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert victim.stdout.readline() == "third_of_sum\n"
    time.sleep(0.02)
    victim.kill()
    victim.wait()
    victim.stdout.close()
    assert subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.endswith("done\n")


def start(directory: str, dtype: np.dtype, go, failures) -> None:
    """One of many processes: waits for the others, then wants its kernel."""
    go.wait()
    os.environ["FBOMPI_CACHE"] = directory
    compiling.cache_directory.cache_clear()
    try:
        compiled = halves()[dtype]
        if not right(compiled, dtype):
            failures.put(f"wrong code for {dtype}")
    except BaseException as error:
        failures.put(repr(error))


@pytest.mark.parametrize("starts", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_sixteen_processes_with_two_signatures_start_at_once(tmp_path: Path, starts: int) -> None:
    fork = get_context("fork")  # the parent has imported Numba: it is the cache that is tested, not the import
    for number in range(starts):
        go, failures = fork.Barrier(16), fork.SimpleQueue()
        arguments = [(str(tmp_path / str(number)), DOUBLE if i % 2 else SINGLE, go, failures) for i in range(16)]
        processes = [fork.Process(target=start, args=one) for one in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0] * 16
        assert failures.empty()
        assert len(entries(tmp_path / str(number) / "kernels")) == 2
