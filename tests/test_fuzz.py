"""Hostile files are refused in one line: they run no code, take no memory on their word, and lead nowhere else.

`tests/fuzz.py` looks for minutes and led by coverage; what it has found is kept here.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import ROOT, command, options
from hostile import runs

from fbompi import checkpoint, journal, start
from fbompi.data import store
from fbompi.data.importing import find, import_set
from fbompi.errors import UserError
from fbompi.replay import replay
from fbompi.summary import summary

INPUTS = {"config": 40, "data": 100, "inspect": 25, "resume": 8, "replay": 12, "messages": 500}


def fed(target: str, inputs: int, seed: int) -> None:
    """In a process of its own, since HDF5 may not survive damaged bytes."""
    words = [sys.executable, str(ROOT / "tests" / "fuzz.py"), target, "--inputs", str(inputs), "--seed", str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, errors="replace")
    if done.returncode not in (0, 1) and "h5py" in done.stderr:
        pytest.skip(f"the HDF5 library ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("target", INPUTS)
def test_whatever_is_read_is_used_or_refused_in_one_line(target):
    fed(target, INPUTS[target], 1)


@pytest.mark.slow
@pytest.mark.parametrize("target", INPUTS)
def test_of_more_inputs_none_is_different(target):
    fed(target, 8 * INPUTS[target], 2)


# Run files, and what lies beside them


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run of four rounds that was stopped in the third, with a checkpoint of the second beside it."""
    return runs.laid_out(runs.seeds()[0], tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, at its end."""
    path = runs.laid_out(runs.seeds()[0], tmp_path_factory.mktemp("undisturbed"))
    result = command("resume", "--quiet", path, cwd=path.parent)
    assert result.status == 0 and result.err == "", result
    return path


def refused(path: Path, word: str, *reads: Callable[[Path], Any]) -> None:
    for read in reads or (summary, replay):
        with pytest.raises(UserError, match=word) as raised:
            read(path)
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def same(path: Path, other: Path) -> None:
    """Two runs have the same iterates and arrivals."""
    with h5py.File(path, "r") as one, h5py.File(other, "r") as two:
        for name in ("trajectory/x", "trajectory/y", "trajectory/round", "trajectory/grad_norm", "final/x"):
            assert one[name][()].tobytes() == two[name][()].tobytes(), name
        for name in ("task", "take", "client"):
            assert np.array_equal(one["events"][name], two["events"][name])


def test_a_part_that_lies_in_another_file_is_not_looked_for(begun, tmp_path):
    """`resume` would write into it."""
    other = tmp_path / "other.h5"
    shutil.copy(begun, other)
    before = other.read_bytes()
    with h5py.File(begun, "r+") as file:
        del file["events"]
        file["events"] = h5py.ExternalLink(str(other), "/events")
    refused(begun, "another file")
    result = command("resume", begun.name, cwd=tmp_path)
    assert result.status == 2 and "another file" in result.err and result.err.count("\n") == 1, result
    assert other.read_bytes() == before


@pytest.mark.parametrize("how", ["raw", "virtual"])
def test_numbers_that_lie_in_another_file_are_not_read(begun, tmp_path, how):
    (tmp_path / "secret").write_bytes(bytes(range(256)) * 8)
    with h5py.File(begun, "r+") as file:
        del file["trajectory/upper"]
        if how == "raw":
            external = [(str(tmp_path / "secret"), 0, 16)]
            file.create_dataset("trajectory/upper", (2,), "f8", external=external)
        else:
            layout = h5py.VirtualLayout((2,), "f8")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "/x", (2,))
            file.create_virtual_dataset("trajectory/upper", layout)
    refused(begun, "other files")


@pytest.mark.parametrize("name", ["events", "clients", "trajectory/x"])
def test_a_table_is_not_believed_to_be_larger_than_the_file(begun, name):
    with h5py.File(begun, "r+") as file:
        before = file[name]
        dtype, shape = before.dtype, (10**9, *before.shape[1:])
        del file[name]
        file.create_dataset(name, shape, dtype, chunks=(1, *shape[1:]))
    refused(begun, "more than the file holds")


def test_a_compressed_copy_of_a_run_file_is_read_all_the_same(begun, tmp_path):
    with h5py.File(begun, "r+") as file:
        events = np.resize(file["events"][:], 20_000)
        del file["events"]
        file.create_dataset("events", data=events, compression="gzip")
    assert summary(begun)["answers"] == 20_000


@pytest.mark.parametrize("value", [np.arange(3), 5, h5py.Empty("f8")])
@pytest.mark.parametrize("name", ["link", "status", "config"])
def test_attributes_of_other_kinds_are_told(begun, name, value):
    with h5py.File(begun, "r+") as file:
        file.attrs[name] = value
    refused(begun, f"its {name} is not a text")


def test_a_configuration_that_names_no_method_is_told(begun):
    with h5py.File(begun, "r+") as file:
        file.attrs["config"] = "[run]\nrounds = 4\n"
    refused(begun, "run.algorithm", summary)


def test_a_table_of_no_clients_is_told(begun):
    with h5py.File(begun, "r+") as file:
        none = file["clients"][:0]
        del file["clients"]
        file["clients"] = none
    refused(begun, "no clients", summary)


def test_attributes_that_a_user_has_added_do_not_disturb(begun):
    with h5py.File(begun, "r+") as file:
        file.attrs.update(note=b"\xff\xfe", table=np.zeros((2, 2)), nothing=h5py.Empty("f8"))
    assert summary(begun)["table"] == [[0.0, 0.0], [0.0, 0.0]]


def without_field(file: h5py.File) -> None:
    rows = file["events"][:]
    del file["events"]
    names = [name for name in rows.dtype.names if name != "memory"]
    file.create_dataset("events", data=rows[names], maxshape=(None,))


def with_a_short_column(file: h5py.File) -> None:
    file["trajectory/lower"].resize(1, axis=0)


def with_rounds_in_disorder(file: h5py.File) -> None:
    file["trajectory/round"][:] = [2, 0]


@pytest.mark.parametrize("damage", [without_field, with_a_short_column, with_rounds_in_disorder])
def test_a_damaged_log_is_not_gone_on_with(begun, tmp_path, damage):
    with h5py.File(begun, "r+") as file:
        damage(file)
    before = begun.read_bytes()
    result = command("resume", begun.name, cwd=tmp_path)
    assert result.status == 2 and result.err.startswith("fbompi: run.h5: ") and result.err.count("\n") == 1, result
    assert begun.read_bytes() == before and not journal.journal_of(begun).exists()


LOGS: dict[str, dict[str, int]] = {
    "a task that was never sent": {"task": 10**6},
    "a step that is missing": {"take": 10**6},
    "a step before the first": {"take": -1},
}


@pytest.mark.parametrize("what", LOGS)
def test_a_log_that_cannot_be_is_told(begun, what):
    with h5py.File(begun, "r+") as file:
        rows = file["events"][:]
        for name, value in LOGS[what].items():
            rows[name][0] = value
        file["events"][:] = rows
    refused(begun, "damaged", replay)


def test_a_log_in_which_unknown_clients_leave_is_told(begun):
    with h5py.File(begun, "r+") as file:
        file["incidents"].resize(1, axis=0)
        file["incidents"][0] = (0.0, 0, 0, "client left out", 77, -1, "")
    refused(begun, "client", replay)


# Journals


@pytest.mark.parametrize("content", [
    lambda size: runs.journal_of(size, [(0, 4, b"abcd")], count=2**32 - 1),
    lambda size: runs.journal_of(size, [(0, 2**63, b"abcd")]),
    lambda size: runs.journal_of(size, [(2**62, 4, b"abcd")]),
    lambda size: runs.journal_of(2**63, [(2**62, 4, b"abcd")]),
    lambda size: runs.journal_of(size + 1, [(0, 4, b"abcd")]),
    lambda size: runs.journal_of(size, [(size - 2, 4, b"abcd")]),
])  # fmt: skip
def test_a_journal_that_cannot_be_is_left_aside(begun, content):
    before = begun.read_bytes()
    journal.journal_of(begun).write_bytes(content(len(before)))
    assert journal.pending(begun) == {} and journal.image(begun) == begun
    assert summary(begun)["rows"] == 2
    journal.recover(begun)
    assert begun.read_bytes() == before


def test_a_journal_that_is_no_file_does_not_hold_a_reader_up(begun):
    os.mkfifo(journal.journal_of(begun))
    assert summary(begun)["rows"] == 2


# Checkpoints


def number_for_array(file: h5py.File) -> None:
    del file["checkpoint/state/x"]
    file["checkpoint/state"].attrs["x"] = 1.0


def nothing_for_number(file: h5py.File) -> None:
    file["checkpoint/link/guard/usual"].attrs["lower"] = h5py.Empty("f")


def longer_x(file: h5py.File) -> None:
    del file["checkpoint/state/x"]
    file["checkpoint/state/x"] = np.zeros(11)


def huge_x(file: h5py.File) -> None:
    del file["checkpoint/state/x"]
    file.create_dataset("checkpoint/state/x", (10**12,), "f8", chunks=(10,))


def text_for_round(file: h5py.File) -> None:
    file["checkpoint/state"].attrs["round"] = "two"


def unknown_kind(file: h5py.File) -> None:
    file["checkpoint/link/numbers"][0, 2] = 99


def unknown_client(file: h5py.File) -> None:
    file["checkpoint/link/numbers"][0, 1] = -4


def evaluation_as_task(file: h5py.File) -> None:
    file["checkpoint/link/numbers"][0, 0] = -3


def no_time(file: h5py.File) -> None:
    file["checkpoint/link/times"][0, 3] = np.nan


def another_run(file: h5py.File) -> None:
    file["checkpoint"].attrs["run"] = "another"


def beyond_the_file(file: h5py.File) -> None:
    file["checkpoint"].attrs["events"] = 10**9


def elsewhere(file: h5py.File) -> None:
    del file["checkpoint/state/x"]
    file["checkpoint/state/x"] = h5py.ExternalLink("run.h5", "/trajectory/x")


def newer(file: h5py.File) -> None:
    file.attrs["format_version"] = 99


DAMAGES = (
    number_for_array, nothing_for_number, longer_x, huge_x, text_for_round, unknown_kind, unknown_client,
    evaluation_as_task, no_time, another_run, beyond_the_file, elsewhere, newer,
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_cannot_be_is_told_and_done_without(begun, undisturbed, damage, capsys):
    """Its checksum is right: whoever made it knew how."""
    path = checkpoint.beside(begun)[0]
    image = io.BytesIO(path.read_bytes()[: -checkpoint._TRAILER_SIZE])
    with h5py.File(image, "r+") as file:
        damage(file)
    path.write_bytes(runs.sealed(image.getvalue()))
    if damage is newer:  # which is no damage, and not to be overwritten
        with pytest.raises(UserError, match="is a checkpoint of a newer fbompi"):
            start.resume(begun, [], quiet=True)
        return
    assert start.resume(begun, [], quiet=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"fbompi: {path}: is ") and "from the start" in lines[1], lines
    same(begun, undisturbed)


def test_a_checkpoint_whose_numbers_make_no_sense_is_told(begun, tmp_path):
    """Its parts have the right kinds and shapes, and the method cannot take a step from them."""
    path = checkpoint.beside(begun)[0]
    image = io.BytesIO(path.read_bytes()[: -checkpoint._TRAILER_SIZE])
    with h5py.File(image, "r+") as file:
        del file["checkpoint/state/idle"]
        file["checkpoint/state/idle"] = np.array([77])
    path.write_bytes(runs.sealed(image.getvalue()))
    result = command("resume", "--quiet", begun.name, cwd=tmp_path)
    assert result.status == 2 and "Traceback" not in result.err and "does not fit this run" in result.err, result


def test_a_checkpoint_inside_of_the_run_file_is_looked_at_alike(undisturbed, here, tmp_path):
    path = tmp_path / "run.h5"
    shutil.copy(undisturbed, path)
    with h5py.File(path, "r+") as file:
        file["checkpoint/state"].attrs["round"] = "two"
    result = here("resume", "--quiet", "run.h5", *options(run_rounds=6))
    assert result.status == 0 and "round is 'two', expected a int" in result.err, result


# Code

NOISY = """
from pathlib import Path

from fbompi.problems.quadratic import Quadratic

Path("loaded").touch()


class Noisy(Quadratic):
    pass
"""


def test_code_that_a_run_file_names_is_loaded_by_resume_and_replay_only_and_told(fbompi, tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    small = options(run_problem="noisy.py:Noisy", run_rounds=2, record_every=1, clients_count=3)
    assert fbompi("run", "--quiet", "--out", "run.h5", *small).status == 0
    (tmp_path / "loaded").unlink()
    assert fbompi("inspect", "run.h5").status == 0
    assert not (tmp_path / "loaded").exists()
    line = f"fbompi: run.h5: its problem is code of {tmp_path / 'noisy.py'}, which is loaded\n"
    for words in (["replay", "--quiet", "run.h5"], ["resume", "--quiet", "run.h5", *options(run_rounds=3)]):
        result = fbompi(*words)
        assert result.status == 0 and result.err == line and (tmp_path / "loaded").exists(), result
        (tmp_path / "loaded").unlink()


# Data


def test_truths_that_are_neither_0_nor_1_are_true(tmp_path, monkeypatch):
    """A byte of 247 was a third class among labels of two."""
    monkeypatch.setenv("FBOMPI_DATA", str(tmp_path / "cache"))
    x, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 0, 247], np.uint8).view(np.bool_)
    np.savez(tmp_path / "own.npz", X=x, y=y)
    import_set(find([tmp_path / "own.npz"])["own"])
    assert store.open_set("own").labels("train").tolist() == [0, 1, 0, 1]
