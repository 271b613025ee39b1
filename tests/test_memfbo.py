"""MemFBO: where it goes for a given λ, how far that is from x*, and what a client needs for it."""

from __future__ import annotations

import numpy as np
import pytest
from federation import federation, play

from fbompi.client import MEMORY
from fbompi.problems.quadratic import Quadratic

M = 18


def driver(rounds: int = 2000, clients: dict | None = None, problem: dict | None = None, **algorithm):
    return federation(
        {
            "run": {"problem": "quadratic", "algorithm": "memfbo", "rounds": rounds},
            "problem": problem or {},
            "clients": clients or {},
            "delays": {"model": "none"},
            "algorithm": algorithm,
        }
    )


def saddle(problem: Quadratic, weight: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, y, z) with ∇L = 0: A z = Bx + c,  (I + λA) y = t + λ(Bx + c),  ρ(x − s) = λBᵀ(y − z), all averages."""
    mean, rho = problem.average(M), problem.curvature
    (q, p), identity, zero = mean.B.shape, np.eye(problem.dim_y), np.zeros((problem.dim_y,) * 2)
    system = np.block(
        [
            [-mean.B, zero, mean.A],
            [-weight * mean.B, identity + weight * mean.A, zero],
            [rho * np.eye(p), -weight * mean.B.T, weight * mean.B.T],
        ]
    )
    solution = np.linalg.solve(system, np.concatenate([mean.c, mean.t + weight * mean.c, rho * mean.s]))
    return solution[:p], solution[p : p + q], solution[p + q :]


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def test_it_reaches_the_saddle_point_of_its_lagrangian_and_its_bias_falls_as_one_over_lambda() -> None:
    biases = {}
    for weight in (10.0, 30.0, 100.0):
        d = play(driver(multiplier=weight), 700)
        problem, s = d.parts.problem, d.state
        for found, exact in zip((s.x, s.y, s.z), saddle(problem, weight)):
            assert distance(found, exact) < 1e-3
        biases[weight] = distance(s.x, problem.x_star(M))
    slope = np.polyfit(np.log(list(biases)), np.log(list(biases.values())), 1)[0]
    print(f"relative distance from x*: {biases}, slope {slope:.3f}")
    assert slope == pytest.approx(-1, abs=0.15) and biases[10.0] > 0.02


def test_a_growing_lambda_takes_the_bias_away() -> None:
    d = play(driver(growth=0.5), 700)
    fixed = distance(saddle(d.parts.problem, 10.0)[0], d.parts.problem.x_star(M))
    assert distance(d.state.x, d.parts.problem.x_star(M)) < fixed / 5


def test_a_round_is_equations_6_to_9_written_out() -> None:
    steps = {"local_x": 0.01, "local_y": 0.02, "local_z": 0.3, "step_x": 0.05, "step_y": 0.04, "step_z": 0.5}
    d = driver(clients={"local_steps": 3}, multiplier=7.0, **steps)
    problem, (x, y, z) = d.parts.problem, (d.state.x, d.state.y, d.state.z)
    for _ in range(3):
        sums = np.zeros(problem.dim_x), np.zeros(problem.dim_y), np.zeros(problem.dim_y)
        for client in range(M):
            shard, (xi, yi, zi) = problem.shard(client, M), (x, y, z)
            for _ in range(3):
                h_z = problem.lower_grad(shard, xi, zi)
                f_x, f_y = problem.upper_grad(shard, xi, yi)
                h_y = f_y + 7.0 * problem.lower_grad(shard, xi, yi)
                h_x = f_x + 7.0 * (problem.lower_grad_x(shard, xi, yi) - problem.lower_grad_x(shard, xi, zi))
                for total, h in zip(sums, (h_x, h_y, h_z)):
                    total += h / (3 * M)
                xi, yi, zi = xi - 0.01 * h_x, yi - 0.02 * h_y, zi - 0.3 * h_z
        x, y, z = x - 0.05 * sums[0], y - 0.04 * sums[1], z - 0.5 * sums[2]
        play(d, 1)
    for found, expected in zip((d.state.x, d.state.y, d.state.z), (x, y, z)):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_nothing_of_second_order_is_computed() -> None:
    d = play(driver(clients={"local_steps": 4}), 3)
    names = d.link.kinds
    gradients, hvps, crosses = (sum(e[12 + k] for e in d.link.events) for k in range(3))
    assert {names[e[1]] for e in d.link.events} == {"local"} and gradients == 3 * M * 4 * 5 * 32
    assert hvps == crosses == 0


def peak(algorithm: str, steps: int) -> int:
    """The most memory that a task of these many local steps took, as clients traced it."""
    d = federation(
        {
            "run": {"problem": "quadratic", "algorithm": algorithm},
            "problem": {"dim_x": 2000, "dim_y": 400, "samples": 1},
            "clients": {"count": 2, "local_steps": steps},
            "delays": {"model": "none"},
        }
    )
    play(d, 3)
    return max(e[12 + MEMORY] for e in d.link.events)


def test_a_clients_memory_does_not_grow_with_its_local_steps_and_that_of_simfbo_does() -> None:
    """τ from 1 to 64; SimFBO as it is defined keeps the τ products until it weighs them."""
    memory = {name: {tau: peak(name, tau) for tau in (1, 4, 16, 64)} for name in ("memfbo", "simfbo")}
    print(f"bytes at most in a task: {memory}")
    flat, growing = memory["memfbo"], memory["simfbo"]
    assert max(flat.values()) < 1.25 * flat[1] and flat[64] < 1.01 * flat[4]
    assert growing[64] > 5 * growing[1] and growing[16] > 2 * growing[1]
