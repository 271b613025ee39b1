"""RABO: where it goes with each hypergradient, what a submodel costs, and the inverses it is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import options, trajectory
from federation import federation, play

from fbompi.algorithms.inverse import conjugate_gradients, neumann
from fbompi.errors import UserError
from fbompi.links.link import EVENT

Array = np.ndarray
M = 4
SIZES = {"dim_x": 4, "dim_y": 8, "condition": 5.0, "heterogeneity": 0.4}
STATIC = {"capacity": [1.0, 0.5, 0.25], "masks": "static"}


def driver(
    capacity: Any = 1.0, local_steps: int = 1, problem: dict[str, Any] = SIZES, batch: int = 0, **algorithm: Any
):  # fmt: skip
    return federation(
        {
            "run": {"problem": "quadratic", "algorithm": "rabo"},
            "problem": problem,
            "clients": {"count": M, "capacity": capacity, "local_steps": local_steps, "batch": batch},
            "delays": {"model": "none"},
            "algorithm": algorithm,
        }
    )


# The inverses


def spd(seed: int, n: int = 9, condition: float = 30.0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return (Q * np.geomspace(1 / condition, 1, n)) @ Q.T, rng.standard_normal(n)


class Counted:
    def __init__(self, H: Array) -> None:
        self.H, self.products = H, 0

    def __call__(self, v: Array) -> Array:
        self.products += 1
        return self.H @ v


@pytest.mark.parametrize("terms", [1, 2, 7])
def test_neumann_is_the_sum_of_its_terms(terms: int) -> None:
    H, b = spd(0)
    product, A = Counted(H), np.eye(9) - H / 1.5
    expected = sum(np.linalg.matrix_power(A, u) for u in range(terms)) @ b / 1.5
    np.testing.assert_allclose(neumann(product, b, 1.5, terms), expected, rtol=1e-12)
    assert product.products == terms - 1


def test_conjugate_gradients_solve_in_as_many_products_as_there_are_eigenvalues() -> None:
    H, b = spd(1)
    np.testing.assert_allclose(conjugate_gradients(Counted(H), b, 9), np.linalg.solve(H, b), rtol=1e-8)
    two = Counted(np.diag([1.0, 1, 3, 3, 3]))
    np.testing.assert_allclose(conjugate_gradients(two, np.arange(5.0), 50, 1e-12), np.arange(5) / np.diag(two.H))
    assert two.products == 2


def test_conjugate_gradients_end_at_the_tolerance_and_need_fewer_products_than_a_sum() -> None:
    H, b = spd(2, 60, 200.0)
    product = Counted(H)
    v = conjugate_gradients(product, b, 1000, 1e-3)
    assert np.linalg.norm(b - H @ v) <= 1e-3 * np.linalg.norm(b)
    late = neumann(H.__matmul__, b, 1.0, 4 * product.products)
    assert np.linalg.norm(b - H @ late) > 1e-3 * np.linalg.norm(b)
    assert not conjugate_gradients(product, np.zeros(60), 5).any()


def test_conjugate_gradients_stop_where_nothing_curves_upwards() -> None:
    found = conjugate_gradients(np.diag([1.0, -2.0]).__matmul__, np.array([3.0, 1.0]), 10)
    assert np.isfinite(found).all()
    assert not conjugate_gradients(lambda v: -v, np.ones(3), 10).any()


# Where it goes


def test_one_local_step_is_a_step_on_the_average_gradient_and_more_are_the_average_of_where_they_end() -> None:
    for steps in (1, 3):
        d = driver(local_steps=steps)
        problem, y, beta = d.parts.problem, d.state.y, d.method.step_y("auto")
        shards = [problem.shard(i, M) for i in range(M)]
        x = d.state.x
        play(d, 1)
        ends = []
        for s in shards:
            z = y
            for _ in range(steps):
                z = z - beta * (s.A @ z - s.B @ x - s.c)
            ends.append(z)
        np.testing.assert_allclose(d.state.y, np.mean(ends, axis=0), atol=1e-13)


def local_end(problem: Any) -> Array:
    """Where y = y*(x) and the mean of local hypergradients ρ(x − s_i) + B_iᵀA_i⁻¹(y*(x) − t_i) is 0: with
    W_i = B_iᵀA_i⁻¹ and y*(x) = Mx + o it is (ρI + W̄M) x = ρs̄ + mean(W_i t_i) − W̄o."""
    shards, mean = [problem.shard(i, M) for i in range(M)], problem.average(M)
    W = [np.linalg.solve(s.A, s.B).T for s in shards]
    slope, offset = np.linalg.solve(mean.A, mean.B), np.linalg.solve(mean.A, mean.c)
    right = problem.curvature * mean.s + np.mean([w @ s.t for w, s in zip(W, shards)], axis=0)
    W_mean = np.mean(W, axis=0)
    return np.linalg.solve(problem.curvature * np.eye(problem.dim_x) + W_mean @ slope, right - W_mean @ offset)


def error(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_local_hypergradients_end_where_their_mean_is_zero_and_that_is_not_the_solution() -> None:
    d = play(driver(inverse="cg", terms=20, step_x=0.02), 700)
    problem = d.parts.problem
    x = local_end(problem)
    assert error(d.state.x, x) < 1e-6
    assert error(x, problem.x_star(M)) > 0.02, "clients must differ for this to say anything"
    assert error(d.state.y, problem.y_star(d.state.x, M)) < 1e-6


@pytest.mark.parametrize("inverse, terms", [("cg", 12), pytest.param("neumann", 80, marks=pytest.mark.slow)])
def test_the_global_hypergradient_leads_to_the_solution(inverse: str, terms: int) -> None:
    d = play(driver(hypergradient="global", inverse=inverse, terms=terms, step_x=0.03), 400)
    assert error(d.state.x, d.parts.problem.x_star(M)) < 1e-4


def test_several_local_steps_bias_y_where_clients_differ() -> None:
    one, five = (play(driver(local_steps=t, step_x=1e-12), 100) for t in (1, 5))
    assert error(one.state.y, one.parts.problem.y_star(one.state.x, M)) < 1e-4
    assert error(five.state.y, five.parts.problem.y_star(five.state.x, M)) > 1e-2


class Masked:
    """The paper's problem (2) in closed form for masks that do not change; sums over clients, not means."""

    def __init__(self, d: Any) -> None:
        problem, dealt = d.parts.problem, d.method.submodels.deal(0, d.state.x, d.state.y)
        p, q = problem.dim_x, problem.dim_y
        self.A, self.B, self.c, self.t, self.s = (
            np.zeros((q, q)),
            np.zeros((q, p)),
            np.zeros(q),
            np.zeros(q),
            np.zeros(p),
        )
        self.rho, self.of_x, self.of_y = problem.curvature, np.zeros(p), np.zeros(q)  # and holders
        for i in range(M):
            s, (x, y) = problem.shard(i, M), dealt.of(i)
            self.A += s.A * np.outer(y, y)
            self.B += s.B * np.outer(y, x)
            self.c += s.c * y
            self.t += s.t * y
            self.s += s.s * x
            self.of_x += x
            self.of_y += y

    def y_star(self, x: Array) -> Array:
        return np.linalg.solve(self.A, self.B @ x + self.c)

    def gradient(self, x: Array, y: Array) -> Array:
        """The surrogate at y, each coordinate divided by its holders."""
        v = np.linalg.solve(self.A, self.of_y * y - self.t)
        return (self.rho * (self.of_x * x - self.s) + self.B.T @ v) / self.of_x

    def x_star(self) -> Array:
        slope, offset = np.linalg.solve(self.A, self.B), np.linalg.solve(self.A, self.c)
        return np.linalg.solve(
            self.rho * np.diag(self.of_x) + slope.T @ (self.of_y[:, None] * slope),
            self.rho * self.s + slope.T @ (self.t - self.of_y * offset),
        )


@pytest.mark.parametrize("inverse, terms", [("cg", 12), ("neumann", 200)])
def test_with_submodels_the_global_hypergradient_is_that_of_the_masked_problem(inverse: str, terms: int) -> None:
    d = driver(hypergradient="global", inverse=inverse, terms=terms, tolerance=1e-12, **STATIC)
    masked, s, rng = Masked(d), d.state, np.random.default_rng(0)
    assert masked.of_x.min() < masked.of_x.max() and masked.of_y.min() >= 1
    s.x, s.y = rng.standard_normal(s.x.size), rng.standard_normal(s.y.size)
    dealt = d.method.submodels.deal(0, s.x, s.y)
    h, updates = d.method.hypergradient(s, dealt, d.link)
    np.testing.assert_array_equal(dealt.covered(updates)[0], masked.of_x)
    np.testing.assert_allclose(h, masked.gradient(s.x, s.y), rtol=1e-6, atol=1e-7)


def test_with_submodels_that_stay_it_solves_the_masked_problem() -> None:
    d = play(driver(hypergradient="global", inverse="cg", terms=12, step_x=0.03, **STATIC), 400)
    masked = Masked(d)
    assert error(d.state.x, masked.x_star()) < 1e-3
    assert error(d.state.y, masked.y_star(d.state.x)) < 1e-3
    assert error(masked.x_star(), d.parts.problem.x_star(M)) > 0.05, "what submodels leave out changes the problem"


def test_local_hypergradients_are_averaged_over_those_who_hold_a_coordinate() -> None:
    d = driver(inverse="cg", terms=20, tolerance=1e-13, **STATIC)
    problem, s, rng = d.parts.problem, d.state, np.random.default_rng(1)
    s.x, s.y = rng.standard_normal(s.x.size), rng.standard_normal(s.y.size)
    dealt = d.method.submodels.deal(0, s.x, s.y)
    total, count = np.zeros(s.x.size), np.zeros(s.x.size)
    for i in range(M):
        shard, (x, y) = problem.shard(i, M), dealt.of(i)
        A, B = shard.A[np.ix_(y, y)], shard.B[np.ix_(y, x)]
        total[x] += problem.curvature * (s.x - shard.s)[x] + B.T @ np.linalg.solve(A, (s.y - shard.t)[y])
        count[x] += 1
    np.testing.assert_allclose(d.method.hypergradient(s, dealt, d.link)[0], total / count, rtol=1e-9)


def test_what_nobody_holds_stays() -> None:
    d = play(driver(capacity=0.5, masks="ordered"), 5)
    assert np.all(d.state.x[:2] != 0) and np.all(d.state.x[2:] == 0)
    assert np.all(d.state.y[:4] != 0) and np.all(d.state.y[4:] == 0)


def test_x_in_blocks_has_the_same_hypergradient_as_where_all_own_all_of_it() -> None:
    """hypercleaning: every client owns the weights of its samples; h must be ∇Φ, not m times it."""
    d = federation(
        {
            "run": {"problem": "hypercleaning", "algorithm": "rabo"},
            "problem": {"train": 40, "validation": 20, "test": 20},
            "clients": {"count": 3},
            "delays": {"model": "none"},
            "algorithm": {"hypergradient": "global", "inverse": "cg", "terms": 400, "tolerance": 1e-11},
        }
    )
    s, rng = d.state, np.random.default_rng(2)
    s.y = 0.1 * rng.standard_normal(s.y.size)
    problem, blocks = d.parts.problem, d.parts.shapes.blocks
    oracles = [d.parts.client(i).oracles for i in range(3)]
    eye = np.eye(s.y.size)
    H = np.mean([np.stack([o.hvp(s.x[b], s.y, e) for e in eye]) for o, b in zip(oracles, blocks)], axis=0)
    b = np.mean([o.upper_grad(s.x[block], s.y)[1] for o, block in zip(oracles, blocks)], axis=0)
    v, expected = np.linalg.solve(H, b), np.zeros(problem.dim_x)
    for o, block in zip(oracles, blocks):
        expected[block] = -o.cross(s.x[block], s.y, v) / 3
    h, _ = d.method.hypergradient(s, d.method.submodels.deal(0, s.x, s.y), d.link)
    np.testing.assert_allclose(h, expected, rtol=1e-5, atol=1e-9)


def test_theory_steps_grow_with_the_covering_number() -> None:
    d = play(driver(masks="rolling", schedule="theory", step_x=1.0), 1)
    assert (d.state.step, d.state.covering_x) == (pytest.approx(np.sqrt(M / 300)), M)
    masks = driver(capacity=[1.0, 0.25], masks="ordered", schedule="theory", step_x=1.0)
    assert play(masks, 1).state.step == pytest.approx(np.sqrt(M / 2 / 300)), "half of the clients hold all"


@pytest.mark.parametrize("inverse", ["cg", "neumann"])
def test_with_few_clients_the_global_hypergradient_is_that_of_the_clients_asked(inverse: str) -> None:
    """All of it is of the same clients: products of others would be of another Hessian in every round."""
    d = driver(hypergradient="global", inverse=inverse, terms=400, capacity=0.5, masks="static")
    d.setting.participation.count = 2
    s, rng = d.state, np.random.default_rng(0)
    s.x, s.y = rng.standard_normal(s.x.size), rng.standard_normal(s.y.size)
    h, updates = d.method.hypergradient(s, d.method.submodels.deal(0, s.x, s.y), d.link)
    kinds, asked = d.link.kinds, {update.client for update in updates}
    assert len(asked) == 2 and {e[0] for e in d.link.events} == asked
    assert {kinds[e[1]] for e in d.link.events} == {"begin", "product", "cross"}
    assert np.abs(h).max() < 100


def test_conjugate_gradients_over_clients_are_refused_on_batches() -> None:
    with pytest.raises(UserError, match=r"needs whole shards in all products, and clients\.batch = 4"):
        driver(hypergradient="global", inverse="cg", batch=4)


# What it costs

SUBMODEL = {
    "hyperrep": {"hidden": 64, "train": 120, "validation": 60},
    "regcoef": {"train": 120, "validation": 60},
    "datacleaning": {"train": 60, "validation": 60, "model": "mlp", "hidden": 64},
    "vsloss": {"model": "mlp", "hidden": 64},
    "quadratic": {"dim_x": 200, "dim_y": 400},
}


def costs(problem: str, algorithm: str, capacity: float, keys: dict[str, Any], rounds: int = 2, **more: Any) -> Array:
    """Bytes, work and seconds of a client in a round, of the median client and round."""
    d = federation(
        {
            "run": {"problem": problem, "algorithm": algorithm},
            "problem": keys,
            "clients": {"count": 3, "capacity": capacity, "local_steps": 5},
            "delays": {"model": "none"},
            "algorithm": {"masks": "rolling", **more},
        }
    )
    play(d, rounds)
    events = np.array(d.link.events, EVENT)
    each = [[events[name][events["kind"] == k].mean() for name in ("bytes", "work")] for k in np.unique(events["kind"])]
    seconds = sum(np.median(events["seconds"][events["kind"] == k]) for k in np.unique(events["kind"]))
    return np.array([*np.sum(each, axis=0), seconds])


@pytest.mark.parametrize("problem", SUBMODEL)
def test_a_quarter_of_the_model_is_at_most_three_tenths_of_the_bytes_and_of_the_work(problem: str) -> None:
    """x of vsloss and of cleaning is not masked: there y must be what is large."""
    quarter, whole = (costs(problem, "rabo", c, SUBMODEL[problem]) for c in (0.25, 1.0))
    bytes_, work, _ = quarter / whole
    print(f"{problem}: bytes {bytes_:.3f}, work {work:.3f} of the full model's")
    assert bytes_ < 0.3 and work < 0.3


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("problem", "algorithm"), [("hyperrep", "rabo"), ("regcoef", "rafbo")])
def test_a_quarter_of_the_model_is_less_time_too(problem: str, algorithm: str, real_data) -> None:
    keys: dict[str, Any] = {"data": real_data("mnist"), "train": 6000, "validation": 1500, "test": 300}
    if problem == "hyperrep":
        keys["hidden"] = 256
    more = {"coordinates": 16, "map_steps": 3} if algorithm == "rafbo" else {}
    seconds = {}
    for masks, capacity in (("static", 1.0), ("static", 0.25), ("rolling", 0.25)):
        runs = [costs(problem, algorithm, capacity, keys, 3, masks=masks, **more)[2] for _ in range(2)]
        seconds[masks, capacity] = min(runs)
    whole, same, other = seconds.values()
    print(f"{algorithm} on {problem}: a client's seconds at capacity 1/4 are {same / whole:.3f} of those at 1, and")
    print(f"{other / whole:.3f} where every round has another submodel, which must be cut out first")
    assert same / whole < 0.37 and other / whole < 0.5


def test_a_run_records_the_covering_numbers(run_file) -> None:
    keys = options(
        run_algorithm="rabo", run_problem="hyperrep", run_rounds=4, record_every=1, clients_count=6,
        clients_capacity="[1, 0.5, 0.25]", algorithm_masks="ordered", delays_model="none",
    )  # fmt: skip
    path = run_file(*keys)
    assert trajectory(path, "covering_x").tolist()[1:] == [2.0] * 4, "two clients hold all, the last units they alone"
    assert trajectory(path, "covering_y").tolist()[1:] == [2.0] * 4
    assert np.isnan(trajectory(path, "covering_x")[0])
