"""What the shipped jobs reach on the papers' data, where the originals are there to be imported."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, needs_mpi, trajectory
from federation import federation

from fbompi import start
from fbompi.client import Client, evaluate
from fbompi.config import load, read_toml
from fbompi.kernels.regression import Regression
from fbompi.launch import find_launcher, flags
from fbompi.problems.cleaning import Cleaning
from fbompi.problems.hypercleaning import HyperCleaning
from fbompi.recorder import Recorder
from fbompi.run import Driver

pytestmark = pytest.mark.slow
MNIST_BYTES = 70_000 * 784


def job(name: str) -> Path:
    return ROOT / "jobs" / f"{name}.toml"


def tables(name: str) -> dict:
    """A job as the tables of its file."""
    return read_toml(job(name))


def multiplication() -> float:
    """Seconds of a dense 1500×1500 product in float64: what times of other machines are compared by."""
    A = np.random.default_rng(0).random((1500, 1500))
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        A @ A
        times.append(time.perf_counter() - begin)
    return min(times)


def test_fedmbo_learns_a_representation_in_fewer_rounds_than_fednest(real_data, run_file) -> None:
    """FedNest's own code needs 41 rounds for 85 % in this setting."""
    real_data("mnist")
    path = run_file(job("fedmbo-hyperrep"))
    accuracy = trajectory(path, "accuracy")
    assert accuracy[:42].max() >= 0.85
    assert accuracy[-1] >= 0.8  # and it is not a lucky moment


@pytest.mark.alone
def test_a_round_of_fedmbo_takes_a_twentieth_of_fednests(real_data) -> None:
    """FedNest's own code takes 1.30 s a round on one thread where a 1500³ product takes 0.08 s."""
    real_data("mnist")
    driver = federation(tables("fedmbo-hyperrep"))
    driver.method.round(driver.state, driver.link)
    ratios = []
    for _ in range(5):  # a neighbour's work slows rounds and products alike
        begin = time.perf_counter()
        for _ in range(3):
            driver.method.round(driver.state, driver.link)
        ratios.append((time.perf_counter() - begin) / 3 / multiplication())
    assert min(ratios) <= 1.30 / 20 / 0.08, ratios


def test_afbo_cleans_mnist(real_data, run_file) -> None:
    """The weights tell right labels from wrong, and help by three points against training on all labels alike."""
    real_data("mnist")
    path = run_file(job("afbo-hypercleaning-mnist"))
    assert trajectory(path, "auc")[-1] >= 0.95
    assert 1 - trajectory(path, "accuracy")[-1] <= error_without_weights() - 0.03


def error_without_weights() -> float:
    """The test error of the same classifier and ridge, trained on the given labels by accelerated gradient descent."""
    problem = HyperCleaning(**tables("afbo-hypercleaning-mnist")["problem"])
    shard, ridge = problem.shard(0, 1), problem.ridge
    train: Regression = shard.train
    y = ahead = np.zeros(train.shape[0] * train.shape[1])
    step, momentum = 1 / (train.curvature() + ridge), 0.98
    for _ in range(400):
        before, y = y, ahead - step * train.at(ahead).gradient(ridge=ridge).ravel()
        ahead = y + momentum * (y - before)
    error = float((shard.test.at(y).guesses() != shard.test.labels).mean())
    assert 0.13 <= error <= 0.155  # as others find for this setting
    return error


@pytest.mark.alone
def test_one_client_cleans_as_fast_as_the_centralised_method(real_data) -> None:
    """A compiled SOBA gets to 14 % test error in 1.6 s where a 1500³ product takes 0.08 s, and to 13.5 % in 22 s."""
    real_data("mnist")
    driver = federation(tables("afbo-cleaning-central"))
    problem, state = driver.parts.problem, driver.state
    assert isinstance(problem, Cleaning)
    shard = problem.shard(0, 1)
    driver.method.round(state, driver.link)
    unit, spent, error = multiplication(), 0.0, 1.0
    for _ in range(0, 600, 25):
        begin = time.perf_counter()
        for _ in range(25):
            driver.method.round(state, driver.link)
        spent += time.perf_counter() - begin
        right, count = problem.metrics(shard, state.x, state.y)["accuracy"]
        if error > 0.14 >= 1 - right / count:
            assert spent <= 1.6 / 0.08 * max(unit, multiplication()), spent
        error = 1 - right / count
    assert error <= 0.135


@pytest.mark.alone
def test_recording_and_checkpoints_take_less_than_a_twentieth_of_the_time(real_data, tmp_path, monkeypatch) -> None:
    """Everything that the recorder does, what it asks clients to evaluate included."""
    real_data("mnist")
    spent = {"recorder": 0.0, "checkpoints": 0.0, "evaluations": 0.0, "run": 0.0}

    def watch(owner: type, name: str, key: str) -> None:
        """Add up the time of a method; of a client's answers, that of evaluations."""
        original = getattr(owner, name)

        def timed(self: Any, *arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return original(self, *arguments)
            finally:
                if owner is not Client or arguments[0] is evaluate:
                    spent[key] += time.perf_counter() - begin

        monkeypatch.setattr(owner, name, timed)

    for name in ("see", "finish"):
        watch(Recorder, name, "recorder")
    watch(Recorder, "keep", "checkpoints")
    watch(Client, "answer", "evaluations")
    watch(Driver, "run", "run")
    options = ["run.rounds=100", f"run.out={tmp_path / 'run.h5'}"]
    start.run(lambda: load(job("afbo-hypercleaning-mnist"), options), overwrite=False, quiet=True)
    shares = {name: round(seconds / spent["run"], 4) for name, seconds in spent.items()}
    print(f"{spent['run']:.1f} s, shares {shares}")
    assert spent["checkpoints"] > 0 and spent["evaluations"] > 0
    assert spent["recorder"] + spent["evaluations"] < 0.05 * spent["run"]


@needs_mpi
def test_eight_ranks_hold_one_copy_of_mnist_among_them(real_data, tmp_path: Path) -> None:
    real_data("mnist")
    launcher = find_launcher()
    assert launcher
    words = [launcher.path, *flags(launcher, 9), "-n", "9", sys.executable, str(ROOT / "tests" / "shard_memory.py")]
    keys = ["problem.data=mnist", "problem.train=0", "problem.validation=5000"]
    done = subprocess.run([*words, *keys], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    found = re.search(r"^bytes (\d+)$", done.stdout, re.M)
    assert done.returncode == 0 and found, done
    print(f"{int(found[1]) / MNIST_BYTES:.3f} of one copy")
    assert 0.9 * MNIST_BYTES < int(found[1]) <= 1.2 * MNIST_BYTES
