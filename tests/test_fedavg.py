"""FedAvg and FedProx: where local steps drift to, how far μ holds them back, and what submodels train."""

from __future__ import annotations

import numpy as np
import pytest
from federation import federation, play

from fbompi.errors import UserError
from fbompi.links.link import EVENT

M = 18


def driver(name: str, steps: int = 1, capacity=1.0, problem=None, **algorithm):
    return federation(
        {
            "run": {"problem": "quadratic", "algorithm": name},
            "problem": {"dim_x": 3, "dim_y": 5, "condition": 4, **(problem or {})},
            "clients": {"local_steps": steps, "capacity": capacity},
            "delays": {"model": "none"},
            "algorithm": algorithm,
        }
    )


def at(d, x: np.ndarray):
    """The same driver with another x, which these methods leave as it is."""
    d.state.x = x
    return d


X = np.array([1.0, -0.5, 2.0])


def fixed_point(d, x: np.ndarray, steps: int, step: float, mu: float) -> np.ndarray:
    """The y that is the mean of where clients end from it, P_i y + Q_i (B_i x + c_i): matrices built by E steps."""
    problem = d.parts.problem
    unit = np.eye(problem.dim_y)
    P, q = np.zeros_like(unit), np.zeros(problem.dim_y)
    for shard in (problem.shard(i, M) for i in range(M)):
        P_i, Q_i = unit, np.zeros_like(unit)
        for _ in range(steps):
            T = unit - step * (shard.A + mu * unit)
            P_i, Q_i = T @ P_i + step * mu * unit, T @ Q_i + step * unit
        P += P_i / M
        q += Q_i @ (shard.B @ x + shard.c) / M
    return np.linalg.solve(unit - P, q)


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_one_local_step_leads_to_the_lower_solution(name: str) -> None:
    d = play(at(driver(name), X), 120)
    np.testing.assert_allclose(d.state.y, d.parts.problem.y_star(X, M), rtol=1e-8)
    np.testing.assert_array_equal(d.state.x, X)


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0])
def test_local_steps_lead_to_the_fixed_point_of_their_average(mu: float) -> None:
    name, extra = ("fedprox", {"proximity": mu}) if mu else ("fedavg", {})
    d = play(at(driver(name, 7, step_y=0.3, **extra), X), 200)
    expected = fixed_point(d, X, 7, 0.3, mu)
    np.testing.assert_allclose(d.state.y, expected, rtol=1e-8)
    assert np.linalg.norm(expected - d.parts.problem.y_star(X, M)) > 1e-3


def test_the_drift_shrinks_as_mu_grows() -> None:
    drifts = []
    for mu in (0.0, 1.0, 3.0, 9.0):
        d = play(at(driver("fedprox", 8, step_y=0.1, proximity=mu), X), 80)
        drifts.append(np.linalg.norm(d.state.y - d.parts.problem.y_star(X, M)))
    assert np.all(np.diff(drifts) < 0)
    assert drifts[-1] < drifts[0] / 2


def test_without_mu_fedprox_is_fedavg() -> None:
    prox, avg = (play(driver(*a, **k), 5) for a, k in ((("fedprox", 4), {"proximity": 0.0}), (("fedavg", 4), {})))
    np.testing.assert_array_equal(prox.state.y, avg.state.y)


def masked_solution(d, masks: list[np.ndarray]) -> np.ndarray:
    """Where the sum over clients of gradients, each in and at the part of y it holds, is 0; 0 where nobody does."""
    problem, x = d.parts.problem, d.state.x
    A, b = np.zeros((problem.dim_y, problem.dim_y)), np.zeros(problem.dim_y)
    for i, held in enumerate(masks):
        shard, part = problem.shard(i, M), np.ix_(held, held)
        A[part] += shard.A[part]
        b[held] += (shard.B @ x + shard.c)[held]
    return np.linalg.lstsq(A, b, rcond=None)[0]


@pytest.mark.parametrize("masks", ["ordered", "static"])
def test_small_clients_lead_to_the_solution_of_the_masked_problem(masks: str) -> None:
    d = at(driver("fedavg", capacity=[0.8, 0.4], masks=masks), X)
    held = [d.method.submodels.masks(0, i, d.state.x, d.state.y)[1] for i in range(M)]
    assert [h.sum() for h in held[:4]] == [4, 2, 4, 2]
    play(d, 250)
    np.testing.assert_allclose(d.state.y, masked_solution(d, held), rtol=1e-7, atol=1e-9)
    assert d.method.figures(d.state)["covering_y"] == np.sum(held, axis=0)[np.any(held, axis=0)].min()


def test_capacity_one_in_masks_is_the_whole_model() -> None:
    """Sent as submodels that hold everything, or as it is."""
    whole, part = (driver("fedavg", 3) for _ in range(2))
    part.method.whole = False
    np.testing.assert_allclose(play(part, 10).state.y, play(whole, 10).state.y, rtol=1e-13)


def test_bytes_fall_with_capacity() -> None:
    sizes = []
    for capacity in (0.5, 0.25):
        d = play(driver("fedavg", capacity=capacity, problem={"dim_y": 96}, masks="rolling"), 1)
        sizes.append(d.link.events[0][EVENT.names.index("bytes")])
    assert sizes[0] - sizes[1] == 2 * 8 * 24  # a quarter of y, each way


# Both levels as one model


def joint(steps: int = 1, **keys):
    return driver("fedavg", steps, step_x=0.05, **keys)


def gradients(d) -> tuple[np.ndarray, np.ndarray]:
    """The mean over clients of the gradient of f_i + g_i, in x and in y."""
    problem, s = d.parts.problem, d.state
    shards = [problem.shard(i, M) for i in range(M)]
    upper = [problem.upper_grad(shard, s.x, s.y, None) for shard in shards]
    in_x = np.mean([f_x + problem.lower_grad_x(shard, s.x, s.y, None) for shard, (f_x, _) in zip(shards, upper)], 0)
    in_y = np.mean([f_y + problem.lower_grad(shard, s.x, s.y, None) for shard, (_, f_y) in zip(shards, upper)], 0)
    return in_x, in_y


def test_with_a_step_on_x_both_are_trained_on_both_objectives() -> None:
    d = at(joint(step_y=0.2), X)
    in_x, in_y = gradients(d)
    y = d.state.y.copy()
    play(d, 1)
    np.testing.assert_allclose(d.state.x, X - 0.05 * in_x, rtol=1e-12)
    np.testing.assert_allclose(d.state.y, y - 0.5 * 0.2 * in_y, rtol=1e-12, atol=1e-14)


def test_submodels_train_what_they_hold_of_both() -> None:
    d = joint(3, capacity=0.4, masks="ordered", masked="both")
    x, y = d.state.x.copy(), d.state.y.copy()
    play(d, 2)
    assert (d.state.x != x).tolist() == [True, True, False] and (d.state.y != y).tolist() == [True] * 2 + [False] * 3
    whole, part = joint(3), joint(3)
    part.method.whole = False
    one, other = play(part, 5).state, play(whole, 5).state
    np.testing.assert_allclose(np.concatenate([one.x, one.y]), np.concatenate([other.x, other.y]), rtol=1e-12)


def test_where_clients_own_x_it_is_no_part_of_a_model() -> None:
    with pytest.raises(UserError, match="clients own parts of x"):
        federation(
            {
                "run": {"problem": "hypercleaning", "algorithm": "fedavg"},
                "problem": {"train": 60, "validation": 30, "test": 30},
                "clients": {"count": 3},
                "algorithm": {"step_x": 0.1},
            }
        )
