"""Few-shot tasks on clients of small capacity: a submodel holds whole units, in the backbone and in every head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fbompi.problem import CutOut, Oracles
from fbompi.problems.fewshot import FewShot


def oracles(heads: Any) -> Oracles:
    problem = FewShot(data="mnist", ways=3, shots=2, queries=4, tasks=7, test_tasks=3, hidden=6, heads=heads)
    return Oracles(problem, problem.shard(1, 2))


@pytest.mark.parametrize("batch", [None, np.array([2, 0, 2])], ids=["shard", "batch"])
@pytest.mark.parametrize("heads", ["task", "shared"])
def test_oracles_of_submodels_and_of_many_models(heads: str, batch: Any, real_data: Callable[[str], str]) -> None:
    real_data("mnist")
    whole, rng = oracles(heads), np.random.default_rng(3)
    of_x, of_y = whole.problem.units()
    held_x, held_y = np.flatnonzero(np.isin(of_x, [1, 4])), np.flatnonzero(np.isin(of_y, [1, 4, -1]))
    part, cut = whole.held(held_x, held_y), CutOut(whole, held_x, held_y)
    assert not isinstance(part, CutOut), "it computes what it holds"
    x, y, v = 0.1 * rng.standard_normal(len(held_x)), rng.standard_normal(len(held_y)), rng.standard_normal(len(held_y))
    for found, expected in (
        (part.upper(x, y, batch), cut.upper(x, y, batch)),
        (part.lower(x, y, batch), cut.lower(x, y, batch)),
        (np.concatenate(part.upper_grad(x, y, batch)), np.concatenate(cut.upper_grad(x, y, batch))),
        (part.lower_grad(x, y, batch), cut.lower_grad(x, y, batch)),
        (part.lower_grad_x(x, y, batch), cut.lower_grad_x(x, y, batch)),
        (part.hvp(x, y, v, batch), cut.hvp(x, y, v, batch)),
        (part.cross(x, y, v, batch), cut.cross(x, y, v, batch)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    xs, ys = x + 0.1 * rng.random((3, x.size)), y + 0.1 * rng.random((3, y.size))
    each = [part.lower_grad(*at, batch) for at in zip(xs, ys)]
    np.testing.assert_allclose(part.lower_grads(xs, batch)(ys), each, rtol=1e-10, atol=1e-12)


def test_parts_of_units_are_cut_out_of_the_whole(real_data: Callable[[str], str]) -> None:
    real_data("mnist")
    whole = oracles("task")
    assert isinstance(whole.held(np.arange(5), np.arange(whole.problem.dim_y)), CutOut)
