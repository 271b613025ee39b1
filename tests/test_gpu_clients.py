"""Clients that compute on a GPU: the same runs, with their arrays in messages, on a simulated device and real ranks.

No GPU is used: the device is the one of `cuda_shim`, whose arrays refuse whatever CuPy's refuse.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import ROOT, Result, needs_mpi, trajectory
from cuda_shim import Shim
from cuda_shim.arrays import GpuArray
from federation import federation, play

from fbompi import launch, registry
from fbompi.algorithms.afbo import matrices
from fbompi.client import Client
from fbompi.kernels.cuda.device import using
from fbompi.memory import DeviceMemory, HostMemory, PinnedMemory, memory_for
from fbompi.messages import HEADER_WORDS
from fbompi.problem import Oracles
from fbompi.problems.hypercleaning import HyperCleaning

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the simulated GPU is compiled by g++")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda")


def equal_on_both(build: Path, algorithm: str, problem: str, batch: int, most: float) -> set[str]:
    """Play three rounds on the CPU and on the device, compare the iterates, and tell what was launched."""
    keys = registry.algorithm(algorithm).client_keys
    clients = {"count": 5, "batch": batch, **({"capacity": [1.0, 0.5, 0.25]} if "capacity" in keys else {})}
    sizes = {"train": 100, **({"hidden": 4} if problem == "hyperrep" else {})}
    tables = {"run": {"algorithm": algorithm, "problem": problem}, "clients": clients, "problem": sizes}
    here = play(federation(tables), 3)
    with using(Shim(build)) as device:
        there = play(federation({**tables, "problem": {**sizes, "backend": "cuda"}}), 3)
    for name in ("x", "y"):
        one, other = getattr(here.state, name), getattr(there.state, name)
        assert type(other) is np.ndarray
        np.testing.assert_allclose(other, one, rtol=0, atol=most * abs(one).max())
    assert not (here.state.y == 0).all()
    return set(device.launches)


@pytest.mark.parametrize("algorithm", ["fedmbo", "afbo"])
@pytest.mark.parametrize("batch", [0, 8])
def test_a_run_on_a_gpu_is_the_run_on_the_cpu_to_rounding(build: Path, algorithm: str, batch: int) -> None:
    launched = equal_on_both(build, algorithm, "hypercleaning", batch, 1e-11)
    assert {"gather_rows", "jacobian_rows", "along_rows", "softmax_rows"} <= launched


OTHERS = [n for n, m in registry.algorithms().items() if m.family == "smooth" and n not in ("fedmbo", "afbo")]


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["hypercleaning", "hyperrep", "regcoef"])
@pytest.mark.parametrize("algorithm", OTHERS)
def test_every_method_runs_on_a_gpu_as_on_the_cpu(build: Path, algorithm: str, problem: str) -> None:
    """To rounding; finite differences, of rafbo, are as exact as they can be."""
    equal_on_both(build, algorithm, problem, 8, 1e-6 if algorithm == "rafbo" else 1e-11)


class GradientsOnly:
    """A problem without its second-order oracles and its smoothness."""

    def __init__(self, problem: HyperCleaning) -> None:
        self.size, self.lower, self.lower_grad = problem.size, problem.lower, problem.lower_grad


def test_what_a_problem_leaves_out_is_derived_on_the_gpu(build: Path) -> None:
    with using(Shim(build)) as device:
        problem = HyperCleaning(train=60, backend="cuda")
        shard = problem.shard(0, 3)
        x, y = device.asarray(np.zeros(20)), device.asarray(np.zeros(problem.dim_y))
        v = device.asarray(np.random.default_rng(0).standard_normal(problem.dim_y))
        native, derived = Oracles(problem, shard), Oracles(GradientsOnly(problem), shard)
        for one, other in (
            (native.hvp(x, y, v), derived.hvp(x, y, v)),
            (native.cross(x, y, v), derived.cross(x, y, v)),
        ):
            one, other = device.to_host(one), device.to_host(other)
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-6 * abs(one).max())
        assert 0 < derived.smoothness(x, y) <= 1.2 * native.smoothness(x, y)
        client = Client(native, 0, 0, 0, device)
        hessian = client.answer(matrices, 0, 1, [device.to_host(x), device.to_host(y)])[0]
        np.testing.assert_allclose(device.to_host(hessian @ v), device.to_host(native.hvp(x, y, v)), rtol=0, atol=1e-12)


PARTS = [np.arange(6.0).reshape(2, 3), np.array([7.5])]


def message(memory, size: int = 400):
    """A message of arrays on the GPU and of one that is not, as it comes out at the other end."""
    buffer = memory.empty(size)
    there = [GpuArray(PARTS[0]), PARTS[1]]
    length = memory.pack(buffer, 3, 5, 11, there, 2, 0.5, 0.25, 0.125, (1, 2, 3, 4, 5))
    return memory.unpack(buffer, length)


def test_messages_of_a_gpu_say_the_same_as_others(build: Path) -> None:
    buffer = HostMemory().empty(400)
    length = HostMemory().pack(buffer, 3, 5, 11, PARTS, 2, 0.5, 0.25, 0.125, (1, 2, 3, 4, 5))
    header, payload = HostMemory().unpack(buffer, length)
    assert not payload.flags.writeable
    with using(Shim(build)) as device:
        for memory in (PinnedMemory(), DeviceMemory()):
            found, there = message(memory)
            assert found == header and isinstance(there, GpuArray)
            assert (device.to_host(there) == payload).all()


def test_the_payload_stays_on_the_gpu_where_mpi_can_read_it_and_is_finished_before_mpi_gets_it(build: Path) -> None:
    copied: list[int] = []

    class Watched(Shim):
        def to_host(self, array, out=None):
            copied.append(array.size)
            return super().to_host(array, out)

    with using(Watched(build)) as device:
        message(DeviceMemory())
    assert copied == [HEADER_WORDS]
    assert device.launches[0] == "synchronize"  # before MPI may write into the buffer
    sent = len(device.launches) - 1 - device.launches[::-1].index("synchronize")
    assert device.launches[sent - 1 :] == ["fill", "synchronize", "to_host"]  # header, all done; then the other end

    copied.clear()
    with using(Watched(build)) as device:
        message(PinnedMemory())
    assert copied == [6] and device.launches == ["pinned", "to_host", "fill"]


def test_the_memory_is_chosen_by_problem_and_mpi(build: Path) -> None:
    class OnGpu:
        backend = "cuda"

    with using(Shim(build)):
        assert type(memory_for(object(), True)) is HostMemory
        assert type(memory_for(OnGpu(), False)) is PinnedMemory
        assert type(memory_for(OnGpu(), True)) is DeviceMemory


def test_without_a_gpu_it_is_said_in_one_line(here) -> None:
    result = here("run", "-o", "problem.backend=cuda")
    if result.status == 0:
        pytest.skip("there is a GPU here")
    assert result.status == 2 and result.err.startswith('fbompi: backend = "cuda": ') and result.err.count("\n") == 1


RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from pathlib import Path
from cuda_shim import Shim
from fbompi import cli
from fbompi.kernels.cuda.device import using

class Gpu(Shim):
    left = int(sys.argv.pop(2))  # kernels until it fails, for good and whatever it is asked; -1: never

    def run(self, *args):
        self.left -= self.left > 0
        self.check()
        super().run(*args)

    def check(self):
        if self.left == 0:
            raise RuntimeError("cudaErrorIllegalAddress")

    def fill(self, *args):
        self.check()
        super().fill(*args)

    def pinned(self, *args):
        self.check()
        return super().pinned(*args)

with using(Gpu(Path(sys.argv.pop(1)))):
    cli.main()
"""


def on_ranks(build: Path, path: Path, words: list[str], cuda_aware: int, kernels: int = -1) -> Result:
    """A run of two hosts with a simulated GPU each."""
    Shim(build).load("gather_rows", (np.float64, np.uint8))  # compiled before the ranks would do it at once
    Shim(build).load("softmax_rows", (np.float64,))
    launcher = launch.find_launcher()
    command = [launcher.path, *launch.flags(launcher, 3), "-n", "3", sys.executable, "-c", RUN, ROOT / "tests", build]
    command += [kernels, "run", *words, "-o", "problem.backend=cuda", "--out", path]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FBOMPI_CUDA_AWARE": str(cuda_aware)}
    return Result(subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=120))


AWARE = pytest.mark.parametrize("cuda_aware", [0, 1], ids=["pinned buffers", "CUDA-aware"])


@needs_mpi
@AWARE
def test_device_arrays_travel_between_real_ranks(build: Path, tmp_path: Path, run_file, cuda_aware: int) -> None:
    """An MPI that is not CUDA-aware can read the simulated device: its memory is the host's."""
    words = ["-o", "run.algorithm=fedmbo", "-o", "run.rounds=4", "-o", "clients.count=5", "-o", "problem.train=100"]
    here, path = run_file(*words, name="here.h5"), tmp_path / "there.h5"
    result = on_ranks(build, path, words, cuda_aware)
    assert result.status == 0, result
    for name in ("x", "y", "upper", "accuracy"):
        one, other = trajectory(here, name), trajectory(path, name)
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-11 * abs(one).max())


@needs_mpi
@AWARE
def test_a_gpu_that_fails_takes_neither_the_reason_nor_the_run_file_with_it(
    build: Path, tmp_path: Path, cuda_aware: int
) -> None:
    path = tmp_path / "run.h5"
    result = on_ranks(build, path, ["-o", "run.rounds=50"], cuda_aware, kernels=500)
    assert result.status != 0 and "cudaErrorIllegalAddress" in result.err, result
    with h5py.File(path, "r") as file:
        assert file.attrs["status"] == "failed"
