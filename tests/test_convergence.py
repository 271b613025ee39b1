"""Where each method ends on 18 heterogeneous quadratics: at x*, or where the mean of local hypergradients is 0.

MemFBO's 1/λ and FedMBO's noisy chains are in their own files, as are the nonsmooth methods.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import federation, play

from fbompi.problems.quadratic import Quadratic

pytestmark = pytest.mark.slow

M = 18
PROBLEM = Quadratic()
STEP = 1 / PROBLEM.upper_smoothness(M)


def local_point() -> np.ndarray:
    """x where the mean over i of ρ(x − s_i) + B_iᵀA_i⁻¹(y*(x) − t_i) is 0: linear in x."""
    shards, mean = [PROBLEM.shard(i, M) for i in range(M)], PROBLEM.average(M)
    adjoint = [np.linalg.solve(s.A, s.B).T for s in shards]  # B_iᵀA_i⁻¹
    slope, offset = np.linalg.solve(mean.A, mean.B), np.linalg.solve(mean.A, mean.c)  # of y*(x)
    K = PROBLEM.curvature * np.eye(PROBLEM.dim_x) + np.mean(adjoint, axis=0) @ slope
    r = PROBLEM.curvature * mean.s + np.mean([a @ (s.t - offset) for a, s in zip(adjoint, shards)], axis=0)
    return np.linalg.solve(K, r)


def run(name: str, rounds: int, **algorithm: Any) -> Any:
    tables = {"run": {"problem": "quadratic", "algorithm": name, "rounds": rounds}, "delays": {"model": "none"}}
    return play(federation({**tables, "algorithm": algorithm}), rounds)


GLOBAL = {
    "afbo": (120, {"step_x": STEP}),
    "rabo": (120, {"step_x": STEP, "hypergradient": "global", "inverse": "cg", "terms": 40}),
    "fednest": (120, {"step_x": STEP, "estimator": "sum", "inner_rounds": 20, "terms": 80}),
    "simfbo": (1200, {"step_x": STEP / 10}),
    "shrofbo": (1200, {"step_x": STEP / 10}),
    "aggitd": (120, {"step_x": STEP, "estimator": "sum", "inner_rounds": 50}),
    "adbo": (30, {"cut": "distance", "damping": 0.0, "estimate_rounds": 100}),
    "sdbo": (30, {"cut": "distance", "damping": 0.0, "estimate_rounds": 150}),
}
LOCAL = {
    "rabo": (300, {"step_x": STEP / 3, "inverse": "cg", "terms": 40}),
    "rafbo": (200, {"step_x": STEP / 3, "map_steps": 150}),
    "lfednest": (180, {"step_x": STEP / 2, "estimator": "sum", "inner_rounds": 10, "terms": 150}),
    "afl": (300, {"step_x": STEP / 3, "inverse": "cg", "terms": 40, "quorum": 0}),
}


def distance(x: np.ndarray, target: np.ndarray) -> float:
    return float(np.linalg.norm(x - target) / np.linalg.norm(target))


def test_the_two_points_differ() -> None:
    assert distance(local_point(), PROBLEM.x_star(M)) > 0.05


@pytest.mark.parametrize("name", GLOBAL)
def test_it_ends_at_x_star(name: str) -> None:
    rounds, keys = GLOBAL[name]
    found = distance(run(name, rounds, **keys).state.x, PROBLEM.x_star(M))
    print(f"{name}: {found:.1e} from x*")
    assert found < 1e-3


@pytest.mark.parametrize("name", LOCAL)
def test_it_ends_where_the_mean_of_local_hypergradients_is_zero(name: str) -> None:
    rounds, keys = LOCAL[name]
    x = run(name, rounds, **keys).state.x
    print(f"{name}: {distance(x, local_point()):.1e} from there, {distance(x, PROBLEM.x_star(M)):.2f} from x*")
    assert distance(x, local_point()) < 1e-3


@pytest.mark.parametrize(("name", "keys"), [("fedavg", {}), ("fedprox", {"proximity": 1.0})])
def test_methods_of_one_level_end_at_the_lower_solution(name: str, keys: dict) -> None:
    state = run(name, 300, **keys).state
    found = distance(state.y, PROBLEM.y_star(state.x, M))
    print(f"{name}: {found:.1e} from y*(x)")
    assert found < 1e-6 and not state.x.any()
