"""What the server can see: no message of any method holds a row of a client's data, as it is or scaled.

That is all that is shown here. Sums over a shard tell of the shard, and a task on one sample tells of the sample: the
gradient of a linear model is its row, scaled. See the last test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from federation import play

from fbompi import registry
from fbompi.config import resolve
from fbompi.links.virtual import VirtualLink
from fbompi.messages import Array, Task, Update, task
from fbompi.run import Driver, build, link_arguments

STRIDES = 1, 10  # there are ten classes: the weights of a class may lie side by side, or those of a feature
PARALLEL = 1e-9  # how far from 1 the cosine between a stretch of an answer and a row may be


class Watched(VirtualLink):
    """A link that keeps what every client has answered."""

    def __init__(self, *arguments: Any) -> None:
        self.answers: list[tuple[int, str, list[Array]]] = []
        super().__init__(*arguments)

    def _answer(self, task: Task, arrival: float) -> Update:
        update = super()._answer(task, arrival)
        self.answers.append((task.client, task.kind, [np.array(array, np.float64) for array in update.arrays]))
        return update


def watched(algorithm: str, problem: str, rounds: int = 3, **tables: dict[str, Any]) -> tuple[Driver, Watched]:
    """Some rounds of a method, and an evaluation."""
    parts = build(resolve({"run": {"algorithm": algorithm, "problem": problem, "rounds": rounds}, **tables}))
    link = Watched([parts.client(i) for i in range(parts.clients)], *link_arguments(parts))
    driver = play(Driver(parts, link), rounds)
    link.evaluate(rounds, driver.state.x, driver.state.y)
    link.finish_evaluations()
    return driver, link


def secrets(shard: Any) -> Iterator[tuple[str, Array]]:
    """What is a client's own, one secret per row: images as stored and as used, labels, centres and radii of balls."""
    for name, part in vars(shard).items():
        if hasattr(part, "labels"):
            yield f"{name} images", np.asarray(part.X, np.float64)
            yield f"{name} images", np.asarray(part.X, np.float64) * part.scale + part.shift
            yield f"{name} labels", np.asarray(part.labels, np.float64)[None]
        elif part.dtype != bool:
            yield name, np.atleast_2d(np.asarray(part, np.float64))


def leaks(answer: Array, rows: Array) -> Array:
    """Which of these rows, times a number, some stretch of an answer is, entry by entry or in steps."""
    width, flat, found = rows.shape[1], answer.ravel(), np.zeros(len(rows), bool)
    for stride in STRIDES:
        if flat.size < (width - 1) * stride + 1:
            continue
        stretches = np.lib.stride_tricks.sliding_window_view(flat, (width - 1) * stride + 1)[:, ::stride]
        lengths = np.linalg.norm(stretches, axis=1)
        there = lengths > 0
        cosines = (stretches[there] @ rows.T) / lengths[there, None]
        found |= (np.abs(cosines) > 1 - PARALLEL).any(axis=0)
    return found


def leaking(driver: Driver, link: Watched) -> set[str]:
    """What of a client's own is in its answers, and in which."""
    found = set()
    for client in range(link.clients):
        by_width: dict[int, list[tuple[str, Array]]] = {}
        for what, rows in secrets(link._workers[client].oracles.shard):
            told = rows[np.ptp(rows, axis=1) > 0]  # a constant row is in every constant stretch
            by_width.setdefault(rows.shape[1], []).extend((what, row / np.linalg.norm(row)) for row in told)
        answers = [(kind, array) for who, kind, arrays in link.answers if who == client for array in arrays]
        assert answers and by_width
        for own in by_width.values():
            names, rows = [what for what, _ in own], np.array([row for _, row in own])
            for kind, array in answers:
                found |= {f"{names[i]} in {kind}" for i in np.flatnonzero(leaks(array, rows))}
    return found


SMOOTH = [name for name, method in registry.algorithms().items() if method.family == "smooth"]
NONSMOOTH = [name for name, method in registry.algorithms().items() if method.family == "nonsmooth"]
LONG = ("adbo", "sdbo", "aggitd")  # many answers
FEW = {"clients": {"count": 18}}


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in SMOOTH]
)
def test_no_answer_holds_a_row_of_images_or_labels(algorithm):
    assert leaking(*watched(algorithm, "hypercleaning", 2, **FEW)) == set()


@pytest.mark.parametrize("algorithm", NONSMOOTH)
def test_no_answer_holds_the_place_of_a_ball(algorithm):
    assert leaking(*watched(algorithm, "location", 3, clients={"count": 4})) == set()


def test_all_methods_were_looked_at():
    assert len(SMOOTH) + len(NONSMOOTH) == 17


# That it would be seen


@task(takes="x y", gives="x y")
def honest_looking(client: Any, x: Array, y: Array) -> tuple[Array, Array]:
    """A gradient of zeros, with a scaled image in the middle of it."""
    out, row = np.zeros(y.size), -0.25 * client.oracles.shard.train.X[3]
    out[100 : 100 + row.size] = row
    return np.zeros(x.size), out


@task(takes="x y", gives="x y")
def tells_labels(client: Any, x: Array, y: Array) -> tuple[Array, Array]:
    """Weights of samples that are their labels."""
    return 1e-3 * client.oracles.shard.train.labels, np.zeros(y.size)


@pytest.mark.parametrize("function", [honest_looking, tells_labels])
def test_a_method_that_leaks_is_found(function):
    parts = build(resolve({"run": {"algorithm": "fedmbo", "problem": "hypercleaning"}, **FEW}))
    parts.functions["leak"] = function
    link = Watched([parts.client(i) for i in range(parts.clients)], *link_arguments(parts))
    driver = Driver(parts, link)
    link.send(range(link.clients), "leak", driver.state.x, driver.state.y)
    link.collect()
    found = leaking(driver, link)
    assert found and all("train" in what and what.endswith("in leak") for what in found)


def test_a_batch_of_one_sample_gives_its_row_away():
    """No fault of a method: the gradient of a linear model on one sample is its row, scaled."""
    found = leaking(*watched("fedmbo", "hypercleaning", 2, clients={"count": 18, "batch": 1}))
    assert any("images" in what for what in found)
