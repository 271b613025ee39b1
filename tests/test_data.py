"""Data sets come into the cache whole and checked, or not at all; and what is read out of it is what was put in."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import ROOT, Result, command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fbompi.data import store
from fbompi.data.content import SILENT
from fbompi.data.importing import find, import_set
from fbompi.errors import UserError

SHARED = ROOT.parent / "shared" / "data"
needs_originals = pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="the authors' files are not here")

FORKING = """
import gc, json, os, resource, sys, traceback
import fbompi.links.mpi, fbompi.cli, fbompi.data.download, fbompi.data.importing, fbompi.data.store
running = {}
gc.freeze()
for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        pid, status = os.waitpid(order["wait"], 0)
        texts = [open(end, "rb").read().decode() for end in running.pop(pid)]
        print(json.dumps([os.waitstatus_to_exitcode(status), *texts]), flush=True)
        continue
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(out_end, 1), os.dup2(err_end, 2)
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        if order["file_size"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size"], order["file_size"]))
        sys.argv, status = ["fbompi", *order["words"]], 1
        try:
            fbompi.cli.main()
            status = 0
        except SystemExit as e:
            status = e.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status or 0)  # no time is spent on tidying up a copy
    os.close(out_end), os.close(err_end)
    running[pid] = out, err
    print(pid, flush=True)
"""


class Commands:
    """Runs commands as forks of a process that has everything loaded: as real as new ones, and many times as quick."""

    def __init__(self) -> None:
        pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen([sys.executable, "-c", FORKING], stdin=pipe, stdout=pipe, text=True,
                                        env=environment)  # fmt: skip

    def start(self, *words: Any, cwd: Path, cache: Path, file_size: int | None = None) -> int:
        env = {"FBOMPI_DATA": str(cache), "no_proxy": "127.0.0.1"}
        return self._ask(words=[str(word) for word in words], cwd=str(cwd), env=env, file_size=file_size)

    def wait(self, pid: int) -> Result:
        status, out, err = self._ask(wait=pid)
        return Result(subprocess.CompletedProcess([], status, out, err))

    def _ask(self, **order: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    found = Commands()
    yield found
    found.close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir()
    return path


@pytest.fixture
def data(commands: Commands, cache: Path, tmp_path: Path) -> Callable[..., Result]:
    """``fbompi data ARGUMENTS`` with a cache of this test's own."""

    def run(*words: Any, **how: Any) -> Result:
        how = {"cwd": tmp_path, "cache": cache, **how}
        return commands.wait(commands.start("data", *words, **how))

    return run


def refused(result: Result, *words: str) -> None:
    """One clear line with these words, status 2, and nothing else."""
    assert result.status == 2 and result.out == "", result
    assert result.err.startswith("fbompi: ") and result.err.count("\n") == 1, result
    assert len(result.err) < 1500 and "Traceback" not in result.err, result
    for word in words:
        assert word in result.err, (word, result)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file below a directory, byte for byte."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Small sets, written by lines of the test's own


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_arrays(samples: int = 300, side: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (samples, side, side), np.uint8), rng.integers(3, 8, samples).astype(np.uint8)


def idx_files(folder: Path, samples: int = 300, side: int = 6, seed: int = 0, zipped: bool = True) -> list[Path]:
    """A set in MNIST's form, of a training part only."""
    folder.mkdir(exist_ok=True)
    paths = []
    for kind, array in zip(("images-idx3", "labels-idx1"), idx_arrays(samples, side, seed), strict=True):
        content, path = idx_bytes(array), folder / f"train-{kind}-ubyte{'.gz' * zipped}"
        path.write_bytes(gzip.compress(content, 1, mtime=0) if zipped else content)
        paths.append(path)
    return paths


LIBSVM = "-1 1:0.5 3:-2e-1  # a remark\n+1 2:1\n\n-1\n+1 1:3 4:4\n" * 20
DENSE = np.array([[0.5, 0, -0.2, 0], [0, 1, 0, 0], [0, 0, 0, 0], [3, 0, 0, 4]] * 20, np.float32)


def tar_bytes(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_bytes(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npz_bytes(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


BATCHES = {f"cifar-10-batches-bin/{name}.bin": random.Random(name).randbytes(3073 * 3)
           for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]}  # fmt: skip
DRAWINGS = {f"images_background/Greek/character0{number % 5}/{number:04}_01.png": random.Random(number).randbytes(150)
            for number in range(20)}  # fmt: skip

# A small file in each form: its name, its content, what it is imported with, and the name of its set.
FORMS: dict[str, tuple[str, bytes, list[str], str]] = {
    "MNIST": ("train-images-idx3-ubyte.gz", gzip.compress(idx_bytes(idx_arrays()[0])), [], "mnist"),
    "IDX": ("train-images-idx3-ubyte.gz", gzip.compress(idx_bytes(idx_arrays()[0])), ["--name", "own"], "own"),
    "Covertype": ("covtype.data.gz", gzip.compress(b"2596,51,3,258,5\n" * 500), [], "covtype"),
    "CIFAR-10": ("cifar-10-binary.tar.gz", tar_bytes(BATCHES), [], "cifar10"),
    "Omniglot": ("images_background.zip", zip_bytes(DRAWINGS), [], "omniglot"),
    "LIBSVM": ("own.gz", gzip.compress(LIBSVM.encode()), [], "own"),
    "npz": ("own.npz", npz_bytes(X=idx_arrays()[0], y=idx_arrays()[1]), [], "own"),
}
ALWAYS_WRONG = {"MNIST", "Covertype", "CIFAR-10", "Omniglot"}  # a small file is not the authors', even undamaged


def laid_out(folder: Path, form: str, content: bytes) -> list[Any]:
    """A file of this form with this content, and what else its set needs; the arguments that import it."""
    name, _, options, _ = FORMS[form]
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    if form in ("MNIST", "IDX"):
        (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(idx_arrays()[1]))
    if form == "MNIST":
        for kind in ("images-idx3", "labels-idx1"):
            (folder / f"t10k-{kind}-ubyte").write_bytes(b"not looked at: the other part is wrong already")
    if form == "Omniglot":
        (folder / "images_evaluation.zip").write_bytes(zip_bytes(DRAWINGS))
    return [folder / name if form in ("LIBSVM", "npz") else folder, *options]


# The authors' files


@pytest.fixture(scope="session")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with MNIST, imported once for all tests."""
    folder = tmp_path_factory.mktemp("mnist")
    result = command("data", "import", SHARED / "mnist", "--quiet", cwd=folder, FBOMPI_DATA=str(folder))
    assert result.status == 0 and result.err == "", result
    assert result.out.startswith("mnist: 60,000 train + 10,000 test samples, 784 features, 10 classes: "), result
    return folder


@pytest.fixture(scope="session")
def all_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with all that one import of the directory of all original files brings."""
    folder = tmp_path_factory.mktemp("all")
    result = command("data", "import", SHARED, "--json", "--quiet", cwd=folder, FBOMPI_DATA=str(folder))
    assert result.status == 0 and result.err == "", result
    assert {found["name"]: found["parts"] for found in json.loads(result.out)} == {
        "mnist": {"train": 60_000, "test": 10_000},
        "covtype": {"train": 581_012},
        "cifar10": {"train": 50_000, "test": 10_000},
        "omniglot": {"train": 964 * 20, "test": 659 * 20},
    }
    return folder


def every_row(found: store.DataSet, part: str) -> np.ndarray:
    return found.rows(part, np.arange(found.parts[part]))


@needs_originals
def test_mnist_has_the_mean_and_deviation_that_everybody_uses(mnist, monkeypatch):
    monkeypatch.setenv("FBOMPI_DATA", str(mnist))
    found = store.open_set("mnist")
    assert (found.features, found.classes, found.image, found.largest) == (784, 10, (28, 28), 255.0)
    rows = every_row(found, "train")
    squares = np.arange(256, dtype=np.uint16) ** 2
    mean, square = rows.mean(axis=0), squares[rows].mean(axis=0)
    assert round(mean.mean() / 255, 4) == 0.1307
    assert round(np.sqrt(square.mean() - mean.mean() ** 2) / 255, 4) == 0.3081
    assert np.allclose(found.mean, mean, rtol=1e-12)
    assert np.allclose(found.deviation, np.sqrt(square - mean**2), rtol=1e-9)


@needs_originals
def test_mnist_written_out_again_has_the_published_md5(mnist, monkeypatch):
    monkeypatch.setenv("FBOMPI_DATA", str(mnist))
    found = store.open_set("mnist")
    sums = {}
    for part in ("train", "test"):
        rows, labels = every_row(found, part), found.labels(part)
        assert rows.dtype == np.uint8 and labels.dtype == np.int64
        sums[part] = [hashlib.md5(idx_bytes(array)).hexdigest()
                      for array in (rows.reshape(-1, 28, 28), labels.astype(np.uint8))]  # fmt: skip
    assert sums == {
        "train": ["6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"],
        "test": ["2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"],
    }


@needs_originals
def test_only_the_rows_that_are_asked_for_are_read(mnist, tmp_path):
    asking = """
import resource
import numpy as np
from fbompi.data.store import open_set

found = open_set("mnist")
found.rows("train", np.arange(3))
with open("/proc/self/status") as file:
    held = int(next(line for line in file if line.startswith("VmData")).split()[1])
resource.setrlimit(resource.RLIMIT_DATA, (held * 1024 + (8 << 20),) * 2)
rows = found.rows("train", np.arange(0, 60_000, 1500))
assert (rows.dtype, rows.shape) == (np.uint8, (40, 784)) and rows.flags.writeable and rows.flags.c_contiguous
assert found.rows("test", np.array([], int)).shape == (0, 784)
assert np.array_equal(found.rows("train", np.array([7, 5, 7])), found.rows("train", np.arange(8))[[7, 5, 7]])
try:
    found.rows("train", np.arange(60_000))
except MemoryError:
    pass
else:
    raise AssertionError("there was room for everything")
"""
    env = {**os.environ, "FBOMPI_DATA": str(mnist), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", asking], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def mnist_with(folder: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    """MNIST's files, one of them changed."""
    folder.mkdir()
    for path in (SHARED / "mnist").iterdir():
        if path.name.startswith(name):
            (folder / name).write_bytes(change(path.read_bytes()))
        else:
            (folder / path.name).symlink_to(path)
    return folder


def flipped(content: bytes, place: int, bit: int = 3) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


@pytest.mark.slow
@needs_originals
def test_a_single_wrong_bit_in_mnist_is_found(data, tmp_path, cache):
    damaged = mnist_with(tmp_path / "in", "t10k-labels-idx1-ubyte", lambda file: flipped(gzip.decompress(file), 5000))
    refused(data("import", damaged, "--quiet"), str(damaged / "t10k-labels-idx1-ubyte"), "SHA-256", "--name")
    assert bytes_of(cache) == {}


@needs_originals
def test_half_of_mnist_is_refused(data, tmp_path, cache):
    half = mnist_with(tmp_path / "in", "train-images-idx3-ubyte.gz", lambda file: file[: len(file) // 2])
    refused(data("import", half, "--quiet"), str(half / "train-images-idx3-ubyte.gz"), "decompressed")
    (half / "train-images-idx3-ubyte.gz").unlink()
    refused(data("import", half), str(half), "train-images-idx3-ubyte of MNIST missing")
    assert bytes_of(cache) == {}


@pytest.mark.slow
@needs_originals
def test_the_originals_here_are_those_of_the_readme():
    sums = re.findall(r"([0-9a-f]{64})  (\S+)", (SHARED / "README.md").read_text(encoding="utf-8"))
    assert len(sums) == 8
    for expected, name in sums:
        assert hashlib.sha256((SHARED / name).read_bytes()).hexdigest() == expected, name


@pytest.mark.slow
@needs_originals
def test_covertype_written_out_again_has_the_published_md5(all_sets, monkeypatch):
    monkeypatch.setenv("FBOMPI_DATA", str(all_sets))
    found = store.open_set("covtype")
    labels = found.labels("train")
    assert np.bincount(labels).tolist() == [211840, 283301, 35754, 2747, 9493, 17367, 20510]
    digest = hashlib.md5()
    for begin in range(0, len(labels), 50_000):
        rows = found.rows("train", np.arange(begin, min(begin + 50_000, len(labels))))
        lines = np.column_stack([rows, labels[begin : begin + 50_000] + 1]).tolist()
        digest.update(repr(lines)[2:-2].replace("], [", "\n").replace(" ", "").encode() + b"\n")
    assert digest.hexdigest() == "71df19898bd3e11db15ae0faf4159f2c"


@pytest.mark.slow
@needs_originals
def test_cifar_is_stored_record_by_record(all_sets, monkeypatch):
    monkeypatch.setenv("FBOMPI_DATA", str(all_sets))
    found = store.open_set("cifar10")
    assert (found.features, found.image, found.largest) == (3072, (3, 32, 32), 255.0)
    for part in ("train", "test"):
        assert np.bincount(found.labels(part)).tolist() == [found.parts[part] // 10] * 10
    with lzma.open(SHARED / "cifar10/cifar-10-binary.tar.xz") as raw, tarfile.open(fileobj=raw, mode="r|") as archive:
        member = next(member for member in archive if member.name.endswith(".bin"))
        batch = archive.extractfile(member).read()
    part, begin = ("test", 0) if "test" in member.name else ("train", (int(member.name[-5]) - 1) * 10_000)
    labels, rows = found.labels(part), found.rows(part, np.arange(begin, begin + 10_000))
    assert rows.dtype == np.uint8
    for number in range(10_000):
        record = batch[number * 3073 : (number + 1) * 3073]
        assert record == bytes([labels[begin + number]]) + rows[number].tobytes(), (member.name, number)


@pytest.mark.slow
@needs_originals
def test_omniglot_has_twenty_drawings_of_every_character(all_sets, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("FBOMPI_DATA", str(all_sets))
    found = store.open_set("omniglot")
    assert (found.classes, found.image, found.largest) == (964 + 659, (28, 28), 255.0)
    assert np.array_equal(found.labels("train"), np.repeat(np.arange(964), 20))
    assert np.array_equal(found.labels("test"), np.repeat(np.arange(964, 964 + 659), 20))
    with h5py.File(found.path) as file:
        names = file["label_values"].asstr()[:]
    assert len({name.partition("/")[0] for name in names[:964]}) == 30
    assert len({name.partition("/")[0] for name in names[964:]}) == 20
    with zipfile.ZipFile(SHARED / "omniglot/images_evaluation.zip") as archive:
        drawings = sorted(name for name in archive.namelist() if name.endswith(".png"))
        for number in range(0, len(drawings), 997):
            _, alphabet, character, _ = drawings[number].split("/")
            assert names[found.labels("test")[number]] == f"{alphabet}/{character}"
            ink = 1 - np.asarray(image.open(archive.open(drawings[number])), float)
            quarters = np.kron(ink, np.ones((4, 4))).reshape(28, 15, 28, 15)  # 105·4 = 28·15
            stored = found.rows("test", np.array([number])).reshape(28, 28)
            assert np.array_equal(stored, np.floor(quarters.mean(axis=(1, 3)) * 255 + 0.5)), drawings[number]


@pytest.mark.slow
@needs_originals
def test_what_was_imported_at_once_is_sound(all_sets, data):
    result = data("list", "--check", cache=all_sets)
    assert result.status == 0 and result.err == "", result
    assert result.out.endswith("\neverything is as it was stored\n") and "not there" not in result.out, result


@pytest.mark.slow
@needs_originals
@pytest.mark.parametrize("change", ["cut off", "bit flipped"])
@pytest.mark.parametrize("name", ["covtype/covtype.data.gz", "omniglot/images_background.zip",
                                  "cifar10/cifar-10-binary.tar.xz"])  # fmt: skip
def test_a_damaged_original_changes_nothing(data, tmp_path, cache, name, change):
    content = (SHARED / name).read_bytes()
    place = len(content) // 10
    folder, path = tmp_path / "in", tmp_path / "in" / Path(name).name
    folder.mkdir()
    path.write_bytes(content[:place] if change == "cut off" else flipped(content, place))
    if name.startswith("omniglot"):
        (folder / "images_evaluation.zip").symlink_to(SHARED / "omniglot/images_evaluation.zip")
    refused(data("import", folder, "--quiet"), str(path))
    assert bytes_of(cache) == {}


# Sets of the user's own


def imported(data: Callable[..., Result], *words: Any) -> dict[str, Any]:
    result = data("import", *words, "--json")
    assert result.status == 0 and result.err == "", result
    (found,) = json.loads(result.out)
    return found


@pytest.fixture
def here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this test, for this process too."""
    monkeypatch.setenv("FBOMPI_DATA", str(cache))
    return cache


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_any_set_in_mnists_form_can_be_imported_packed_or_not(data, here, tmp_path, pack):
    images, labels = idx_arrays()
    ending = {bytes: "", gzip.compress: ".gz", bz2.compress: ".bz2", lzma.compress: ".xz"}[pack]
    (tmp_path / f"fashion-train-images-idx3-ubyte{ending}").write_bytes(pack(idx_bytes(images)))
    (tmp_path / f"fashion-train-labels-idx1-ubyte{ending}").write_bytes(pack(idx_bytes(labels)))
    found = imported(data, tmp_path)
    assert (found["name"], found["parts"], found["image"]) == ("fashion", {"train": 300}, [6, 6])
    stored = store.open_set("fashion")
    assert every_row(stored, "train").tobytes() == images.tobytes()
    assert np.array_equal(stored.labels("train") + 3, labels) and stored.classes == 5


def test_libsvms_text_becomes_dense_rows(data, here, tmp_path):
    (tmp_path / "a9a").write_text(LIBSVM)
    (tmp_path / "a9a.t").write_text("1 5:2\n-1 1:1\n")
    found = imported(data, "a9a", "a9a.t")
    assert (found["name"], found["parts"], found["features"]) == ("a9a", {"train": 80, "test": 2}, 5)
    stored = store.open_set("a9a")
    assert np.array_equal(every_row(stored, "train"), np.pad(DENSE, ((0, 0), (0, 1))))
    assert np.array_equal(every_row(stored, "test"), [[0, 0, 0, 0, 2], [1, 0, 0, 0, 0]])
    assert (stored.labels("train").tolist(), stored.labels("test").tolist()) == ([0, 1, 0, 1] * 20, [1, 0])
    assert every_row(stored, "train").dtype == np.float32
    assert imported(data, "a9a.t")["name"] == "a9a.t", "a test part alone does not replace the set"


X = np.arange(24).reshape(4, 6)
ARRAYS: dict[str, tuple[np.ndarray, np.ndarray, np.dtype, list[int]]] = {
    "bytes": (X.astype(np.uint8), np.array([1, 2, 2, 5]), np.dtype("u1"), [0, 1, 1, 2]),
    "images": (X.astype(np.uint8).reshape(4, 2, 3), np.array([0, 0, 1, 1]), np.dtype("u1"), [0, 0, 1, 1]),
    "doubles": (X / 7, np.array([1.0, -1.0, 1.0, -1.0]), np.dtype("f8"), [1, 0, 1, 0]),
    "another byte order": (X.astype(">f4"), np.array([1, 0, 1, 0], ">i2"), np.dtype("f4"), [1, 0, 1, 0]),
    "half precision": (X.astype(np.float16), np.array([True, False, True, False]), np.dtype("f4"), [1, 0, 1, 0]),
    "truth": (X % 2 == 1, np.array([b"b", b"a", b"b", b"a"]), np.dtype("u1"), [1, 0, 1, 0]),
    "words": (X, np.array(["ß", "", "ß", "cat"]), np.dtype("i8"), [2, 0, 2, 1]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_are_stored_as_they_are(data, here, tmp_path, kind):
    x, y, dtype, labels = ARRAYS[kind]
    np.savez(tmp_path / "own.npz", X_train=x, y_train=y, X_test=x[:1], y_test=y[:1])
    found = imported(data, "own.npz")
    stored = store.open_set("own")
    for part, count in {"train": 4, "test": 1}.items():
        rows = every_row(stored, part)
        assert rows.dtype == dtype and np.array_equal(rows, x[:count].reshape(count, -1).astype(dtype))
        assert stored.labels(part).tolist() == labels[:count]
    assert stored.largest == (255.0 if kind == "images" else 0.0)
    with h5py.File(found["path"]) as file:
        values = file["label_values"]
        assert (values.asstr() if values.dtype.kind == "S" else values)[:].tolist() == np.unique(y.astype(
            str if y.dtype.kind in "SU" else y.dtype)).tolist()  # fmt: skip
    store.check("own")


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "other names": ({"A": X}, "expected arrays X and y"),
    "too few labels": ({"X": X, "y": np.zeros(3)}, "(3,)"),
    "labels that are not whole": ({"X": X, "y": np.full(4, 0.5)}, "whole numbers"),
    "infinite labels": ({"X": X, "y": np.full(4, np.inf)}, "whole numbers"),
    "infinite features": ({"X": np.full((4, 2), np.inf), "y": np.zeros(4)}, "finite"),
    "features beyond squaring": ({"X": np.array([[1e300], [-1e300]]), "y": np.zeros(2)}, "finite"),
    "no samples": ({"X": X[:0], "y": np.zeros(0)}, "(0, 6)"),
    "complex numbers": ({"X": X + 1j, "y": np.zeros(4)}, "complex"),
    "half a test part": ({"X": X, "y": np.zeros(4), "X_test": X}, "y_test"),
    "another test part": ({"X": X, "y": np.zeros(4), "X_test": X.T, "y_test": np.zeros(6)}, "shapes"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_arrays_that_make_no_set_are_refused(data, tmp_path, cache, what):
    arrays, word = UNFIT[what]
    np.savez(tmp_path / "own.npz", **arrays)
    refused(data("import", "own.npz"), "own.npz", word)
    assert bytes_of(cache) == {}


@pytest.mark.parametrize("line", ["0.5 1:1", "1 0:1", "1 2:1 1:1", "1 1:1 1:2", "1 1:x", "1 1", "1 1:1e39", "nan 1:1",
                                  "1 99999999:1", "word 1:1", "1 1:inf", "\0", "ü 1:1"])  # fmt: skip
def test_a_line_that_is_not_libsvms_is_named(data, tmp_path, cache, line):
    (tmp_path / "own").write_text(f"1 1:1\n{line}\n1 1:1\n", encoding="utf-8")
    refused(data("import", "own"), "own: line 2: ", "LIBSVM")
    assert bytes_of(cache) == {}


@pytest.mark.parametrize("name", ["../own", "a/b", ".own", "", "x" * 65, "mnist", "digits", "a b", "ä"])
def test_a_set_cannot_be_given_a_name_that_leads_elsewhere_or_is_taken(data, tmp_path, cache, name):
    folder = tmp_path / "in"
    idx_files(folder)
    refused(data("import", folder, "--name", name), str(folder), *([f'"{name}"'] if name else ["missing"]))
    assert bytes_of(tmp_path).keys() == {f"in/{path.name}" for path in folder.iterdir()}


def test_what_is_no_set_is_told(data, tmp_path, cache):
    refused(data("import", "nowhere"), "nowhere: ", "No such file")
    os.mkfifo(tmp_path / "pipe")
    refused(data("import", "pipe"), "pipe: ", "neither a file nor a directory")
    (tmp_path / "empty").mkdir()
    refused(data("import", "empty"), "empty: no files of a data set", "MNIST")
    idx_files(tmp_path / "one")
    idx_files(tmp_path / "one/two")
    refused(data("import", "one", "--name", "own"), "one/two/train-images-idx3-ubyte.gz", "second time")
    assert bytes_of(cache) == {}


# Damage


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> bytes:
    """The file of a small set that is sound."""
    folder = tmp_path_factory.mktemp("good")
    idx_files(folder / "in", seed=9)
    result = commands.wait(commands.start("data", "import", "in", "--name", "own", cwd=folder, cache=folder))
    assert result.status == 0, result
    return (folder / "own.h5").read_bytes()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "with a bit flipped": lambda content: flipped(content, len(content) // 2),
    "empty": lambda content: b"",
    "noise": lambda content: random.Random(1).randbytes(len(content)),
    "text": lambda content: b"<html>404 Not Found</html>\n",
}


@pytest.mark.parametrize("damage", [*DAMAGE, "of another set"])
@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_is_named_and_leaves_the_set_that_was_there(data, tmp_path, cache, good, form, damage):
    name, content, _, set_name = FORMS[form]
    if damage == "of another set":
        others = {"MNIST": "Covertype", "IDX": "Covertype", "LIBSVM": "MNIST", "npz": "Omniglot"}
        content = FORMS[others.get(form, "MNIST")][1]
    else:
        content = DAMAGE[damage](content)
    (cache / f"{set_name}.h5").write_bytes(good)
    refused(data("import", *laid_out(tmp_path / "in", form, content)), str(tmp_path / "in" / name))
    assert bytes_of(cache) == {f"{set_name}.h5": good}


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ALWAYS_WRONG])
def test_the_same_file_undamaged_is_imported(data, tmp_path, form):
    result = data("import", *laid_out(tmp_path / "in", form, FORMS[form][1]))
    assert result.status == 0 and data("list", "--check").status == 0, result


@pytest.mark.parametrize("form", [*FORMS, "IDX unpacked", "LIBSVM unpacked"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chance=st.data())
def test_whatever_the_damage_a_set_is_whole_or_refused_in_one_line(here, tmp_path, form, chance):
    packed, unpacked = not form.endswith("unpacked"), form.removesuffix(" unpacked")
    name, content, _, set_name = FORMS[unpacked]
    damaged = bytearray(content if packed else gzip.decompress(content))
    for _ in range(chance.draw(st.integers(1, 4))):
        place = chance.draw(st.integers(0, len(damaged) - 1) | st.integers(0, 40))
        damaged[place] = chance.draw(st.integers(0, 255))
    end = chance.draw(st.none() | st.integers(0, len(damaged)))
    paths = laid_out(tmp_path / "in", unpacked, bytes(damaged[:end]))
    try:
        (reader,) = find([Path(paths[0])], paths[2] if len(paths) > 1 else "").values()
        import_set(reader, SILENT)
    except UserError as e:
        assert name in e.line and "\n" not in e.line, e.line
    else:
        assert unpacked not in ALWAYS_WRONG
        store.check(set_name)
        assert store.open_set(set_name).labels("train").size
    assert set(bytes_of(here)) <= {f"{set_name}.h5"}
    (here / f"{set_name}.h5").unlink(missing_ok=True)


class Trap:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_pickles_are_never_opened(data, tmp_path, cache):
    sprung, trap = tmp_path / "sprung", Trap(tmp_path / "sprung")
    pickle.loads(pickle.dumps(trap)).close()
    assert sprung.exists(), "the trap works"
    sprung.unlink()
    np.savez(tmp_path / "own.npz", X=np.array([[trap, 1]], object), y=np.array([1]))
    refused(data("import", "own.npz"), "own.npz: ", "pickles")
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(trap))
    refused(data("import", "bare.npz"), "bare.npz: ", "not an .npz archive")
    for packed in ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"):
        (tmp_path / packed).write_bytes(tar_bytes({"cifar-10-batches-py/data_batch_1": pickle.dumps(trap)}))
        refused(data("import", packed), f"{packed}: ", "pickled", "cifar-10-binary.tar.gz")
    (tmp_path / "py").mkdir()
    (tmp_path / "py/data_batch_1").write_bytes(pickle.dumps(trap))
    for path in ("py", "py/data_batch_1"):
        refused(data("import", path), "py/data_batch_1: ", "pickled")
    assert bytes_of(cache) == {}
    idx_files(tmp_path / "py", seed=1)  # a good set in the same directory is not held up
    assert data("import", "py", "--name", "own").status == 0 and list(bytes_of(cache)) == ["own.h5"]
    assert not sprung.exists()


def test_a_header_that_promises_more_than_the_file_can_hold_is_not_believed(data, tmp_path, cache):
    for number, sizes in enumerate([(2**31, 28, 28), (300, 2**32 - 1, 2**32 - 1), (300, 2**16, 2**16)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        bomb = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sizes) + bytes(1 << 20)
        (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bomb))
        (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(idx_arrays()[1]))
        refused(data("import", folder, "--name", "own"), str(folder / "train-images-idx3-ubyte.gz"), "cannot hold")
    assert bytes_of(cache) == {}


@pytest.mark.slow
def test_bombs_are_not_unpacked(data, tmp_path, cache):
    zeros = bytes(1 << 22)
    with gzip.open(tmp_path / "lines.gz", "wb", 1) as file:
        for _ in range(80):
            file.write(zeros)
    refused(data("import", "lines.gz", "--quiet"), "lines.gz: ", "line of more than")
    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("y.npy", zeros[:100])
        with archive.open("X.npy", "w") as member:
            for _ in range(80):
                member.write(zeros)
    refused(data("import", "own.npz", "--quiet"), "own.npz: holds ", "far more than expected")
    assert bytes_of(cache) == {}


# What is in the cache


def test_a_list_tells_what_is_there_and_what_is_not(data, cache, good):
    (cache / "own.h5").write_bytes(good)
    (cache / ".own.12345678.partial").touch()
    result = data("list")
    assert result.status == 0 and result.err == "", result
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[1][:5] == ["digits", "1,797", "train", "64", "10"]
    assert lines[2] == ["own", "300", "train", "36", "5", "0.0", str(cache / "own.h5")]
    assert [line[:5] for line in lines[5:]] == [
        [name, "fbompi", "data", "get", f"{name},"] for name in ("mnist", "covtype", "cifar10", "omniglot")
    ]
    told = json.loads(data("list", "--json").out)
    assert (told["directory"], told["damaged"]) == (str(cache), [])
    assert told["missing"] == ["mnist", "covtype", "cifar10", "omniglot"]
    digits, own = told["sets"]
    assert digits["parts"] == {"train": 1797} and len(own.pop("checksum")) == 64
    assert own == {"name": "own", "parts": {"train": 300}, "features": 36, "classes": 5, "image": [6, 6],
                   "largest": 255.0, "bytes": len(good), "path": str(cache / "own.h5")}  # fmt: skip


def test_an_empty_or_absent_cache_has_the_built_in_set(data, tmp_path):
    for place in ("cache", "absent"):
        result = data("list", "--check", cache=tmp_path / place)
        assert result.status == 0 and "digits" in result.out, result
    assert not (tmp_path / "absent").exists()


def test_a_flipped_byte_in_the_cache_is_found(data, cache, good):
    place = good.index(idx_arrays(seed=9)[0][40:].tobytes()[:100])
    (cache / "own.h5").write_bytes(flipped(good, place))
    (cache / "sound.h5").write_bytes(good)
    assert data("list").status == 0
    result = data("list", "--check")
    assert result.status == 2 and result.err.count("\n") == 1 and "sound" in result.out, result
    assert f"{cache / 'own.h5'}: is damaged: train/features has SHA-256" in result.err, result
    result = data("list", "--check", "--json")
    assert result.status == 2 and len(json.loads(result.out)["damaged"]) == 1, result


def test_a_flipped_byte_anywhere_is_found_or_changes_nothing(here, good):
    def all_of_it() -> tuple[Any, ...]:
        found = store.open_set("own")
        store.check("own")
        return (every_row(found, "train").tobytes(), found.labels("train").tobytes(), found.mean.tobytes(),
                found.deviation.tobytes(), found.classes, found.image, found.largest, found.parts)  # fmt: skip

    path, chance, found, missed = here / "own.h5", random.Random(2), 0, []
    path.write_bytes(good)
    before = all_of_it()
    for _ in range(100):
        place = chance.randrange(len(good) if chance.random() < 0.3 else 5000)
        path.write_bytes(flipped(good, place, chance.randrange(8)))
        try:
            if all_of_it() != before:
                missed.append(place)
        except UserError as e:
            assert str(path) in e.line and "\n" not in e.line
            found += 1
    assert not missed and found > 25


def other_hdf5(path: Path, good: bytes) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)


def a_run_file(path: Path, good: bytes) -> None:
    with h5py.File(path, "w") as file:
        file.attrs.update(format="fbompi-run", format_version=1)


def newer(path: Path, good: bytes) -> None:
    path.write_bytes(good)
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = 99


STRANGE: dict[str, tuple[Callable[[Path, bytes], object], str]] = {
    "another HDF5 file": (other_hdf5, "not a data set"),
    "a run file": (a_run_file, "not a data set"),
    "a set of a newer format": (newer, "99"),
    "half a set": (lambda path, good: path.write_bytes(good[: len(good) // 2]), "damaged"),
    "an empty file": (lambda path, good: path.touch(), "damaged"),
    "a text": (lambda path, good: path.write_text("hello"), "damaged"),
    "a directory": (lambda path, good: path.mkdir(), "damaged"),
    "a link to nowhere": (lambda path, good: path.symlink_to("nowhere"), "damaged"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_what_does_not_belong_into_the_cache_is_named(data, here, good, what):
    make, word = STRANGE[what]
    make(here / "odd.h5", good)
    (here / "own.h5").write_bytes(good)
    result = data("list")
    assert result.status == 2 and result.err.count("\n") == 1 and "own" in result.out, result
    assert result.err.startswith(f"fbompi: {here / 'odd.h5'}: ") and word in result.err, result
    with pytest.raises(UserError, match=re.escape(str(here / "odd.h5"))):
        store.open_set("odd")


def test_a_set_that_is_not_there_is_told_with_what_to_do(here, good):
    (here / "own.h5").write_bytes(good)
    with pytest.raises(UserError, match="fbompi data get mnist"):
        store.open_set("mnist")
    with pytest.raises(UserError, match='did you mean "own"'):
        store.open_set("owm")
    with pytest.raises(UserError, match="no such set"):
        store.open_set("../cache/own")


def test_a_set_replaced_under_a_reader_is_noticed(data, here, tmp_path, good):
    (here / "own.h5").write_bytes(good)
    found = store.open_set("own")
    idx_files(tmp_path / "in", seed=9)
    imported(data, "in", "--name", "own")
    assert found.rows("train", np.array([1])).tobytes() == idx_arrays(seed=9)[0][1].tobytes(), "the same content"
    idx_files(tmp_path / "in", seed=10)
    imported(data, "in", "--name", "own")
    with pytest.raises(UserError, match="replaced"):
        found.rows("train", np.array([1]))


# Kills, and several at once


def state(data: Callable[..., Result]) -> str:
    """The checksum of the set "own", which must be whole if it is there."""
    result = data("list", "--check", "--json")
    assert result.status == 0, result
    return next((found["checksum"] for found in json.loads(result.out)["sets"] if found["name"] == "own"), "")


def killed_imports(data: Any, commands: Commands, cache: Path, folder: Path, kills: int) -> list[str]:
    """What is there after each of some imports that were killed, at moments spread over what one takes."""
    words, place = ("data", "import", folder, "--name", "own"), {"cwd": folder, "cache": cache}
    begin = time.monotonic()
    assert commands.wait(commands.start(*words, cwd=folder, cache=cache.parent / "elsewhere")).status == 0
    takes = time.monotonic() - begin
    left, states = 0, []
    for kill in range(kills):
        pid = commands.start(*words, **place)
        time.sleep(takes * (kill + random.random()) / kills)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        commands.wait(pid)
        left += len(list(cache.glob(".*.partial")))
        states.append(state(data))
        if "" in states and states[-1]:
            (cache / "own.h5").unlink()
    assert left, "no kill fell into the writing"
    assert commands.wait(commands.start(*words, **place)).status == 0
    assert [path.name for path in cache.iterdir()] == ["own.h5"], "what the kills have left is gone"
    return states


def test_an_import_killed_at_any_moment_leaves_all_or_nothing(data, commands, cache, tmp_path):
    idx_files(tmp_path / "in", 10_000, 24, zipped=False)
    states = killed_imports(data, commands, cache, tmp_path / "in", 15)
    assert states[0] == "" and set(states) <= {"", state(data)}


def test_a_kill_while_a_set_is_replaced_leaves_the_old_or_the_new(data, commands, cache, tmp_path, good):
    (cache / "own.h5").write_bytes(good)
    old = state(data)
    idx_files(tmp_path / "in", 10_000, 24, zipped=False)
    states = killed_imports(data, commands, cache, tmp_path / "in", 10)
    assert states[0] == old and set(states) <= {old, state(data)} and old != state(data)


@pytest.mark.slow
@needs_originals
def test_an_import_of_mnist_killed_at_any_moment_leaves_all_or_nothing(data, commands, cache):
    begin = time.monotonic()
    assert data("import", SHARED / "mnist", cache=cache.parent / "elsewhere").status == 0
    takes = time.monotonic() - begin
    for kill in range(6):
        pid = commands.start("data", "import", SHARED / "mnist", cwd=cache, cache=cache)
        time.sleep(takes * (kill + random.random()) / 6)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        commands.wait(pid)
        told = json.loads(data("list", "--check", "--json").out)
        assert told["damaged"] == [] and len(told["sets"]) in (1, 2)


@pytest.mark.parametrize("count", [2, 4])
def test_imports_of_the_same_set_at_once_do_not_harm_each_other(data, commands, cache, tmp_path, count):
    idx_files(tmp_path / "in", 5000, 24, zipped=False)
    for _ in range(2):
        pids = [commands.start("data", "import", "in", "--name", "own", cwd=tmp_path, cache=cache)
                for _ in range(count)]  # fmt: skip
        for pid in pids:
            result = commands.wait(pid)
            assert result.status == 0 and result.err == "", result
        assert state(data) and [path.name for path in cache.iterdir()] == ["own.h5"]


def test_ctrl_c_leaves_nothing(data, commands, cache, tmp_path):
    idx_files(tmp_path / "in", 200_000, 28, zipped=False)
    pid = commands.start("data", "import", "in", "--name", "own", cwd=tmp_path, cache=cache)
    deadline = time.monotonic() + 20
    while not list(cache.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(pid, signal.SIGINT)
    result = commands.wait(pid)
    assert result.status == 130 and "Traceback" not in result.err, result
    assert list(cache.iterdir()) == []


# Disks


@pytest.mark.parametrize("before", ["empty", "with the set"])
def test_a_disk_that_is_full_at_any_moment_is_told_and_changes_nothing(data, cache, tmp_path, good, before):
    idx_files(tmp_path / "in", 3000, 20)
    needed = imported(data, "in", "--name", "own")["bytes"]
    (cache / "own.h5").unlink()
    if before == "with the set":
        (cache / "own.h5").write_bytes(good)
    was = bytes_of(cache)
    for room in (0, 100, 5000, needed // 3, needed // 2, needed - 3500, needed - 1):
        refused(data("import", "in", "--name", "own", file_size=room), str(cache / "own.h5"), "File too large")
        assert bytes_of(cache) == was, room
    assert data("import", "in", "--name", "own", file_size=needed).status == 0


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems may not be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount here")
def test_a_disk_too_small_is_told_before_and_while_it_is_written(data, tmp_path, good):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        (disk / "own.h5").write_bytes(good)
        idx_files(tmp_path / "large", 3000, 28)
        refused(data("import", "large", "--name", "own", cache=disk), str(disk), "needs 2 MB")
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        idx_files(tmp_path / "fits", free // 400, 20)
        refused(data("import", "fits", "--name", "own", cache=disk), str(disk / "own.h5"), "No space left")
        assert bytes_of(disk) == {"own.h5": good}


def test_a_cache_that_cannot_be_is_told(data, tmp_path):
    (tmp_path / "file").touch()
    idx_files(tmp_path / "in")
    for place in (tmp_path / "file", tmp_path / "file/below"):
        refused(data("import", "in", "--name", "own", cache=place), str(place / "own.h5"), "cannot be written")
        assert data("list", cache=place).status == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_not_be_written_is_told(data, cache, tmp_path, good):
    (cache / "own.h5").write_bytes(good)
    idx_files(tmp_path / "in")
    cache.chmod(0o555)
    try:
        refused(data("import", "in", "--name", "own"), str(cache / "own.h5"), "Permission denied")
        assert data("list", "--check").status == 0 and bytes_of(cache) == {"own.h5": good}
    finally:
        cache.chmod(0o755)


def test_the_command_line_does_not_load_numpy_before_its_threads_are_set():
    code = "import sys, fbompi.cli; assert 'numpy' not in sys.modules and 'h5py' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
