"""fbompi.open gives what is in a run file, finished or not, and holds nothing open."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import ROOT, options
from federation import ran

import fbompi
from fbompi import runs
from fbompi.errors import UserError
from fbompi.runs import Run

SMALL = options(run_rounds=6, record_every=2, clients_count=4, delays_stragglers=1)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run; tests copy it before they change it."""
    return ran(tmp_path_factory.mktemp("complete") / "run.h5", *SMALL)


@pytest.fixture(params=["pandas", "numpy"])
def tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With pandas, and as if it were not installed."""
    if request.param == "pandas":
        pytest.importorskip("pandas")
    else:
        monkeypatch.setattr(runs, "_has", lambda module: False)
    return request.param


def test_importing_fbompi_loads_nothing_else() -> None:
    code = "import fbompi, sys; print(*{'numpy', 'h5py', 'click', 'mpi4py', 'pandas', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_columns_are_had_by_name_with_meanings_and_units(complete: Path) -> None:
    run = fbompi.open(complete)
    with h5py.File(complete) as file:
        assert set(run) == set(file["trajectory"]) and len(run) == 4
        for name, column in file["trajectory"].items():
            np.testing.assert_array_equal(run[name], column[:])
            assert run.meaning(name) == column.attrs["meaning"]
    assert run.unit("bytes_up") == "bytes" and run.unit("time") == "virtual seconds"
    assert "accuracy" in run and run.metrics[0] == "accuracy" and "bytes_up" not in run.metrics
    with pytest.raises(KeyError, match="accuracy"):
        run["acuracy"]


def test_time_has_the_unit_of_the_clock_in_use(complete: Path, tmp_path: Path) -> None:
    shutil.copy(complete, tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        file.attrs["link"] = "mpi"
    assert fbompi.open(tmp_path / "run.h5").unit("time") == "seconds"


def test_the_file_tells_of_itself(complete: Path) -> None:
    run = fbompi.open(str(complete))
    assert (run.status, run.seed, run.link, run.rounds) == ("complete", 0, "virtual", 6)
    assert run.config["run"]["rounds"] == 6 and run.config["delays"]["stragglers"] == 1
    assert "shuffled" in run.partition_rule and run.partition["train"].shape == (4, 10)
    with h5py.File(complete) as file:
        np.testing.assert_array_equal(run.final["x"], file["final/x"][:])


def test_the_log_of_arrivals_is_a_table_with_names_in_place_of_codes(complete: Path, tables: str) -> None:
    run = fbompi.open(complete)
    with h5py.File(complete) as file:
        log = file["events"][:]
        names = {code: name for name, code in h5py.check_enum_dtype(file["events"].dtype["kind"]).items()}
    assert type(run.events).__name__ == {"pandas": "DataFrame", "numpy": "ndarray"}[tables]
    assert list(run.events["kind"]) == [names[code] for code in log["kind"]]
    for name in set(log.dtype.names) - {"kind"}:
        np.testing.assert_array_equal(np.asarray(run.events[name]), log[name])
    assert np.asarray(run.events["rejected"]).dtype == bool


def test_clients_incidents_and_starts_are_tables_too(complete: Path, tables: str) -> None:
    run = fbompi.open(complete)
    assert len(run.clients) == 4 and set(run.clients["state"]) == {"alive"}
    assert (np.asarray(run.clients["delay_factor"]) > 1).sum() == 1
    assert len(run.incidents) == 0 and len(run.starts) == 1 and isinstance(run.starts["host"][0], str)
    assert len(run.trajectory) == 4 and run.trajectory["accuracy"][3] == run["accuracy"][3]


def test_a_file_that_is_open_elsewhere_in_the_notebook_can_be_opened(complete: Path) -> None:
    with h5py.File(complete) as file:
        assert len(fbompi.open(complete)) == len(file["trajectory/round"])


def test_xarray_has_the_iterates_and_what_they_are(complete: Path) -> None:
    pytest.importorskip("xarray")
    found = fbompi.open(complete).xarray()
    assert found["x"].dims == ("record", "x_index") and found["x"].shape == (4, 900)
    assert found["accuracy"].attrs["long_name"].startswith("fraction of test images")
    assert set(found.coords) == {"round", "time"} and found.attrs["status"] == "complete"


def test_nothing_is_kept_open(complete: Path, tmp_path: Path) -> None:
    shutil.copy(complete, tmp_path / "gone.h5")
    run = Run(tmp_path / "gone.h5")
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd.isdigit() and _there(fd)]
    assert not [link for link in links if "gone.h5" in link]
    (tmp_path / "gone.h5").unlink()
    assert len(run["accuracy"]) == 4 and len(run.clients) == 4
    with pytest.raises(UserError, match="no such file"):
        _ = run.events


def _there(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


def test_a_run_under_way_and_one_that_was_killed_can_be_looked_at(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fbompi", "run", "--quiet", "--out", "run.h5",
             *options(run_problem="quadratic", run_rounds=10**6, record_every=1, clients_count=3)]  # fmt: skip
    path, environment = tmp_path / "run.h5", {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    seen = [0]
    try:
        end = time.monotonic() + 60
        while seen[-1] < 10 and time.monotonic() < end:
            if path.exists():
                opened = fbompi.open(path)
                assert opened.status == "running" and len(opened["x_error"]) == len(opened)
                assert len(opened["x"]) == len(opened) and len(opened.arrivals) >= len(opened) - 1
                seen.append(len(opened))
            time.sleep(0.02)
    finally:
        run.send_signal(signal.SIGKILL)
        run.communicate()
    assert seen[-1] >= 10 and seen == sorted(seen)
    killed = fbompi.open(path)
    assert len(killed) >= seen[-1] and np.isfinite(killed["x_error"]).all() and "killed" in repr(killed)


def test_a_prompt_and_a_notebook_get_a_summary(complete: Path) -> None:
    run = fbompi.open(complete)
    assert "afbo on hypercleaning: complete, 6 of 6 rounds" in repr(run) and "staleness" in repr(run)
    html = run._repr_html_()
    assert "<table>" in html and "fraction of test images" in html


def test_a_notebook_is_not_fooled_by_what_a_file_says(complete: Path, tmp_path: Path) -> None:
    path = tmp_path / "<script>alert(1)<script>.h5"
    shutil.copy(complete, path)
    with h5py.File(path, "r+") as file:
        file["trajectory/accuracy"].attrs["meaning"] = "<img src=x onerror=alert(2)>"
        file["trajectory"].move("auc", "<b>auc")
    html = fbompi.open(path)._repr_html_()
    assert "<script" not in html and "<img" not in html and "<b>auc" not in html and "&lt;script&gt;" in html


def test_what_is_no_run_file_is_told_in_one_line(complete: Path, tmp_path: Path) -> None:
    (tmp_path / "half.h5").write_bytes(complete.read_bytes()[: complete.stat().st_size // 2])
    for name in ("nothing.h5", "half.h5"):
        with pytest.raises(UserError, match=name):
            fbompi.open(tmp_path / name)
    shutil.copy(complete, tmp_path / "lacking.h5")
    with h5py.File(tmp_path / "lacking.h5", "r+") as file:
        del file["clients"]
    with pytest.raises(UserError, match="damaged"):
        fbompi.open(tmp_path / "lacking.h5")


def test_numbers_and_names_that_make_no_sense_end_in_one_line_or_in_a_question_mark(
    complete: Path, tmp_path: Path
) -> None:
    shutil.copy(complete, tmp_path / "odd.h5")
    with h5py.File(tmp_path / "odd.h5", "r+") as file:
        rows = file["events"][:]
        rows["kind"][0] = 200
        file["events"][:] = rows
    assert len(fbompi.open(tmp_path / "odd.h5").events) > 0
    with h5py.File(tmp_path / "odd.h5", "r+") as file:
        file.attrs["ranks"] = "many"
    with pytest.raises(UserError, match="damaged"):
        fbompi.open(tmp_path / "odd.h5")
