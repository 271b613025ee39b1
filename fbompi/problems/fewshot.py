"""Few-shot hyper-representation: a backbone that lets new classes be told apart from few samples (RABO).

    g_i = mean over the client's tasks of CE(x, y_t) on the task's support samples + ½·ridge·‖y‖²/tasks
    f_i = mean over the client's tasks of CE(x, y_t) on its query samples

A task has `ways` classes (characters, for Omniglot) of the client's own, `shots` support samples of each, and `queries`
others of each (the paper takes all that are left). x = [W1, b1] is the backbone, a layer with ReLU; y holds one softmax
head per task. Over all clients that have as many tasks each, a head has 1/tasks of the loss, hence as much of the
penalty: the ridge is that of one task. A sample, in the sense of batches, is a task. The test is on tasks of the set's
test part, which for Omniglot has classes never seen: a head is trained on the support, and the queries are asked.

The paper prints one y for all tasks (`heads = "shared"`, with ½·ridge·‖y‖²). As the classes of a task are numbered at
random, such a head answers no better than chance in a new task, whatever the backbone; what it can do is to memorise
the numbers that classes have in the tasks it was trained on, and less so the more of them there are. A head per task is
what the paper's experiments need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np

from fbompi.config import Above, AtLeast
from fbompi.data.samples import DataKey, DTypeKey
from fbompi.data.store import open_set
from fbompi.errors import UserError
from fbompi.kernels.mlp import MLP, Point
from fbompi.messages import Array
from fbompi.problems.network import random_layer, whole_units
from fbompi.randomness import stream

ADAPTING_STEPS = 100  # of gradient descent on a new task's head


@dataclass
class Tasks:
    """The samples of some tasks, one task behind the other, in order of the task's own numbering of its classes."""

    network: MLP
    count: int

    def rows(self, task: int) -> Array:
        size = len(self.network.labels) // self.count
        return np.arange(task * size, (task + 1) * size)


@dataclass
class Shard:
    """One client's tasks."""

    heads: list[slice]  # where the head of each task lies in y
    support: Tasks
    query: Tasks
    test_support: Tasks
    test_query: Tasks


@dataclass(eq=False)
class FewShot:
    """A backbone above, one head per N-way K-shot task below."""

    name = "fewshot"
    convex = True
    metric_meanings = {"accuracy": "fraction of queries answered correctly in tasks of the test part"}

    data: DataKey = "omniglot"
    ways: Annotated[int, "N, classes of a task", AtLeast(2)] = 5
    shots: Annotated[int, "K, support samples of each class of a task", AtLeast(1)] = 1
    queries: Annotated[int, "query samples of each class of a task", AtLeast(1)] = 15
    tasks: Annotated[int, "tasks of all clients together", AtLeast(1)] = 180
    test_tasks: Annotated[int, "tasks of the test", AtLeast(1)] = 90
    hidden: Annotated[int, "units of the backbone", AtLeast(1)] = 64
    heads: Annotated[Literal["task", "shared"], "a head for each task, or one for all, as printed"] = "task"
    ridge: Annotated[float, "ridge coefficient of a task's head", Above(0)] = 0.05
    dtype: DTypeKey = "float64"
    seed: Annotated[int, "seed of dealing out classes and of drawing tasks", AtLeast(0)] = 0

    def __post_init__(self) -> None:
        self.set = open_set(self.data)
        if "test" not in self.set.parts or not self.set.largest:
            raise UserError(f'problem.data = "{self.data}": expected images with a test part, such as omniglot')
        for part in ("train", "test"):
            able, each = len(self._by_class(part)), self.shots + self.queries
            if able < self.ways:
                raise UserError(
                    f"problem.ways = {self.ways}: {able} classes of {part} in {self.data} have the {each} samples that "
                    "problem.shots and problem.queries ask for"
                )
        self.head_size = self.ways * (self.hidden + 1)
        self.dim_x = self.hidden * (self.set.features + 1)
        count = self.tasks if self.heads == "task" else 1
        self.dim_y, self.penalty = self.head_size * count, self.ridge / count

    def dealing(self, clients: int) -> tuple[str, dict[str, Array]]:
        """A sentence on the partition; and how many classes and tasks each client has."""
        classes = [len(self._classes("train", c, clients)) for c in range(clients)]
        tasks = [len(part) for part in np.array_split(np.arange(self.tasks), clients)]
        text = f"{self.data}: classes dealt out at random, {self.ways}-way {self.shots}-shot tasks, seed {self.seed}"
        return text, {"classes": np.array(classes), "tasks": np.array(tasks)}

    @lru_cache(maxsize=2)  # noqa: B019  (a problem lives as long as its run)
    def _by_class(self, part: str) -> dict[int, Array]:
        """The samples of every class of a part that has enough of them."""
        labels = self.set.labels(part)
        groups = {int(k): np.flatnonzero(labels == k) for k in np.unique(labels)}
        return {k: group for k, group in groups.items() if len(group) >= self.shots + self.queries}

    def _classes(self, part: str, client: int, clients: int) -> Array:
        """The classes of one client; those of the test belong to all."""
        able = np.array(sorted(self._by_class(part)), np.int64)
        if part == "train":
            order = stream(self.seed, "partition").permutation(len(able))
            able = np.sort(able[np.array_split(order, clients)[client]])
        if len(able) < self.ways:
            raise UserError(
                f"clients.count = {clients}: client {client} has {len(able)} classes of {self.data} with "
                f"{self.shots + self.queries} samples, and a task needs {self.ways}"
            )
        return able

    def shard(self, client: int, clients: int) -> Shard:
        mine = np.array_split(np.arange(self.tasks), clients)[client]
        tests = np.array_split(np.arange(self.test_tasks), clients)[client]
        if not len(mine):
            raise UserError(f"problem.tasks = {self.tasks}: there are {clients} clients, and each needs a task")
        size = self.head_size
        starts = [int(task) * size if self.heads == "task" else 0 for task in mine]
        return Shard(
            [slice(start, start + size) for start in starts],
            *self._draw("train", mine, self._classes("train", client, clients)),
            *self._draw("test", tests, self._classes("test", client, clients)),
        )

    def _draw(self, part: str, tasks: Array, able: Array) -> tuple[Tasks, Tasks]:
        """Support and queries of some tasks: each task's draws belong to its number."""
        samples = self._by_class(part)
        support, query = [], []
        for task in tasks:
            rng = stream(self.seed, "problem", 1 + int(task), int(part == "test"))
            for k in rng.permutation(able)[: self.ways]:
                drawn = rng.permutation(samples[int(k)])
                support.append(drawn[: self.shots])
                query.append(drawn[self.shots : self.shots + self.queries])
        return self._tasks(part, support, len(tasks)), self._tasks(part, query, len(tasks))

    def _tasks(self, part: str, samples: list[Array], count: int) -> Tasks:
        which = np.concatenate([np.empty(0, np.int64), *samples])
        labels = np.tile(np.repeat(np.arange(self.ways), len(samples[0]) if samples else 1), count)
        rows = self.set.rows(part, which)
        scale = 1 / self.set.largest
        network = MLP(rows, labels, self.hidden, self.ways, dtype=self.dtype, scale=scale)
        return Tasks(network, count)

    def units(self) -> tuple[Array, Array]:
        """Units of the backbone: their weights and biases in x, their columns of every head in y; biases are all's."""
        units = np.arange(self.hidden)
        return np.repeat(units, self.set.features + 1), np.tile(np.append(units, -1), self.dim_y // (self.hidden + 1))

    def submodel(self, shard: Shard, held_x: Array, held_y: Array) -> Shard | None:
        """Of whole units; None of anything else."""
        units = whole_units(self.units(), held_x, held_y)
        if units is None:
            return None
        size = self.ways * (len(units) + 1)
        starts = [head.start // self.head_size * size for head in shard.heads]
        support, query = (Tasks(tasks.network.held(units)[0], tasks.count) for tasks in (shard.support, shard.query))
        heads = [slice(start, start + size) for start in starts]
        return Shard(heads, support, query, shard.test_support, shard.test_query)

    def size(self, shard: Shard) -> int:
        return shard.support.count

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        return random_layer(self.hidden, self.set.features, rng), np.zeros(self.dim_y)

    def upper(self, shard, x, y, batch) -> float:
        return _mean(point.value() for _, point in self._points(shard, shard.query, x, y, batch))

    def lower(self, shard, x, y, batch) -> float:
        mean = _mean(point.value() for _, point in self._points(shard, shard.support, x, y, batch))
        return mean + 0.5 * self.penalty * float(y @ y)

    def upper_grad(self, shard, x, y, batch) -> tuple[Array, Array]:
        in_x, in_y, n = np.zeros_like(x), np.zeros_like(y), shard.query.count if batch is None else len(batch)
        for head, point in self._points(shard, shard.query, x, y, batch):
            of_x, of_y = point.gradient()
            in_x += of_x / n
            in_y[head] += of_y / n
        return in_x, in_y

    def lower_grad(self, shard, x, y, batch) -> Array:
        result, n = self.penalty * y, shard.support.count if batch is None else len(batch)
        for head, point in self._points(shard, shard.support, x, y, batch):
            result[head] += point.gradient_y() / n
        return result

    def lower_grads(self, shard, X, batch):
        """Activations are computed once for every copy and task."""
        tasks = range(shard.support.count) if batch is None else batch
        copies = [
            [(shard.heads[t], shard.support.network.at(x, self._no_head(shard), shard.support.rows(t)).head.data)
             for t in tasks]
            for x in X
        ]  # fmt: skip

        def gradients(Y: Array) -> Array:
            result = self.penalty * Y
            for row, y, heads in zip(result, Y, copies):
                for head, data in heads:
                    row[head] += data.at(y[head]).gradient().ravel() / len(tasks)
            return result

        return gradients

    def lower_grad_x(self, shard, x, y, batch) -> Array:
        return _mean(point.gradient()[0] for _, point in self._points(shard, shard.support, x, y, batch))

    def hvp(self, shard, x, y, v, batch) -> Array:
        result, n = self.penalty * v, shard.support.count if batch is None else len(batch)
        for head, point in self._points(shard, shard.support, x, y, batch):
            result[head] += point.hvp(v[head]) / n
        return result

    def cross(self, shard, x, y, v, batch) -> Array:
        return _mean(point.cross(v[head]) for head, point in self._points(shard, shard.support, x, y, batch))

    def _points(self, shard: Shard, tasks: Tasks, x: Array, y: Array, batch: Array | None):
        """Every task of a batch: where its head lies, and the network there on its samples."""
        for task in range(tasks.count) if batch is None else batch:
            head = shard.heads[task]
            yield head, tasks.network.at(x, y[head], tasks.rows(task))

    @staticmethod
    def _no_head(shard: Shard) -> Array:
        return np.zeros(shard.support.network.dim_y)

    def smoothness(self, shard: Shard) -> float:
        """On activations of a backbone like the one that a run begins with; a shared head has all tasks' Hessians."""
        x = random_layer(self.hidden, self.set.features, stream(self.seed, "start"))
        zero = np.zeros(self.head_size)
        bounds = [shard.support.network.at(x, zero, shard.support.rows(t)).curvature() for t in range(len(shard.heads))]
        return (max(bounds) / len(bounds) if self.heads == "task" else float(np.mean(bounds))) + self.penalty

    def metrics(self, shard, x, y) -> dict[str, tuple[float, float]]:
        right = asked = 0
        for task in range(shard.test_query.count):
            known, asking = shard.test_support, shard.test_query
            head = self._adapted(known.network.at(x, np.zeros(self.head_size), known.rows(task)))
            query = asking.network.at(x, head, asking.rows(task))
            right += int((query.predict() == query.labels).sum())
            asked += len(query.labels)
        return {"accuracy": (float(right), float(asked))}

    def _adapted(self, support: Point) -> Array:
        """The head of a new task, by gradient descent on its support."""
        regression, step = support.head.data, 1 / (support.curvature() + self.ridge)
        head = np.zeros(self.head_size)
        for _ in range(ADAPTING_STEPS):
            head = head - step * regression.at(head).gradient(ridge=self.ridge).ravel()
        return head


def _mean(values):
    values = list(values)
    return sum(values[1:], values[0]) / len(values)
