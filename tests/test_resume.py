"""A run that was stopped or killed goes on to the bits that it would have reached, whatever is left of it."""

from __future__ import annotations

import copy
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import PYTHONS, ROOT, Result, command, needs_mpi, options, trajectory
from stopping import VARIABLE
from test_methods import BASELINES, PAGE, PAPERS
from test_record import MEASURED, numbers, same

from fbompi import registry
from fbompi.checkpoint import beside
from fbompi.summary import summary

PROBLEMS = Path(__file__).with_name("stopping.py")
METHODS = (*PAPERS, *BASELINES)
OTHERS_SLOW = pytest.mark.parametrize("name", [*PAPERS, *(pytest.param(n, marks=pytest.mark.slow) for n in BASELINES)])
ROUNDS = 8


def keys_for(name: str, **more: Any) -> list[str]:
    """A small run of a method with all the randomness that it knows."""
    method = registry.algorithm(name)
    problem = "Location" if method.family == "nonsmooth" else "Quadratic"
    keys = {"run_algorithm": name, "run_problem": f"{PROBLEMS}:{problem}", "run_rounds": ROUNDS, "record_every": 1,
            "clients_count": 5, "clients_participation": 0.6, "run_seed": 3}  # fmt: skip
    if method.family == "nonsmooth":
        keys |= {"algorithm_step": 0.05, "algorithm_weight": 0.5}  # to find them takes the first round a hundred sweeps
    if name in ("adbo", "sdbo"):
        keys |= {"algorithm_iterations": 4, "algorithm_estimate_rounds": 4}
    if "batch" in method.client_keys:
        keys |= {"clients_batch": 4, "problem_noise": 0.3}
    if "local_steps" in method.client_keys:
        keys |= {"clients_local_steps": "[1,3]"}
    if "capacity" in method.client_keys:
        keys |= {"clients_capacity": "[1.0,0.5,0.25]"}
    return options(**keys | more)


def copied(path: Path, to: Path) -> Path:
    """A run file with what lies beside it, under another name."""
    for one, other in zip((path, *beside(path)), (to, *beside(to))):
        other.unlink(missing_ok=True)
        if one.exists():
            shutil.copy(one, other)
    return to


def same_steps(one: Path, other: Path) -> None:
    """The trajectories of two runs on ranks, bit for bit, but for what was measured."""
    with h5py.File(one) as a, h5py.File(other) as b:
        assert set(a["trajectory"]) == set(b["trajectory"])
        for name in set(a["trajectory"]) - MEASURED - {"time"}:
            assert a["trajectory"][name][:].tobytes() == b["trajectory"][name][:].tobytes(), name
        for name in a["final"]:
            assert a["final"][name][:].tobytes() == b["final"][name][:].tobytes(), name


def said(result: Result) -> list[str]:
    """What a command had to say, but for the files of Python that it was told to load."""
    return [line for line in result.err.splitlines() if not line.endswith("which is loaded")]


class Stopped:
    """A run of a method, whole and stopped on the way."""

    def __init__(
        self,
        run: Callable[..., Result],
        folder: Path,
        name: str = "afbo",
        call: int = 150,
        status: int = 0,
        **more: Any,
    ) -> None:
        self.whole, self.part = folder / "whole.h5", folder / "part.h5"
        keys = keys_for(name, **{"record_checkpoint_every": 1, **more})
        result = run("run", "--quiet", *keys, "--out", self.whole)
        assert result.status == status, result
        self.result = run("run", "--quiet", *keys, "--out", self.part, alarm=f"SIGTERM@{call}")
        assert self.result.status == 75, self.result


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder = tmp_path_factory.mktemp("stopped")
    return Stopped(lambda *words, alarm="": command(*words, cwd=folder, **{VARIABLE: alarm}), folder)


@pytest.fixture
def stopped(stopped_once: Stopped, tmp_path: Path) -> Stopped:
    """The same for every test, with files of its own."""
    mine = copy.copy(stopped_once)
    mine.whole = copied(stopped_once.whole, tmp_path / "whole.h5")
    mine.part = copied(stopped_once.part, tmp_path / "part.h5")
    return mine


# The same bits


@OTHERS_SLOW
def test_every_method_goes_on_to_the_same_bits_from_either_checkpoint_and_from_none(here, tmp_path, name):
    run = Stopped(here, tmp_path, name, call=15 if name in ("fism", "irig") else 30)
    rounds = len(trajectory(run.part, "round"))
    assert 1 < rounds < ROUNDS and summary(run.part)["status"] == "interrupted"
    for missing in range(3):  # the last checkpoint; that and the one before
        path = copied(run.part, tmp_path / f"{missing}.h5")
        for checkpoint in beside(path)[:missing]:
            checkpoint.unlink(missing_ok=True)
        result = here("resume", "--quiet", path)
        assert result.status == 0, result
        same(run.whole, path)
        with h5py.File(path) as file:
            begun = file["starts"]["round"].tolist()
            if not missing:
                assert begun == [0, rounds - 1]
        assert not any(checkpoint.exists() for checkpoint in beside(path)), "they are in the file now"
    assert begun == [0, 0] and "no checkpoint: what is recorded is gone through again from the start" in result.err


@pytest.mark.parametrize("name", ["afbo", "adbo", "fism", "rafbo"])
def test_a_run_may_be_stopped_again_and_again(here, tmp_path, name):
    run = Stopped(here, tmp_path, name, call=2, run_rounds=6)
    stops = 0
    while (result := here("resume", "--quiet", run.part, alarm="SIGUSR1@5")).status == 75:
        stops += 1
    assert stops > 1 and result.status == 0, result
    same(run.whole, run.part)
    with h5py.File(run.part) as file:
        begun = file["starts"]["round"][:]
    assert len(begun) == stops + 2 and np.all(np.diff(begun) > 0)


@pytest.mark.parametrize(("name", "call"), [("afbo", 200), ("fedmbo", 130), ("irig", 18)])
def test_a_run_may_be_stopped_while_it_goes_through_its_log(here, tmp_path, name, call):
    run = Stopped(here, tmp_path, name, call)
    rounds = len(trajectory(run.part, "round"))
    for checkpoint in beside(run.part):
        checkpoint.unlink(missing_ok=True)
    result = here("resume", "--quiet", run.part, alarm=f"SIGTERM@{call // 3}")
    assert result.status == 75 and len(trajectory(run.part, "round")) == rounds, "what is recorded stays"
    result = here("resume", "--quiet", run.part)
    assert result.status == 0 and "no checkpoint" not in result.err, result
    same(run.whole, run.part)


@pytest.mark.parametrize("model", ["none", "exponential", "pareto"])
def test_delays_and_answers_on_their_way_go_on_too(here, tmp_path, model):
    run = Stopped(here, tmp_path, "afbo", delays_model=model, delays_stragglers=2, algorithm_quorum=2)
    assert here("resume", "--quiet", run.part).status == 0
    same(run.whole, run.part)


def test_clients_that_come_and_go_and_are_left_out_go_on_too(here, tmp_path):
    """An answer that is absurd is rejected: who is left out, and what is usual, is known afterwards."""
    keys = {"clients_presence": "anarchic", "faults_absurd": 2.0, "faults_offences": 1, "problem_heterogeneity": 3.0}
    run = Stopped(here, tmp_path, "afbo", 60, status=4, **keys)
    result = here("resume", "--quiet", run.part)
    assert result.status == 4, result
    with h5py.File(run.whole) as whole, h5py.File(run.part) as part:
        assert whole["events"]["rejected"].sum() > 0 and set(whole["clients"]["state"]) == {0, 1}
        assert whole["incidents"]["what"].tolist() == part["incidents"]["what"].tolist()
        assert whole["incidents"]["take"].tolist() == part["incidents"]["take"].tolist()
        for name in ("events", "clients", "final/x", "trajectory/upper", "trajectory/x"):
            assert numbers(whole, name).tobytes() == numbers(part, name).tobytes(), name


LIAR = '''
from stopping import Quadratic
class Liar(Quadratic):
    """Client 0 sends gradients of absurd length."""
    def lower_grad(self, shard, x, y, batch):
        return super().lower_grad(shard, x, y, batch) * (1e9 if shard.c[0] == self.shard(0, 3).c[0] else 1)
'''


def test_what_is_usual_is_known_afterwards_though_who_told_it_is_gone(here, tmp_path):
    """Three clients tell what is usual, one of them a liar: the other two are judged one by one from then on."""
    (tmp_path / "liar.py").write_text(LIAR)
    keys = {"run_problem": f"{tmp_path}/liar.py:Liar", "clients_count": 3, "clients_participation": 1.0,
            "faults_offences": 1, "algorithm_quorum": 1, "delays_model": "pareto"}  # fmt: skip
    run = Stopped(here, tmp_path, "afbo", 60, status=4, **keys)
    assert here("resume", "--quiet", run.part).status == 4
    with h5py.File(run.whole) as whole, h5py.File(run.part) as part:
        assert whole["clients"]["state"].tolist() == [1, 0, 0] and len(part["starts"]) == 2
        for name in ("events", "final/x", "trajectory/x"):
            assert numbers(whole, name).tobytes() == numbers(part, name).tobytes(), name


def test_what_was_recorded_before_a_kill_and_after_the_checkpoint_is_gone_through_again(here, fbompi, tmp_path):
    keys = keys_for("afbo", record_checkpoint_every=3)
    assert here("run", "--quiet", *keys, "--out", "whole.h5").status == 0
    killed = fbompi("run", "--quiet", *keys, "--out", "part.h5", **{VARIABLE: "SIGKILL@150"})
    assert killed.status == -signal.SIGKILL and summary(tmp_path / "part.h5")["status"] == "running"
    recorded = trajectory(tmp_path / "part.h5", "round")[-1]
    result = here("resume", "--quiet", "part.h5")
    assert result.status == 0, result
    same(tmp_path / "whole.h5", tmp_path / "part.h5")
    with h5py.File(tmp_path / "part.h5") as file:
        assert file["starts"]["round"].tolist() == [0, recorded // 3 * 3] and recorded % 3


def test_a_record_that_gives_other_bits_is_told_and_replaced_from_there_on(here, stopped):
    for checkpoint in beside(stopped.part):
        checkpoint.unlink()
    with h5py.File(stopped.part, "r+") as file:
        file["trajectory/x"][2, 0] += 1e-9
    result = here("resume", "--quiet", stopped.part)
    assert result.status == 0 and "round 2 gave other bits than were recorded" in result.err, result
    same(stopped.whole, stopped.part)


# Prolonging


@OTHERS_SLOW
def test_a_complete_run_that_is_prolonged_equals_a_longer_one(here, tmp_path, name):
    long, short = tmp_path / "long.h5", tmp_path / "short.h5"
    assert here("run", "--quiet", *keys_for(name), "--out", long).status == 0
    assert here("run", "--quiet", *keys_for(name, run_rounds=5), "--out", short).status == 0
    result = here("resume", "--quiet", short)
    assert result.status == 2 and "is complete after 5 rounds; to prolong it: -o run.rounds=10" in result.err, result
    result = here("resume", "--quiet", short, *options(run_rounds=ROUNDS))
    assert result.status == 0, result
    same(long, short)
    assert summary(short)["config"]["run"]["rounds"] == ROUNDS


# Changes


REFUSED = {
    "run.seed=4": "may change run.rounds and the keys of [record] only",
    "run.algorithm=fedmbo": "start another with fbompi run",
    "clients.count=6": "may change run.rounds",
    "algorithm.terms=3": "may change run.rounds",
    "problem.noise=0": "may change run.rounds",
    "delays.model=none": "may change run.rounds",
    "faults.offences=7": "may change run.rounds",
    "run.out=other.h5": "may change run.rounds",
    "record.iterates=false": "cannot be changed any more",
    "record.ever=2": 'did you mean "every"',
    "run.rounds=1": "has rounds up to",
    "run.rounds=none": "expected",
}


def test_what_would_make_another_run_is_refused_with_the_reason(here, stopped):
    before = stopped.part.read_bytes()
    for change, why in REFUSED.items():
        result = here("resume", stopped.part, "-o", change)
        assert result.status == 2 and why in result.err and len(said(result)) == 1, (change, result)
        assert change.partition("=")[0] in result.err or change.startswith("record.ever"), result
    assert stopped.part.read_bytes() == before
    assert here("resume", "--quiet", stopped.part).status == 0
    same(stopped.whole, stopped.part)


@pytest.mark.parametrize("every", [1, 3, 4])
def test_rows_may_be_taken_more_or_less_often(here, tmp_path, every):
    run = Stopped(here, tmp_path, "afbo", 150, record_every=2, record_checkpoint_every=5)
    recorded = trajectory(run.part, "round").tolist()
    beside(run.part)[0].unlink()  # from the one before: rounds without rows are gone through again
    changes = options(record_every=every, record_checkpoint_every=2, record_metrics=False)
    result = here("resume", "--quiet", run.part, *changes)
    assert result.status == 0, result
    later = [r for r in range(recorded[-1] + 1, ROUNDS + 1) if r % every == 0 or r == ROUNDS]
    assert trajectory(run.part, "round").tolist() == [*recorded, *later]
    with h5py.File(run.whole) as whole, h5py.File(run.part) as part:
        both = np.isin(whole["trajectory/round"][:], part["trajectory/round"][:])
        mine = np.isin(part["trajectory/round"][:], whole["trajectory/round"][:])
        for name in ("x", "y", "grad_norm", "time", "bytes_up", "gradients", "communication"):
            assert whole["trajectory"][name][both].tobytes() == part["trajectory"][name][mine].tobytes(), name
        for name in ("events", "clients", "final/x", "final/y"):
            assert numbers(whole, name).tobytes() == numbers(part, name).tobytes(), name
        assert np.isnan(part["trajectory/upper"][len(recorded) :]).all()


def test_a_run_that_another_process_writes_is_left_alone(here, tmp_path):
    words = [sys.executable, "-m", "fbompi", "run", "--quiet", *keys_for("afbo", run_rounds=10**6), "--out", "run.h5"]
    run = subprocess.Popen(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        wait_until(lambda: (tmp_path / "run.h5").exists())
        result = here("resume", "run.h5")
    finally:
        run.kill()
        run.wait()
    assert result.status == 2 and "is being written by another run" in result.err, result


@needs_mpi
def test_a_run_goes_on_where_it_can(here, stopped, tmp_path):
    result = here("resume", stopped.part, "-n", 3)
    assert result.status == 2 and "was run on the virtual link" in result.err, result
    with h5py.File(stopped.part, "r+") as file:
        file.attrs["link"] = "mpi"
    result = here("resume", stopped.part)
    assert result.status == 2 and f"fbompi resume -n 4 {stopped.part}" in result.err, result


# Checkpoints


def test_checkpoints_are_written_as_often_as_asked(fbompi, tmp_path):
    for every, expected in ((0, []), (2, [4, 6])):
        path = tmp_path / f"{every}.h5"
        keys = keys_for("fedmbo", record_checkpoint_every=every)
        assert fbompi("run", "--quiet", *keys, "--out", path, **{VARIABLE: "SIGKILL@150"}).status == -signal.SIGKILL
        found = []
        for checkpoint in reversed([place for place in beside(path) if place.exists()]):
            with h5py.File(checkpoint) as file:
                found.append(int(file["checkpoint/state"].attrs["round"]))
        assert found == expected, every


def test_without_checkpoints_on_the_way_there_is_one_when_stopped(here, tmp_path):
    run = Stopped(here, tmp_path, record_checkpoint_every=0)
    assert [place.exists() for place in beside(run.part)] == [True, False]
    assert here("resume", "--quiet", run.part).status == 0
    same(run.whole, run.part)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def foreign(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)


def of_another_run(path: Path) -> None:
    rewrite(path, lambda file: file["checkpoint"].attrs.update(run="0" * 32))


def of_the_future(path: Path) -> None:
    rewrite(path, lambda file: file["checkpoint"].attrs.update(rows=1000))


def lacking(path: Path) -> None:
    def change(file: h5py.File) -> None:
        del file["checkpoint/state/recent"]

    rewrite(path, change)


def of_other_shapes(path: Path) -> None:
    def change(file: h5py.File) -> None:
        del file["checkpoint/link/guard/offences"]
        file["checkpoint/link/guard/offences"] = np.zeros(77, np.int64)

    rewrite(path, change)


def rewrite(path: Path, change: Callable[[h5py.File], object]) -> None:
    """Change a checkpoint as only somebody who knows its checksum can."""
    import zlib

    content = path.read_bytes()
    trailer = content[content.rindex(b"fbompi checkpoint") :]
    path.write_bytes(content[: -len(trailer)])
    with h5py.File(path, "r+") as file:
        change(file)
    content = path.read_bytes()
    numbers = len(content).to_bytes(8, "little") + zlib.crc32(content).to_bytes(4, "little")
    path.write_bytes(content + trailer[:-12] + numbers)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "the last byte is missing": (truncated, "truncated"),
    "half of it is missing": (halved, "truncated"),
    "it is empty": (lambda path: path.write_bytes(b""), "truncated"),
    "one bit is another": (changed, "checksum"),
    "it is another HDF5 file": (foreign, "truncated"),
    "it is a text": (lambda path: path.write_text("checkpoint\n" * 100), "truncated"),
    "it belongs to another run": (of_another_run, "belongs to another run"),
    "it is newer than the run file": (of_the_future, "newer than the run file"),
    "a part is missing": (lacking, "recent"),
    "a part has another shape": (of_other_shapes, "offences has shape (77,), expected (5,)"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_no_use_is_told_and_the_one_before_is_taken(here, stopped, damage):
    make, why = DAMAGES[damage]
    last = beside(stopped.part)[0]
    rounds = len(trajectory(stopped.part, "round")) - 1
    make(last)
    result = here("resume", "--quiet", stopped.part)
    assert result.status == 0 and len(said(result)) == 1, result
    (line,) = said(result)
    assert line.startswith(f"fbompi: {last}: is no checkpoint that can be used: ") and why in line, result
    same(stopped.whole, stopped.part)
    with h5py.File(stopped.part) as file:
        assert file["starts"]["round"].tolist() == [0, rounds - 1]


def test_whatever_bytes_of_both_checkpoints_are_wrong_the_bits_are_right(here, stopped, tmp_path):
    chance = random.Random(7)
    for number in range(6):
        path = copied(stopped.part, tmp_path / "damaged.h5")
        for checkpoint in beside(path):
            content = bytearray(checkpoint.read_bytes())
            for _ in range(chance.choice([1, 8, 64])):
                content[chance.randrange(len(content))] = chance.randrange(256)
            checkpoint.write_bytes(content[: chance.choice([len(content), chance.randrange(len(content))])])
        result = here("resume", "--quiet", path)
        assert result.status == 0 and "Traceback" not in result.err, (number, result)
        same(stopped.whole, path)


def test_a_newer_checkpoint_or_run_file_is_refused(here, stopped, tmp_path):
    newer = copied(stopped.part, tmp_path / "newer.h5")
    rewrite(beside(newer)[0], lambda file: file.attrs.update(format_version=99))
    with h5py.File(stopped.part, "r+") as file:
        file.attrs["format_version"] = 99
    for path, why in ((newer, "checkpoint of a newer fbompi"), (stopped.part, "run-file format 99")):
        before = path.read_bytes()
        result = here("resume", "--quiet", path)
        assert result.status == 2 and why in result.err and len(said(result)) == 1, result
        assert path.read_bytes() == before and not path.with_name(path.name + ".journal").exists()


UNKEEPABLE = {
    "lambda: 0": "its state.extra is a function",
    "{1: 2.0}": "its state.extra has keys that are no texts",
    "{'a': [object()]}": "its state.extra.a.0 is a object",
    "{'a', 'b'}": "its state.extra is a set of other things",
    "np.array(['a'])": "its state.extra has numbers of kind <U1",
}


def soba(folder: Path, extra: str) -> list[str]:
    """The method of docs/methods.md, with something more in its state."""
    code = re.search(r"```python\n(.*?)\n```", PAGE, re.S)[1]
    fields = re.search(r"class State.*?\n    v: np.ndarray\n", code, re.S)
    assert fields, "the page's method has a state with a v"
    code = code.replace(fields[0], f"{fields[0]}    extra: object = field(default_factory=lambda: {extra})\n")
    (folder / "soba.py").write_text("from dataclasses import field\n" + code + "\n", encoding="utf-8")
    return options(
        run_algorithm=f"{folder}/soba.py:Soba", run_problem=f"{PROBLEMS}:Quadratic", run_rounds=30, record_every=1
    )


@pytest.mark.parametrize("extra", UNKEEPABLE)
def test_a_method_whose_state_cannot_be_kept_is_refused_before_it_begins(here, tmp_path, extra):
    result = here("run", "--quiet", *soba(tmp_path, extra), "--out", "run.h5")
    assert result.status == 2 and len(said(result)) == 1, result
    assert f"soba.py:Soba: {UNKEEPABLE[extra]}" in result.err and "cannot be kept in a checkpoint" in result.err
    assert not (tmp_path / "run.h5").exists()


def test_whatever_else_a_method_keeps_goes_on_with_it(here, tmp_path):
    keys = soba(tmp_path, "{'a': [1, np.ones(2), None], 'b': (True, 'ü'), 'c': {3, 1}, 'd': np.float64(0.1)}")
    assert here("run", "--quiet", *keys, "--out", "whole.h5").status == 0
    assert here("run", "--quiet", *keys, "--out", "part.h5", alarm="SIGINT@50").status == 75
    result = here("resume", "--quiet", "part.h5")
    assert result.status == 0 and not said(result), result
    same(tmp_path / "whole.h5", tmp_path / "part.h5")


# Signals


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def started(folder: Path, *arguments: Any, python: str = sys.executable) -> subprocess.Popen:
    """``fbompi ARGUMENTS`` in the background, until its file is there."""
    words = [python, "-m", "fbompi", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: (folder / "run.h5").exists() or run.poll() is not None)
    assert run.poll() is None, run.communicate()
    return run


def ended(run: subprocess.Popen, seconds: float) -> str:
    """What a run says, which must end within so many seconds."""
    try:
        return run.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        run.kill()
        run.communicate()
        raise


def ranks_of(launcher: int) -> dict[int, int]:
    """The processes of a job's ranks, by rank."""
    found = {}
    for process in descendants(launcher):
        try:
            words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [int(w.partition(b"=")[2]) for w in words if w.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK="))]
        if ranks:
            found[ranks[0]] = process
    return found


def descendants(process: int) -> list[int]:
    """All processes below one."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True).stdout
    below = [int(child) for child in children.split()]
    return [*below, *(far for child in below for far in descendants(child))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_one_signal_stops_a_run_between_two_rounds(tmp_path, here, number):
    run = started(tmp_path, "run", "--quiet", *keys_for("afbo", run_rounds=10**6), "--out", "run.h5")
    time.sleep(random.uniform(0, 0.2))
    run.send_signal(number)
    err = ended(run, 5)
    assert run.returncode == 75 and re.fullmatch(
        r"fbompi: interrupted after round \d+; fbompi resume run.h5 goes on\n", err
    ), (run.returncode, err)
    done = int(trajectory(tmp_path / "run.h5", "round")[-1])
    result = here("resume", "--quiet", "run.h5", *options(run_rounds=done + 3))
    assert result.status == 0, result
    assert trajectory(tmp_path / "run.h5", "round").tolist() == list(range(done + 4))


SLOW = '''
import time
from fbompi.problems.quadratic import Quadratic
class Slow(Quadratic):
    """A gradient takes its time: a round is far longer than anybody waits for a second signal."""
    def lower_grad(self, *arguments):
        time.sleep(0.5)
        return super().lower_grad(*arguments)
'''


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_second_signal_ends_it_at_once(tmp_path, here, number):
    (tmp_path / "slow.py").write_text(SLOW)
    keys = options(run_problem="slow.py:Slow", run_algorithm="fedmbo", clients_count=5, record_every=1)
    run = started(tmp_path, "run", "--quiet", *keys, "--out", "run.h5")
    wait_until(lambda: summary(tmp_path / "run.h5")["rows"])
    time.sleep(0.1)
    run.send_signal(number)
    time.sleep(0.2)
    assert run.poll() is None, "the round takes longer"
    run.send_signal(number)
    err = ended(run, 2)
    assert run.returncode not in (0, 75) and "Traceback" not in err, (run.returncode, err)
    assert summary(tmp_path / "run.h5")["rows"] == 1
    (tmp_path / "slow.py").write_text(SLOW.replace("0.5", "0"))
    result = here("resume", "--quiet", "run.h5", *options(run_rounds=3))
    assert result.status == 0, result


LONG = {"run_rounds": 10**6, "record_every": 5, "clients_count": 6, "clients_participation": 1.0}
TO_ONE_OF_ALL = ("SIGTERM to launcher", "SIGUSR1 to 3")  # launchers differ in what they pass on
OTHERS = ("SIGINT to launcher", "SIGUSR1 to launcher", "SIGTERM to 0", "SIGTERM to 2")
SIGNALLED = [(library, what) for library in PYTHONS for what in TO_ONE_OF_ALL] + [("default", what) for what in OTHERS]


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(("library", "what"), SIGNALLED)
def test_one_signal_to_any_process_stops_a_run_on_ranks(tmp_path, fbompi, here, library, what):
    name, _, target = what.partition(" to ")
    python = PYTHONS[library]
    run = started(
        tmp_path, "run", "--quiet", "-n", 4, *keys_for("afbo", **LONG), "--out", "run.h5", python=python
    )  # fmt: skip
    time.sleep(random.uniform(0, 0.5))
    process = run.pid if target == "launcher" else ranks_of(run.pid)[int(target)]
    os.kill(process, signal.Signals[name])
    err = ended(run, 5)
    assert run.returncode == 75 and "goes on" in err and "Traceback" not in err, (run.returncode, err)
    assert summary(tmp_path / "run.h5")["status"] == "interrupted"
    with h5py.File(tmp_path / "run.h5.checkpoint") as file:
        done = int(file["checkpoint/state"].attrs["round"])
    changes = options(run_rounds=done + 7)
    result = fbompi("resume", "--quiet", "-n", 3, "run.h5", *changes, python=python)
    assert result.status == 0, result
    assert trajectory(tmp_path / "run.h5", "round")[-1] == done + 7
    result = here("replay", "--quiet", "--verify", "run.h5")
    assert result.status == 0, result


@needs_mpi
@pytest.mark.slow
def test_two_signals_end_a_run_on_ranks_at_once(tmp_path, fbompi):
    (tmp_path / "slow.py").write_text(SLOW.replace("0.5", "5"))
    keys = options(run_problem="slow.py:Slow", run_algorithm="fedmbo", clients_count=5, record_every=1)
    run = started(tmp_path, "run", "--quiet", "-n", 3, *keys, "--out", "run.h5")
    wait_until(lambda: summary(tmp_path / "run.h5")["rows"])
    for _ in range(2):
        run.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    err = ended(run, 4)
    assert run.returncode not in (0, 75), (run.returncode, err)
    assert summary(tmp_path / "run.h5")["rows"] == 1
    (tmp_path / "slow.py").write_text(SLOW.replace("0.5", "0"))
    result = fbompi("resume", "--quiet", "-n", 2, "run.h5", *options(run_rounds=3))
    assert result.status == 0, result


# Other ranks


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", ["irig", "rafbo"])
def test_a_synchronous_run_goes_on_with_any_number_of_ranks_to_the_same_bits(fbompi, here, tmp_path, name):
    """4 ranks, then 2, then 6: each but the last is stopped on the way by a signal to one of its ranks."""
    keys = keys_for(name, record_checkpoint_every=1, run_rounds=40)  # what a signal stops must not be over before
    call = 3 if name == "irig" else 10
    whole, part = tmp_path / "whole.h5", tmp_path / "part.h5"
    result = here("run", "--quiet", *keys, "--out", whole)
    assert result.status == 0, result
    result = fbompi("run", "-n", 4, "--quiet", *keys, "--out", part, **{VARIABLE: f"SIGTERM@{call}@2"})
    assert result.status == 75, result
    result = fbompi("resume", "-n", 2, "--quiet", part, **{VARIABLE: f"SIGTERM@{call}@1"})
    assert result.status == 75, result
    result = fbompi("resume", "-n", 6, "--quiet", part)
    assert result.status == 0, result
    same_steps(whole, part)
    with h5py.File(part) as file:
        assert file["starts"]["ranks"].tolist() == [4, 2, 6] and np.all(np.diff(file["starts"]["round"]) > 0)
        for column in ("time", "server_seconds", "client_seconds"):
            assert np.all(np.diff(file["trajectory"][column]) >= 0), column


@needs_mpi
@pytest.mark.slow
def test_a_run_that_lost_all_its_ranks_goes_on_with_others(fbompi, here, tmp_path):
    """Of the rounds since the last row nothing is known but that they were lost: who was left out meanwhile is not."""
    keys = keys_for(
        "afbo", record_checkpoint_every=0, record_every=ROUNDS, faults_lost="leave", clients_participation=1.0
    )  # fmt: skip
    lost = {VARIABLE: "SIGKILL@60@1,SIGKILL@80@2"}
    result = fbompi("run", "-n", 3, "--quiet", *keys, "--out", "run.h5", **lost)
    if "lost, and" not in result.err:
        pytest.skip("this MPI does not outlive its ranks")
    assert result.status == 75, result
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["incidents"]["what"].tolist() == [b"rank lost"] * 2
    result = fbompi("resume", "-n", 3, "--quiet", "run.h5")
    assert result.status in (0, 4) and summary(tmp_path / "run.h5")["status"] == "complete", result
    result = here("replay", "--verify", "run.h5")
    assert result.status == 0, result
