"""ℓ follows what clients meet: it never exceeds what is true, and grows where a bound made beforehand is too small."""

from __future__ import annotations

import numpy as np
import pytest
from federation import federation, play

from fbompi import registry
from fbompi.client import Client
from fbompi.problem import Oracles
from fbompi.problems.quadratic import Quadratic

M = 6


def largest_eigenvalue() -> float:
    return max(float(np.linalg.eigvalsh(Quadratic().shard(c, M).A)[-1]) for c in range(M))


class Underestimated(Quadratic):
    """A problem that knows a quarter of its ℓ."""

    name = ""

    def smoothness(self, shard) -> float:
        return super().smoothness(shard) / 4


@pytest.mark.parametrize("kind", ["hvp", "gradients"])
def test_the_curvature_that_a_task_meets_is_below_the_largest_eigenvalue(kind: str) -> None:
    problem = Quadratic()
    client = Client(Oracles(problem, problem.shard(0, M)), 0, 0, 0)
    rng, x, largest = np.random.default_rng(0), np.zeros(10), float(np.linalg.eigvalsh(problem.shard(0, M).A)[-1])

    def task(client, y):
        for _ in range(60):
            y = client.hvp(x, y, y) if kind == "hvp" else y - 2.5 / largest * client.lower_grad(x, y)
        return y

    task.takes, task.gives, task.local_steps = ("y",), ("y",), False
    client.answer(task, 0, 1, [rng.standard_normal(20)])
    assert 0.99 * largest < client.curvature <= largest * (1 + 1e-9)


# Not the cutting planes: those made before the first product are of an iteration that diverged, and stay.
SMOOTH = [n for n, method in registry.algorithms().items() if method.family == "smooth" and n not in ("adbo", "sdbo")]


@pytest.mark.parametrize("algorithm", SMOOTH)
def test_a_bound_that_is_too_small_is_given_up_and_the_run_does_not_diverge(monkeypatch, algorithm: str) -> None:
    monkeypatch.setattr(registry, "problem", lambda name: Underestimated)
    tables = {"run": {"problem": "quadratic", "algorithm": algorithm, "rounds": 100}, "clients": {"count": M}}
    if "local_steps" in registry.algorithm(algorithm).client_keys:
        tables["clients"]["local_steps"] = 3
    d = play(federation(tables), 100)
    error = d.parts.problem.exact(d.state.x, d.state.y, M)["x_error"]
    assert d.setting.smoothness == pytest.approx(0.25) and 0.5 < d.method.ell <= 1.5 * largest_eigenvalue() * (1 + 1e-9)
    print(algorithm, error, d.method.ell)
    assert error < 1.01 and np.abs(d.state.y).max() < 50, (error, np.abs(d.state.y).max())


def test_a_bound_that_holds_stays_as_it_is() -> None:
    d = play(federation({"run": {"problem": "quadratic", "algorithm": "fedmbo"}, "clients": {"count": M}}), 5)
    assert d.link.curvature > 0.5 and d.method.ell == d.setting.smoothness


def test_what_is_given_stays_as_it_is() -> None:
    tables = {"run": {"problem": "quadratic", "algorithm": "fedmbo"}, "algorithm": {"smoothness": 0.5}}
    d = play(federation({**tables, "clients": {"count": M}}), 5)
    assert d.link.curvature > 0.5 and d.method.ell == 0.5
