"""Submodels: the full model with zeros at the coordinates not held, at the cost of those that are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_shim import ORDERS, Shim
from hypothesis import given, settings
from hypothesis import strategies as st
from test_regression import (
    F32,
    F64,
    LAYOUTS,
    PAIRS,
    U8,
    Case,
    Plain,
    answers,
    assert_close,
    assert_same_bits,
    batches,
    patient,
    single,
)

from fbompi import kernels
from fbompi.bench import timing
from fbompi.kernels.cpu import regression
from fbompi.kernels.cuda.device import Device, using
from fbompi.kernels.regression import Masked, Regression

AS_IT_COMES = regression.DENSE_ENOUGH


@pytest.fixture(scope="module", autouse=True, params=[0.0, 2.0], ids=["compact", "turned"])
def engine(request):
    """Both engines for submodels answer everything; which one does is decided by the density of the mask."""
    regression.DENSE_ENOUGH = request.param
    yield
    regression.DENSE_ENOUGH = AS_IT_COMES


MASKS = ["all", "half", "one in sixteen", "one", "whole features", "whole outputs", "all but the bias"]
cases = st.fixed_dictionaries(
    {
        # A block has 16 to 128 rows, by the type of the numbers and the width of the machine's registers.
        "rows": st.integers(1, 40) | st.sampled_from([64, 127, 129, 300]),
        "features": st.integers(1, 40) | st.just(401),
        "outputs": st.integers(1, 12),
        "pair": st.sampled_from(PAIRS),
        "loss": st.sampled_from(["softmax", "softmax", "logistic"]),
        "bias": st.booleans(),
        "seed": st.integers(0, 10_000),
    }
)
small_exact_cases = cases.map(
    lambda case: {
        **case,
        "features": case["features"] % 6 + 1,
        "outputs": case["outputs"] % 4 + 1,
        "pair": (F64, F64),
    }
)
masks = st.sampled_from(MASKS)


class Submodel(Case):
    """A case of which coordinates h are held: Y and V are zero elsewhere, `y` and `v` are what is held of them."""

    def __init__(self, mask: str = "half", **size: Any) -> None:
        super().__init__(**size)
        self.h = self.chosen(mask)
        self.y, self.v = self.Y.ravel()[self.h], self.V.ravel()[self.h]
        self.Y, self.V = self.scattered(self.y), self.scattered(self.v)
        self.part = self.data.held(self.h)

    def chosen(self, mask: str) -> np.ndarray:
        """Coordinates of the flat model, one at least."""
        size, width, features = self.Y.size, self.width, self.X.shape[1]
        if mask in ("half", "one in sixteen", "one"):
            count = {"half": (size + 1) // 2, "one in sixteen": -(-size // 16), "one": 1}[mask]
            return np.sort(self.rng.choice(size, count, replace=False))
        held = np.zeros((self.outputs, width), bool)
        if mask == "whole features":
            held[:, self.rng.choice(width, (width + 1) // 2, replace=False)] = True
        elif mask == "whole outputs":
            held[self.rng.choice(self.outputs, (self.outputs + 1) // 2, replace=False)] = True
        else:
            held[:, : width if mask == "all" else features] = True
        return np.flatnonzero(held)

    def scattered(self, held: np.ndarray) -> np.ndarray:
        """Held coordinates, of one model or several, at their places in the full ones."""
        full = np.zeros((*held.shape[:-1], self.Y.size))
        full[..., self.h] = held
        return full.reshape(*held.shape[:-1], *self.Y.shape)

    def gathered(self, full: np.ndarray) -> np.ndarray:
        return full.reshape(*full.shape[:-2], self.Y.size)[..., self.h]

    @property
    def near(self) -> float:
        return 1e-12 if self.real == F64 else 3e-5


@patient
@given(cases, masks, batches, st.booleans(), st.sampled_from(["none", "scalar", "array"]))
def test_a_submodel_is_the_model_with_zeros_elsewhere(size, mask, kind, weighted, ridges) -> None:
    case = Submodel(mask, **size)
    batch = case.batch(kind)
    weights = case.weights if batch is None else case.weights[batch]
    weights = weights if weighted else None
    full_ridge = {"none": 0.0, "scalar": 0.3, "array": case.ridge}[ridges]
    ridge = case.gathered(case.ridge) if ridges == "array" else full_ridge
    point, plain = case.part.at(case.y, batch), Plain(case, batch, weights, full_ridge)
    gradient = point.gradient(weights, ridge)
    assert_close(gradient, case.gathered(plain.gradient()), case.near, "gradient")
    np.testing.assert_array_equal(point.gradient(weights, ridge), gradient)  # from the probabilities that were kept
    assert_close(point.losses, plain.losses, case.near, "losses")
    assert_close(point.probabilities, plain.P, case.near, "probabilities")
    assert_close(point.value(weights, ridge), plain.value(), case.near, "value")
    assert_close(point.hvp(case.v, weights, ridge), case.gathered(plain.hvp(case.V)), case.near, "hvp")
    assert_close(point.along(case.v), plain.along(case.V), case.near, "along")
    assert point.probabilities.dtype == case.real
    assert gradient.dtype == point.hvp(case.v).dtype == point.along(case.v).dtype == point.losses.dtype == F64


@patient
@given(cases, masks, batches)
def test_iterations_stay_in_the_submodel(size, mask, kind) -> None:
    """They are those of the Hessian's held rows and columns, not the held part of the full model's iterations."""
    case = Submodel(mask, **size)
    batch = case.batch(kind)
    point, plain = case.part.at(case.y, batch), Plain(case, batch, None, 0.1)

    def step(v: np.ndarray, b: np.ndarray, size: float) -> np.ndarray:
        return v - size * (case.gathered(plain.hvp(case.scattered(v))) - b)

    neumann = case.v / 2
    for _ in range(3):
        neumann = step(neumann, case.v, 1 / 2)
    assert_close(point.neumann(case.v, 4, 2.0, ridge=0.1), neumann, case.near)
    moved = step(step(case.y, case.v, 0.3), case.v, 0.3)
    assert_close(point.fixed_point(case.y, case.v, 0.3, 2, ridge=0.1), moved, case.near)


@patient
@given(small_exact_cases, masks)
def test_the_hessian_is_the_held_rows_and_columns_and_neumann_tends_to_its_inverse(size, mask) -> None:
    case = Submodel(mask, **size)
    size_y, held = case.Y.size, len(case.h)
    whole = case.data.at(case.Y).hvp(np.eye(size_y).reshape(size_y, *case.Y.shape), case.weights, 0.5)
    point = case.part.at(case.y)
    H = point.hvp(np.eye(held), case.weights, 0.5)
    assert_close(H, whole.reshape(size_y, size_y)[np.ix_(case.h, case.h)], 1e-12)
    smoothness = np.linalg.eigvalsh(H)[-1]
    found = point.neumann(case.v, int(30 * smoothness / 0.5), smoothness, case.weights, 0.5)
    assert_close(found, np.linalg.solve(H, case.v), 1e-11)


@patient
@given(cases)
def test_holding_everything_is_the_model_itself(size) -> None:
    case = Submodel("all", **size)
    found = answers(case.part.at(case.y), case.v, case.weights)
    expected = answers(case.data.at(case.Y), case.V, case.weights)
    for name in ("losses", "probabilities", "value", "along"):
        assert_close(found[name], expected[name], case.near, name)
    for name in ("gradient", "hvp", "neumann", "fixed_point"):
        assert_close(found[name], case.gathered(expected[name]), case.near, name)


@patient
@given(cases, masks, st.integers(0, 4))
def test_several_directions_are_as_one_by_one(size, mask, k) -> None:
    case = Submodel(mask, **size)
    V = case.gathered(case.model(k))
    point = case.part.at(case.y)
    together, alone = answers(point, V, case.weights), [answers(point, v, case.weights) for v in V]
    for name in ("hvp", "along", "neumann", "fixed_point"):
        assert together[name].shape == (k, len(case.X) if name == "along" else len(case.h))
        for q in range(k):
            np.testing.assert_array_equal(together[name][q], alone[q][name], err_msg=name)


@patient
@given(cases, masks, st.integers(1, 4), batches, st.booleans())
def test_gradients_of_many_copies_are_as_one_by_one(size, mask, k, kind, own_weights) -> None:
    case = Submodel(mask, **size)
    batch, Y = case.batch(kind), case.gathered(case.model(k))
    weights = single(case.rng.uniform(0, 1, (k if own_weights else 1, case.data.count(batch))))
    found = case.part.gradients(Y, weights if own_weights else weights[0], batch)
    assert found.shape == Y.shape
    for q in range(k):
        alone = case.part.at(Y[q], batch).gradient(weights[q if own_weights else 0])
        np.testing.assert_array_equal(found[q], alone)


@patient
@given(cases, masks, st.sampled_from(sorted(LAYOUTS)))
def test_bits_do_not_depend_on_how_the_rows_are_stored_or_named(size, mask, layout) -> None:
    case = Submodel(mask, **size)
    part = case.on(LAYOUTS[layout](case.X)).held(case.h)
    expected = answers(case.part.at(case.y), case.v, case.weights)
    assert_same_bits(answers(part.at(case.y), case.v, case.weights), expected)
    assert_same_bits(answers(part.at(case.y, np.arange(len(case.X))), case.v, case.weights), expected)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_bits_do_not_depend_on_the_number_of_threads(pair, loss) -> None:
    case = Submodel(rows=4 * 2048 + 5, features=13, outputs=4, pair=pair, loss=loss)
    batch = case.rng.integers(0, len(case.X), 3 * 2048 + 1)
    one, *others = (case.on(case.X, threads=threads).held(case.h) for threads in (1, 2, 3))
    copies = case.gathered(case.model(3))
    for rows in (None, batch):
        expected = answers(one.at(case.y, rows), case.v)
        for part in others:
            assert_same_bits(answers(part.at(case.y, rows), case.v), expected)
            np.testing.assert_array_equal(part.gradients(copies, None, rows), one.gradients(copies, None, rows))
    plain = Plain(case, None, None, 0.1)
    assert_close(one.at(case.y).gradient(ridge=0.1), case.gathered(plain.gradient()), case.near)


@patient
@given(cases.filter(lambda case: case["pair"][0] != U8), masks, st.integers(0, 99))
def test_features_that_are_not_held_are_not_read(size, mask, seed) -> None:
    case = Submodel(mask, **size)
    unread = np.setdiff1d(np.arange(case.X.shape[1]), case.h % case.width)
    X = case.X.copy()
    X[:, unread] = np.random.default_rng(seed).choice([np.nan, np.inf, 1e30], (len(X), len(unread)))
    found = answers(case.on(X).held(case.h).at(case.y), case.v, case.weights)
    assert_same_bits(found, answers(case.part.at(case.y), case.v, case.weights))


@patient
@given(cases.filter(lambda case: case["pair"][0] != U8 and (case["outputs"] > 1 or case["loss"] == "logistic")))
def test_nan_in_a_held_feature_is_never_taken_for_a_number(size) -> None:
    case = Submodel("all but the bias", **size)
    X, row = case.X.copy(), case.rng.integers(len(case.X))
    X[row, case.rng.integers(X.shape[1])] = np.nan
    part = case.on(X).held(case.h)
    found = answers(part.at(case.y), case.v)
    assert np.isnan(found.pop("losses")[row]) and np.isnan(found.pop("probabilities")[row]).all()
    del found["guesses"]
    for name, array in found.items():
        assert np.isnan(array).any(), name
    fine = np.delete(np.arange(len(X)), row)
    expected = answers(case.part.at(case.y, fine), case.v)
    assert_same_bits(answers(part.at(case.y, fine), case.v), expected)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_no_samples_have_no_losses_and_no_derivatives(pair, loss) -> None:
    case = Submodel(pair=pair, loss=loss)
    nothing = Regression(case.X[:0], [], case.outputs, **case.options).held(case.h)
    for point in (case.part.at(case.y, []), nothing.at(case.y)):
        assert point.losses.shape == point.along(case.v).shape == (0,)
        assert point.probabilities.shape == (0, case.outputs)
        assert point.value() == 0.0
        assert not point.gradient().any() and not point.hvp(case.v).any()
        np.testing.assert_array_equal(point.hvp(case.v, ridge=0.5), 0.5 * case.v)
    assert not nothing.gradients(case.gathered(case.model(2)), None).any()


def test_the_only_class_is_certain_whatever_is_held() -> None:
    case = Submodel(outputs=1)
    point = case.part.at(case.y)
    assert (point.probabilities == 1).all() and not point.losses.any()
    assert not point.gradient().any() and not point.hvp(case.v).any() and not point.along(case.v).any()


@pytest.mark.parametrize(("loss", "outputs", "share"), [("softmax", 4, 1 / 4), ("logistic", 1, 1 / 2)])
def test_who_holds_nothing_guesses_blindly(loss, outputs, share) -> None:
    case = Case(loss=loss, outputs=outputs)
    part = case.data.held([])
    for batch in (None, [3, 3, 0], []):
        point = part.at([], batch)
        np.testing.assert_allclose(point.probabilities, share, rtol=1e-15)
        np.testing.assert_allclose(point.losses, -np.log(share), rtol=1e-15)
        assert point.gradient(ridge=0.1).shape == point.neumann([], 3, 2.0).shape == (0,)
        assert point.value(ridge=0.1) == pytest.approx(-np.log(share) if point.n else 0.0)
    assert part.gradients(np.empty((2, 0)), None).shape == (2, 0)


def test_who_holds_nothing_has_products_of_nothing() -> None:
    case = Case()
    point = case.data.held([]).at([])
    assert point.hvp(np.empty(0)).shape == (0,) and point.hvp(np.empty((2, 0))).shape == (2, 0)
    np.testing.assert_array_equal(point.along(np.empty(0)), np.zeros(len(case.X)))
    assert point.along(np.empty((2, 0))).shape == (2, len(case.X))


def test_the_model_and_its_submodels_remember_their_own_points() -> None:
    case = Submodel("all")
    whole = case.data.at(case.Y)
    part = case.data.held(case.h)  # the same numbers make another point: of a vector, not of a matrix
    assert part.at(case.y) is part.at(case.y) is not whole
    assert part.at(case.y).gradient().shape == case.h.shape and case.data.at(case.Y) is whole


@pytest.mark.parametrize(
    "held",
    [[3, 1], [1, 1], [0, 18], [-1, 2], [[0, 1]], np.arange(19)],
    ids=["not rising", "twice", "past the end", "before the beginning", "a matrix", "one too many"],
)
def test_what_is_no_set_of_coordinates_is_refused(held) -> None:
    with pytest.raises(ValueError, match="held: expected coordinates 0 to 17 in rising order, each once"):
        Case().data.held(held)


@pytest.mark.parametrize("held", [[0.7, 1.2], [False, True]], ids=["fractions", "a mask"])
def test_what_are_no_whole_numbers_are_refused(held) -> None:
    with pytest.raises(ValueError, match="held"):
        Case().data.held(held)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda case: case.part.at(case.Y),
        lambda case: case.part.at(case.y[1:]),
        lambda case: case.part.at(case.y).hvp(case.V),
        lambda case: case.part.at(case.y).along(case.v[1:]),
    ],
)
def test_models_of_another_size_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="expected a model of"):
        wrong(Submodel())


# On a GPU


@pytest.fixture(scope="module")
def build(tmp_path_factory: Any) -> Path:
    """A directory for the kernels compiled for the simulated GPU."""
    if shutil.which("g++") is None:
        pytest.skip("the simulated GPU is compiled by g++")
    return tmp_path_factory.mktemp("cuda")


def on_gpu(case: Submodel, X: np.ndarray | None = None) -> Masked:
    return case.on(case.X if X is None else X, backend="cuda").held(case.h)


def brought_back(gpu: Device, found: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: gpu.to_host(array) if kernels.on_gpu(array) else array for name, array in found.items()}


@settings(max_examples=25, deadline=None)
@given(data=st.data(), mask=masks, kind=batches, order=st.sampled_from(ORDERS))
def test_a_gpu_gives_the_same_answers(build, data, mask, kind, order) -> None:
    size = data.draw(cases.filter(lambda case: case["pair"] in ((F64, F64), (U8, F64), (F32, F32))))
    case = Submodel(mask, **size)
    batch, V, Y = case.batch(kind), case.gathered(case.model(3)), case.gathered(case.model(2))
    here = case.part.at(case.y, batch)
    expected = answers(here, case.v) | {"several": here.hvp(V), "copies": case.part.gradients(Y, None, batch)}
    expected["first gradient"] = expected["gradient"]
    with using(Shim(build, order)) as gpu:
        part = on_gpu(case)
        there = part.at(case.y, batch)
        found = {"first gradient": there.gradient(ridge=0.1)} | answers(there, case.v)
        found |= {"several": there.hvp(V), "copies": part.gradients(Y, None, batch)}
        found = brought_back(gpu, found)
    for name in expected.keys() - {"guesses"}:  # equally likely classes: either is right
        assert_close(found[name], expected[name], case.near, name)


def test_rows_that_lie_apart_are_the_same_on_a_gpu(build) -> None:
    case = Submodel(rows=70)
    with using(Shim(build)) as gpu:
        expected = brought_back(gpu, answers(on_gpu(case).at(case.y), case.v))
        for layout in LAYOUTS.values():
            found = answers(on_gpu(case, layout(case.X)).at(case.y), case.v)
            assert_same_bits(brought_back(gpu, found), expected)


def test_features_that_are_not_held_do_not_reach_a_gpu(build) -> None:
    case = Submodel("whole features", rows=70, features=9)
    X = case.X.copy()
    X[:, np.setdiff1d(np.arange(9), case.h % case.width)] = np.nan
    with using(Shim(build)) as gpu:
        found, expected = (brought_back(gpu, answers(on_gpu(case, Z).at(case.y), case.v)) for Z in (X, case.X))
    assert_same_bits(found, expected)


@pytest.mark.parametrize("held", [[], [5], [5, 11]], ids=["nothing", "a bias", "biases"])
def test_without_features_there_are_still_biases_on_a_gpu(build, held) -> None:
    case = Case()
    y = np.ones(len(held))
    here = case.data.held(held).at(y)
    with using(Shim(build)) as gpu:
        there = case.on(case.X, backend="cuda").held(held).at(y)
        found = brought_back(gpu, answers(there, y))
    for name, array in answers(here, y).items():
        assert_close(found[name], array, 1e-13, name)


def test_no_directions_have_no_products_on_a_gpu(build) -> None:
    case = Submodel()
    with using(Shim(build)):
        assert on_gpu(case).at(case.y).hvp(np.empty((0, len(case.h)))).shape == (0, len(case.h))


# Cost

ATTEMPTS = 5  # what others do to the machine meanwhile only blurs the ratios


def cost_of_products(repeats: int = 9) -> timing.Case:
    """One product at 12,000 × 784 × 10 in float64: the dense one, and with fewer and fewer coordinates held."""
    rng = np.random.default_rng(0)
    rows, features, outputs = 12_000, 784, 10
    size = outputs * features
    labels = rng.integers(0, outputs, rows)
    data = Regression(rng.random((rows, features)), labels, outputs, threads=1)
    Y, V = 0.1 * rng.standard_normal((2, size))
    chosen = {f"1/{k}": np.sort(rng.choice(size, size // k, replace=False)) for k in (1, 2, 4, 8, 16)}
    some = np.sort(rng.choice(features, features // 16, replace=False))
    chosen["1/16, whole features"] = (np.arange(outputs)[:, None] * features + some).ravel()

    def product(data: Regression, y: np.ndarray, v: np.ndarray) -> Any:
        point = data.at(y)
        assert point.losses.all()  # the forward pass is done before the clock runs
        return lambda: point.hvp(v)

    contestants = {"dense": product(data, Y, V)}
    contestants |= {name: product(data.held(h), Y[h], V[h]) for name, h in chosen.items()}
    return timing.Case("hessian product", "12000x784x10", 1, timing.in_turn(contestants, repeats))


@pytest.mark.slow
@pytest.mark.alone
def test_the_cost_of_a_product_falls_with_the_coordinates_held(monkeypatch) -> None:
    """In proportion for whole features; where coordinates are random, half of all features are still held at 1/16."""
    monkeypatch.setattr(regression, "DENSE_ENOUGH", AS_IT_COMES)

    def falls() -> bool:
        case = cost_of_products()
        few, whole = (case.ratio(name, to="dense")[0] for name in ("1/16", "1/16, whole features"))
        never_worse = all(case.ratio(f"1/{k}", to="dense")[0] <= 1.15 for k in (1, 2, 4, 8))
        return never_worse and few <= 0.55 and whole <= 0.25

    assert any(falls() for _ in range(ATTEMPTS))
