"""FISM against its own lines written out in NumPy, and on a problem whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import needs_mpi, options, trajectory
from federation import federation, play

from fbompi.problems.location import BOX, Location, Shard

TABLES = {"run": {"algorithm": "fism", "problem": "location"}, "clients": {"count": 4}, "delays": {"model": "none"}}


def tables(**algorithm: float) -> dict:
    return {**TABLES, "problem": {"dim_x": 5, "balls": 42}, "algorithm": algorithm}


def test_a_round_is_algorithm_1_line_by_line() -> None:
    driver = federation(tables(step=0.7, weight=2.0, step_power=0.75, weight_power=0.2))
    problem = Location(dim_x=5, balls=42)
    x = driver.state.x.copy()
    for k in range(1, 6):
        gamma, weight = 0.7 / k**0.75, 2.0 / k**0.2
        outer = x - problem.anchor
        ends = []
        for client in range(4):
            shard, z = problem.shard(client, 4), x
            for centre, radius in zip(shard.centres, shard.radii):
                gap = z - centre
                distance = np.linalg.norm(gap)
                g = gap / distance if distance > radius else np.zeros(5)
                z = np.clip(z - gamma * g - gamma * weight / 42 * outer, *BOX)
            ends.append(z)
        x = np.mean(ends, axis=0)
        play(driver, 1)
        np.testing.assert_allclose(driver.state.x, x, rtol=1e-12, atol=1e-12)


class OneBall(Location):
    """All balls are one: its points are the minimisers, and the one nearest to the anchor is known."""

    def shard(self, client: int, clients: int) -> Shard:
        shard = super().shard(client, clients)
        return Shard(np.full_like(shard.centres, 2.0), np.full_like(shard.radii, 3.0))

    def answer(self) -> np.ndarray:
        gap = self.anchor - 2.0
        return 2.0 + 3.0 * gap / max(np.linalg.norm(gap), 3.0)


def test_iterates_go_to_the_minimiser_of_h_among_those_of_f(monkeypatch: pytest.MonkeyPatch) -> None:
    from fbompi import registry

    monkeypatch.setattr(registry, "problem", lambda name: OneBall)
    driver = federation(tables(step=1.0, step_power=0.6, weight_power=0.3))
    answer = driver.parts.problem.answer()
    errors = []
    for rounds in (20, 180, 1800):
        play(driver, rounds)
        errors.append(np.linalg.norm(driver.state.x - answer) / np.linalg.norm(answer))
    assert errors[0] > 3 * errors[2] and errors[1] > errors[2] and errors[2] < 0.02, errors


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (0.8, 0.3), (0.6, 0.0)])
def test_powers_without_a_proof_are_told(a: float, b: float) -> None:
    with pytest.warns(UserWarning, match="FISM converges for"):
        federation(tables(step_power=a, weight_power=b))


def test_a_first_step_without_a_proof_is_told() -> None:
    with pytest.warns(UserWarning, match="exceeds 2M = 84"):
        federation(tables(step=50.0, weight=2.0))


def test_methods_and_problems_of_other_families_do_not_meet(fbompi) -> None:
    result = fbompi("run", *options(run_algorithm="fism", run_problem="quadratic"))
    assert result.status == 2 and result.err.count("\n") == 1 and "smooth" in result.err, result


@needs_mpi
def test_the_same_bits_on_ranks_and_in_one_process(run_file) -> None:
    for problem in ("location", "sparse-logistic"):
        keys = options(run_algorithm="fism", run_problem=problem, run_rounds=5, record_every=1, clients_count=5)
        one, three = run_file(*keys, name="one.h5"), run_file("-n", 3, *keys, name="three.h5")
        for column in ("x", "upper", "lower"):
            np.testing.assert_array_equal(trajectory(one, column), trajectory(three, column))
