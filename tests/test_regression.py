"""Softmax and logistic regression against plain NumPy, against finite differences, and against itself to the bit."""

from __future__ import annotations

import multiprocessing
import warnings
from functools import cached_property
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fbompi.kernels.cpu.exponential import exponentials
from fbompi.kernels.regression import Point, Regression

F64, F32, U8 = np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.uint8)
PAIRS = [(U8, F32), (U8, F64), (F32, F32), (F32, F64), (F64, F64)]  # features, arithmetic
LAYOUTS = {
    "as it is": lambda X: X,
    "columns first": np.asfortranarray,
    "every other column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "every third row": lambda X: np.repeat(X, 3, axis=0)[::3],
    "part of wider rows": lambda X: np.hstack([X[:, :1], X])[:, 1:],
    "rows backwards": lambda X: X[::-1].copy()[::-1],
    "not aligned": lambda X: np.frombuffer(b"-" + X.tobytes(), X.dtype, X.size, offset=1).reshape(X.shape),
}
# Kernels are compiled, or loaded, during the first example of each kind.
patient = settings(max_examples=60, deadline=None)

cases = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 40),
        # Wide ones have blocks of 8 rows, and parts of the features at a time.
        "features": st.integers(1, 70) | st.sampled_from([401, 2003]),
        "outputs": st.integers(1, 23),
        "pair": st.sampled_from(PAIRS),
        "loss": st.sampled_from(["softmax", "softmax", "logistic"]),
        "bias": st.booleans(),
        "seed": st.integers(0, 10_000),
    }
)
exact_cases = cases.map(lambda case: {**case, "pair": (F64, F64)})
batches = st.sampled_from(["whole shard", "some", "repeated", "one", "none"])


class Case:
    """Random samples, a model Y, a direction V, weights; `features` is what the regression sees, in float64."""

    def __init__(self, rows=9, features=5, outputs=3, pair=(F64, F64), loss="softmax", bias=True, seed=0, **options):
        self.rng = rng = np.random.default_rng(seed)
        stored, self.real = pair
        outputs = 1 if loss == "logistic" else outputs
        if stored == U8:
            self.X = rng.integers(0, 256, (rows, features), np.uint8)
            self.options = {"scale": 1 / 128, "shift": -1.0}
        else:
            self.X = rng.standard_normal((rows, features), np.float32).astype(stored)
            self.options = {}
        self.labels = rng.integers(0, 2 if loss == "logistic" else outputs, rows)
        self.options |= {"loss": loss, "bias": bias, "dtype": self.real, **options}
        self.outputs, self.logistic, self.width = outputs, loss == "logistic", features + bias
        self.Y, self.V, self.other = (self.model() for _ in range(3))
        self.weights = single(rng.uniform(0.1, 1.0, rows))
        self.weights[0] = 0.0
        self.ridge = single(rng.uniform(0.0, 0.2, self.Y.shape))
        self.data = self.on(self.X)

    @cached_property
    def features(self) -> np.ndarray:
        F = self.options.get("scale", 1.0) * self.X.astype(float) + self.options.get("shift", 0.0)
        return np.hstack([F, np.ones((len(F), self.width - F.shape[1]))])

    def on(self, X: np.ndarray, **options: Any) -> Regression:
        return Regression(X, self.labels, self.outputs, **{**self.options, **options})

    def model(self, *several: int) -> np.ndarray:
        """Scores of about one, in numbers that float32 holds exactly: then both precisions get the same question."""
        return single(self.rng.standard_normal((*several, self.outputs, self.width)) / np.sqrt(self.width))

    def batch(self, kind: str) -> np.ndarray | None:
        n = len(self.X)
        if kind == "whole shard":
            return None
        size = {"some": (n + 1) // 2, "repeated": 2 * n + 3, "one": 1, "none": 0}[kind]
        return self.rng.permutation(n)[:size] if kind == "some" else self.rng.integers(0, n, size)


def single(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32).astype(np.float64)


class Plain:
    """The same in NumPy, as it is written in books."""

    def __init__(self, case: Case, batch: np.ndarray | None, weights: np.ndarray | None, ridge: Any) -> None:
        rows = np.arange(len(case.X)) if batch is None else batch
        self.F, self.labels, self.Y, self.ridge = case.features[rows], case.labels[rows], case.Y, ridge
        self.w = np.full(len(rows), 1 / max(len(rows), 1)) if weights is None else weights
        self.logistic = case.logistic
        scores = self.F @ self.Y.T
        if self.logistic:
            self.target = self.labels[:, None].astype(float)
            self.P = 1 / (1 + np.exp(-scores))
            self.losses = (np.logaddexp(0, scores) - self.target * scores)[:, 0]
        else:
            self.target = np.eye(len(self.Y))[self.labels]
            shares = np.exp(scores)
            self.P = shares / shares.sum(axis=1, keepdims=True)
            self.losses = np.log(shares.sum(axis=1)) - (scores * self.target).sum(axis=1)

    def value(self) -> np.ndarray:
        return self.w @ self.losses + 0.5 * (self.ridge * self.Y**2).sum()

    def gradient(self) -> np.ndarray:
        return (self.w[:, None] * (self.P - self.target)).T @ self.F + self.ridge * self.Y

    def hvp(self, V: np.ndarray) -> np.ndarray:
        U = self.F @ V.T
        R = self.P * (1 - self.P) * U if self.logistic else self.P * (U - (self.P * U).sum(axis=1, keepdims=True))
        return (self.w[:, None] * R).T @ self.F + self.ridge * V

    def along(self, V: np.ndarray) -> np.ndarray:
        return ((self.P - self.target) * (self.F @ V.T)).sum(axis=1)


def answers(point: Point, V: np.ndarray, weights: Any = None, ridge: Any = 0.1) -> dict[str, np.ndarray]:
    """All that a point can be asked."""
    return {
        "losses": point.losses,
        "probabilities": point.probabilities,
        "guesses": point.guesses(),
        "value": np.array(point.value(weights, ridge)),
        "gradient": point.gradient(weights, ridge),
        "hvp": point.hvp(V, weights, ridge),
        "along": point.along(V),
        "neumann": point.neumann(V, 3, 2.0, weights, ridge),
        "fixed_point": point.fixed_point(V, 2 * V, 0.3, 2, weights, ridge),
    }


def assert_close(found: Any, expected: Any, tolerance: float, name: str = "") -> None:
    """As near as that to one another, relative to the largest element."""
    assert np.shape(found) == np.shape(expected), name
    np.testing.assert_allclose(found, expected, 0, tolerance * max(1, np.abs(expected).max(initial=0)), err_msg=name)


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def slope(function: Any, step: float = 1e-5) -> Any:
    return (function(step) - function(-step)) / (2 * step)


@patient
@given(cases, batches, st.booleans(), st.sampled_from(["none", "scalar", "array"]))
def test_answers_are_those_of_plain_numpy(size, kind, weighted, ridges) -> None:
    case = Case(**size)
    batch = case.batch(kind)
    weights = case.weights if batch is None else case.weights[batch]
    weights = weights if weighted else None
    ridge = {"none": 0.0, "scalar": 0.3, "array": case.ridge}[ridges]
    point, plain = case.data.at(case.Y, batch), Plain(case, batch, weights, ridge)
    near = 1e-12 if case.real == F64 else 1e-5
    assert_close(point.gradient(weights, ridge), plain.gradient(), near, "gradient")
    assert_close(point.losses, plain.losses, near, "losses")
    assert_close(point.probabilities, plain.P, near, "probabilities")
    assert_close(point.value(weights, ridge), plain.value(), near, "value")
    assert_close(point.hvp(case.V, weights, ridge), plain.hvp(case.V), near, "hvp")
    assert_close(point.along(case.V), plain.along(case.V), near, "along")
    guesses = point.probabilities[:, 0] > 0.5 if case.logistic else point.probabilities.argmax(axis=1)
    np.testing.assert_array_equal(point.guesses(), guesses)
    assert point.probabilities.dtype == case.real
    assert point.gradient().dtype == point.hvp(case.V).dtype == point.losses.dtype == F64


@patient
@given(cases, st.integers(0, 4), st.booleans())
def test_several_directions_are_as_one_by_one(size, k, flat) -> None:
    case = Case(**size)
    V = case.model(k)
    # Flat, a single direction of a single output reads as a model: only then does the result have an axis less.
    flat = flat and not k == case.outputs == 1
    point = case.data.at(case.Y)
    together = answers(point, V.reshape(k, case.Y.size) if flat else V, case.weights)
    alone = [answers(point, v, case.weights) for v in V]
    # The same sums in the same order, unless the columns are so many that blocks have another size.
    near = 0.0 if k * case.outputs < 64 else 1e-13 if case.real == F64 else 1e-5
    for name in ("hvp", "along", "neumann", "fixed_point"):
        assert together[name].shape == (k, *(case.Y.shape if name != "along" else (len(case.X),)))
        for q in range(k):
            assert_close(together[name][q], alone[q][name], near, name)


@patient
@given(cases, st.integers(1, 4), batches, st.booleans())
def test_gradients_of_many_copies_are_as_one_by_one(size, k, kind, own_weights) -> None:
    case = Case(**size)
    batch, Y = case.batch(kind), case.model(k)
    weights = single(case.rng.uniform(0, 1, (k if own_weights else 1, case.data.count(batch))))
    found = case.data.gradients(Y, weights if own_weights else weights[0], batch)
    near = 0.0 if k * case.outputs < 64 else 1e-13 if case.real == F64 else 1e-5
    for q in range(k):
        alone = case.data.at(Y[q], batch).gradient(weights[q if own_weights else 0])
        assert_close(found[q], alone, near)


@patient
@given(exact_cases, st.booleans())
def test_derivatives_are_slopes(size, weighted) -> None:
    case = Case(**size)
    weights = case.weights if weighted else None

    def moved(step: float) -> Point:
        return case.data.at(case.Y + step * case.V)

    point = moved(0.0)
    gradient, hvp = point.gradient(weights, case.ridge), point.hvp(case.V, weights, case.ridge)
    along_value = slope(lambda step: moved(step).value(weights, case.ridge))
    assert (gradient * case.V).sum() == pytest.approx(along_value, rel=1e-6, abs=1e-8)
    assert_close(hvp, slope(lambda step: moved(step).gradient(weights, case.ridge)), 1e-7)
    assert_close(point.along(case.V), slope(lambda step: moved(step).losses), 1e-7)


@patient
@given(exact_cases)
def test_the_hessian_is_symmetric_linear_and_not_negative(size) -> None:
    case = Case(**size)
    V, U = case.V, case.other

    def hvp(direction: np.ndarray) -> np.ndarray:
        return case.data.at(case.Y).hvp(direction, case.weights, case.ridge)

    assert (U * hvp(V)).sum() == pytest.approx((V * hvp(U)).sum(), abs=1e-12 * len(case.X))
    assert_close(hvp(2 * V - 3 * U), 2 * hvp(V) - 3 * hvp(U), 1e-12)
    assert (V * hvp(V)).sum() >= 0


@patient
@given(cases, batches)
def test_kept_probabilities_give_the_bits_of_a_fresh_pass(size, kind) -> None:
    case = Case(**size)
    batch = case.batch(kind)
    weights = case.weights if batch is None else case.weights[batch]
    fresh, kept = (case.data.at(case.Y, batch if batch is not None else np.arange(len(case.X))) for _ in range(2))
    first = fresh.gradient(weights, 0.1)
    losses = kept.losses  # a forward pass, without a gradient
    assert_same_bits(
        {"gradient": kept.gradient(weights, 0.1), "again": fresh.gradient(weights, 0.1), "losses": losses},
        {"gradient": first, "again": first, "losses": fresh.losses},
    )
    np.testing.assert_array_equal(kept.probabilities, fresh.probabilities)


@patient
@given(cases, st.sampled_from(sorted(LAYOUTS)), st.booleans())
def test_bits_do_not_depend_on_how_the_rows_are_stored_or_named(size, layout, read_only) -> None:
    case = Case(**size)
    X = LAYOUTS[layout](case.X)
    if read_only:
        for array in (X, case.labels, case.Y, case.V, case.weights):
            array.flags.writeable = False
    data = case.on(X)
    expected = answers(case.data.at(case.Y), case.V, case.weights)
    assert_same_bits(answers(data.at(case.Y), case.V, case.weights), expected)
    assert_same_bits(answers(data.at(case.Y, np.arange(len(X))), case.V, case.weights), expected)
    assert_same_bits(answers(case.data.with_rows(data.X, data.labels).at(case.Y), case.V, case.weights), expected)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_bits_do_not_depend_on_the_number_of_threads(pair, loss) -> None:
    case = Case(rows=4 * 2048 + 5, features=13, outputs=4, pair=pair, loss=loss)
    batch = case.rng.integers(0, len(case.X), 3 * 2048 + 1)
    one, two, three = (case.on(case.X, threads=threads) for threads in (1, 2, 3))
    for rows in (None, batch):
        expected = answers(one.at(case.Y, rows), case.V)
        for data in (two, three):
            assert_same_bits(answers(data.at(case.Y, rows), case.V), expected)
    copies = case.model(3)
    np.testing.assert_array_equal(one.gradients(copies, None), two.gradients(copies, None))
    plain = Plain(case, None, None, 0.1)
    assert_close(one.at(case.Y).gradient(ridge=0.1), plain.gradient(), 1e-12 if case.real == F64 else 1e-5)


@patient
@given(exact_cases.map(lambda case: {**case, "features": case["features"] % 7 + 1, "outputs": case["outputs"] % 5 + 1}))
def test_the_neumann_sum_is_the_sum_and_tends_to_the_solution(size) -> None:
    case = Case(**size)
    point, size_y = case.data.at(case.Y), case.Y.size
    H = point.hvp(np.eye(size_y).reshape(size_y, *case.Y.shape), case.weights, 0.5).reshape(size_y, size_y)
    smoothness = np.linalg.eigvalsh(H)[-1]
    power = total = case.V.ravel()
    for _ in range(3):
        power = power - H @ power / smoothness
        total = total + power
    found = point.neumann(case.V, 4, smoothness, case.weights, 0.5)
    assert_close(found.ravel(), total / smoothness, 1e-12)
    for start in (None, np.zeros_like(case.V)):
        same = point.fixed_point(start, case.V, 1 / smoothness, 4, case.weights, 0.5)
        np.testing.assert_array_equal(same, found)
    # From the solution a step leads nowhere.
    solution = np.linalg.solve(H, case.V.ravel()).reshape(case.V.shape)
    assert_close(point.fixed_point(solution, case.V, 0.7 / smoothness, 1, case.weights, 0.5), solution, 1e-12)
    terms = int(30 * smoothness / 0.5)
    assert_close(point.neumann(case.V, terms, smoothness, case.weights, 0.5), solution, 1e-11)
    assert not point.neumann(case.V, 0, smoothness).any()


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_no_samples_have_no_losses_and_no_derivatives(pair, loss) -> None:
    case = Case(pair=pair, loss=loss)
    nothing = Regression(case.X[:0], [], case.outputs, **case.options)
    for point in (case.data.at(case.Y, []), nothing.at(case.Y)):
        for weights in (None, []):
            assert point.losses.shape == point.guesses().shape == point.along(case.V).shape == (0,)
            assert point.probabilities.shape == (0, case.outputs)
            assert point.value(weights) == 0.0
            assert not point.gradient(weights).any() and not point.hvp(case.V, weights).any()
            np.testing.assert_array_equal(point.hvp(case.V, weights, 0.5), 0.5 * case.V)
    assert not nothing.gradients(case.model(2), None).any()


def test_without_features_there_is_still_a_bias() -> None:
    labels = [0, 1, 1, 1]
    point = Regression(np.empty((4, 0)), labels, 2, bias=True).at(np.log([1.0, 3.0]))
    np.testing.assert_allclose(point.probabilities, [[0.25, 0.75]] * 4, rtol=1e-15)
    np.testing.assert_allclose(point.gradient(), np.zeros((2, 1)), atol=1e-16)


@pytest.mark.parametrize(("dtype", "factor"), [(F64, 1e300), (F64, 1e5), (F32, 1e30), (F32, 1e5)])
def test_large_scores_do_not_overflow(dtype, factor) -> None:
    X = np.ones((2, 1), dtype)
    point = Regression(X, [0, 1], 3).at([factor, -factor, 0.0])
    np.testing.assert_allclose(point.probabilities, [[1, 0, 0]] * 2, atol=1e-37)
    np.testing.assert_allclose(point.losses, [0, 2 * factor], rtol=1e-6)
    np.testing.assert_allclose(point.gradient(), [[0.5], [-0.5], [0]], atol=1e-37)
    assert np.isfinite(point.hvp(np.ones(3))).all()
    for sign in (1, -1):
        point = Regression(X, [0, 1], 1, loss="logistic").at([sign * factor])
        np.testing.assert_allclose(point.probabilities[:, 0], [sign > 0] * 2, atol=1e-37)
        np.testing.assert_allclose(point.losses, [factor, 0] if sign > 0 else [0, factor], rtol=1e-6, atol=1e-37)
        np.testing.assert_allclose(point.gradient(), [[0.5 * sign]], atol=1e-37)


@patient
@given(
    cases.filter(lambda case: case["pair"][0] != U8 and (case["outputs"] > 1 or case["loss"] == "logistic")), st.data()
)
def test_nan_is_never_taken_for_a_number(size, data) -> None:
    case = Case(**size)
    X, Y = case.X.copy(), case.Y.copy()
    row, column = data.draw(st.integers(0, len(X) - 1)), data.draw(st.integers(0, X.shape[1] - 1))
    X[row, column] = np.nan
    Y[data.draw(st.integers(0, case.outputs - 1)), column] = np.nan
    for point in (case.on(X).at(case.Y), case.data.at(Y)):
        assert np.isnan(point.losses[row]) and np.isnan(point.probabilities[row]).all()
        found = answers(point, case.V)
        del found["guesses"], found["probabilities"], found["losses"]
        for name, array in found.items():
            assert np.isnan(array).any(), name
        assert np.isnan(found["gradient"][:, column]).all() and np.isnan(found["hvp"][:, column]).all()
    fine = np.delete(np.arange(len(X)), row)
    for array in answers(case.on(X).at(case.Y, fine), case.V).values():
        assert np.isfinite(array).all()


@pytest.mark.parametrize("batch", [None, np.array([3, 1, 3])])
@pytest.mark.parametrize("dtype", [F64, F32])
def test_a_point_stays_where_it_was_made(batch, dtype) -> None:
    case = Case(pair=(F32, dtype))
    Y, rows = case.Y.astype(dtype), None if batch is None else batch.copy()
    expected = answers(case.data.at(case.Y, batch), case.V)
    point = case.on(case.X).at(Y, rows)
    Y[:] = 0.0
    if rows is not None:
        rows[:] = 0
    assert_same_bits(answers(point, case.V), expected)


def test_the_last_point_is_remembered_by_what_it_is_not_by_where_it_lies() -> None:
    case = Case()
    Y = case.Y.copy()
    point = case.data.at(Y)
    assert case.data.at(case.Y.ravel()) is point
    Y[0, 0] += 1.0
    moved = case.data.at(Y)
    assert moved is not point
    assert_same_bits(answers(moved, case.V), answers(case.on(case.X).at(Y), case.V))
    assert_same_bits(answers(case.data.at(case.Y), case.V), answers(point, case.V))
    assert case.data.at(case.Y, np.arange(len(case.X))) is not case.data.at(case.Y)


@patient
@given(cases)
def test_features_are_what_the_regression_sees(size) -> None:
    case = Case(**size)
    assert_close(case.data.features(), case.features, 1e-15 if case.real == F64 else 1e-6)
    assert case.data.features().dtype == case.real


def test_the_arithmetic_is_that_of_the_features_unless_said_otherwise() -> None:
    assert Regression(np.zeros((1, 1), F32), [0], 1).real == F32
    assert Regression(np.zeros((1, 1), U8), [0], 1).real == Regression(np.zeros((1, 1)), [0], 1).real == F64
    assert Regression(np.zeros((1, 1), F32), [0], 1, dtype="float64").real == F64


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("X: expected a matrix of .* got 1-d float64", lambda case: Regression(np.zeros(3), [0, 0, 0], 2)),
        ("X: expected a matrix of .* got 2-d int64", lambda case: Regression(np.zeros((1, 1), np.int64), [0], 2)),
        ("outputs = 2: logistic", lambda case: Regression(np.zeros((1, 1)), [0], 2, loss="logistic")),
        ("dtype = float16: expected", lambda case: Regression(np.zeros((1, 1)), [0], 2, dtype=np.float16)),
        ("dtype = float32: expected", lambda case: Regression(np.zeros((1, 1)), [0], 2, dtype=np.float32)),
        ("scale and shift are for uint8", lambda case: Regression(np.zeros((1, 1)), [0], 2, scale=2.0)),
        ("labels: expected 1, one per row", lambda case: Regression(np.zeros((1, 1)), [0, 1], 2)),
        ("labels: expected 0 to 1, got 0 to 2", lambda case: Regression(np.zeros((2, 1)), [0, 2], 2)),
        ("labels: expected 0 to 1, got -1", lambda case: Regression(np.zeros((1, 1)), [-1], 1, loss="logistic")),
        ("batch: expected row numbers 0 to 8, got -1 to 2", lambda case: case.data.at(case.Y, [-1, 2])),
        ("batch: expected row numbers 0 to 8, got 9 to 9", lambda case: case.data.at(case.Y, [9])),
        ("batch: expected a vector .* 1-d bool", lambda case: case.data.at(case.Y, np.ones(9, bool))),
        ("batch: expected a vector .* 2-d int64", lambda case: case.data.at(case.Y, [[0, 1]])),
        ("batch: expected row numbers", lambda case: case.data.gradients(case.model(2), None, [0, 9])),
        ("weights: expected 9, one per sample", lambda case: case.data.at(case.Y).gradient(np.ones(8))),
        ("weights: expected 9, one per sample", lambda case: case.data.at(case.Y).hvp(case.V, np.ones((2, 9)))),
        ("weights: expected 9, one per sample", lambda case: case.data.gradients(case.model(3), np.ones((2, 9)))),
        ("weights: expected 2, one per sample", lambda case: case.data.at(case.Y, [0, 1]).value(np.ones(9))),
        ("expected a model of", lambda case: case.data.at(np.ones(17))),
        ("expected a model of", lambda case: case.data.at(case.Y).hvp(np.ones((2, 19)))),
        ("expected a model of", lambda case: case.data.at(case.Y).along(case.V.T)),
    ],
)
def test_what_does_not_fit_is_refused(words, wrong) -> None:
    with pytest.raises(ValueError, match=words):
        wrong(Case())


@pytest.mark.parametrize(("dtype", "exact", "lowest"), [(F64, np.longdouble, -708.0), (F32, F64, -87.0)])
def test_exponentials_are_right_to_less_than_one_rounding(dtype, exact, lowest) -> None:
    @numba.njit
    def in_place(values):
        exponentials(values, values.size)

    if np.finfo(exact).eps > np.finfo(dtype).eps / 100:
        pytest.skip("there is no wider type here to compare with")
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(lowest, 0, 200_000), -(10.0 ** rng.uniform(-12, 1.9, 200_000)), [0.0, lowest]])
    x = x.astype(dtype)
    found = x.copy()
    in_place(found)
    true = np.exp(x.astype(exact))
    assert (abs(found - true) / true).max() < np.finfo(dtype).eps
    edges = np.array([0.0, -0.0, np.nan, 10 * lowest, -np.inf, -np.finfo(dtype).max], dtype)
    in_place(edges)
    np.testing.assert_array_equal(edges[:3], [1, 1, np.nan])
    assert (edges[3:] <= np.exp(lowest) * 1.01).all() and (edges[3:] >= 0).all()


def test_what_a_point_keeps_is_not_written_to_by_accident() -> None:
    point = Case().data.at(Case().Y)
    for kept in (point.probabilities, point.losses):
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 0


def test_a_forked_process_has_threads_of_its_own() -> None:
    case = Case(rows=5000, features=30, outputs=3)
    data = Regression(case.X, case.labels, 3, threads=2)
    data.at(np.zeros(data.shape)).gradient()

    def again() -> None:
        data.last = None
        data.at(np.zeros(data.shape)).gradient()

    child = multiprocessing.get_context("fork").Process(target=again)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forking with threads
        child.start()
    child.join(30)
    hangs = child.is_alive()
    child.kill()
    assert not hangs and child.exitcode == 0


@pytest.mark.parametrize("pair", PAIRS)
def test_bits_do_not_depend_on_where_in_a_cache_line_the_rows_begin(pair) -> None:
    stored, arithmetic = pair
    case = Case(rows=70, features=64, outputs=4, pair=pair)
    memory = np.zeros(case.X.nbytes + 128, U8)
    first = None
    for begin in range(0, 64, stored.itemsize):
        start = -memory.ctypes.data % 64 + begin
        X = memory[start : start + case.X.nbytes].view(stored).reshape(case.X.shape)
        X[:] = case.X
        found = answers(case.on(X, dtype=arithmetic).at(case.Y), case.V)
        first = first or found
        assert_same_bits(found, first)


@pytest.mark.parametrize("stored", [F32, U8])
def test_float32_is_close_to_float64_on_a_large_shard(stored) -> None:
    case = Case(rows=60_000, features=784, outputs=10, pair=(stored, F32))
    one, two = case.data.at(case.Y), case.on(case.X, dtype=F64).at(case.Y)
    for found, expected in ((one.gradient(), two.gradient()), (one.hvp(case.V), two.hvp(case.V))):
        assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)
