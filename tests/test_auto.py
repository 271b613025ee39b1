"""The automatic step sizes: every method on every shipped problem of its family descends and does not diverge.

Methods that move x must lower the upper objective, the others the lower one. FBOMPI_TEST_SEEDS=3 tries more seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from federation import federation, play

from fbompi import registry
from fbompi.problem import family

pytestmark = pytest.mark.slow

PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "quadratic": ("quadratic", {}),
    "quadratic, ill-conditioned": ("quadratic", {"condition": 200.0}),
    "hypercleaning": ("hypercleaning", {}),
    "datacleaning": ("datacleaning", {}),
    "datacleaning, network": ("datacleaning", {"model": "mlp", "hidden": 8}),
    "regcoef": ("regcoef", {}),
    "hyperrep": ("hyperrep", {"hidden": 8}),
    "vsloss": ("vsloss", {}),
    "vsloss, network": ("vsloss", {"model": "mlp", "hidden": 8}),
    "fewshot": ("fewshot", {"tasks": 18, "test_tasks": 9, "hidden": 8, "queries": 5}),
    "location": ("location", {}),
    "sparse-logistic": ("sparse-logistic", {}),
}
STILL = ("fedavg", "fedprox")  # leave x where it is
ROUNDS = 60
# Half as many rounds: of many iterations in clients and server, and with a lower problem for every coordinate of x.
SLOW = ("adbo", "sdbo", "rafbo")


def seeds() -> range:
    return range(int(os.environ.get("FBOMPI_TEST_SEEDS", "1")))


def objectives(d: Any) -> tuple[float, float]:
    """Upper and lower value, means over clients; the upper one at y*(x) where that is known."""
    x, y, blocks = d.state.x, d.state.y, d.parts.shapes.blocks
    best = d.parts.problem.y_star(x, d.parts.clients) if hasattr(d.parts.problem, "y_star") else y
    workers = zip(d.link._workers, blocks)
    upper, lower = np.mean([(w.oracles.upper(x[b], best), w.oracles.lower(x[b], y)) for w, b in workers], axis=0)
    return float(upper), float(lower)


def course(name: str, label: str, seed: int, rounds: int = ROUNDS, **clients: Any) -> np.ndarray:
    """The objective that the method lowers, before the first round and after each sixth of the others."""
    problem, keys = PROBLEMS[label]
    tables = {"run": {"algorithm": name, "problem": problem, "rounds": rounds, "seed": seed}, "problem": keys}
    which = 1 if name in STILL or registry.algorithm(name).family == "nonsmooth" else 0
    d = federation({**tables, "clients": clients})
    values = [objectives(d)[which]]
    for _ in range(6):
        play(d, rounds // 6)
        values.append(objectives(d)[which])
    return np.array(values)


def fits(name: str, label: str) -> bool:
    return family(registry.problem(PROBLEMS[label][0])) == registry.algorithm(name).family


CASES = [(name, label) for name in registry.algorithms() for label in PROBLEMS if fits(name, label)]
if (
    "FBOMPI_TEST_SEEDS" not in os.environ
):  # every other one: half of the problems for a method, of the methods for a problem
    numbers = {word: i for words in (registry.algorithms(), PROBLEMS) for i, word in enumerate(words)}
    CASES = [(name, label) for name, label in CASES if (numbers[name] + numbers[label]) % 2 == 0]


@pytest.mark.parametrize(("name", "label"), CASES)
def test_automatic_steps_descend(real_data: Callable[[str], str], name: str, label: str) -> None:
    if label == "fewshot":
        real_data("omniglot")
    for seed in seeds():
        values = course(name, label, seed, ROUNDS // 2 if name in SLOW else ROUNDS)
        print(f"{name:9} {label:27} seed {seed}: {' '.join(f'{v:.4g}' for v in values)}")
        assert np.isfinite(values).all(), values
        assert values[-1] < values[0] and values.max() < values[0] + 4 * (values[0] - values.min()), values
