"""Clients that send garbage: it is never averaged, it is counted and shown, and a run that it carries away says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import needs_mpi, options, trajectory

from fbompi import registry
from fbompi.client import Client
from fbompi.config import resolve
from fbompi.errors import UserError
from fbompi.links.link import SERVICE
from fbompi.links.virtual import VirtualLink
from fbompi.problems.quadratic import Quadratic
from fbompi.run import Driver, build, link_arguments

M = 18
BAD = (1, 7, 13)
Array = np.ndarray
Garble = Callable[[Array, np.random.Generator], Array]

SLY = "flipped, but for products"  # whose sign gives a client away

GARBAGE: dict[str, Garble] = {
    "nan": lambda a, rng: np.full_like(a, np.nan),
    "infinite": lambda a, rng: np.where(np.arange(a.size).reshape(a.shape) == rng.integers(a.size), np.inf, a),
    "huge": lambda a, rng: 1e14 * rng.standard_normal(a.shape),
    "large": lambda a, rng: 100 * rng.standard_normal(a.shape),
    "flipped": lambda a, rng: -a,
    "flipped and longer": lambda a, rng: -10 * a,
    SLY: lambda a, rng: -3 * a,
}


class Garbler(Client):
    """A client that garbles the answers it is told to."""

    garble: Garble
    when: Callable[[int], bool]  # of the number of its answer, from 0
    answers = 0

    def answer(self, function: Any, number: int, local_steps: int, arrays: Sequence[Array]) -> tuple[Array, ...]:
        answer = super().answer(function, number, local_steps, arrays)
        if function in SERVICE.values():
            return answer
        self.answers += 1
        rng = np.random.default_rng([self.index, number])
        if self.garble is GARBAGE[SLY] and function.plausible is not None:
            return answer
        return tuple(self.garble(a, rng) for a in answer) if self.when(self.answers - 1) else answer


def poisoned(
    tables: dict[str, Any], what: str, bad: Sequence[int] = BAD, when: Callable[[int], bool] = lambda n: True
) -> Driver:
    """A federation on the virtual link in which some clients send garbage."""
    parts = build(resolve(tables))
    workers = [parts.client(i) for i in range(parts.clients)]
    for worker in (workers[i] for i in bad if what):
        worker.__class__ = Garbler
        worker.garble, worker.when = GARBAGE[what], when  # type: ignore[attr-defined]
    return Driver(parts, VirtualLink(workers, *link_arguments(parts)))


def tables(method: str, rounds: int = 60, batch: int = 0, problem: dict | None = None, **clients: Any) -> dict:
    name = "location" if registry.algorithm(method).family == "nonsmooth" else "quadratic"
    return {
        "run": {"algorithm": method, "problem": name, "rounds": rounds},
        "problem": problem or {}, "clients": {"count": 1 if method == "irig" else M, "batch": batch, **clients},
    }  # fmt: skip


METHODS = sorted(set(registry.algorithms()) - {"irig"})  # which has one client


@pytest.mark.parametrize("what", ["nan", "infinite", "huge"])
@pytest.mark.parametrize("method", METHODS)
def test_an_answer_that_is_no_answer_is_asked_for_again_and_changes_nothing(method, what):
    """On whole shards a client's second answer is its first: the run has the same bits, in whatever order they came."""
    config = tables(method, 4) | {"delays": {"model": "none"}}
    if method == "lfednest":  # whose chains are otherwise drawn by the task's number
        config["algorithm"] = {"estimator": "sum"}
    once = poisoned(config, what, when=lambda n: n % 2 == 1)
    clean = poisoned(config, "")
    for _ in range(4):
        once.advance()
        clean.advance()
    assert once.link.rejected[list(BAD)].min() >= 1 and once.link.rejected.sum() == once.link.rejected[list(BAD)].sum()
    assert not once.link.gone
    if registry.algorithm(method).facts["communication"] == "synchronous":
        assert once.state.x.tobytes() == clean.state.x.tobytes()
    assert np.isfinite(once.state.x).all() and np.isfinite(once.state.y).all()


@pytest.mark.parametrize("what", ["nan", "infinite", "huge"])
def test_who_offends_again_and_again_is_left_out(what):
    driver = poisoned(tables("fedmbo") | {"faults": {"offences": 4}}, what)
    for _ in range(3):
        driver.advance()
    assert driver.link.gone == set(BAD) and driver.link.barred == set(BAD)
    assert driver.link.rejected[list(BAD)].tolist() == [4, 4, 4] and driver.link.rejected.sum() == 12
    left_out = [i for i in driver.link.incidents if i.what == "client left out"]
    assert sorted(i.client for i in left_out) == list(BAD) and "4 answers in a row" in left_out[0].text
    assert np.isfinite(driver.state.x).all()


def test_where_all_answers_are_0_others_tell_what_is_large():
    """With one local step, FedNest's clients have nothing to change."""
    driver = poisoned(tables("fednest"), "huge", when=lambda n: n == 9)
    for _ in range(2):
        driver.advance()
    assert driver.link.guard.usual["outer"] == 0 and np.linalg.norm(driver.state.x) < 1e3


def test_answers_that_become_small_or_large_with_the_iterates_are_no_garbage():
    """AFBO converges to 0 residuals, and starts from v = 0."""
    driver = poisoned(tables("afbo") | {"algorithm": {"quorum": 9}}, "")
    for _ in range(60):
        driver.advance()
    assert not driver.link.rejected.any()


@pytest.mark.parametrize("problem", ["datacleaning", "vsloss"])
@pytest.mark.parametrize("method", ["afbo", "fedmbo"])
def test_honest_clients_of_a_problem_that_is_not_convex_are_believed(method, problem):
    """Their Hessian products may point downwards."""
    driver = poisoned({"run": {"algorithm": method, "problem": problem}, "problem": {"model": "mlp", "hidden": 8},
                       "clients": {"aggregate": "median", "batch": 8}}, "")  # fmt: skip
    for _ in range(6):
        driver.advance()
    assert not driver.link.rejected.any()


@pytest.mark.parametrize("rule", ["clip", "trimmed", "median"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_stands_garbage_under_every_robust_rule(method, rule):
    driver = poisoned(tables(method, 12, aggregate=rule), "large")
    for _ in range(12):
        driver.advance()
    assert np.linalg.norm(driver.state.x) < 30 and np.linalg.norm(driver.state.y) < 300


ROUNDS = 120


@cache
def honest_optimum(heterogeneity: float) -> tuple[Array, float]:
    """x* of the clients that send no garbage, and a step for it."""
    problem = Quadratic(**noisy(heterogeneity))
    shards = [problem.shard(i, M) for i in range(M) if i not in BAD]
    A, B, c, t, s = (np.mean([getattr(shard, name) for shard in shards], axis=0) for name in "ABcts")
    slope, offset = np.linalg.solve(A, B), np.linalg.solve(A, c)
    hessian = problem.curvature * np.eye(problem.dim_x) + slope.T @ slope
    return np.linalg.solve(hessian, problem.curvature * s + slope.T @ (t - offset)), 0.5 / np.linalg.norm(hessian, 2)


def noisy(heterogeneity: float) -> dict[str, float]:
    return {"heterogeneity": heterogeneity, "noise": 1.0, "condition": 5.0, "curvature": 0.5}


@cache
def final_error(method: str, heterogeneity: float, rule: str, what: str) -> float:
    """‖x − x*‖/‖x*‖ for the honest clients' x*, the mean of the last quarter of a run on batches."""
    x_star, step = honest_optimum(heterogeneity)
    config = tables(method, ROUNDS, 4, noisy(heterogeneity), aggregate=rule)
    config["algorithm"] = {"step_x": step} | ({"quorum": 9} if method == "afbo" else {})
    driver, found = poisoned(config, what), []
    for _ in range(ROUNDS):
        driver.advance()
        found.append(float(np.linalg.norm(driver.state.x - x_star) / np.linalg.norm(x_star)))
    return float(np.mean(found[-ROUNDS // 4 :]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heterogeneity", "rule"), [(0.0, "clip"), (0.0, "trimmed"), (0.0, "median"), (0.3, "clip"), (0.3, "trimmed")]
)
@pytest.mark.parametrize("method", ["afbo", "fedmbo"])
def test_with_robust_rules_poisoned_runs_end_where_clean_ones_do(method, heterogeneity, rule):
    """Three of 18 clients; what batches leave of the error in a clean run is the measure.

    Where clients are alike, the clean run is that of all 18. Where they are not, it is that of the honest ones: one in
    which the others send nothing that counts. A median has another limit there than a mean.
    """
    clean = final_error(method, heterogeneity, "mean", "nan" if heterogeneity else "")
    attacks = ("large", "flipped and longer", *(("nan",) if rule == "trimmed" else ()))  # which no rule ever meets
    found = {what: round(final_error(method, heterogeneity, rule, what) / clean, 3) for what in attacks}
    print(f"{method}, heterogeneity {heterogeneity}, {rule}: clean error {clean:.4f}, poisoned over clean {found}")
    assert max(found.values()) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize(("method", "most"), [("afbo", 1.5), ("fedmbo", 2.5)])
def test_a_median_holds_out_against_clients_that_do_not_give_themselves_away(method, most):
    """Of FedMBO's chains every third begins or ends at one of three such clients: too many for a rule that cuts few."""
    runs = ("mean", ""), ("mean", SLY), ("median", SLY)
    clean, mean, sly = (final_error(method, 0.0, *run) for run in runs)
    print(f"{method}: {sly / clean:.2f} times the clean error; with the mean {mean / clean:.1f}")
    assert sly < most * clean < 0.6 * mean


@pytest.mark.parametrize("method", ["afbo", "fedmbo"])
def test_without_them_a_run_that_garbage_carries_away_stops_with_a_sentence(method):
    driver = poisoned(tables(method), "flipped and longer")
    with pytest.raises(
        UserError, match=r"the run diverges: .*algorithm\.step_x = auto.* smaller step; .*aggregate=median"
    ):
        for _ in range(200):
            driver.advance()
    assert np.isfinite(driver.state.x).all()


def test_a_diverging_run_names_its_step_and_leaves_a_file_that_tells(here, tmp_path):
    given = options(
        run_problem="quadratic", run_algorithm="fedmbo", run_rounds=500, algorithm_step_x=5.0, record_every=1
    )
    result = here("run", "--quiet", "--out", "run.h5", *given)
    assert result.status == 2 and result.err.count("\n") == 1
    assert "the run diverges" in result.err and "algorithm.step_x = 5.0" in result.err
    with h5py.File(tmp_path / "run.h5") as file:
        assert file.attrs["status"] == "failed" and np.isfinite(file["trajectory/x"][:]).all()


PROBLEM = """
import numpy as np
from fbompi.problems.quadratic import Quadratic

class Garbage(Quadratic):
    def shard(self, client, clients):
        shard = super().shard(client, clients)
        shard.bad = client in (1, 7, 13)
        return shard

    def lower_grad(self, shard, x, y, batch=None):
        found = super().lower_grad(shard, x, y, batch)
        return found * np.nan if shard.bad else found
"""


@needs_mpi
@pytest.mark.parametrize("method", ["afbo", "memfbo"])
def test_the_file_tells_of_garbage_on_ranks_too(method, fbompi, tmp_path: Path):
    (tmp_path / "garbage.py").write_text(PROBLEM)
    given = options(
        run_problem="garbage.py:Garbage", run_algorithm=method, run_rounds=10, clients_count=M, record_every=1
    )
    result = fbompi("run", "--quiet", "--out", "run.h5", "-n", 3, *given)
    assert result.status == 4 and "3 clients were left out" in result.err, result
    with h5py.File(tmp_path / "run.h5") as file:
        clients, events, incidents = file["clients"][:], file["events"][:], file["incidents"][:]
        assert np.flatnonzero(clients["rejected"]).tolist() == list(BAD)
        assert np.flatnonzero(clients["state"] == 1).tolist() == list(BAD)
        assert (
            np.bincount(events["client"][events["rejected"] == 1], minlength=M).tolist() == clients["rejected"].tolist()
        )
        assert {i["client"] for i in incidents if i["what"] == b"answer rejected"} == set(BAD)
    assert np.isfinite(trajectory(tmp_path / "run.h5", "x")).all()
    assert fbompi("replay", "run.h5", "--verify", "--quiet").status == 0
