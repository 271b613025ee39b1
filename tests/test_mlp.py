"""The two-layer network against plain NumPy, its derivatives against finite differences and against each other."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import weakref

import numpy as np
import pytest
from cuda_shim import Shim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fbompi.kernels import on_gpu
from fbompi.kernels.cuda.device import using
from fbompi.kernels.mlp import MLP, Point

LAYOUTS = {
    "as it is": lambda X: X,
    "columns first": np.asfortranarray,
    "every other column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "every other row": lambda X: np.repeat(X, 2, axis=0)[::2],
    "rows backwards": lambda X: X[::-1].copy()[::-1],
    "not aligned": lambda X: np.frombuffer(b"-" + X.tobytes(), X.dtype, X.size, offset=1).reshape(X.shape),
}
sizes = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 9),
        "features": st.integers(1, 6),
        "hidden": st.integers(1, 5),
        "classes": st.integers(1, 4),
        "block": st.sampled_from([1, 2, 4, 512]),
        "seed": st.integers(0, 10_000),
    }
)
# Kernels are compiled during the first example of each kind.
patient = settings(max_examples=25, deadline=None)


class Case:
    """A random network, a point (x, y), a direction (u, v), weights, and what NumPy makes of them in float64."""

    def __init__(self, rows=7, features=5, hidden=4, classes=3, block=512, seed=0, source=np.float64, **options):
        rng = np.random.default_rng(seed)
        if source == np.uint8:
            X = rng.integers(0, 256, (rows, features), np.uint8)
            options = {"scale": 1 / 128, "shift": -1.0, **options}
        else:
            X = rng.standard_normal((rows, features)).astype(source)
        self.features = options.get("scale", 1.0) * X.astype(float) + options.get("shift", 0.0)
        self.labels = rng.integers(0, classes, rows)
        self.hidden, self.classes = hidden, classes
        X = LAYOUTS[options.pop("layout", "as it is")](X)
        self.mlp = MLP(X, self.labels, hidden, classes, block=block, **options)
        # Numbers that float32 holds exactly: then float32 and float64 answer the same question.
        self.x, self.u = rng.standard_normal((2, self.mlp.dim_x)).astype(np.float32).astype(float)
        self.y, self.v = rng.standard_normal((2, self.mlp.dim_y)).astype(np.float32).astype(float)
        self.weights = rng.uniform(0.1, 1.0, rows).astype(np.float32).astype(float)
        self.weights[0] = 0.0
        self.point = self.mlp.at(self.x, self.y)

    def pre_activations(self) -> np.ndarray:
        layer = self.x.reshape(self.hidden, -1)
        return self.features @ layer[:, :-1].T + layer[:, -1]

    def scores(self) -> np.ndarray:
        layer = self.y.reshape(self.classes, -1)
        return np.maximum(self.pre_activations(), 0) @ layer[:, :-1].T + layer[:, -1]

    def losses(self) -> np.ndarray:
        scores = self.scores()
        return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), self.labels]

    def away_from_kinks(self) -> bool:
        return bool(abs(self.pre_activations()).min() > 1e-3)


def everything(point: Point, u: np.ndarray, v: np.ndarray, weights=None, ridge: float = 0.3) -> dict[str, np.ndarray]:
    """All that a point can be asked."""
    grad_x, grad_y = point.gradient(weights, ridge)
    in_x, in_y = point.hessian(u, v, weights, ridge)
    return {
        "losses": point.losses,
        "value": np.array(point.value(weights, ridge)),
        "gradient in x": grad_x,
        "gradient in y": grad_y,
        "gradient_y": point.gradient_y(weights, ridge),
        "hvp": point.hvp(v, weights, ridge),
        "cross": point.cross(v, weights),
        "hessian in x": in_x,
        "hessian in y": in_y,
        "neumann": point.neumann(v, 3, 5.0, weights, ridge),
        "fixed_point": point.fixed_point(v, 2 * v, 0.2, 2, weights, ridge),
        "along": point.along(v),
    }


def assert_close(found: dict, expected: dict, tolerance: float) -> None:
    """Each within `tolerance` of the other, relative to its largest element."""
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        np.testing.assert_allclose(
            found[name], array, rtol=0, atol=tolerance * max(1, abs(array).max(initial=0)), err_msg=name
        )


def slope(function, step: float = 1e-5) -> np.ndarray:
    return (function(step) - function(-step)) / (2 * step)


@patient
@given(sizes)
def test_values_are_those_of_plain_numpy(size) -> None:
    case = Case(**size)
    point, losses = case.point, case.losses()
    np.testing.assert_allclose(point.losses, losses, rtol=1e-10, atol=1e-13)
    assert point.value() == pytest.approx(losses.mean())
    ridge = 0.35 * case.y @ case.y
    assert point.value(case.weights, ridge=0.7) == pytest.approx(case.weights @ losses + ridge)
    np.testing.assert_array_equal(point.predict(), case.scores().argmax(axis=1))


@patient
@given(sizes, st.booleans())
def test_derivatives_are_slopes(size, weighted) -> None:
    case = Case(**size)
    assume(case.away_from_kinks())
    x, y, u, v, weights = case.x, case.y, case.u, case.v, case.weights if weighted else None

    def value(step: float) -> float:
        return case.mlp.at(x + step * u, y + step * v).value(weights, 0.3)

    def gradient(in_x: float, in_y: float) -> np.ndarray:
        return np.concatenate(case.mlp.at(x + in_x * u, y + in_y * v).gradient(weights, 0.3))

    found = everything(case.point, u, v, weights)
    p = case.mlp.dim_x
    along_y, along_both = slope(lambda step: gradient(0, step)), slope(lambda step: gradient(step, step))
    assert found["gradient in x"] @ u + found["gradient in y"] @ v == pytest.approx(slope(value), rel=1e-6, abs=1e-7)
    expected = {
        "gradient_y": found["gradient in y"],
        "hvp": along_y[p:],
        "cross": along_y[:p],
        "hessian in x": along_both[:p],
        "hessian in y": along_both[p:],
    }
    assert_close(found, expected, 1e-6)
    along = [case.mlp.at(x, y, [row]).gradient_y() @ v for row in range(size["rows"])]
    np.testing.assert_allclose(found["along"], along, rtol=1e-9, atol=1e-12)


@patient
@given(sizes)
def test_second_derivatives_are_symmetric(size) -> None:
    case = Case(**size)
    point, u, v, w = case.point, case.u, case.v, case.weights
    other_u, other_v = (
        np.random.default_rng(1).standard_normal(u.size),
        np.random.default_rng(2).standard_normal(v.size),
    )
    zero_u, zero_v = np.zeros_like(u), np.zeros_like(v)
    assert other_v @ point.hvp(v, w) == pytest.approx(v @ point.hvp(other_v, w), abs=1e-10)
    assert other_u @ point.hessian(u, zero_v, w)[0] == pytest.approx(
        u @ point.hessian(other_u, zero_v, w)[0], abs=1e-10
    )
    assert u @ point.cross(v, w) == pytest.approx(v @ point.hessian(u, zero_v, w)[1], abs=1e-10)
    in_x, in_y = point.hessian(zero_u, v, w, ridge=0.3)
    np.testing.assert_allclose(in_x, point.cross(v, w), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(in_y, point.hvp(v, w, ridge=0.3), rtol=1e-12, atol=1e-13)


@patient
@given(
    sizes,
    st.sampled_from([np.float64, np.float32, np.uint8]),
    st.sampled_from([np.float64, np.float32]),
    st.sampled_from(sorted(LAYOUTS)),
    st.booleans(),
)
def test_answers_do_not_depend_on_how_the_features_are_stored(size, source, dtype, layout, batched) -> None:
    case = Case(**size, source=source, dtype=dtype, layout=layout)
    assume(case.away_from_kinks())
    batch = np.random.default_rng(3).integers(0, size["rows"], 6) if batched else None
    weights = case.weights[batch] if batched else case.weights
    plain = MLP(case.features, case.labels, case.hidden, case.classes).at(case.x, case.y, batch)
    point = case.mlp.at(case.x, case.y, batch)
    tolerance = 1e-11 if dtype == np.float64 else 2e-5
    for w in (None, weights):
        expected, found = everything(plain, case.u, case.v, w), everything(point, case.u, case.v, w)
        assert_close(found, expected, tolerance)
        assert all(array.dtype == np.float64 for array in found.values())


def test_the_arithmetic_is_that_of_the_features_unless_said_otherwise() -> None:
    assert Case(source=np.float32).mlp.real == np.float32
    assert Case(source=np.float64).mlp.real == Case(source=np.uint8).mlp.real == np.float64
    assert Case(source=np.uint8, dtype="float32").mlp.real == np.float32


@pytest.mark.parametrize("block", [3, 512])
@pytest.mark.parametrize("source", [np.float64, np.uint8])
def test_a_batch_is_its_rows_with_their_repetitions(source, block) -> None:
    case = Case(rows=20, block=block, source=source)
    batch = [7, 0, 7, 19, 3, 3, 3, 11]
    found = everything(case.mlp.at(case.x, case.y, batch), case.u, case.v)
    copy = MLP(case.features[batch], case.labels[batch], case.hidden, case.classes)
    assert_close(found, everything(copy.at(case.x, case.y), case.u, case.v), 1e-13)
    assert_close(found, everything(copy.at(case.x, case.y), case.u, case.v, np.full(8, 1 / 8)), 1e-13)


@patient
@given(sizes, st.integers(0, 4), st.sampled_from([np.float64, np.float32]))
def test_several_directions_are_as_one_by_one(size, k, dtype) -> None:
    case = Case(**size, dtype=dtype)
    rng = np.random.default_rng(4)
    U, V = rng.standard_normal((k, case.mlp.dim_x)), rng.standard_normal((k, case.mlp.dim_y))
    together = everything(case.point, U, V, case.weights)
    for g in range(k):
        alone = everything(case.point, U[g], V[g], case.weights)
        for name in ("hvp", "cross", "hessian in x", "hessian in y", "neumann", "fixed_point", "along"):
            assert_close({name: together[name][g]}, {name: alone[name]}, 1e-12 if dtype == np.float64 else 1e-5)
    assert together["cross"].shape == (k, case.mlp.dim_x)


@patient
@given(sizes, st.sampled_from([np.float64, np.uint8]), st.booleans(), st.data())
def test_a_submodel_is_the_network_with_the_other_units_silent(size, source, some_features, data) -> None:
    case = Case(**size, source=source)
    chosen = st.lists(st.integers(0, size["hidden"] - 1), unique=True, min_size=1)
    units = data.draw(chosen)
    features = np.arange(size["features"])
    if some_features:
        features = data.draw(st.permutations(features))[: data.draw(st.integers(1, size["features"]))]
    part, in_x, in_y = case.mlp.held(units, features if some_features else None)
    assert (part.dim_x, part.dim_y) == (in_x.size, in_y.size)
    # Silent: their weights in the head are zero, and so are the weights of features not held.
    x, y, u, v = np.zeros_like(case.x), np.zeros_like(case.y), np.zeros_like(case.x), np.zeros_like(case.y)
    x[in_x], y[in_y], u[in_x], v[in_y] = case.x[in_x], case.y[in_y], case.u[in_x], case.v[in_y]
    batch = data.draw(st.none() | st.lists(st.integers(0, size["rows"] - 1), min_size=1, max_size=5))
    expected = everything(case.mlp.at(x, y, batch), u, v)
    found = everything(part.at(x[in_x], y[in_y], batch), u[in_x], v[in_y])
    # Sums of several products are left out: between them the network moves in coordinates that are not held.
    for name in ("losses", "value", "along"):
        assert_close({name: found[name]}, {name: expected[name]}, 1e-12)
    for name in ("gradient in x", "cross", "hessian in x"):
        assert_close({name: found[name]}, {name: expected[name][in_x]}, 1e-12)
    for name in ("gradient in y", "gradient_y", "hvp", "hessian in y"):
        assert_close({name: found[name]}, {name: expected[name][in_y]}, 1e-12)


def test_a_submodel_of_a_submodel_holds_what_both_hold() -> None:
    case = Case()
    part, in_x, in_y = case.mlp.held([3, 0, 2], [4, 1, 0])
    smaller, x_of_part, y_of_part = part.held([2, 0], [1, 2])
    direct, x_of_all, y_of_all = case.mlp.held([2, 3], [1, 0])
    np.testing.assert_array_equal(in_x[x_of_part], x_of_all)
    np.testing.assert_array_equal(in_y[y_of_part], y_of_all)
    x, y, u, v = case.x[x_of_all], case.y[y_of_all], case.u[x_of_all], case.v[y_of_all]
    assert_close(everything(smaller.at(x, y), u, v), everything(direct.at(x, y), u, v), 0.0)


def test_nan_is_not_hidden_by_the_kink() -> None:
    case = Case(rows=5)
    X = case.mlp.X.copy()
    X[2, 1] = np.nan
    point = MLP(X, case.labels, case.hidden, case.classes).at(case.x, case.y)
    for name, array in everything(point, case.u, case.v).items():
        assert np.isnan(array).any(), name


def test_neumann_converges_to_the_solution() -> None:
    case = Case(rows=30)
    H = case.point.hvp(np.eye(case.mlp.dim_y), ridge=0.2)
    top = np.linalg.eigvalsh(H)[-1]
    b = np.stack([case.v, case.y])
    np.testing.assert_allclose(case.point.neumann(b, 3000, top, ridge=0.2), np.linalg.solve(H, b.T).T, rtol=1e-8)
    A = np.eye(case.mlp.dim_y) - H / top
    np.testing.assert_allclose(
        case.point.neumann(case.v, 3, top, ridge=0.2), (case.v + A @ case.v + A @ A @ case.v) / top, rtol=1e-12
    )
    assert not case.point.neumann(case.v, 0, top).any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("source", [np.float64, np.uint8])
def test_an_empty_batch_gives_zeros(source, dtype) -> None:
    case = Case(source=source, dtype=dtype)
    for point in (
        case.mlp.at(case.x, case.y, []),
        MLP(case.mlp.X[:0], [], case.hidden, case.classes, dtype=dtype).at(case.x, case.y),
    ):
        for weights in (None, []):
            answers = everything(point, case.u, case.v, weights, ridge=0.0)
            del answers["neumann"], answers["fixed_point"]
            assert not any(array.any() for array in answers.values())
            assert answers["cross"].shape == case.x.shape
        np.testing.assert_allclose(point.hvp(case.v, ridge=0.5), 0.5 * case.v)
        assert point.predict().shape == point.losses.shape == (0,)


def test_large_scores_neither_overflow_nor_lose_their_loss() -> None:
    for dtype in (np.float64, np.float32):
        point = MLP(np.ones((1, 1)), [1], 1, 2, dtype=dtype).at([1.0, 0.0], [1e4, 0.0, -1e4, 0.0])
        assert point.value() == 2e4
        np.testing.assert_array_equal(point.gradient()[1], [1, 1, -1, -1])


def test_relu_has_slope_zero_at_zero() -> None:
    point = MLP(np.ones((1, 1)), [0], 1, 2).at([1.0, -1.0], [1.0, 0.0, 2.0, 0.0])
    assert not point.gradient()[0].any()
    assert not point.cross(np.ones(4)).any()


def test_inputs_are_left_alone_and_may_be_read_only() -> None:
    for source in (np.float64, np.float32, np.uint8):
        case = Case(source=source)
        inputs = [case.mlp.X, case.labels, case.x, case.y, case.u, case.v, case.weights, np.array([1, 1, 5])]
        for array in inputs:
            array.flags.writeable = False
        X, labels, x, y, u, v, weights, batch = inputs
        mlp = MLP(X, labels, case.hidden, case.classes, scale=2.0)
        everything(mlp.at(x, y), u, v, weights)
        everything(mlp.at(x, y, batch), u, v)


def test_a_point_stays_where_it_was_made_and_answers_the_same_bits_again() -> None:
    case = Case(rows=50, block=8)
    x, y, batch = case.x.copy(), case.y.copy(), np.arange(0, 50, 3)
    point = case.mlp.at(x, y, batch)
    before = everything(point, case.u, case.v)
    x[:], y[:], batch[:] = 0.0, 0.0, 0
    case.mlp.at(x, y)
    again = Case(rows=50, block=8).mlp.at(case.x, case.y, np.arange(0, 50, 3))
    for found in (everything(point, case.u, case.v), everything(again, case.u, case.v)):
        for name, array in before.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("X: expected a matrix", lambda case: MLP(np.zeros(3), [0, 0, 0], 2, 2)),
        ("X: expected a matrix", lambda case: MLP(np.zeros((3, 1), int), [0, 0, 0], 2, 2)),
        ("dtype = float16: expected float64", lambda case: MLP(np.zeros((1, 1)), [0], 2, 2, dtype=np.float16)),
        ("must be positive", lambda case: MLP(np.zeros((1, 1)), [0], 0, 2)),
        ("labels: expected 1, one per row", lambda case: MLP(np.zeros((1, 1)), [0, 1], 2, 2)),
        ("labels: expected 0 to 1, got 2 to 2", lambda case: MLP(np.zeros((1, 1)), [2], 2, 2)),
        ("x: expected 4 × 6 numbers", lambda case: case.mlp.at(case.y, case.y)),
        ("y: expected 3 × 5 numbers", lambda case: case.mlp.at(case.x, case.x)),
        ("x and y: expected one vector each", lambda case: case.mlp.at(case.x[None], case.y)),
        ("batch: expected row numbers 0 to 6, got -1 to 2", lambda case: case.mlp.at(case.x, case.y, [-1, 2])),
        ("weights: expected 7, one per sample", lambda case: case.point.value(np.ones(3))),
        ("v: expected 3 × 5 numbers", lambda case: case.point.hvp(case.u)),
        ("v: expected 3 × 5 numbers", lambda case: case.point.cross(case.u)),
        ("u: expected 4 × 6 numbers", lambda case: case.point.hessian(case.v, case.v)),
        ("as many of one as of the other", lambda case: case.point.hessian(case.u, case.v[None])),
        ("units: expected numbers from 0 to 3, each once", lambda case: case.mlp.held([0, 4])),
        ("units: expected numbers from 0 to 3, each once", lambda case: case.mlp.held([1, 1])),
        ("features: expected numbers from 0 to 4, each once", lambda case: case.mlp.held([0], [-1])),
    ],
)
def test_what_does_not_fit_is_refused(words, wrong) -> None:
    with pytest.raises(ValueError, match=words):
        wrong(Case())


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulated GPU is compiled by g++")
@pytest.mark.parametrize("source", [np.float64, np.uint8])
def test_a_gpu_gives_the_same_answers(source, tmp_path) -> None:
    case = Case(rows=20, source=source, block=8)
    with using(Shim(tmp_path)) as device:
        mlp = MLP(case.mlp.X, case.labels, 4, 3, scale=case.mlp.scale, shift=case.mlp.shift, block=8, backend="cuda")
        for batch in (None, [3, 3, 19, 0]):
            found = everything(mlp.at(case.x, case.y, batch), case.u, case.v)
            found = {name: device.to_host(part) if on_gpu(part) else part for name, part in found.items()}
            assert_close(found, everything(case.mlp.at(case.x, case.y, batch), case.u, case.v), 1e-13)


def test_numba_is_not_imported_before_it_is_needed() -> None:
    words = "import sys, fbompi.kernels.mlp; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], timeout=60).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("source", [np.uint8, np.float32])
def test_float32_is_close_to_float64_on_a_large_shard(source, seed) -> None:
    case = Case(rows=60_000, features=784, hidden=32, classes=10, seed=seed, source=source, dtype=np.float32)
    # Powers of two, so that float32 still holds them exactly.
    x, y, u, v = case.x / 32, case.y / 8, case.u / 32, case.v / 8
    exact = MLP(case.mlp.X, case.labels, 32, 10, scale=case.mlp.scale, shift=case.mlp.shift, dtype=np.float64)
    single, double = case.mlp.at(x, y), exact.at(x, y)
    # A unit within rounding of its kink may be on in one and off in the other, and derivatives jump there.
    # Such rows, none or one of these 60,000, are left out of the sums.
    same = ((single.A > 0) == (double.A > 0)).all(axis=1)
    assert same.mean() > 0.9999
    weights = same / len(same)
    found = everything(single, u, v, weights)
    for name, expected in everything(double, u, v, weights).items():
        assert np.linalg.norm(found[name] - expected) <= 1e-5 * np.linalg.norm(expected), name


def test_a_point_is_gone_when_nobody_has_it() -> None:
    """Without the garbage collector: activations of past local steps would be a client's memory."""
    rng = np.random.default_rng(0)
    mlp = MLP(rng.random((20, 5)), rng.integers(0, 3, 20), 4, 3)
    x, y = rng.standard_normal(mlp.dim_x), rng.standard_normal(mlp.dim_y)
    gc.collect()
    gc.disable()
    try:
        for batch in (None, np.arange(7)):
            point = mlp.at(x, y, batch)
            point.gradient(), point.hvp(y), point.cross(y)
            activations = weakref.ref(point.A)
            del point
            assert activations() is None
    finally:
        gc.enable()
