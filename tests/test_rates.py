"""The papers' speed-ups: with n sampled clients in every average, the error at a fixed round falls as 1/n."""

from __future__ import annotations

import numpy as np
import pytest
from federation import federation, play

from fbompi.problems.quadratic import Quadratic

pytestmark = pytest.mark.slow

M, SAMPLED, SEEDS = 36, (1, 4, 16), 6
PROBLEM = {"dim_x": 4, "dim_y": 6, "noise": 0.5, "condition": 5, "heterogeneity": 0.5}


def squared_gradient(algorithm: str, n: int, seed: int, rounds: int, parameters: dict) -> float:
    """The mean of ‖∇Φ(x)‖² over the second half of a run with constant steps: what sampling leaves."""
    d = federation(
        {
            "run": {"problem": "quadratic", "algorithm": algorithm, "rounds": rounds, "seed": seed},
            "problem": PROBLEM,
            "clients": {"count": M, "participation": n / M, "replacement": True, "batch": 2},
            "delays": {"model": "none"},
            "algorithm": parameters,
        }
    )
    problem, target = Quadratic(**PROBLEM), 0.0
    play(d, rounds // 2)
    for _ in range(rounds - rounds // 2):
        play(d, 1)
        target += float(np.linalg.norm(problem.gradient(d.state.x, M)) ** 2)
    return target / (rounds - rounds // 2)


def slope(errors: np.ndarray) -> float:
    """Of the logarithm of the mean over seeds against that of n."""
    return float(np.polyfit(np.log(SAMPLED), np.log(errors.mean(axis=1)), 1)[0])


@pytest.mark.parametrize(
    ("algorithm", "rounds", "parameters"),
    [
        ("fedmbo", 400, {"step_x": 0.01, "step_y": 0.2, "inner_rounds": 2, "terms": 8}),
        ("memfbo", 1200, {"step_x": 0.005, "multiplier": 10.0}),
    ],
)
def test_the_speed_up_is_linear_in_the_sampled_clients(algorithm: str, rounds: int, parameters: dict) -> None:
    errors = np.array([[squared_gradient(algorithm, n, s, rounds, parameters) for s in range(SEEDS)] for n in SAMPLED])
    rng = np.random.default_rng(0)
    again = [slope(errors[:, rng.integers(SEEDS, size=SEEDS)]) for _ in range(1000)]
    low, high = np.percentile(again, [2.5, 97.5])
    print(f"{algorithm}: ‖∇Φ‖² {errors.mean(axis=1).round(3)} for n = {SAMPLED}")
    print(f"slope {slope(errors):.3f}, 95 % of resampled seeds from {low:.3f} to {high:.3f}")
    assert slope(errors) == pytest.approx(-1, abs=0.15)
    assert high - low < 0.4 and low < -0.85 and high > -1.15
