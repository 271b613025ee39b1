"""RAFBO: the difference of the inner map is RABO's Neumann sum, descends, and needs gradients alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import options, trajectory
from federation import federation, play

from fbompi.links.link import EVENT

Array = np.ndarray
M = 4
SIZES = {"dim_x": 6, "dim_y": 9, "condition": 10.0, "heterogeneity": 0.3}
pytestmark = pytest.mark.filterwarnings("ignore:the printed difference of gradients")


def driver(algorithm: str = "rafbo", capacity: Any = 1.0, batch: int = 0, noise: float = 0.0, **keys: Any):
    return federation(
        {
            "run": {"problem": "quadratic", "algorithm": algorithm},
            "problem": {**SIZES, "noise": noise},
            "clients": {"count": M, "capacity": capacity, "batch": batch},
            "delays": {"model": "none"},
            "algorithm": keys,
        }
    )


def hypergradient(d: Any, x: Array, y: Array) -> Array:
    d.state.x, d.state.y = x, y
    return d.method.hypergradient(d.state, d.method.submodels.deal(0, x, y), d.link)[0]


def point(seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(SIZES["dim_x"]), rng.standard_normal(SIZES["dim_y"])


@pytest.mark.parametrize("capacity", [1.0, [1.0, 0.5, 0.25]])
@pytest.mark.parametrize("steps", [1, 6, 40])
def test_on_quadratics_t_steps_of_the_map_are_a_neumann_sum_of_t_terms(steps: int, capacity: Any) -> None:
    first = hypergradient(driver(capacity=capacity, map_steps=steps), *point())
    second = hypergradient(driver("rabo", capacity=capacity, terms=steps), *point())
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


def test_the_map_tends_to_the_jacobian_of_the_solution_as_its_steps_grow() -> None:
    exact = hypergradient(driver("rabo", inverse="cg", terms=50, tolerance=1e-13), *point())
    found = [hypergradient(driver(map_steps=t), *point()) for t in (5, 20, 200)]
    errors = [np.linalg.norm(h - exact) / np.linalg.norm(exact) for h in found]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-5


def objective(d: Any) -> float:
    """Φ(x), with the solution of the lower problem, not the y at hand."""
    problem, x = d.parts.problem, d.state.x
    y = problem.y_star(x, M)
    return float(np.mean([problem.upper(problem.shard(i, M), x, y) for i in range(M)]))


def test_the_printed_hypergradient_climbs_and_the_map_descends() -> None:
    values = {}
    for form in ("map", "printed"):
        d = play(driver(hypergradient=form, step_x=0.02), 60)  # y arrives first
        begin = objective(driver(hypergradient=form))
        values[form] = objective(d) / begin
    print(f"Φ after 60 rounds, over Φ at the start: {values}")
    assert values["map"] < 0.8 and values["printed"] > 1.5


def test_the_printed_form_is_the_difference_of_gradients_and_warns() -> None:
    d = driver(hypergradient="printed")
    problem, (x, y) = d.parts.problem, point()
    shards = [problem.shard(i, M) for i in range(M)]
    expected = np.mean([problem.curvature * (x - s.s) - s.B.T @ (y - s.t) for s in shards], axis=0)
    np.testing.assert_allclose(hypergradient(d, x, y), expected, atol=1e-6)
    with pytest.warns(UserWarning, match="not dy"):
        driver(hypergradient="printed")


def test_sampled_coordinates_have_the_mean_of_all() -> None:
    x, y = point()
    every = hypergradient(driver(coordinates=0), x, y)
    d = driver(coordinates=2)
    draws = np.array([hypergradient(d, x, y) for _ in range(600)])
    assert (np.abs(draws.mean(axis=0) - every) < 4 * draws.std(axis=0, ddof=1) / np.sqrt(len(draws))).all()
    assert draws.std(axis=0).min() > 0


def test_all_copies_see_one_sample() -> None:
    """Of samples of their own, differences over μ = 10⁻⁸ would be of the size of 10⁸."""
    x, y = point()
    d = driver(batch=4, noise=0.5, map_steps=20)
    noisy = np.array([hypergradient(d, x, y) for _ in range(20)])
    every = hypergradient(driver(map_steps=20, noise=0.5), x, y)
    assert np.abs(noisy - every).max() < 2 * np.linalg.norm(every)


@pytest.mark.parametrize("coordinates, copies", [(0, 8), (2, 4)])
def test_every_gradient_of_every_copy_is_counted_and_there_is_nothing_else(coordinates: int, copies: int) -> None:
    d = play(driver(coordinates=coordinates, map_steps=5), 1)
    events = np.array(d.link.events, EVENT)
    estimate = events[events["kind"] == d.link.kinds.index("differences")]
    samples = d.parts.problem.samples
    assert (estimate["gradients"] == samples * (1 + 5 * copies)).all()
    assert (estimate["work"] == samples * (1 + 5 * copies) * (6 + 9)).all()
    assert not events["hvps"].any() and not events["crosses"].any()


GRADIENTS_ALONE = '''
from fbompi.problems.quadratic import Quadratic


class Plain:
    """A problem with the required oracles and no others."""

    def __init__(self) -> None:
        self.inner = Quadratic(dim_x=3, dim_y=5, condition=5.0, heterogeneity=0.3)
        self.dim_x, self.dim_y = 3, 5
        for name in ("shard", "size", "start", "upper", "lower", "upper_grad", "lower_grad", "smoothness"):
            setattr(self, name, getattr(self.inner, name))
'''


def test_a_problem_without_second_derivatives_will_do(run_file, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(GRADIENTS_ALONE)
    keys = options(
        run_algorithm="rafbo", run_problem="plain.py:Plain", run_rounds=60, clients_count=3, record_every=20,
        clients_capacity="[1, 0.5]", delays_model="none", algorithm_masks="rolling",
    )  # fmt: skip
    upper = trajectory(run_file(*keys), "upper")
    assert np.isfinite(upper).all() and upper[-1] < 0.7 * upper[0], upper


@pytest.mark.parametrize("problem", ["regcoef", "hyperrep", "hypercleaning"])
def test_off_quadratics_it_is_the_derivative_of_f_after_the_map(problem: str) -> None:
    """h ≈ d/dx f_i(x, y_T(x)) but for the point at which ∇f is taken: equal where the map has nowhere to go."""
    keys = {"train": 60, "validation": 30, "test": 30, **({"hidden": 5} if problem == "hyperrep" else {})}
    d = federation(
        {
            "run": {"problem": problem, "algorithm": "rafbo"}, "problem": keys, "clients": {"count": 1},
            "delays": {"model": "none"}, "algorithm": {"map_steps": 8, "coordinates": 0},
        }
    )  # fmt: skip
    s, oracles, beta = d.state, d.parts.client(0).oracles, d.method.step_y("auto")
    s.x = s.x + 0.1 * np.random.default_rng(0).standard_normal(s.x.size)
    for _ in range(4000 if problem == "hypercleaning" else 2000):
        s.y = s.y - beta * oracles.lower_grad(s.x, s.y)
    s.x, y = d.setting.project_x(s.x), s.y

    def value(x: Array) -> float:
        z = y
        for _ in range(8):
            z = z - beta * oracles.lower_grad(x, z)
        return oracles.upper(x, z)

    u = np.random.default_rng(1).standard_normal(s.x.size)
    u /= np.linalg.norm(u)
    eps = 1e-4
    expected = (value(s.x + eps * u) - value(s.x - eps * u)) / (2 * eps)
    found = float(hypergradient(d, s.x, y) @ u)
    assert found == pytest.approx(expected, rel=0.03), (found, expected)
