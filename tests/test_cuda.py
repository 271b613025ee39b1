"""The CUDA kernels, without a GPU: compiled for real ones, and run on a simulated one (`cuda_shim`).

Where CuPy finds a GPU, the tests that take a `device` run on it too.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_shim import ORDERS, Shim

from fbompi.errors import UserError
from fbompi.kernels import jacobian
from fbompi.kernels import sweeps as cpu_sweeps
from fbompi.kernels.cuda import coordinates, regression, sweeps
from fbompi.kernels.cuda import device as devices
from fbompi.kernels.cuda.device import HERE, KERNELS, Device, source, using
from fbompi.kernels.mlp import MLP
from fbompi.kernels.regression import Regression
from fbompi.kernels.sweeps import Fresh

REALS = (np.float64, np.float32)
FEATURES = (np.uint8, np.float32, np.float64)
SOURCES = [
    (file, dtypes)
    for file in KERNELS
    for dtypes in (itertools.product(REALS, FEATURES) if "FEATURE" in (HERE / file).read_text() else zip(REALS))
]


@pytest.fixture(scope="session")
def build(tmp_path_factory: Any) -> Path:
    """A directory for the kernels compiled for the simulated device."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here to compile the kernels for the CPU")
    return tmp_path_factory.mktemp("cuda")


def no_gpu() -> str:
    """Why nothing can be run on a GPU here; empty where it can."""
    try:
        ctypes.CDLL("libcuda.so.1")  # the driver; importing CuPy to find out takes far longer
        devices.cuda()
    except (OSError, UserError) as error:
        return str(error)
    return ""


@pytest.fixture(params=[*ORDERS, *(["gpu"] if not no_gpu() else [])])
def device(request: Any) -> Iterator[Device]:
    """The device in use: simulated, with its threads in some order, or real."""
    found = devices.cuda() if request.param == "gpu" else Shim(request.getfixturevalue("build"), request.param)
    with using(found):
        yield found


def test_a_gpu_was_there() -> None:
    if no_gpu():
        pytest.skip(f"nothing was run on a GPU: {no_gpu()}")


def close(device: Device, given: Any, expected: np.ndarray, real: Any = np.float64) -> None:
    given = device.to_host(given)
    assert given.shape == expected.shape
    scale = np.abs(expected).max(initial=1e-300)
    np.testing.assert_allclose(given / scale, expected / scale, rtol=0, atol=1e-5 if real == np.float32 else 1e-13)


# Compiled for real GPUs


def named(dtypes: tuple) -> str:
    return "-".join(t.__name__ for t in dtypes)


WIDEST = {file: dtypes for file, dtypes in reversed(SOURCES)}  # of each file the first, in float64
COMPILED = [
    *(pytest.param(file, dtypes, 80, id=f"{file}-{named(dtypes)}-80") for file, dtypes in SOURCES),
    *(
        pytest.param(file, dtypes, arch, id=f"{file}-{named(dtypes)}-{arch}", marks=pytest.mark.slow)
        for arch in (70, 90)
        for file, dtypes in WIDEST.items()
    ),
]


@pytest.mark.parametrize(("file", "dtypes", "arch"), COMPILED)
def test_every_source_compiles_to_machine_code(file: str, dtypes: tuple, arch: int) -> None:
    """All types for one kind of GPU, and every file for an older and a newer one: types and kinds do not meet."""
    missing = pytest.fail if os.environ.get("FBOMPI_TEST_CUDA") else pytest.skip
    try:
        nvrtc = import_module("cupy.cuda").nvrtc
        if arch not in nvrtc.getSupportedArchs():
            missing(f"this NVRTC compiles nothing for sm_{arch}")
    except (RuntimeError, ImportError) as error:
        missing(f"NVRTC is reached through CuPy, and is not there: pip install '.[test-cuda]' ({error})")
    program = nvrtc.createProgram(source(file, dtypes), file, [], [])
    try:
        nvrtc.compileProgram(program, [f"-arch=sm_{arch}", "-std=c++14"])
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    log = nvrtc.getProgramLog(program)
    assert not [line for line in log.splitlines() if line.strip() and "deprecated" not in line], log  # sm_70 is
    code = nvrtc.getCUBIN(program)
    for kernel in KERNELS[file]:
        assert b"\0.text." + kernel.encode() + b"\0" in code


def test_every_kernel_of_every_file_is_in_the_table() -> None:
    assert {file.name for file in HERE.glob("*.cu")} == set(KERNELS)
    for file, kernels in KERNELS.items():
        assert (HERE / file).read_text().count("__global__") == len(kernels)


# The simulated device finds the mistakes that it is there to find

MISTAKES = """
extern __shared__ REAL shared[];
extern "C" __global__ void neighbour(int barrier, REAL *out)
{
    shared[threadIdx.x] = threadIdx.x;
    if (barrier)
        __syncthreads();
    out[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x] + shared[(threadIdx.x + blockDim.x - 1) % blockDim.x];
}
extern "C" __global__ void again(int places, REAL *out)
{
    REAL sum = 0;
    for (int j = 0; j < 8; ++j) {
        shared[j % places * blockDim.x + threadIdx.x] = j;
        __syncthreads();
        sum += shared[j % places * blockDim.x + (threadIdx.x + 32) % blockDim.x];
    }
    out[threadIdx.x] = sum;
}
extern "C" __global__ void divergent(REAL *out)
{
    if (threadIdx.x < 40)
        __syncthreads();
    out[threadIdx.x] = 1;
}
extern "C" __global__ void beyond(int where, REAL *out)
{
    if (where)
        out[blockDim.x] = 1;
    else
        shared[2 * blockDim.x] = 1;
}
"""


def mistaken(build: Path, order: str, name: str, *args: Any) -> None:
    shim = Shim(build, order)
    kernels = ("neighbour", "again", "divergent", "beyond")
    shim.call(
        shim.library("mistakes", "#define REAL double\n" + MISTAKES, kernels, "double"), name, (1,), 64, args, 1024
    )


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_shows_in_every_order_of_threads(build: Path, order: str) -> None:
    i = np.arange(64)
    out = np.empty(64)
    mistaken(build, order, "neighbour", np.int32(1), out)
    assert (out == (i + 1) % 64 + (i - 1) % 64).all()
    mistaken(build, order, "neighbour", np.int32(0), out)
    assert np.isnan(out).any()


def test_a_place_written_again_before_a_late_warp_has_read_it_shows_in_random_order(build: Path) -> None:
    out = np.empty(64)
    mistaken(build, "random", "again", np.int32(2), out)
    assert (out == 28).all()
    mistaken(build, "random", "again", np.int32(1), out)
    assert (out != 28).any()


def test_barriers_that_not_all_reach_are_reported(build: Path) -> None:
    with pytest.raises(AssertionError, match=r"in vain: \[0...\] at the barrier .* \[40...\] finished"):
        mistaken(build, "forward", "divergent", np.empty(64))


def test_writing_outside_is_reported(build: Path) -> None:
    with pytest.raises(AssertionError, match="outside of an array"):
        mistaken(build, "forward", "beyond", np.int32(1), np.empty(64))
    with pytest.raises(AssertionError, match="beyond the shared memory"):
        mistaken(build, "forward", "beyond", np.int32(0), np.empty(64))


@pytest.mark.parametrize(
    "wrong", [(np.int64(1), np.empty(64)), (np.int32(1), np.empty(64, np.float32)), (np.int32(1),)]
)
def test_arguments_of_the_wrong_type_or_number_are_reported(build: Path, wrong: tuple) -> None:
    with pytest.raises(AssertionError, match="parameter"):
        mistaken(build, "forward", "neighbour", *wrong)


def test_arrays_that_are_not_contiguous_are_refused(build: Path) -> None:
    with pytest.raises(ValueError, match="argument 1 is not contiguous"):
        Shim(build).launch("perturbed_copies", (np.float64,), (1,), 32, (np.int64(4), np.zeros(8)[::2], None, None))


# Regression


@dataclass
class Samples:
    """What the engine takes from a `Regression`."""

    X: Any
    labels: Any
    outputs: int
    logistic: bool
    bias: bool
    scale: float
    shift: float
    real: np.dtype


def samples(
    device: Device, n: int, d: int, c: int, feature: Any, real: Any, logistic: bool = False, **more: Any
) -> Samples:
    rng = np.random.default_rng(n + d)
    byte = feature == np.uint8
    X = rng.integers(0, 256, (n, d)).astype(np.uint8) if byte else rng.normal(size=(n, d)).astype(feature)
    labels = rng.integers(0, 2 if logistic else c, n)
    scale, shift = (1 / 255, -0.5) if byte else (1.0, 0.0)
    settings = {"bias": True, "scale": scale, "shift": shift, **more}
    return Samples(device.asarray(X), device.asarray(labels), c, logistic, real=np.dtype(real), **settings)


class Reference:
    """The passes as the formulas have them, in float64."""

    def __init__(self, device: Device, data: Samples, batch: Any) -> None:
        X, t = device.to_host(data.X), device.to_host(data.labels)
        rows = slice(None) if batch is None else batch
        self.X = (data.scale * X.astype(np.float64) + data.shift)[rows]
        if data.bias:
            self.X = np.hstack([self.X, np.ones((len(self.X), 1))])
        self.logistic = data.logistic
        targets = t[rows, None] if data.logistic else np.eye(data.outputs)[t[rows]]
        self.targets = targets.astype(np.float64)

    def forward(self, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        S = self.X @ Y.T
        if self.logistic:
            return 1 / (1 + np.exp(-S)), (np.logaddexp(0, S) - self.targets * S)[:, 0]
        total = np.logaddexp.reduce(S, axis=1)
        return np.exp(S - total[:, None]), total - (self.targets * S).sum(1)

    def gradient(self, Y: np.ndarray, w: np.ndarray) -> np.ndarray:
        return (w[:, None] * (self.forward(Y)[0] - self.targets)).T @ self.X

    def hessian_product(self, P: np.ndarray, w: np.ndarray, V: np.ndarray) -> np.ndarray:
        U = self.X @ V.T
        R = P * (1 - P) * U if self.logistic else P * (U - (P * U).sum(1, keepdims=True))
        return (w[:, None] * R).T @ self.X

    def along(self, P: np.ndarray, V: np.ndarray) -> np.ndarray:
        return ((P - self.targets) * (self.X @ V.T)).sum(1)


def check_regression(device: Device, data: Samples, batch: Any, copies: int) -> None:
    rng = np.random.default_rng(1)
    n = len(data.X) if batch is None else len(batch)
    shape = (copies, data.outputs, data.X.shape[1] + data.bias)
    scale = shape[2] ** -0.5  # for scores of about 1: their rounding is multiplied by their size in the probabilities
    Y, V, w = scale * rng.normal(size=shape), scale * rng.normal(size=shape), rng.uniform(size=(copies, n))
    Y, V, w = (a.astype(data.real).astype(np.float64) for a in (Y, V, w))
    truth = Reference(device, data, batch)
    there = None if batch is None else device.asarray(batch)
    Y_, V_, w_ = (device.asarray(a, data.real) for a in (Y, V, w))
    reals = data.real.type

    P, losses = regression.forward(data, there, Y_[0])
    assert P.dtype == data.real and losses.dtype == np.float64
    close(device, P, truth.forward(Y[0])[0], reals)
    close(device, losses, truth.forward(Y[0])[1], reals)

    kept, losses, G = regression.residual_pass(data, there, Y_[0], w_[0])
    close(device, kept, truth.forward(Y[0])[0], reals)
    close(device, losses, truth.forward(Y[0])[1], reals)
    close(device, G, truth.gradient(Y[0], w[0]), reals)
    G = regression.gradients(data, there, Y_, w_)
    close(device, G, np.array([truth.gradient(y, v) for y, v in zip(Y, w)]), reals)
    G = regression.gradients(data, there, Y_, w_[:1])
    close(device, G, np.array([truth.gradient(y, w[0]) for y in Y]), reals)

    close(device, regression.kept_residual_pass(data, there, P, w_[0]), truth.gradient(Y[0], w[0]), reals)

    P0 = truth.forward(Y[0])[0]
    products = regression.jacobian_pass(data, there, P, w_[0], V_)
    close(device, products, np.array([truth.hessian_product(P0, w[0], v) for v in V]), reals)
    slopes = regression.along(data, there, P, V_)
    close(device, slopes, np.array([truth.along(P0, v) for v in V]), reals)
    assert products.dtype == slopes.dtype == np.float64


BATCHES = {
    "whole shard": None,
    "with repetitions": np.array([5, 5, 0, 130, 7] * 30),
    "one row": np.array([3]),
    "empty": np.array([], np.int64),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("logistic", [False, True], ids=["softmax", "logistic"])
@pytest.mark.parametrize(
    ("real", "feature"), [(np.float64, np.uint8), (np.float64, np.float64), (np.float32, np.float32)]
)
def test_the_passes_of_a_regression(device: Device, real: Any, feature: Any, logistic: bool, batch: Any) -> None:
    data = samples(device, 131, 37, 1 if logistic else 3, feature, real, logistic)
    check_regression(device, data, batch, copies=2)


@pytest.mark.parametrize("feature", [np.uint8, np.float64])
def test_blocks_of_rows_add_up(device: Device, feature: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(regression, "BLOCK_BYTES", 3000)
    data = samples(device, 50, 9, 4, feature, np.float64)
    assert len(list(regression._blocks(data, None, 12))) > 1
    check_regression(device, data, None, copies=3)
    check_regression(device, data, BATCHES["with repetitions"][BATCHES["with repetitions"] < 50], copies=1)


@pytest.mark.parametrize(("n", "d", "c"), [(1, 1, 1), (1, 5, 2), (3, 300, 1), (129, 1, 17)])
def test_small_and_odd_shapes(device: Device, n: int, d: int, c: int) -> None:
    check_regression(device, samples(device, n, d, c, np.float64, np.float64), None, copies=1)
    check_regression(device, samples(device, n, d, c, np.uint8, np.float64, bias=False), None, copies=2)


def test_rows_that_lie_apart(device: Device) -> None:
    data = samples(device, 20, 8, 3, np.float64, np.float64)
    data.X = data.X[:, :5]
    check_regression(device, data, None, copies=2)
    check_regression(device, data, np.array([4, 4, 19]), copies=2)


def test_huge_scores_overflow_nothing_and_nan_stays_nan(device: Device) -> None:
    for logistic, c in ((False, 3), (True, 1)):
        data = samples(device, 40, 4, c, np.float64, np.float64, logistic, bias=False)
        Y = 1e4 * np.ones((c, 4)) * (1 + np.arange(c)[:, None])
        P, losses = regression.forward(data, None, device.asarray(Y))
        assert np.isfinite(device.to_host(P)).all() and np.isfinite(device.to_host(losses)).all()
        Y[0, 0] = np.nan
        P, losses = regression.forward(data, None, device.asarray(Y))
        assert np.isnan(device.to_host(P)).all() and np.isnan(device.to_host(losses)).all()


def test_a_float_shard_is_multiplied_where_it_lies(build: Path) -> None:
    with using(Shim(build)) as shim:
        for feature, real, batch in ((np.float64, np.float64, None), (np.float32, np.float32, None)):
            data = samples(shim, 30, 5, 2, feature, real)
            regression.forward(data, batch, np.zeros((2, 6), real))
        assert "gather_rows" not in shim.launches
        regression.forward(data, shim.asarray(np.array([1, 2])), np.zeros((2, 6), np.float32))
        assert "gather_rows" in shim.launches


@pytest.mark.slow
@pytest.mark.parametrize(("real", "feature"), list(itertools.product(REALS, FEATURES)))
def test_the_passes_of_a_larger_regression(device: Device, real: Any, feature: Any) -> None:
    for logistic, c in ((False, 10), (True, 1)):
        check_regression(device, samples(device, 700, 784, c, feature, real, logistic), None, copies=4)


@pytest.mark.slow  # Numba compiles for most of it
@pytest.mark.parametrize(("real", "feature"), [(np.float64, np.uint8), (np.float32, np.float32)])
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_a_regression_is_the_same_on_the_cpu(build: Path, loss: Any, real: Any, feature: Any) -> None:
    outputs = 1 if loss == "logistic" else 5
    with using(Shim(build)) as shim:
        data = samples(shim, 150, 20, outputs, feature, real, loss == "logistic")
        settings = {"loss": loss, "bias": True, "scale": data.scale, "shift": data.shift, "dtype": real}
        here = Regression(shim.to_host(data.X), shim.to_host(data.labels), outputs, **settings)
        there = Regression(data.X, data.labels, outputs, **settings)  # the arrays say where
        rng = np.random.default_rng(2)
        Y, V = rng.normal(size=(2, *here.shape))
        for batch in (None, rng.integers(0, 150, 40), np.array([], np.int64)):
            one, other = here.at(Y, batch), there.at(Y, batch)
            assert abs(one.value(ridge=0.1) - other.value(ridge=0.1)) < (1e-5 if real == np.float32 else 1e-13)
            close(shim, other.gradient(ridge=0.1), one.gradient(ridge=0.1), real)
            close(shim, other.hvp(V), one.hvp(V), real)
            close(shim, other.along(V), one.along(V), real)
            close(shim, other.neumann(V, 5, 3.0), one.neumann(V, 5, 3.0), real)
        held = np.sort(rng.choice(V.size, V.size // 2, replace=False))
        one, other = here.held(held).at(Y.ravel()[held]), there.held(held).at(Y.ravel()[held])
        v = V.ravel()[held]
        close(shim, other.gradient(ridge=0.1), one.gradient(ridge=0.1), real)
        close(shim, other.gradient(ridge=0.1), one.gradient(ridge=0.1), real)
        close(shim, other.hvp(v), one.hvp(v), real)
        close(shim, other.along(v), one.along(v), real)


# Sweeps


def swept_logistic(A: np.ndarray, t: np.ndarray, x: np.ndarray, gamma: float, pull: Any, box: float) -> np.ndarray:
    for a, sign in zip(A, t):
        x = np.clip(x + gamma * sign * a / (1 + np.exp(sign * (a @ x))) - pull(x), -box, box)
    return x


def swept_location(C: np.ndarray, r: np.ndarray, x: np.ndarray, gamma: float, pull: Any, box: float) -> np.ndarray:
    for c, radius in zip(C, r):
        away = np.linalg.norm(x - c)
        x = np.clip(x - (gamma * (x - c) / away if away > radius else 0) - pull(x), -box, box)
    return x


BOUNDS = np.array([0, 9, 9, 10, 17])  # four clients, one without rows and one with a single one
GAMMA, TUG = np.array([0.3, 0.2, 0.5, 0.1]), np.array([0.02, 0.1, 0.05, 0.01])
SWEEP_TYPES = [(np.float64, np.uint8), (np.float64, np.float64), (np.float32, np.float32)]
OTHER_TYPES = [pair for pair in itertools.product(REALS, FEATURES) if pair not in SWEEP_TYPES]
ORDERED = np.random.default_rng(3).integers(0, 17, 17)


def swept(sweep: Any, rows: Any, numbers: Any, order: Any, starts: Any, outer: Any, box: float) -> np.ndarray:
    """Where each client ends: `outer(i)` is the i-th one's outer term as a function of x."""
    order = np.arange(len(rows)) if order is None else order
    parts = [order[a:b] for a, b in itertools.pairwise(BOUNDS)]
    return np.array(
        [sweep(rows[p], numbers[p], starts[i].astype(float), GAMMA[i], outer(i), box) for i, p in enumerate(parts)]
    )


@pytest.mark.parametrize("order", [None, ORDERED], ids=["in order", "with an order"])
@pytest.mark.parametrize(
    ("real", "feature"), [*SWEEP_TYPES, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHER_TYPES)]
)
@pytest.mark.parametrize("d", [1, 300])
def test_logistic_sweeps(device: Device, d: int, real: Any, feature: Any, order: Any) -> None:
    rng = np.random.default_rng(d)
    byte = feature == np.uint8
    X = rng.integers(0, 256, (17, d)).astype(np.uint8) if byte else rng.normal(size=(17, d)).astype(feature)
    coding = {"scale": 1 / 255, "offset": -0.25} if byte else {"scale": 1.0, "offset": 0.0}
    t = rng.choice([-1, 1], 17)
    starts, shifts = rng.normal(size=(4, d)).astype(real), (0.01 * rng.normal(size=(4, d))).astype(real)
    starts[:, ::4] = 0  # where sign(x) = 0
    A = coding["scale"] * X.astype(np.float64) + coding["offset"]
    rows = device.asarray(X), device.asarray(t)
    settings = {"bounds": BOUNDS, "order": order, "box": (-1.5, 1.5), **coding}

    fism = sweeps.logistic_sweep(*rows, device.asarray(starts), GAMMA, device.asarray(shifts), **settings)
    assert fism.dtype == real
    close(device, fism, swept(swept_logistic, A, t, order, starts, lambda i: lambda x: shifts[i], 1.5), real)
    one = sweeps.logistic_sweep(*rows, device.asarray(starts[0]), GAMMA, device.asarray(shifts[1]), **settings)
    same = [starts[0]] * 4
    close(device, one, swept(swept_logistic, A, t, order, same, lambda i: lambda x: shifts[1], 1.5), real)
    fresh = sweeps.logistic_sweep(*rows, device.asarray(starts), GAMMA, Fresh(TUG, 0.7, 1.3), **settings)
    outer = lambda i: lambda x: TUG[i] * (0.7 * np.sign(x) + 1.3 * x)  # noqa: E731
    close(device, fresh, swept(swept_logistic, A, t, order, starts, outer, 1.5), real)


@pytest.mark.parametrize("order", [None, ORDERED], ids=["in order", "with an order"])
@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("d", [1, 10, 50])
def test_location_sweeps(device: Device, d: int, real: Any, order: Any) -> None:
    rng = np.random.default_rng(d)
    C, r = rng.uniform(-3, 3, (17, d)).astype(real), rng.uniform(0, 3, 17).astype(real)
    starts, shifts = rng.uniform(-3, 3, (4, d)).astype(real), (0.01 * rng.normal(size=(4, d))).astype(real)
    anchor = rng.uniform(-3, 3, d).astype(real)
    starts[2] = C[9 if order is None else order[9]]  # at a centre, where there is no direction
    there = device.asarray(C), device.asarray(r), device.asarray(starts), GAMMA
    settings = {"bounds": BOUNDS, "order": order, "box": (-2.5, 2.5)}

    fism = sweeps.location_sweep(*there, device.asarray(shifts), **settings)
    expected = swept(swept_location, C.astype(float), r, order, starts, lambda i: lambda x: shifts[i], 2.5)
    close(device, fism, expected, real)
    fresh = sweeps.location_sweep(*there, Fresh(TUG, 0.0, 1.0, device.asarray(anchor)), **settings)
    outer = lambda i: lambda x: TUG[i] * (x - anchor)  # noqa: E731
    close(device, fresh, swept(swept_location, C.astype(float), r, order, starts, outer, 2.5), real)


def test_more_features_than_shared_memory_holds(device: Device) -> None:
    rng = np.random.default_rng(0)
    X, t, start = rng.normal(size=(3, 6500)) / 80, np.array([1, -1, 1]), rng.normal(size=6500)
    there = device.asarray(X), device.asarray(t), device.asarray(start)
    end = sweeps.logistic_sweep(*there, 0.5, Fresh(0.1, 1, 1), box=(-2, 2))
    close(device, end, swept_logistic(X, t, start, 0.5, lambda x: 0.1 * (np.sign(x) + x), 2))


def test_a_nan_is_not_clipped_away(device: Device) -> None:
    x = device.asarray(np.array([0.5, np.nan, -0.5]))
    rows = device.asarray(np.ones((2, 3))), device.asarray(np.ones(2))
    for sweep in (sweeps.logistic_sweep, sweeps.location_sweep):
        for shift in (None, Fresh(0.1, 1, 1)):
            assert np.isnan(device.to_host(sweep(*rows, x, 0.1, shift, box=(-1, 1)))).all()


def test_the_order_of_threads_changes_no_bit(build: Path) -> None:
    rng = np.random.default_rng(5)
    X, t = rng.normal(size=(40, 200)), rng.choice([-1, 1], 40)
    ends, quotients = [], []
    for order, seed in (("forward", 0), ("reversed", 0), ("random", 1), ("random", 2)):
        with using(Shim(build, order, seed)):
            ends.append(sweeps.logistic_sweep(X, t, np.zeros(200), 0.3, Fresh(0.01, 1, 1), bounds=[0, 20, 40]))
            quotients.append(coordinates.difference_quotients(X, X[0], X[1], np.full(40, 0.1)))
    assert all((end == ends[0]).all() for end in ends) and all((q == quotients[0]).all() for q in quotients)


def test_arguments_that_do_not_fit_are_refused(build: Path) -> None:
    X, t, x = np.zeros((2, 3)), np.ones(2), np.zeros(3)
    with using(Shim(build)):
        with pytest.raises(ValueError, match=r"x: got shape \(4,\), expected 3 or 1 × 3"):
            sweeps.logistic_sweep(X, t, np.zeros(4), 0.1)
        with pytest.raises(ValueError, match="shift: got shape"):
            sweeps.location_sweep(X, t, x, 0.1, np.zeros((2, 3)))
        with pytest.raises(ValueError, match="order: got 0 to 2, expected 0 to 1"):
            sweeps.logistic_sweep(X, t, x, 0.1, order=np.arange(3))
        with pytest.raises(ValueError, match="bounds: got"):
            sweeps.logistic_sweep(X, t, x, 0.1, bounds=[0, 3])


@pytest.mark.parametrize(("real", "feature"), SWEEP_TYPES)
def test_sweeps_end_where_those_of_the_cpu_do(build: Path, real: Any, feature: Any) -> None:
    rng = np.random.default_rng(8)
    X = (rng.integers(0, 256, (60, 40)) if feature == np.uint8 else rng.normal(size=(60, 40))).astype(feature)
    t, x, order = rng.choice([-1, 1], 60), rng.normal(size=40).astype(real), rng.permutation(60)
    coding = (1 / 255, -0.5) if feature == np.uint8 else (1.0, 0.0)
    with using(Shim(build)) as shim:
        for shift in (None, x / 100, Fresh(0.01, 1.0, 0.5, x[::-1])):
            args = X, t, x, 0.2, shift, order, (-1.0, 1.0), *coding
            close(shim, cpu_sweeps.logistic_sweep(*there(shim, *args)), cpu_sweeps.logistic_sweep(*args), real)
            balls = rng.uniform(-1, 1, (60, 40)).astype(real), rng.uniform(0, 6, 60), x, 0.2, shift, order, (-1.0, 1.0)
            close(shim, cpu_sweeps.location_sweep(*there(shim, *balls)), cpu_sweeps.location_sweep(*balls), real)
        for value, numbers in ((cpu_sweeps.logistic_value, (X, t, x, *coding)), (cpu_sweeps.location_value, balls[:3])):
            assert value(*there(shim, *numbers)) == pytest.approx(
                value(*numbers), rel=1e-5 if real == np.float32 else 1e-13
            )


def there(device: Device, *args: Any) -> list[Any]:
    """The same arguments with their arrays on the device."""

    def move(argument: Any) -> Any:
        if isinstance(argument, Fresh):
            return replace(argument, anchor=move(argument.anchor))
        return device.asarray(argument) if isinstance(argument, np.ndarray) else argument

    return [move(argument) for argument in args]


def test_wrong_labels_and_radii_are_refused_on_a_gpu_too(build: Path) -> None:
    X, x = np.ones((2, 3)), np.zeros(3)
    with using(Shim(build)) as shim:
        with pytest.raises(ValueError, match="t: expected -1 or"):
            cpu_sweeps.logistic_sweep(*there(shim, X, np.array([1.0, np.nan]), x, 0.1))
        with pytest.raises(ValueError, match="radii: expected at least 0"):
            cpu_sweeps.location_sweep(*there(shim, X, np.array([1.0, -1.0]), x, 0.1))


X6, T6, X0 = np.ones((6, 3)), np.ones(6), np.zeros(3)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("one each", (X6, T6[:4], X0, 0.1)),
        ("order: got 0 to 50, expected 0 to 5", (X6, T6, X0, 0.1, None, [0, 50])),
        ("order: got float64", (X6, T6, X0, 0.1, None, np.array([0.5, 1.0]))),
        ("box: got", (X6, T6, X0, 0.1, None, None, (1.0, -1.0))),
        ("expected them with uint8 only", (X6, T6, X0, 0.1, None, None, (-1.0, 1.0), 2.0)),
    ],
)
def test_a_gpu_refuses_what_the_cpu_refuses(build: Path, words: str, arguments: tuple) -> None:
    with pytest.raises(ValueError):
        cpu_sweeps.logistic_sweep(*arguments)
    with using(Shim(build)) as shim, pytest.raises(ValueError, match=words):
        cpu_sweeps.logistic_sweep(*there(shim, *arguments[:3]), *arguments[3:])


def test_a_radius_that_is_no_number_is_none_on_a_gpu_either(device: Device) -> None:
    rows = device.asarray(np.ones((2, 3))), device.asarray(np.array([0.1, np.nan])), device.asarray(np.zeros(3))
    assert np.isnan(device.to_host(sweeps.location_sweep(*rows, 0.1, box=(-1, 1)))).all()


def test_every_function_that_the_host_code_calls_is_one_of_cupys(build: Path) -> None:
    """Of the functions that a regression, a network and a Jacobian call on the simulated library."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    with using(Shim(build)) as shim:
        rng = np.random.default_rng(0)
        X, labels = shim.asarray(rng.random((9, 4))), shim.asarray(rng.integers(0, 3, 9))
        data = Regression(X, labels, 3, bias=True)
        y = shim.asarray(rng.random(15))
        data.held(shim.asarray(np.array([0, 4, 7]))).at(y[:3]).hvp(y[:3])
        x = shim.asarray(rng.random(9))
        w = shim.asarray(rng.random(15))
        found = jacobian.coordinates(
            lambda xs: lambda ys: data.gradients(ys, xs).reshape(ys.shape),
            x,
            y,
            shim.asarray(np.arange(9) < 5),
            3,
            0.1,
            w,
        )
        mlp = MLP(X, labels, 5, 3)
        point = mlp.at(shim.asarray(rng.random(mlp.dim_x)), shim.asarray(rng.random(mlp.dim_y)))
        point.gradient()
        point.neumann(point.gradient_y(), 3, 10.0)
        assert shim.to_host(found).shape == (5,) and "perturbed_copies" in shim.launches
        assert len(shim.xp.called) > 5
        assert not [name for name in shim.xp.called if not hasattr(cupy, name)]


# Coordinates


@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize(("size", "copies"), [(1, 1), (300, 5), (33, 0)])
def test_finite_differences_of_a_linear_map(device: Device, size: int, copies: int, real: Any) -> None:
    rng = np.random.default_rng(size)
    x, index = rng.normal(size=size).astype(real), rng.integers(0, size, copies)
    mu, w = np.full(copies, 0.5, real), rng.normal(size=size).astype(real)
    moved = coordinates.perturbed_copies(device.asarray(x), device.asarray(index), device.asarray(mu))
    expected = np.tile(x, (copies, 1))
    expected[np.arange(copies), index] += mu
    assert (device.to_host(moved) == expected).all()
    quotients = coordinates.difference_quotients(moved, device.asarray(x), device.asarray(w), device.asarray(mu))
    close(device, quotients, w[index], real)


# The device itself


def test_no_cupy_and_no_gpu_are_told_in_one_line(monkeypatch: Any) -> None:
    class CUDARuntimeError(Exception):
        pass

    def none() -> int:
        raise CUDARuntimeError("cudaErrorNoDevice")

    runtime = SimpleNamespace(getDeviceCount=none, CUDARuntimeError=CUDARuntimeError)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    with pytest.raises(UserError, match=r"finds no GPU \(cudaErrorNoDevice"):
        devices.Cuda()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UserError, match="CuPy is not installed"):
        devices.Cuda()


def test_a_launch_reaches_cupy_as_cupy_wants_it(monkeypatch: Any) -> None:
    """None as a null pointer, tuples for grid and block, one module for a source and its types."""
    calls: list[tuple] = []
    texts: list[str] = []

    class RawKernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def compile(self) -> None:
            calls.append(("compile", self.name))

        def __call__(self, grid: tuple, block: tuple, args: tuple, *, shared_mem: int = 0) -> None:
            calls.append((self.name, grid, block, args, shared_mem))

    class RawModule:
        def __init__(self, *, code: str) -> None:
            texts.append(code)

        def get_function(self, name: str) -> RawKernel:
            return RawKernel(name)

    runtime = SimpleNamespace(getDeviceCount=lambda: 4, CUDARuntimeError=RuntimeError)
    chosen: list[int] = []
    gpu_number = lambda number: SimpleNamespace(use=lambda: chosen.append(number))  # noqa: E731
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Device=gpu_number), RawModule=RawModule)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "5")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    gpu = devices.Cuda()
    assert chosen == [1]  # the sixth rank of a node with four GPUs
    x = np.zeros(3)
    for grid in ((2,), (2,), (0,)):
        gpu.launch("perturbed_copies", (np.float64,), grid, 64, (np.int64(3), x, None, x), shared=16)
    assert texts == [source("coordinates.cu", (np.float64,))]
    gpu.load("perturbed_copies", ("f8",))
    assert [call[0] for call in calls] == ["compile", "perturbed_copies", "perturbed_copies"]
    name, grid, block, args, shared = calls[1]
    assert (name, grid, block, shared) == ("perturbed_copies", (2,), (64,), 16)
    assert args[1] is x and args[2] == 0 and args[2].dtype == np.uint64
