"""The nonsmooth problems: values and sweeps against plain loops, subgradients by their inequality, the dealing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fbompi.data.store import open_set
from fbompi.errors import UserError
from fbompi.kernels.sweeps import Fresh
from fbompi.problems import location, sparse_logistic
from fbompi.problems.location import Location
from fbompi.problems.sparse_logistic import SparseLogistic

Array = np.ndarray
PROTOCOL = ("shard", "start", "outer", "outer_subgradient", "component_count", "value", "sweep", "project")

PROBLEMS: dict[str, Callable[[Callable[[str], str]], Any]] = {
    "location in 3": lambda _: Location(dim_x=3, balls=40),
    "location in 50": lambda _: Location(dim_x=50, balls=40),
    "logistic digits": lambda _: SparseLogistic(train=60),
    "logistic digits 3 and 8": lambda _: SparseLogistic(train=60, pair=[8, 3]),
    "logistic mnist": lambda data: SparseLogistic(data=data("mnist"), train=60),
    "logistic covtype": lambda data: SparseLogistic(data=data("covtype"), train=60, pair=[3, 4]),
}


@pytest.fixture(params=PROBLEMS)
def problem(request: pytest.FixtureRequest, real_data: Callable[[str], str]) -> Any:
    return PROBLEMS[request.param](real_data)


def box(problem: Any) -> tuple[float, float]:
    return (location if isinstance(problem, Location) else sparse_logistic).BOX


def rows(problem: Any, shard: Any) -> Array:
    """The features of a shard as the problem means them: pixels from 0 to 1."""
    return shard.rows / (problem.set.largest or 1.0)


def component(problem: Any, shard: Any, j: int, x: Array) -> tuple[float, Array]:
    """f_j(x) and a subgradient, from their definitions."""
    if isinstance(problem, Location):
        gap = x - shard.centres[j]
        distance = float(np.sqrt((gap * gap).sum()))
        beyond = distance > shard.radii[j]
        return max(distance - shard.radii[j], 0.0), gap / distance if beyond else np.zeros_like(x)
    a, t = rows(problem, shard)[j], shard.signs[j]
    margin = t * (a @ x)
    return float(np.logaddexp(0, -margin)), -t * a * np.exp(-np.logaddexp(0, margin))


def points(problem: Any, count: int) -> list[Array]:
    """Some points in the box, one of them a corner, one with zeros."""
    rng, (lo, hi) = np.random.default_rng(2), box(problem)
    some = [problem.start(rng) * scale for scale in rng.uniform(0, 1, count)]
    some[0] = np.where(rng.random(problem.dim_x) < 0.5, lo, hi)
    some[1][::2] = 0.0
    return some


def test_the_protocol_is_complete(problem: Any) -> None:
    assert [name for name in (*PROTOCOL, "dim_x", "components", "name") if not hasattr(problem, name)] == []
    x = problem.start(np.random.default_rng(0))
    assert x.shape == (problem.dim_x,) and x.dtype == np.float64
    np.testing.assert_array_equal(problem.project(x), x)  # the start is in the box


def test_the_value_is_the_sum_over_components(problem: Any) -> None:
    shard = problem.shard(1, 3)
    for x in points(problem, 5):
        wanted = sum(component(problem, shard, j, x)[0] for j in range(problem.component_count(shard)))
        assert problem.value(shard, x) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("way", ["in order", "in reverse", "sampled"])
def test_a_sweep_is_one_projected_step_per_component(problem: Any, way: str) -> None:
    """x ← P[x − γ g_j(x) − shift] with one shift for all, here so long that the box cuts every sweep."""
    shard, rng, (lo, hi) = problem.shard(1, 3), np.random.default_rng(0), box(problem)
    n = problem.component_count(shard)
    order = {"in order": None, "in reverse": np.arange(n)[::-1], "sampled": rng.integers(0, n, 25)}[way]
    gamma, shift = 0.1 * (hi - lo), rng.uniform(0.3 * lo, 0.3 * hi, problem.dim_x)
    for x in points(problem, 3):
        before, cut = x.copy(), False
        found = problem.sweep(shard, x, gamma, shift, order)
        np.testing.assert_array_equal(x, before)
        for j in range(n) if order is None else order:
            free = x - gamma * component(problem, shard, j, x)[1] - shift
            x = np.clip(free, lo, hi)
            cut |= bool((x != free).any())
        assert cut
        np.testing.assert_allclose(found, x, rtol=1e-9, atol=1e-9 * hi)


def test_a_fresh_outer_term_is_taken_where_each_step_is(problem: Any) -> None:
    """IR-IG: the same sweep with 𝓗 ∈ ∂H at every step's own point."""
    shard, (lo, hi), weight, gamma = problem.shard(0, 3), box(problem), 1e-3, 0.05
    if isinstance(problem, Location):
        fresh = Fresh(weight, l2=1.0, anchor=problem.anchor)
    else:
        fresh = Fresh(weight, l1=1.0, l2=1.0)
    for x in points(problem, 3):
        found = problem.sweep(shard, x, gamma, fresh, None)
        for j in range(problem.component_count(shard)):
            step = gamma * component(problem, shard, j, x)[1] + weight * problem.outer_subgradient(x)
            x = np.clip(x - step, lo, hi)
        np.testing.assert_allclose(found, x, rtol=1e-9, atol=1e-9 * hi)


def test_subgradients_lie_below_their_functions(problem: Any) -> None:
    """φ(z) ≥ φ(x) + ⟨s, z − x⟩ for the outer objective and for every component, at random pairs of points."""
    shard, some = problem.shard(0, 3), points(problem, 8)
    for x in some:
        outer = problem.outer_subgradient(x)
        for z in some:
            assert problem.outer(z) >= problem.outer(x) + outer @ (z - x) - 1e-9 * (1 + problem.outer(z))
            for j in range(5):
                (value, s), (there, _) = component(problem, shard, j, x), component(problem, shard, j, z)
                assert there >= value + s @ (z - x) - 1e-9 * (1 + abs(s @ (z - x)))


def test_a_step_without_outer_term_moves_along_the_subgradient(problem: Any) -> None:
    """Read back from the sweep itself: the kernel's own subgradients satisfy the inequality too."""
    shard, some, gamma = problem.shard(0, 3), points(problem, 6)[2:], 1e-3
    for x in some:
        for j in range(5):
            s = (x - problem.sweep(shard, x, gamma, np.zeros_like(x), np.array([j]))) / gamma
            for z in some:
                (value, _), (there, _) = component(problem, shard, j, x), component(problem, shard, j, z)
                assert there >= value + s @ (z - x) - 1e-7


def test_outer_objectives_are_those_of_the_paper(problem: Any) -> None:
    for x in points(problem, 4):
        if isinstance(problem, Location):
            assert problem.outer(x) == pytest.approx(0.5 * sum((a - b) ** 2 for a, b in zip(x, problem.anchor)))
        else:
            assert problem.outer(x) == pytest.approx(sum(abs(a) + 0.5 * a * a for a in x))
    at = np.array([0.0, 2.0, -3.0] + [0.0] * (problem.dim_x - 3))
    wanted = at - problem.anchor if isinstance(problem, Location) else at + np.sign(at)
    np.testing.assert_array_equal(problem.outer_subgradient(at), wanted)


def test_projection_is_onto_the_box(problem: Any) -> None:
    lo, hi = (-10, 10) if isinstance(problem, Location) else (-100, 100)
    x = np.random.default_rng(0).uniform(2 * lo, 2 * hi, problem.dim_x)
    np.testing.assert_array_equal(problem.project(x), np.minimum(np.maximum(x, lo), hi))


def everything(problem: Any, clients: int) -> list[tuple[bytes, float]]:
    """All components of all clients, in an order of their own."""
    shards = [problem.shard(c, clients) for c in range(clients)]
    assert sum(problem.component_count(shard) for shard in shards) == problem.components
    if isinstance(problem, Location):
        pairs = [(c.tobytes(), r) for shard in shards for c, r in zip(shard.centres, shard.radii, strict=True)]
    else:
        pairs = [(a.tobytes(), t) for shard in shards for a, t in zip(shard.rows, shard.signs, strict=True)]
    return sorted(pairs)


def test_every_component_has_one_client_whatever_their_number(problem: Any) -> None:
    alone = everything(problem, 1)
    for clients in (2, 7, 40):
        sizes = [problem.component_count(problem.shard(c, clients)) for c in range(clients)]
        assert max(sizes) - min(sizes) <= 1
        assert everything(problem, clients) == alone
    x = problem.start(np.random.default_rng(0))
    total = sum(problem.value(problem.shard(c, 8), x) for c in range(8))
    assert total == pytest.approx(problem.value(problem.shard(0, 1), x), rel=1e-12)


def test_the_seed_decides_and_nothing_else(real_data: Callable[[str], str]) -> None:
    for make in (lambda seed: Location(seed=seed, balls=50), lambda seed: SparseLogistic(seed=seed, train=60)):
        first, again, other = (everything(make(seed), 3) for seed in (0, 0, 1))
        assert first == again != other
    assert (Location(seed=0).anchor != Location(seed=1).anchor).all()


@pytest.mark.parametrize("clients", [1, 2, 4, 8])
def test_mnist_has_11000_samples_to_train_on_and_2115_to_test(clients: int, real_data: Callable[[str], str]) -> None:
    problem = SparseLogistic(data=real_data("mnist"), train=11_000)
    assert (problem.components, problem.dim_x) == (11_000, 784)
    shards = [problem.shard(c, clients) for c in range(clients)]
    assert sum(len(shard.test_signs) for shard in shards) == 2_115
    signs = np.concatenate([shard.signs for shard in shards])
    assert (signs == 1).sum() == (signs == -1).sum() == 5_500
    assert {len(shard.signs) for shard in shards} == {11_000 // clients}
    assert all(shard.rows.dtype == np.uint8 for shard in shards)  # bytes stay bytes
    labels = open_set("mnist").labels("test")
    assert (np.concatenate([s.test_signs for s in shards]) == 1).sum() == (labels == 1).sum()


def test_rows_and_signs_belong_together(real_data: Callable[[str], str]) -> None:
    problem = SparseLogistic(data=real_data("mnist"), train=200, pair=[4, 9])
    stored = open_set("mnist")
    for part, rows, signs in (("train", "rows", "signs"), ("test", "test_rows", "test_signs")):
        labels = stored.labels(part)
        of_pair = np.flatnonzero((labels == 4) | (labels == 9))
        label_of = {row.tobytes(): labels[j] for j, row in zip(of_pair, stored.rows(part, of_pair), strict=True)}
        for shard in (problem.shard(c, 3) for c in range(3)):
            for row, sign in zip(getattr(shard, rows), getattr(shard, signs), strict=True):
                assert label_of[row.tobytes()] == (9 if sign > 0 else 4)


def test_digits_that_are_not_trained_on_are_for_the_test() -> None:
    problem = SparseLogistic(train=200)
    assert not set(problem.drawn) & set(problem.for_test)
    labels = problem.set.labels("train")
    assert len(problem.drawn) + len(problem.for_test) == np.isin(labels, [0, 1]).sum()


def test_accuracy_is_the_share_of_right_signs(real_data: Callable[[str], str]) -> None:
    problem, clients = SparseLogistic(data=real_data("mnist"), train=200), 4
    x = problem.start(np.random.default_rng(0))
    found = np.sum([problem.metrics(problem.shard(c, clients), x)["accuracy"] for c in range(clients)], axis=0)
    stored = open_set("mnist")
    labels = stored.labels("test")
    which = np.flatnonzero(labels < 2)
    right = (stored.rows("test", which).astype(float) @ x > 0) == (labels[which] == 1)
    assert tuple(found) == (right.sum(), 2_115)


def test_sweeps_lower_the_loss_and_learn_to_tell_0_from_1(real_data: Callable[[str], str]) -> None:
    """Ten rounds of FISM by hand, γ = 10/k^0.8 and λ = 1/k^0.1 as in the paper, 4 clients."""
    problem = SparseLogistic(data=real_data("mnist"), train=1_000)
    shards = [problem.shard(c, 4) for c in range(4)]
    x = problem.start(np.random.default_rng(0))
    before = sum(problem.value(shard, x) for shard in shards)
    for k in range(1, 11):
        gamma, weight = 10 / k**0.8, 1 / k**0.1
        shift = gamma * weight / problem.components * problem.outer_subgradient(x)
        x = np.mean([problem.sweep(shard, x, gamma, shift, None) for shard in shards], axis=0)
    right, asked = np.sum([problem.metrics(shard, x)["accuracy"] for shard in shards], axis=0)
    assert sum(problem.value(shard, x) for shard in shards) < 0.1 * before and right > 0.99 * asked


def test_centres_and_radii_are_where_the_paper_draws_them() -> None:
    shard = Location(dim_x=20, balls=2_000).shard(0, 1)
    assert np.abs(shard.centres).max() < 10 and shard.radii.min() >= 0 and shard.radii.max() < 1
    assert shard.centres.mean() == pytest.approx(0, abs=4 * (20 / np.sqrt(12)) / np.sqrt(40_000))
    assert shard.centres.var() == pytest.approx(400 / 12, rel=0.02)
    assert shard.radii.mean() == pytest.approx(0.5, abs=4 / np.sqrt(12 * 2_000))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Location(balls=3).shard(0, 4), "clients.count = 4: there are only 3 balls to deal out"),
        (lambda: SparseLogistic(pair=[1, 1]), "problem.pair = [1, 1]: expected two classes of 0 to 9"),
        (lambda: SparseLogistic(pair=[0, 10]), "problem.pair = [0, 10]: expected two classes of 0 to 9"),
        (lambda: SparseLogistic(pair=[0, 1, 2]), "problem.pair = [0, 1, 2]: expected two classes of 0 to 9"),
        (lambda: SparseLogistic(train=356), "problem.train = 356: digits has 178 samples of one of these classes"),
        (lambda: SparseLogistic(train=4).shard(0, 5), "clients.count = 5: there are only 4 samples to deal out"),
    ],
)
def test_what_cannot_be_is_refused_by_key_and_value(make: Callable[[], Any], line: str) -> None:
    with pytest.raises(UserError) as refusal:
        make()
    assert refusal.value.line.startswith(line)
