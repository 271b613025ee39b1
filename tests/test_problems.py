"""Every problem on real data: its objectives in plain NumPy, its oracles against finite differences, its dealing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fbompi.data.importing import find, import_set
from fbompi.data.store import open_set
from fbompi.errors import UserError
from fbompi.kernels.spectrum import largest_eigenvalue
from fbompi.problem import Oracles, blocks, missing_parts, native_oracles
from fbompi.problems.datacleaning import DataCleaning
from fbompi.problems.fewshot import ADAPTING_STEPS, FewShot
from fbompi.problems.hypercleaning import HyperCleaning
from fbompi.problems.hyperrep import HyperRepresentation
from fbompi.problems.quadratic import Quadratic
from fbompi.problems.regcoef import RegularisationCoefficients
from fbompi.problems.scores import area_under_roc
from fbompi.problems.vsloss import VsLoss
from fbompi.randomness import stream

pytestmark = pytest.mark.filterwarnings("ignore:the VS loss as the upper objective")
Array = np.ndarray


class Case(NamedTuple):
    """A problem, how many clients share it, and which of them is looked at."""

    problem: Callable[..., Any]
    keys: dict[str, Any]
    clients: int = 6
    client: int = 2

    def make(self, **more: Any) -> Any:
        return self.problem(**self.keys, **more)


def on(problem: Callable[..., Any], data: str, **keys: Any) -> Case:
    return Case(problem, {"data": data, "train": 120, "validation": 60, "test": 90, **keys})


def tasks(data: str, ways: int, **keys: Any) -> Case:
    sizes = {"queries": 3, "tasks": 12, "test_tasks": 5, "hidden": 6}
    return Case(FewShot, {"data": data, "ways": ways, **sizes, **keys}, clients=2, client=1)


CASES = {
    "quadratic": Case(Quadratic, {"dim_x": 4, "dim_y": 7, "noise": 0.3}),
    "hypercleaning digits": on(HyperCleaning, "digits"),
    "hypercleaning digits sorted": on(HyperCleaning, "digits", partition="sorted"),
    "hypercleaning mnist": on(HyperCleaning, "mnist"),
    "hyperrep digits": on(HyperRepresentation, "digits", hidden=9),
    "hyperrep mnist": on(HyperRepresentation, "mnist", hidden=5, partition="classes"),
    "datacleaning mnist mlp": on(DataCleaning, "mnist", model="mlp", hidden=5, weighting="clipped"),
    "fewshot mnist": tasks("mnist", 3, shots=2),
    "fewshot mnist shared": tasks("mnist", 3, shots=2, heads="shared"),
}
for form, against in product(("exp", "plain"), (-1, 1)):
    kind = f"{form} {'softmax' if against < 0 else 'logistic'}"
    CASES[f"regcoef digits {kind}"] = on(RegularisationCoefficients, "digits", form=form, against=against)
    CASES[f"regcoef covtype {kind}"] = on(RegularisationCoefficients, "covtype", form=form, against=against)
for model, weighting in product(("linear", "mlp"), ("sigmoid", "clipped")):
    keys = {"model": model, "weighting": weighting, "hidden": 5, "partition": "classes"}
    CASES[f"datacleaning cifar10 {model} {weighting}"] = on(DataCleaning, "cifar10", **keys)
for model, objective in product(("linear", "mlp"), ("balanced", "printed")):
    keys = {"model": model, "objective": objective, "hidden": 5}
    for data in ("mnist", "cifar10"):
        CASES[f"vsloss {data} {model} {objective}"] = on(VsLoss, data, **keys)
for heads, shots in product(("task", "shared"), (1, 5)):
    CASES[f"fewshot omniglot {heads} {shots}-shot"] = tasks("omniglot", 5, shots=shots, heads=heads)

SLOW = ("cifar10", "omniglot")  # sets that take long to import


def marked(names: list[str]) -> list[Any]:
    return [pytest.param(n, marks=[pytest.mark.slow] if any(s in n for s in SLOW) else []) for n in names]


@cache
def built(name: str, **more: Any) -> Oracles:
    case = CASES[name]
    problem = case.make(**more)
    return Oracles(problem, problem.shard(case.client, case.clients))


class Scene(NamedTuple):
    """One client's oracles, its part of x, and points at random."""

    name: str
    case: Case
    oracles: Oracles
    block: slice

    @property
    def problem(self) -> Any:
        return self.oracles.problem

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = self.problem.start(rng)
        return x[self.block], y

    def points(self) -> tuple[Array, Array, Array, Array]:
        """x and y near a start, with x where the problem keeps it, and a direction in each."""
        rng = np.random.default_rng(1)
        x, y = self.start(rng)
        x, y = x + 0.3 * rng.standard_normal(x.size), y + 0.3 * rng.standard_normal(y.size)
        if hasattr(self.problem, "project_x"):
            x = self.problem.project_x(x)
        return x, y, rng.standard_normal(x.size), rng.standard_normal(y.size)


def scene_of(name: str, real_data: Callable[[str], str]) -> Scene:
    case = CASES[name]
    data = case.keys.get("data", "digits")
    if data != "digits":
        real_data(data)
    oracles = built(name)
    return Scene(name, case, oracles, blocks(oracles.problem, case.clients)[case.client])


@pytest.fixture(params=marked(list(CASES)))
def scene(request: pytest.FixtureRequest, real_data: Callable[[str], str]) -> Scene:
    return scene_of(request.param, real_data)


def slope(function: Callable[[Array], Any], at: Array, along: Array, step: float = 1e-6) -> Any:
    return (function(at + step * along) - function(at - step * along)) / (2 * step)


def close(found: Array, wanted: Array, by: float) -> None:
    """Two vectors agree but for a part of the larger one's norm."""
    assert np.linalg.norm(found - wanted) <= by * np.linalg.norm(wanted) + 1e-9


BATCHES = {"whole shard": None, "batch": np.array([3, 0, 3, 5])}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_gradients_and_products_are_derivatives(scene: Scene, batch: Array | None) -> None:
    o, (x, y, u, v) = scene.oracles, scene.points()
    grad_x, grad_y = o.upper_grad(x, y, batch)
    assert grad_x @ u == pytest.approx(slope(lambda z: o.upper(z, y, batch), x, u), rel=1e-6, abs=1e-8)
    assert grad_y @ v == pytest.approx(slope(lambda z: o.upper(x, z, batch), y, v), rel=1e-6, abs=1e-8)
    lower_grad, lower_grad_x = o.lower_grad(x, y, batch), o.lower_grad_x(x, y, batch)
    assert lower_grad @ v == pytest.approx(slope(lambda z: o.lower(x, z, batch), y, v), rel=1e-6, abs=1e-8)
    assert lower_grad_x @ u == pytest.approx(slope(lambda z: o.lower(z, y, batch), x, u), rel=1e-6, abs=1e-8)
    hvp, cross = o.hvp(x, y, v, batch), o.cross(x, y, v, batch)
    close(hvp, slope(lambda z: o.lower_grad(x, z, batch), y, v), 1e-6)
    close(cross, slope(lambda z: o.lower_grad_x(x, z, batch), y, v), 1e-6)
    assert cross @ u == pytest.approx(slope(lambda z: o.lower_grad(z, y, batch) @ v, x, u), rel=1e-5, abs=1e-7)


def test_hessians_are_symmetric(scene: Scene) -> None:
    o, (x, y, _, v) = scene.oracles, scene.points()
    other = np.random.default_rng(3).standard_normal(v.size)
    assert other @ o.hvp(x, y, v) == pytest.approx(v @ o.hvp(x, y, other), rel=1e-9, abs=1e-11)


def test_batches_average_to_the_shard(scene: Scene) -> None:
    o, (x, y, _, v) = scene.oracles, scene.points()
    lower = (
        o.lower,
        o.lower_grad,
        o.lower_grad_x,
        lambda x, y, b: o.hvp(x, y, v, b),
        lambda x, y, b: o.cross(x, y, v, b),
    )
    upper = (o.upper, lambda x, y, b: np.concatenate(o.upper_grad(x, y, b)))
    for oracles, n in ((lower, o.lower_size), (upper, o.upper_size)):
        for of in oracles:
            singles = np.mean([of(x, y, np.array([j])) for j in range(n)], axis=0)
            np.testing.assert_allclose(singles, of(x, y, None), rtol=1e-9, atol=1e-11)


def test_oracles_leave_their_arguments_alone(scene: Scene) -> None:
    o, arrays = scene.oracles, [*scene.points()[:2], scene.points()[3]]
    for array in arrays:
        array.flags.writeable = False
    x, y, v = arrays
    for batch in BATCHES.values():
        for of in (o.upper, o.lower, o.upper_grad, o.lower_grad, o.lower_grad_x):
            of(x, y, batch)
        o.hvp(x, y, v, batch)
        o.cross(x, y, v, batch)
        first, again = (o.lower_grad(x, y, batch) for _ in range(2))
        assert first is not again and first.flags.writeable
        np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", marked([name for name in CASES if name != "quadratic"]))
def test_float32_agrees_with_float64(name: str, real_data: Callable[[str], str]) -> None:
    scene = scene_of(name, real_data)
    whole, half, (x, y, _, v) = scene.oracles, built(name, dtype="float32"), scene.points()
    for batch in BATCHES.values():
        assert half.upper(x, y, batch) == pytest.approx(whole.upper(x, y, batch), rel=1e-5)
        assert half.lower(x, y, batch) == pytest.approx(whole.lower(x, y, batch), rel=1e-5)
        for a, b in zip(half.upper_grad(x, y, batch), whole.upper_grad(x, y, batch)):
            close(a, b, 1e-4)
        close(half.lower_grad(x, y, batch), whole.lower_grad(x, y, batch), 1e-4)
        close(half.lower_grad_x(x, y, batch), whole.lower_grad_x(x, y, batch), 1e-4)
        close(half.hvp(x, y, v, batch), whole.hvp(x, y, v, batch), 1e-4)
        close(half.cross(x, y, v, batch), whole.cross(x, y, v, batch), 1e-4)
    assert half.smoothness(x, y) == pytest.approx(whole.smoothness(x, y), rel=1e-3)


def extremes(apply: Callable[[Array], Array], size: int) -> tuple[float, float]:
    """Rayleigh quotients near the smallest and the largest eigenvalue, from inside."""
    v, top = np.random.default_rng(5).standard_normal(size), 0.0
    for _ in range(40):
        v /= np.linalg.norm(v)
        product = apply(v)
        top, v = float(v @ product), product
    v, shift, low = np.random.default_rng(6).standard_normal(size), 1.05 * top, np.inf
    for _ in range(40):
        v /= np.linalg.norm(v)
        product = apply(v)
        low, v = min(low, float(v @ product)), shift * v - product
    return low, top


def is_network(problem: Any) -> bool:
    return getattr(problem, "model", "") == "mlp"


def strong_convexity(problem: Any, x: Array) -> float:
    """What the lower problem claims."""
    if problem.name == "quadratic":
        return 1 / problem.condition
    if problem.name == "regcoef":
        return 2 * problem.coefficients(x)[0].min()
    return problem.penalty if problem.name == "fewshot" else problem.ridge


def test_the_hessian_lies_between_strong_convexity_and_smoothness(scene: Scene) -> None:
    """At random points; where both layers are in y it is only claimed, and only from above, for a random start."""
    problem, o, (x, y, _, _) = scene.problem, scene.oracles, scene.points()
    if is_network(problem):
        x, y = scene.start(stream(problem.seed, "start"))
        norm = largest_eigenvalue(lambda v: o.hvp(x, y, v), np.random.default_rng(0).standard_normal(y.size), margin=1)
        assert norm <= o.smoothness(x, y)
        return
    if problem.name in ("hyperrep", "fewshot"):  # the bound is for the activations of a start
        x, _ = problem.start(stream(problem.seed, "start"))
    for far in (0.0, 0.3, 3.0):
        low, top = extremes(lambda v, y=far * y: o.hvp(x, y, v), y.size)
        assert strong_convexity(problem, x) * (1 - 1e-9) <= low <= top <= o.smoothness(x, y)


@pytest.mark.parametrize(
    ("problem", "x"),
    [
        (RegularisationCoefficients(largest=50.0), np.log(50.0)),
        (RegularisationCoefficients(largest=50.0, form="plain", against=3), 50.0),
        (HyperCleaning(ridge=20.0), 40.0),
        (DataCleaning(ridge=20.0, weighting="clipped"), 1.0),
        (VsLoss(ridge=20.0), 2.0),
    ],
    ids=["regcoef exp", "regcoef plain", "hypercleaning", "datacleaning", "vsloss"],
)
def test_smoothness_is_a_bound_where_x_is_largest(problem: Any, x: float) -> None:
    """With penalties and weights so large that the bound fails unless it has all of them."""
    shard, block = problem.shard(0, 4), blocks(problem, 4)[0]
    at, y = np.full(block.stop - block.start, x), np.zeros(problem.dim_y)
    _, top = extremes(lambda v: problem.hvp(shard, at, y, v, None), y.size)
    assert problem.smoothness(shard) / 8 <= top <= problem.smoothness(shard)


def test_the_smoothness_of_the_vs_loss_is_reached_where_two_classes_share_all_probability() -> None:
    problem, y = VsLoss(bound=4.0), np.zeros(650)
    x = problem.project_x(np.concatenate([np.full(10, 9.0), [9, 9] + [-9] * 8, np.full(10, 9.0)]))
    shard = problem.shard(0, 4)
    _, top = extremes(lambda v: problem.hvp(shard, x, y, v, None), y.size)
    assert 0.8 * problem.smoothness(shard) <= top <= problem.smoothness(shard)


def test_every_problem_offers_all_oracles_itself(scene: Scene) -> None:
    assert missing_parts(scene.problem) == []
    assert native_oracles(scene.problem) == ["lower_grad_x", "hvp", "cross", "smoothness"]


# The objectives, in plain NumPy


def scaled(problem: Any, part: str, which: Array) -> Array:
    """Features as numbers: images by the moments of all pixels, other data by those of every feature."""
    s = problem.set
    rows = s.rows(part, which).astype(np.float64)
    if not s.largest:
        return (rows - s.mean) / np.where(s.deviation > 0, s.deviation, 1)
    mean = s.mean.mean() / s.largest
    variance = (s.deviation**2 + s.mean**2).mean() / s.largest**2 - mean**2
    return (rows / s.largest - mean) / (np.sqrt(variance) if problem.scaling == "standard" else 1)


def layer(weights: Array, outputs: int, inputs: Array) -> Array:
    W = weights.reshape(outputs, -1)
    return inputs @ W[:, :-1].T + W[:, -1]


def scores(problem: Any, X: Array, x: Array, y: Array) -> Array:
    outputs = getattr(problem, "outputs", 0) or getattr(problem, "ways", 0) or problem.classes
    if problem.name in ("hyperrep", "fewshot"):
        return layer(y, outputs, np.maximum(layer(x, problem.hidden, X), 0))
    if is_network(problem):
        first = problem.hidden * (X.shape[1] + 1)
        return layer(y[first:], outputs, np.maximum(layer(y[:first], problem.hidden, X), 0))
    return layer(y, outputs, X)


def cross_entropy(S: Array, labels: Array) -> Array:
    if S.shape[1] == 1:  # logistic
        return np.log1p(np.exp(-np.where(labels == 1, S[:, 0], -S[:, 0])))
    return np.log(np.exp(S - S.max(axis=1, keepdims=True)).sum(axis=1)) + S.max(axis=1) - S[range(len(S)), labels]


def guessed(S: Array) -> Array:
    return (S[:, 0] > 0).astype(int) if S.shape[1] == 1 else S.argmax(axis=1)


def own_labels(problem: Any, part: str, which: Array) -> Array:
    labels = problem.set.labels(part)[which]
    return labels if getattr(problem, "against", -1) < 0 else (labels == problem.against).astype(int)


def objectives(scene: Scene, x: Array, y: Array, batch: Array | None) -> tuple[float, float]:
    """(f_i, g_i) of the papers, on the samples that this client was dealt."""
    problem, clients, pick = scene.problem, scene.case.clients, slice(None) if batch is None else batch
    if problem.name == "fewshot":
        return few_shot_objectives(scene, x, y, batch)
    part = problem.parts(clients)[scene.case.client]
    train, validation = part.train[pick], part.validation[pick]
    labels = own_labels(problem, "train", problem.drawn)
    given = problem.given_labels(clients) if hasattr(problem, "given_labels") else labels
    S = scores(problem, scaled(problem, "train", problem.drawn[train]), x, y)
    T = scores(problem, scaled(problem, "train", problem.drawn[validation]), x, y)
    losses, f = cross_entropy(S, given[train]), cross_entropy(T, labels[validation]).mean()
    if problem.name in ("hypercleaning", "datacleaning"):
        weights = x[pick] if getattr(problem, "weighting", "") == "clipped" else 1 / (1 + np.exp(-x[pick]))
        return f, (weights * losses).mean() + 0.5 * problem.ridge * y @ y
    if problem.name == "regcoef":
        c = np.exp(x) if problem.form == "exp" else x
        return f, losses.mean() + (c * y.reshape(problem.outputs, -1) ** 2).sum()
    if problem.name == "hyperrep":
        return f, losses.mean() + 0.5 * problem.ridge * y @ y
    w, l, delta = x.reshape(3, -1)
    g = (w[labels[train]] * cross_entropy(delta * S + l, labels[train])).mean() + 0.5 * problem.ridge * y @ y
    if problem.objective == "printed":
        return (w[labels[validation]] * cross_entropy(delta * T + l, labels[validation])).mean(), g
    everyone = labels[np.concatenate([p.validation for p in problem.parts(clients)])]
    held = np.bincount(everyone, minlength=problem.classes)
    weigh = clients * len(part.validation) / (np.count_nonzero(held) * held[labels[validation]])
    return (weigh * cross_entropy(T, labels[validation])).mean(), g


def few_shot_objectives(scene: Scene, x: Array, y: Array, batch: Array | None) -> tuple[float, float]:
    problem, shard, means = scene.problem, scene.oracles.shard, []
    for samples in (shard.query, shard.support):
        X, labels = (a.reshape(samples.count, -1, *a.shape[1:]) for a in (samples.network.X, samples.network.labels))
        values = [
            cross_entropy(scores(problem, X[t] / 255, x, y[shard.heads[t]]), labels[t]).mean()
            for t in (range(samples.count) if batch is None else batch)
        ]
        means.append(np.mean(values))
    return means[0], means[1] + 0.5 * problem.ridge * y @ y / (problem.tasks if problem.heads == "task" else 1)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", marked([name for name in CASES if name != "quadratic"]))
def test_objectives_are_those_of_the_paper(name: str, batch: Array | None, real_data: Callable[[str], str]) -> None:
    scene = scene_of(name, real_data)
    x, y, _, _ = scene.points()
    f, g = objectives(scene, x, y, batch)
    assert scene.oracles.upper(x, y, batch) == pytest.approx(f, rel=1e-10)
    assert scene.oracles.lower(x, y, batch) == pytest.approx(g, rel=1e-10)


def test_images_are_scaled_by_the_moments_of_all_pixels(real_data: Callable[[str], str]) -> None:
    keys = {"data": real_data("mnist"), "train": 60, "validation": 30, "test": 30}
    coding = HyperRepresentation(scaling="standard", **keys).coding
    assert 1 / (255 * coding["scale"]) == pytest.approx(0.3081, abs=5e-5)  # the published deviation, and the mean
    assert -coding["shift"] / (255 * coding["scale"]) == pytest.approx(0.1307, abs=5e-5)
    assert HyperRepresentation(scaling="unit", **keys).coding == {"scale": 1 / 255, "shift": 0.0}
    assert HyperRepresentation(scaling="features", **keys).coding == {"scale": 1.0, "shift": 0.0}
    for scaling in ("unit", "centred", "standard", "features"):
        problem = HyperRepresentation(**{**keys, "data": "digits", "train": 900, "scaling": scaling})
        X = problem.training_rows(np.arange(930)) * problem.coding["scale"] + problem.coding["shift"]
        images = open_set("digits").rows("train", np.arange(1797)) / 16
        if scaling == "features":
            deviation = np.where(images.std(axis=0) > 0, images.std(axis=0), 1)
            wanted = (images - images.mean(axis=0)) / deviation
        else:
            wanted = images - (scaling != "unit") * images.mean()
            wanted = wanted / images.std() if scaling == "standard" else wanted
        np.testing.assert_allclose(X, wanted[problem.drawn], atol=1e-12)


def test_covertype_features_have_mean_0_and_deviation_1(real_data: Callable[[str], str]) -> None:
    problem = RegularisationCoefficients(data=real_data("covtype"), train=20_000, test=100)
    X = problem.training_rows(np.arange(20_300))
    often = (
        problem.set.mean * 20_000 * (problem.set.mean < 1) >= 400
    )  # columns of ones and zeros, where there are enough
    often |= problem.set.mean > 1
    assert often.sum() > 20 and np.abs(X.mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(X.std(axis=0)[often], 1, atol=0.1)


# Metrics


def totals(problem: Any, clients: int, x: Array, y: Array) -> dict[str, float]:
    """Every metric over all clients, each with its own part of x."""
    sums: dict[str, Array] = {}
    for client, block in enumerate(blocks(problem, clients)):
        for name, pair in problem.metrics(problem.shard(client, clients), x[block], y).items():
            sums[name] = sums.get(name, 0) + np.array(pair)
    assert set(sums) == set(problem.metric_meanings)
    return {name: total / weight for name, (total, weight) in sums.items()}


@pytest.mark.parametrize("name", marked([n for n in CASES if n != "quadratic" and "fewshot" not in n]))
@pytest.mark.parametrize("few", [False, True], ids=["", "some clients without test samples"])
def test_metrics_are_those_of_all_test_samples(name: str, few: bool, real_data: Callable[[str], str]) -> None:
    problem, case, clients = scene_of(name, real_data).problem, CASES[name], 6
    if few:
        problem = case._replace(keys={**case.keys, "test": 4}).make()
        assert min(len(part.test) for part in problem.parts(clients)) == 0
    rng = np.random.default_rng(2)
    x, y = problem.start(rng)
    x, y = x + 0.2 * rng.standard_normal(x.size), y + 0.1 * rng.standard_normal(y.size)
    if hasattr(problem, "project_x"):
        x = problem.project_x(x)
    found = totals(problem, clients, x, y)
    labels = own_labels(problem, problem.test_part, problem.for_test)
    guesses = guessed(scores(problem, scaled(problem, problem.test_part, problem.for_test), x, y))
    assert found["accuracy"] == pytest.approx((guesses == labels).mean())
    if problem.name == "vsloss":
        recalls = [(guesses[labels == k] == k).mean() for k in set(labels)]
        assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    if problem.name == "regcoef":
        c = np.exp(x) if problem.form == "exp" else x
        assert found["coefficient"] == pytest.approx(np.prod(c ** (1 / c.size)))
    if hasattr(problem, "given_labels"):
        held = np.concatenate([part.train for part in problem.parts(clients)])
        wrong = (problem.given_labels(clients) != own_labels(problem, "train", problem.drawn))[held]
        weights = x if getattr(problem, "weighting", "") == "clipped" else 1 / (1 + np.exp(-x))
        assert found["weight_corrupted"] == pytest.approx(weights[wrong].mean())
        assert found["weight_clean"] == pytest.approx(weights[~wrong].mean())
        pairs = x[~wrong][:, None] - x[wrong]
        assert problem.exact(x, y, clients)["auc"] == pytest.approx((np.sign(pairs) / 2 + 0.5).mean())


@pytest.mark.parametrize("name", marked([name for name in CASES if "fewshot" in name]))
def test_few_shot_accuracy_is_that_of_heads_trained_on_new_tasks(name: str, real_data: Callable[[str], str]) -> None:
    problem = scene_of(name, real_data).problem
    clients, hidden, ways = 2, problem.hidden, problem.ways
    x, y = problem.start(np.random.default_rng(3))
    right = asked = 0
    for client in range(clients):
        shard = problem.shard(client, clients)
        (S, s), (Q, q) = (
            (t.network.X.reshape(t.count, -1, t.network.X.shape[1]) / 255, t.network.labels.reshape(t.count, -1))
            for t in (shard.test_support, shard.test_query)
        )
        for task in range(len(S)):
            A, B = (np.maximum(layer(x, hidden, X[task]), 0) for X in (S, Q))
            A, head = np.column_stack([A, np.ones(len(A))]), np.zeros((ways, hidden + 1))
            step = 1 / (0.5 * 1.1 * np.linalg.eigvalsh(A.T @ A / len(A))[-1] + problem.ridge)
            for _ in range(ADAPTING_STEPS):
                P = np.exp(A @ head.T)
                P /= P.sum(axis=1, keepdims=True)
                head = head - step * ((P - np.eye(ways)[s[task]]).T @ A / len(A) + problem.ridge * head)
            right += (guessed(layer(head, ways, B)) == q[task]).sum()
            asked += len(B)
    assert asked == problem.test_tasks * ways * problem.queries
    assert totals(problem, clients, x, y)["accuracy"] == pytest.approx(right / asked, abs=1.01 / asked)


def test_the_area_under_the_curve_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 6, 50).astype(float), rng.random(50) < 0.4  # with ties
    wanted = np.mean([(a > b) + 0.5 * (a == b) for a in scores[positive] for b in scores[~positive]])
    assert area_under_roc(scores, positive) == pytest.approx(wanted)
    assert np.isnan(area_under_roc(scores, np.ones(50, bool)))


# Who holds what


def test_only_weights_of_samples_are_owned(scene: Scene) -> None:
    problem, clients = scene.problem, scene.case.clients
    owned = blocks(problem, clients)
    if problem.name in ("hypercleaning", "datacleaning"):
        assert [b.stop - b.start for b in owned] == [len(part.train) for part in problem.parts(clients)]
        assert owned[0].start == 0 and owned[-1].stop == problem.dim_x == problem.train
        assert all(a.stop == b.start for a, b in pairwise(owned))
    else:
        assert owned == [slice(0, problem.dim_x)] * clients
    x, y = problem.start(np.random.default_rng(0))
    assert x.shape == (problem.dim_x,) and y.shape == (problem.dim_y,)


@pytest.mark.parametrize("partition", ["iid", "classes", "sorted", "shards", "dirichlet"])
@pytest.mark.parametrize("clients", [1, 7, 18])
def test_every_sample_is_dealt_out_once(partition: Any, clients: int) -> None:
    problem = HyperCleaning(partition=partition, classes_per_client=10 if clients == 1 else 2)
    parts = problem.parts(clients)
    drawn = np.concatenate([np.concatenate([part.train, part.validation]) for part in parts])
    np.testing.assert_array_equal(np.sort(drawn), np.arange(1200))
    np.testing.assert_array_equal(np.sort(np.concatenate([part.test for part in parts])), np.arange(597))
    assert sum(len(part.train) for part in parts) == problem.train == 900
    used = np.concatenate([problem.drawn, problem.for_test])
    np.testing.assert_array_equal(np.sort(used), np.arange(1797))


def test_sorted_clients_see_few_classes() -> None:
    problem = HyperCleaning(partition="sorted")
    for part in problem.parts(18):
        assert len(set(problem.labels[part.train])) <= 3


@pytest.mark.parametrize("clients", [1, 7, 18])
def test_corruption_changes_exactly_the_fraction_asked_for(clients: int) -> None:
    problem = HyperCleaning(corruption=0.25)
    given, true = problem.given_labels(clients), problem.set.labels("train")[problem.drawn]
    assert (given != true).sum() == round(0.25 * 900)
    shards = [problem.shard(c, clients) for c in range(clients)]
    assert sum(shard.corrupted.sum() for shard in shards) == 225
    for part, shard in zip(problem.parts(clients), shards):
        np.testing.assert_array_equal(given[part.validation], true[part.validation])
        np.testing.assert_array_equal(shard.train.labels, given[part.train])
        np.testing.assert_array_equal(shard.corrupted, given[part.train] != true[part.train])


def test_a_shard_does_not_depend_on_who_makes_it_nor_when() -> None:
    """One problem makes its shards in order; of the others, as on ranks of their own, each makes one."""
    whole = HyperCleaning(partition="dirichlet", seed=3)
    for client, shard in enumerate([whole.shard(c, 4) for c in range(4)]):
        alone = HyperCleaning(partition="dirichlet", seed=3).shard(client, 4)
        for part in ("train", "validation", "test"):
            np.testing.assert_array_equal(getattr(shard, part).X, getattr(alone, part).X)
            np.testing.assert_array_equal(getattr(shard, part).labels, getattr(alone, part).labels)
        np.testing.assert_array_equal(shard.corrupted, alone.corrupted)
    other = HyperCleaning(partition="dirichlet", seed=4).shard(0, 4)
    assert other.train.X.shape != whole.shard(0, 4).train.X.shape or (other.train.X != whole.shard(0, 4).train.X).any()


def test_the_table_of_a_dealing_counts_every_sample_by_class() -> None:
    problem = VsLoss(train=20, validation=10, tail=0.3)  # so few that some classes occur in the test alone
    assert problem.labels.max() < 9
    text, tables = problem.dealing(3)
    assert "digits" in text and "seed 0" in text
    found = [int(tables[part].sum()) for part in ("train", "validation", "test")]
    assert found == [20, 10, len(problem.for_test)]
    both = tables["train"].sum(axis=0) + tables["validation"].sum(axis=0)
    np.testing.assert_array_equal(both, np.bincount(problem.labels, minlength=10))
    np.testing.assert_array_equal(tables["test"].sum(axis=0), np.bincount(problem.test_labels))


def test_fedmbo_gives_each_of_100_clients_its_stretch_of_sorted_mnist(real_data: Callable[[str], str]) -> None:
    problem = HyperRepresentation(data=real_data("mnist"), train=0, validation=12_000, partition="sorted")
    assert (problem.train, len(problem.for_test)) == (48_000, 10_000)
    for part in problem.parts(100):
        assert (len(part.train), len(part.validation), len(part.test)) == (480, 120, 100)
        assert len(set(problem.labels[np.concatenate([part.train, part.validation])])) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0, 0.3, 0.5, 0.7])
def test_memfbo_has_450_noisy_50_clean_and_100_test_samples_of_2_classes(
    noise: float, real_data: Callable[[str], str]
) -> None:
    problem = DataCleaning(data=real_data("cifar10"), train=45_000, validation=5_000, partition="classes", noise=noise)
    changed = problem.given_labels(100) != problem.labels
    for part in problem.parts(100):
        assert [len(samples) for samples in part] == [450, 50, 100]
        assert len(set(problem.labels[np.concatenate([part.train, part.validation])])) == 2
        assert not changed[part.validation].any()
    noisy, other = round(noise * 45_000), 0.8 * 9 / 10  # of ten classes one is the right one
    assert abs(changed.sum() - noisy * other) <= 4 * np.sqrt(noisy * other * (1 - other))


@pytest.mark.parametrize("data", ["digits", "mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_the_long_tail_has_a_power_of_mu_of_every_class(data: str, real_data: Callable[[str], str]) -> None:
    if data != "digits":
        real_data(data)
    problem = VsLoss(data=data, train=0, validation=100, test=50, tail=0.5)
    pool = problem.kept(problem.set.labels("train"))
    before, after = np.bincount(problem.set.labels("train")), np.bincount(problem.set.labels("train")[pool])
    np.testing.assert_array_equal(after, np.maximum(1, before // 2 ** np.arange(10)))
    assert set(problem.drawn) <= set(pool) and len(problem.drawn) == problem.train + 100
    assert problem.train == len(pool) - 100
    assert not set(problem.for_test) & set(problem.drawn) or data != "digits"  # which have no test part of their own


@pytest.mark.parametrize(
    ("data", "clients", "ways", "shots", "queries"),
    [
        ("mnist", 2, 5, 2, 4),
        pytest.param("omniglot", 10, 5, 1, 19, marks=pytest.mark.slow),
        pytest.param("omniglot", 10, 20, 5, 15, marks=pytest.mark.slow),
    ],
)
def test_tasks_are_of_the_clients_own_classes_and_ask_what_was_not_shown(
    data: str, clients: int, ways: int, shots: int, queries: int, real_data: Callable[[str], str]
) -> None:
    keys = {"ways": ways, "shots": shots, "queries": queries, "tasks": 23, "test_tasks": 11}
    problem = FewShot(data=real_data(data), **keys)
    classes = [problem._classes("train", c, clients) for c in range(clients)]
    np.testing.assert_array_equal(np.sort(np.concatenate(classes)), np.unique(problem.set.labels("train")))
    if data == "omniglot":
        assert sum(map(len, classes)) == 964
        assert not set(np.unique(problem.set.labels("test"))) & set(np.unique(problem.set.labels("train")))
    stored = {part: problem.set.rows(part, np.arange(problem.set.parts[part])) for part in ("train", "test")}
    labels = {part: problem.set.labels(part) for part in stored}
    places: dict[str, dict[bytes, list[int]]] = {part: {} for part in stored}
    for part, rows in stored.items():
        for place, row in enumerate(rows):
            places[part].setdefault(row.tobytes(), []).append(place)
    heads = []
    for client in range(clients):
        shard = problem.shard(client, clients)
        heads += [(head.start, head.stop) for head in shard.heads]
        for part, support, query in (
            ("train", shard.support, shard.query),
            ("test", shard.test_support, shard.test_query),
        ):
            assert support.count == query.count
            for task in range(support.count):
                own = support.rows(task), query.rows(task)
                seen = [{labels[part][p] for p in places[part][support.network.X[j].tobytes()]} for j in own[0]]
                asked = [{labels[part][p] for p in places[part][query.network.X[j].tobytes()]} for j in own[1]]
                numbers = support.network.labels[own[0]]
                np.testing.assert_array_equal(numbers, np.repeat(np.arange(ways), shots))
                np.testing.assert_array_equal(query.network.labels[own[1]], np.repeat(np.arange(ways), queries))
                for k in range(ways):
                    common = set.intersection(
                        *seen[k * shots : (k + 1) * shots], *asked[k * queries : (k + 1) * queries]
                    )
                    assert len(common) >= 1 and (part == "test" or common <= set(classes[client]))
                shown, others = ({t.network.X[j].tobytes() for j in rows} for t, rows in zip((support, query), own))
                assert not shown & others
    size = ways * (problem.hidden + 1)
    assert heads == [(t * size, (t + 1) * size) for t in range(23)]


# Printed formulas that cannot be meant


def test_a_linear_penalty_is_refused_because_it_has_no_lower_solution() -> None:
    with pytest.raises(UserError) as refusal:
        RegularisationCoefficients(form="linear")
    assert refusal.value.line == (
        'problem.form = "linear": a penalty φ·ω, linear in the classifier, is unbounded below: there is no lower '
        'solution; expected "exp" or "plain"'
    )


def test_a_linear_penalty_falls_for_ever() -> None:
    """Logistic: along one feature with |φ_j| above the mean of |a_j|. Softmax: with any φ_j, all classes together."""
    one, all_classes = (RegularisationCoefficients(against=k) for k in (3, -1))
    shard, softmax = one.shard(0, 4).train, all_classes.shard(0, 4).train
    feature = int(np.abs(shard.features()).mean(axis=0).argmax())
    coefficient = 1.1 * np.abs(shard.features()[:, feature]).mean()
    lengths = [1e1, 1e2, 1e3, 1e4]
    for model, phi in ((shard, coefficient), (shard, -coefficient), (softmax, 1e-3), (softmax, -1e-3)):
        values = []
        for length in lengths:
            W = np.zeros(model.shape)
            W[:, feature] = -np.sign(phi) * length
            values.append(model.at(W).value() + phi * W[:, feature].sum())
        falls = np.diff(values) / np.diff(lengths)
        assert (falls < 0).all() and falls[-1] == pytest.approx(falls[1], rel=0.1)  # as a straight line, not to a limit


def test_the_printed_vs_objective_is_lowered_by_smaller_weights_alone() -> None:
    printed = VsLoss(objective="printed")
    balanced, clients = VsLoss(), 5
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="lowered by smaller weights alone"):
        x, y = printed.start(rng)
    y = y + 0.1 * rng.standard_normal(y.size)
    shards = [printed.shard(c, clients) for c in range(clients)]
    smaller = printed.project_x(np.concatenate([np.zeros(10), x[10:]]))  # the least that is allowed
    np.testing.assert_array_equal(smaller[:10], 0.5)
    for shard in shards:
        assert printed.upper(shard, smaller, y, None) == pytest.approx(0.5 * printed.upper(shard, x, y, None))
        slopes = printed.upper_grad(shard, x, y, None)[0][:10]
        assert slopes @ x[:10] == pytest.approx(printed.upper(shard, x, y, None)) and (slopes >= 0).all()
        assert balanced.upper(shard, smaller, y, None) == balanced.upper(shard, x, y, None)
        assert not balanced.upper_grad(shard, x, y, None)[0].any()


def test_the_balanced_objective_weighs_classes_alike_over_all_clients() -> None:
    problem, clients = VsLoss(partition="dirichlet", alpha=0.3, train=700, validation=150, tail=0.9), 7
    y = 0.1 * np.random.default_rng(0).standard_normal(problem.dim_y)
    x, _ = problem.start(np.random.default_rng(0))
    parts = problem.parts(clients)
    found = np.mean([problem.upper(problem.shard(c, clients), x, y, None) for c in range(clients)])
    which = np.concatenate([part.validation for part in parts])
    losses = cross_entropy(scores(problem, scaled(problem, "train", problem.drawn[which]), x, y), problem.labels[which])
    of_classes = [losses[problem.labels[which] == k].mean() for k in np.unique(problem.labels[which])]
    assert found == pytest.approx(np.mean(of_classes))


def trained(model: Any, ridge: float, steps: int = 400) -> Array:
    head, step = np.zeros(model.shape), 1 / (model.curvature() + ridge)
    for _ in range(steps):
        head = head - step * model.at(head).gradient(ridge=ridge)
    return head


@pytest.mark.slow
def test_a_shared_head_is_at_chance_in_new_tasks_and_memorises_those_it_knows(real_data: Callable[[str], str]) -> None:
    """The heads solve the lower problem for the random backbone of a start."""

    def answers(count: int) -> tuple[float, float, float]:
        problem = FewShot(data=real_data("omniglot"), shots=5, tasks=count, test_tasks=200, hidden=48, heads="shared")
        shard, (x, _) = problem.shard(0, 1), problem.start(np.random.default_rng(0))
        zero = np.zeros(problem.head_size)
        shared = trained(shard.support.network.at(x, zero).head.data, 0.001)
        known, new = (t.network.at(x, shared.ravel()) for t in (shard.query, shard.test_query))
        own = []
        for task in range(20):
            model = shard.support.network.at(x, zero, shard.support.rows(task)).head.data
            query = shard.query.network.at(x, trained(model, 0.001).ravel(), shard.query.rows(task))
            own.append((query.predict() == query.labels).mean())
        return *((p.predict() == p.labels).mean() for p in (known, new)), float(np.mean(own))

    few, many = answers(20), answers(600)
    for known, new, own in (few, many):
        assert new == pytest.approx(0.2, abs=0.03)  # five ways
        assert own > 0.45 > known
    assert few[0] > 0.25 and many[0] < few[0]


# The derived oracles, the quadratics, the streams


class Bare:
    """A problem that offers the least: what is missing must be derived."""

    dim_x, dim_y = 4, 7

    def __init__(self, *leave_out: str) -> None:
        whole = Quadratic(dim_x=4, dim_y=7)
        for name in ("shard", "size", "start", "upper", "lower", "upper_grad", "lower_grad", "lower_grad_x"):
            if name not in leave_out:
                setattr(self, name, getattr(whole, name))


@pytest.mark.parametrize("leave_out", [(), ("lower_grad_x",)], ids=["with lower_grad_x", "without"])
def test_missing_oracles_are_derived(leave_out) -> None:
    whole, bare = Quadratic(dim_x=4, dim_y=7), Bare(*leave_out)
    shard, (x, y, v) = whole.shard(0, 3), (np.arange(4.0), np.arange(7.0), np.ones(7))
    native, derived = Oracles(whole, shard), Oracles(bare, shard)
    for name, args in (("lower_grad_x", (x, y)), ("hvp", (x, y, v)), ("cross", (x, y, v))):
        np.testing.assert_allclose(getattr(derived, name)(*args), getattr(native, name)(*args), rtol=1e-6, atol=1e-6)
    assert 0.95 <= derived.smoothness(x, y) <= 1.2


def test_a_largest_eigenvalue_off_the_beaten_track_is_found() -> None:
    start = np.random.default_rng(0).standard_normal(20)
    for place in range(20):
        curvature = np.ones(20)
        curvature[place] = 5.0
        assert 5.0 <= largest_eigenvalue(lambda v, c=curvature: c * v, start) <= 6.0


def test_closed_form_solves_both_levels() -> None:
    problem, m = Quadratic(condition=20), 18
    shards = [problem.shard(i, m) for i in range(m)]
    x = problem.x_star(m)
    y = problem.y_star(x, m)
    np.testing.assert_allclose(np.mean([problem.lower_grad(s, x, y) for s in shards], axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(problem.gradient(x, m), 0, atol=1e-8)

    def phi(z: np.ndarray) -> float:
        return float(np.mean([problem.upper(s, z, problem.y_star(z, m)) for s in shards]))

    at, along = x + 1.0, np.linspace(-1, 1, problem.dim_x)
    assert problem.gradient(at, m) @ along == pytest.approx(slope(phi, at, along, 1e-5), rel=1e-6)


def test_condition_number_and_heterogeneity_are_as_chosen() -> None:
    alike, apart = Quadratic(condition=50, heterogeneity=0), Quadratic(condition=50, heterogeneity=1)
    assert np.linalg.cond(apart.shard(3, 18).A) == pytest.approx(50)
    np.testing.assert_array_equal(alike.shard(0, 18).A, alike.shard(1, 18).A)
    assert np.linalg.norm(apart.shard(0, 18).A - apart.shard(1, 18).A) > 0.5


def test_local_hypergradients_do_not_average_to_the_global_one() -> None:
    """The heterogeneous test that separates the two: methods that claim the global one are tested on this problem."""
    problem, m = Quadratic(), 18
    x = np.zeros(problem.dim_x)
    local = []
    for s in (problem.shard(i, m) for i in range(m)):
        y = np.linalg.solve(s.A, s.B @ x + s.c)
        local.append(problem.curvature * (x - s.s) + s.B.T @ np.linalg.solve(s.A, y - s.t))
    exact = problem.gradient(x, m)
    assert np.linalg.norm(np.mean(local, axis=0) - exact) > 0.5 * np.linalg.norm(exact)


def test_streams_with_other_names_are_other_numbers() -> None:
    names = product((0, 1), ("client", "delay"), (0, 1), (0, 1))
    draws = {stream(*name).integers(2**62) for name in names}
    assert len(draws) == 16
    assert stream(3, "client", 4, 5).integers(2**62) == stream(3, "client", 4, 5).integers(2**62)


def own_set(folder: Path, images: Array, labels: Array) -> None:
    """A small set of the test's own, called "own"."""
    np.savez(folder / "own.npz", X=images, y=labels)
    for reader in find([folder / "own.npz"]).values():
        import_set(reader)


def test_labels_can_change_to_any_of_many_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 classes, those drawn may all fit into a byte; changed ones need not."""
    monkeypatch.setenv("FBOMPI_DATA", str(tmp_path))
    own_set(tmp_path, np.zeros((600, 2, 2), np.uint8), np.arange(600) % 300)
    problem = HyperCleaning(data="own", train=200, validation=50, corruption=1.0)
    drawn = problem.parts(5)
    given = problem.given_labels(5)
    assert all((given[part.train] != problem.labels[part.train]).all() for part in drawn)
    assert given.max() > 255


def test_a_set_in_which_nothing_varies_has_finite_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FBOMPI_DATA", str(tmp_path))
    own_set(tmp_path, np.full((60, 2, 2), 7, np.uint8), np.arange(60) % 2)
    problem = HyperCleaning(data="own", train=30, validation=10, scaling="standard")
    assert np.isfinite(problem.upper_grad(problem.shard(0, 2), np.zeros(15), np.zeros(10), None)[1]).all()


def test_a_set_of_one_class_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FBOMPI_DATA", str(tmp_path))
    own_set(tmp_path, np.zeros((60, 2, 2), np.uint8), np.zeros(60, int))
    with pytest.raises(UserError, match=r'problem\.data = "own": has one class'):
        HyperCleaning(data="own", train=30, validation=10)


def test_one_class_against_the_others_is_dealt_out_by_all_classes() -> None:
    problem = RegularisationCoefficients(against=3, partition="classes", classes_per_client=2)
    for part in problem.parts(10):
        assert len(set(problem.labels[part.train])) <= 2
    shard = problem.shard(0, 10)
    np.testing.assert_array_equal(shard.train.labels, problem.labels[problem.parts(10)[0].train] == 3)
