"""Finite-difference coordinates of an inner map against its derivative: closed-form quadratics, then regression."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cuda_shim import Shim
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_regression import F32, F64, U8, Case

from fbompi.kernels.cuda.device import using
from fbompi.kernels.jacobian import COPIES, coordinates, increments
from fbompi.kernels.regression import Regression

Inner = Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]]

# A difference is wrong by rounding/μ + μ, both about √ε where all numbers are about one; sums of many add up.
NEAR = {F64: 30 * np.sqrt(np.finfo(F64).eps), F32: 30 * np.sqrt(np.finfo(F32).eps)}

# Kernels are compiled, or loaded, during the first example of each kind.
patient = settings(max_examples=60, deadline=None)


# Quadratics


@dataclass
class Quadratic:
    """g(x, y) = ½ yᵀA y − yᵀ(B x + c), with eigenvalues of A from 1 to κ: y* = A⁻¹(B x + c)."""

    A: np.ndarray
    B: np.ndarray
    c: np.ndarray
    smoothness: float

    @classmethod
    def random(cls, dim_x: int, dim_y: int, kappa: float, seed: int, clients: int = 1) -> Quadratic:
        """The mean of the clients' functions, whose eigenvectors have nothing in common."""
        rng = np.random.default_rng(seed)
        bases = (np.linalg.qr(rng.standard_normal((dim_y, dim_y)))[0] for _ in range(clients))
        A = sum((Q * np.linspace(1, kappa, dim_y)) @ Q.T for Q in bases) / clients
        return cls(A, rng.standard_normal((dim_y, dim_x)) / np.sqrt(dim_x), rng.standard_normal(dim_y), kappa)

    def inner(self, dtype: Any = F64) -> Inner:
        """∇_y g of many copies, computed in this type."""
        A, B, c = (array.astype(dtype) for array in (self.A, self.B, self.c))

        def at(xs: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
            moved = xs.astype(dtype) @ B.T + c
            return lambda ys: ys.astype(dtype) @ A - moved

        return at

    def solution(self, x: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self.A, self.B @ x + self.c)

    def jacobian(self, steps: int, step_size: float) -> np.ndarray:
        """Of y_T: J_T = Σ_{t<T} (I − βA)^t βB, whatever x and y; row p is ∂y_T/∂x_p."""
        power, total = step_size * self.B, np.zeros_like(self.B)
        for _ in range(steps):
            power, total = power - step_size * self.A @ power, total + power
        return total.T


@patient
@given(
    st.integers(1, 20) | st.sampled_from([COPIES - 1, COPIES, COPIES + 1, 2 * COPIES + 5]),
    st.integers(1, 8),
    st.integers(0, 30),
    st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e6]),
    st.sampled_from([F64, F32]),
    st.sampled_from(["all", "a mask", "a list", "shuffled", "repeated"]),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_coordinates_of_a_quadratic_are_those_of_its_closed_form(
    dim_x, dim_y, steps, magnitude, dtype, kind, weighted, seed
) -> None:
    g, rng = Quadratic.random(dim_x, dim_y, 10.0, seed), np.random.default_rng(seed)
    x = magnitude * rng.choice([-1, 1], dim_x) * rng.uniform(0.5, 1, dim_x)
    y, w = max(magnitude, 1) * rng.uniform(-1, 1, dim_y), rng.uniform(-1, 1, dim_y)
    which: Any = {
        "all": np.arange(dim_x),
        "a mask": rng.random(dim_x) < 0.5,
        "a list": [dim_x - 1, 0],
        "shuffled": rng.permutation(dim_x),
        "repeated": rng.integers(0, dim_x, 5),
    }[kind]
    expected = g.jacobian(steps, 0.1)[which]
    found = coordinates(g.inner(dtype), x, y, which, steps, 0.1, w if weighted else None, dtype=dtype)
    expected = expected @ w if weighted else expected
    assert found.shape == expected.shape and found.dtype == F64
    np.testing.assert_allclose(found, expected, rtol=0, atol=NEAR[dtype])


@pytest.mark.parametrize("which", [np.array([], int), np.zeros(7, bool)], ids=["no indices", "an empty mask"])
def test_of_no_coordinates_there_are_none(which) -> None:
    g = Quadratic.random(7, 4, 10.0, 0)
    x, y = np.ones(7), np.ones(4)
    assert coordinates(g.inner(), x, y, which, 3, 0.1).shape == (0, 4)
    assert coordinates(g.inner(), x, y, which, 3, 0.1, y).shape == (0,)


def test_an_empty_list_is_no_coordinates_either() -> None:
    g = Quadratic.random(7, 4, 10.0, 0)
    assert coordinates(g.inner(), np.ones(7), np.ones(4), [], 3, 0.1).shape == (0, 4)


def test_x_may_be_stored_in_less_than_the_arithmetic() -> None:
    g, x = Quadratic.random(7, 4, 10.0, 0), np.linspace(-1, 1, 7, dtype=F32)
    found = coordinates(g.inner(), x, np.zeros(4), np.arange(7), 20, 0.1)
    np.testing.assert_allclose(found, g.jacobian(20, 0.1), rtol=0, atol=NEAR[F64])


def test_small_coordinates_among_large_ones_need_increments_of_the_large_ones_size() -> None:
    g, x = Quadratic.random(6, 4, 10.0, 0), np.array([1e6, -1e6, 1e6, 1.0, -1.0, 0.0])
    which = np.arange(6)
    arguments = g.inner(), x, g.solution(x), which, 20, 0.1
    truth = g.jacobian(20, 0.1)
    assert abs(coordinates(*arguments) - truth).max() > 1e-4
    found = coordinates(*arguments, mu=increments(x, which, scale=1e6))
    np.testing.assert_allclose(found, truth, rtol=0, atol=NEAR[F64])


def test_as_steps_go_on_the_jacobian_becomes_that_of_the_solution() -> None:
    """dy*/dx = A⁻¹B, approached as fast as the inner steps approach y*: by 1 − μ/ℓ each."""
    g = Quadratic.random(5, 6, 10.0, 0)
    x, which, limit = np.ones(5), np.arange(5), np.linalg.solve(g.A, g.B).T
    errors = [
        np.linalg.norm(coordinates(g.inner(), x, np.zeros(6), which, steps, 0.1) - limit, 2)
        for steps in (0, 10, 20, 40, 80)
    ]
    for steps, error in zip((0, 10, 20, 40, 80), errors):
        assert error <= 0.9**steps * np.linalg.norm(limit, 2) + NEAR[F64]
    assert errors == sorted(errors, reverse=True)
    found = coordinates(g.inner(), x, np.zeros(6), which, 300, 0.1)
    np.testing.assert_allclose(found, limit, rtol=0, atol=NEAR[F64])


def test_an_inner_step_is_one_gradient_of_all_copies_and_x_is_prepared_once() -> None:
    g, prepared, steps = Quadratic.random(2 * COPIES + 5, 3, 10.0, 0), [], []

    def inner(xs: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        prepared.append(xs.copy())
        gradient = g.inner()(xs)
        return lambda ys: steps.append(len(ys)) or gradient(ys)

    x, y = np.linspace(-1, 1, g.B.shape[1]), np.ones(3)
    before = x.copy(), y.copy()
    coordinates(inner, x, y, np.arange(len(x)), 4, 0.1)
    assert [len(xs) for xs in prepared] == [COPIES + 1, COPIES + 1, 6]
    assert steps == [COPIES + 1] * 8 + [6] * 4
    for xs in prepared:  # each group with a copy where nothing is changed, each other copy with one change
        assert ((xs != x).sum(axis=1) == [0] + [1] * (len(xs) - 1)).all()
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(y, before[1])


# Increments

numbers = st.floats(-1e12, 1e12) | st.floats(-1, 1) | st.floats(-1e-6, 1e-6)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(numbers, min_size=1, max_size=20),
    st.sampled_from([F64, F32]),
    st.sampled_from([F64, F32]),
    st.sampled_from([1.0, 1e-6, 1e6]),
)
def test_increments_are_given_back_exactly_and_have_the_right_size(values, stored, arithmetic, scale) -> None:
    assume(stored.itemsize >= arithmetic.itemsize)
    x = np.array(values).astype(stored)
    mu = increments(x, np.arange(len(x)), arithmetic, scale)
    np.testing.assert_array_equal((x + mu) - x, mu)
    relative = mu / (np.sqrt(np.finfo(arithmetic).eps) * np.maximum(abs(x), scale))
    np.testing.assert_allclose(relative, 1, rtol=1e-3)  # what the rounding to x's own digits leaves


def test_increments_are_of_the_coordinates_asked_for() -> None:
    x = np.array([1.0, 100.0, 1e4, 1e-4])
    np.testing.assert_array_equal(increments(x, np.array([2, 0])), increments(x, np.arange(4))[[2, 0]])
    mask = np.array([True, False, False, True])
    np.testing.assert_array_equal(increments(x, mask), increments(x, np.array([0, 3])))


# The erratum: what the paper prints for J is another thing


@dataclass
class Erratum:
    """min ½‖y*(x) − t‖² over x; five clients, each with κ = 10 and eigenvectors of its own."""

    seed: int

    def __post_init__(self) -> None:
        self.g, rng = Quadratic.random(15, 20, 10.0, self.seed, clients=5), np.random.default_rng(self.seed)
        self.x, self.target = rng.standard_normal(15), rng.standard_normal(20)
        self.y = self.g.solution(self.x)
        self.w = self.y - self.target  # ∇_y f
        self.truth = self.g.B.T @ np.linalg.solve(self.g.A, self.w)

    def value(self, x: np.ndarray) -> float:
        return 0.5 * float(((self.g.solution(x) - self.target) ** 2).sum())

    def printed(self) -> np.ndarray:
        """Eq. 10: ⟨w, [∇_y g(x + μe_p, y) − ∇_y g(x, y)]/μ⟩."""
        mu = increments(self.x, np.arange(15))
        gradients = self.g.inner()(np.vstack([self.x, self.x + np.diag(mu)]))(np.tile(self.y, (16, 1)))
        return (gradients[1:] - gradients[0]) @ self.w / mu

    def by_the_inner_map(self, steps: int) -> np.ndarray:
        return coordinates(self.g.inner(), self.x, self.y, np.arange(15), steps, 1 / self.g.smoothness, self.w)

    def error(self, estimate: np.ndarray) -> float:
        return float(np.linalg.norm(estimate - self.truth) / np.linalg.norm(self.truth))


@pytest.mark.parametrize("seed", range(10))
def test_the_printed_difference_of_gradients_climbs(seed) -> None:
    case = Erratum(seed)
    printed = case.printed()
    cosine = printed @ case.truth / np.linalg.norm(printed) / np.linalg.norm(case.truth)
    assert -1.0 <= cosine < -0.9
    step = 1e-3 / np.linalg.norm(printed)
    assert case.value(case.x - step * printed) > case.value(case.x)
    # It is −∇²_xy g·w: neither the sign nor the inverse is there.
    np.testing.assert_allclose(printed, -case.g.B.T @ case.w, rtol=0, atol=1e-6)
    np.testing.assert_allclose(case.by_the_inner_map(1), -printed / case.g.smoothness, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_the_difference_of_the_inner_map_descends_and_tends_to_the_truth(seed) -> None:
    case = Erratum(seed)
    after_5, after_20 = case.by_the_inner_map(5), case.by_the_inner_map(20)
    assert 0.02 < case.error(after_5) < 0.2
    assert case.error(after_20) < 2e-3
    assert case.error(case.by_the_inner_map(100)) < 1e-6
    for estimate in (after_5, after_20):
        assert case.value(case.x - 1e-3 * estimate / np.linalg.norm(estimate)) < case.value(case.x)


# Regression: one weight per sample, through a sigmoid

RIDGE, STEP_SIZE = 0.05, 0.3


class Cleaning(Case):
    """Hyper-cleaning: g(x, Y) = Σ_j σ(x_j)/n · loss_j(Y) + ½ ridge ‖Y‖²."""

    def __init__(self, **size: Any) -> None:
        super().__init__(**size)
        self.x = self.rng.standard_normal(len(self.X))
        self.w = self.rng.standard_normal(self.Y.size)

    def sample_weights(self, x: np.ndarray) -> np.ndarray:
        return 1 / (len(self.X) * (1 + np.exp(-x)))

    def inner(self, data: Regression) -> Inner:
        def at(xs: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
            weights = self.sample_weights(xs)
            return lambda ys: data.gradients(ys, weights).reshape(ys.shape) + RIDGE * ys

        return at

    def one_by_one(self, which: np.ndarray, steps: int) -> np.ndarray:
        """One inner solve per coordinate, and one where nothing is changed."""

        def solve(x: np.ndarray) -> np.ndarray:
            y, weights = self.Y.ravel(), self.sample_weights(x)
            for _ in range(steps):
                y = y - STEP_SIZE * self.data.at(y).gradient(weights, RIDGE).ravel()
            return y

        base, rows = solve(self.x), []
        for p, mu in zip(which, increments(self.x, which)):
            ahead = self.x.copy()
            ahead[p] += mu
            rows.append((solve(ahead) - base) / mu)
        return np.array(rows).reshape(len(which), self.Y.size)

    def derivative(self, which: np.ndarray, steps: int, held: np.ndarray | None = None) -> np.ndarray:
        """∂y_T/∂x_p in NumPy: the steps differentiated, J ← J − β(H J + ∇²_xy g); where some are held, of those."""
        F, outputs = self.features, self.outputs
        mask = np.ones(self.Y.size) if held is None else np.isin(np.arange(self.Y.size), held)
        mask = mask.reshape(self.Y.shape)
        target = self.labels[:, None] if self.logistic else np.eye(outputs)[self.labels]
        weights = self.sample_weights(self.x)
        slopes = weights * (1 - weights * len(F))
        Y, J = self.Y * mask, np.zeros((len(which), *self.Y.shape))
        for _ in range(steps):
            scores, U = F @ Y.T, F @ J.transpose(0, 2, 1)
            if self.logistic:
                P = 1 / (1 + np.exp(-scores))
                moved = P * (1 - P) * U
            else:
                P = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
                moved = P * (U - (P * U).sum(axis=2, keepdims=True))
            cross = (slopes[which, None] * (P - target)[which])[:, :, None] * F[which][:, None, :]
            J = J - STEP_SIZE * mask * ((weights[:, None] * moved).transpose(0, 2, 1) @ F + RIDGE * J + cross)
            Y = Y - STEP_SIZE * mask * ((weights[:, None] * (P - target)).T @ F + RIDGE * Y)
        J = J.reshape(len(which), -1)
        return J if held is None else J[:, held]


cleanings = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 30) | st.just(COPIES + 9),
        "features": st.integers(1, 20),
        "outputs": st.integers(2, 6),
        "pair": st.sampled_from([(F64, F64), (U8, F64)]),
        "loss": st.sampled_from(["softmax", "logistic"]),
        "bias": st.booleans(),
        "seed": st.integers(0, 10_000),
    }
)


@patient
@given(cleanings, st.integers(0, 8))
def test_all_together_is_one_solve_per_coordinate_and_the_derivative(size, steps) -> None:
    case = Cleaning(**size)
    which = case.rng.permutation(len(case.X))
    found = coordinates(case.inner(case.data), case.x, case.Y.ravel(), which, steps, STEP_SIZE)
    np.testing.assert_allclose(found, case.one_by_one(which, steps), rtol=0, atol=NEAR[F64])
    np.testing.assert_allclose(found, case.derivative(which, steps), rtol=0, atol=NEAR[F64])
    products = coordinates(case.inner(case.data), case.x, case.Y.ravel(), which, steps, STEP_SIZE, case.w)
    np.testing.assert_allclose(products, found @ case.w, rtol=1e-9, atol=1e-12)


def test_a_single_copy_of_a_single_output_has_a_gradient_too() -> None:
    case = Cleaning(loss="logistic")
    found = case.data.gradients(case.Y.reshape(1, -1), None)
    np.testing.assert_array_equal(found.reshape(case.Y.shape), case.data.at(case.Y).gradient())


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
@pytest.mark.parametrize("stored", [F32, U8])
def test_float32_needs_larger_increments_and_no_more(stored, loss) -> None:
    case = Cleaning(rows=10, outputs=3, pair=(stored, F32), loss=loss)
    which = np.arange(10)
    arguments = case.inner(case.data), case.x, case.Y.ravel(), which, 5, STEP_SIZE
    truth = case.derivative(which, 5)
    found = coordinates(*arguments, dtype=F32)
    np.testing.assert_allclose(found, truth, rtol=0, atol=NEAR[F32])
    assert abs(found - truth).max() < 0.05 * abs(truth).max()
    assert abs(coordinates(*arguments) - truth).max() > 0.5 * abs(truth).max()  # the increments of float64


@patient
@given(cleanings, st.integers(1, 5))
def test_a_submodel_has_the_jacobian_of_its_own_inner_map(size, steps) -> None:
    case = Cleaning(**size)
    held = np.sort(case.rng.choice(case.Y.size, (case.Y.size + 1) // 2, replace=False))
    which = case.rng.permutation(len(case.X))[: (len(case.X) + 1) // 2]
    y = case.Y.ravel()[held]
    found = coordinates(case.inner(case.data.held(held)), case.x, y, which, steps, STEP_SIZE)
    np.testing.assert_allclose(found, case.derivative(which, steps, held), rtol=0, atol=NEAR[F64])


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulated GPU is compiled by g++")
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_a_gpu_gives_the_same_coordinates(loss, tmp_path) -> None:
    case = Cleaning(rows=COPIES + 6, features=9, outputs=4, loss=loss)
    which = np.arange(len(case.X))
    held = np.arange(0, case.Y.size, 2)
    with using(Shim(tmp_path)) as gpu:
        data, x, w = case.on(case.X, backend="cuda"), gpu.asarray(case.x), gpu.asarray(case.w)
        arguments = case.inner(data), x, gpu.asarray(case.Y.ravel()), which, 5, STEP_SIZE
        found, products = gpu.to_host(coordinates(*arguments)), gpu.to_host(coordinates(*arguments, w))
        y = gpu.asarray(case.Y.ravel()[held])
        part = gpu.to_host(coordinates(case.inner(data.held(held)), x, y, which, 5, STEP_SIZE))
    np.testing.assert_allclose(found, case.derivative(which, 5), rtol=0, atol=NEAR[F64])
    np.testing.assert_allclose(products, found @ case.w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(part, case.derivative(which, 5, held), rtol=0, atol=NEAR[F64])


@pytest.mark.parametrize(
    "which", [[-2], [7], [0.5], [True, False]], ids=["negative", "too large", "a fraction", "a short mask"]
)
def test_coordinates_that_x_does_not_have_are_refused(which) -> None:
    g = Quadratic.random(7, 4, 10.0, 0)
    with pytest.raises(ValueError, match="which: expected"):
        coordinates(g.inner(), np.ones(7), np.ones(4), which, 3, 0.1)
