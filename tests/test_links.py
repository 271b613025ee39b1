"""What links promise: pure clients, delays as asked for, the same bits, whoever computes them and in whatever order."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import needs_mpi, options, trajectory
from federation import federation, play

from fbompi.client import Client
from fbompi.config import Delays
from fbompi.delays import DelayModel
from fbompi.errors import UserError
from fbompi.links.link import Stalled
from fbompi.problem import Oracles
from fbompi.problems.quadratic import Quadratic


def delays(model: str, clients: int = 4, count: int = 20000, **settings) -> np.ndarray:
    m = DelayModel(Delays(model=model, **settings), clients, seed=1)
    return np.array([[m.communication(c, k) for k in range(count)] for c in range(clients)])


@pytest.mark.parametrize("model", ["exponential", "lognormal", "pareto"])
def test_delays_have_the_mean_asked_for(model: str) -> None:
    drawn = delays(model, mean=2.0, sigma=0.8, tail=3.0)
    assert drawn.min() > 0
    np.testing.assert_allclose(drawn.mean(axis=1), 2.0, rtol=0.08)


def test_lognormal_delays_have_the_spread_asked_for() -> None:
    np.testing.assert_allclose(np.log(delays("lognormal", sigma=0.7)).std(axis=1), 0.7, rtol=0.02)


def test_pareto_delays_have_the_tail_asked_for() -> None:
    drawn = np.sort(delays("pareto", tail=2.5).ravel())
    hill = 1 / np.mean(np.log(drawn[-4000:] / drawn[-4000]))
    assert hill == pytest.approx(2.5, rel=0.1)


def test_stragglers_are_as_many_and_as_slow_as_asked_for() -> None:
    factor = DelayModel(Delays(stragglers=5, factor=7.0), 18, seed=3).factor
    assert sorted(factor) == [1.0] * 13 + [7.0] * 5
    others = DelayModel(Delays(stragglers=5, factor=7.0), 18, seed=4).factor
    assert (factor != others).any()


def test_a_trace_is_used_row_by_row(tmp_path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("# seconds\n1, 2, 3\n10\n")
    m = DelayModel(Delays(model="trace", trace=str(file)), 3, seed=0)
    assert [m.communication(0, k) for k in range(4)] == [1, 2, 3, 1]
    assert m.communication(1, 5) == 10 and m.communication(2, 1) == 2


@pytest.mark.parametrize("text", ["", "1,x", "-1", "inf", "# nothing\n"])
def test_a_bad_trace_is_refused(tmp_path, text: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=r"trace\.csv"):
        DelayModel(Delays(model="trace", trace=str(file)), 3, seed=0)


def quadratic(**tables):
    return federation({"run": {"problem": "quadratic"}, **tables})


def test_computing_counts_apart_from_communication() -> None:
    d = quadratic(delays={"model": "none", "compute": 0.5}, clients={"local_steps": 4})
    d.link.send([0, 0, 1], "lower", d.state.x, d.state.y, d.method.local_step)
    times = [(u.client, u.time, u.compute) for u in d.link.collect()]
    assert times == [(0, 2.0, 2.0), (0, 4.0, 2.0), (1, 2.0, 2.0)], "a client works on one task at a time"


def test_updates_come_back_in_the_order_of_sending() -> None:
    d = quadratic()
    d.link.send([3, 1, 3, 0], "lower", d.state.x, d.state.y, d.method.local_step)
    updates = d.link.collect()
    assert [u.client for u in updates] == [3, 1, 3, 0]
    assert [u.task.number for u in updates] == [0, 1, 2, 3]


def test_waiting_for_nothing_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(Stalled):
        quadratic().link.take()


def test_an_answer_depends_on_nothing_but_shard_and_task() -> None:
    d = quadratic(clients={"batch": 3}, problem={"noise": 0.5})
    client, (x, y) = d.parts.client(5), (d.state.x, d.state.y + 1)
    function, args = d.link.functions["lower"], (x, y, d.method.local_step)
    first = client.answer(function, 17, 2, args)[0]
    client.answer(function, 18, 3, args)
    np.testing.assert_array_equal(client.answer(function, 17, 2, args)[0], first)
    np.testing.assert_array_equal(d.parts.client(5).answer(function, 17, 2, args)[0], first)
    assert (client.answer(function, 18, 2, args)[0] != first).any(), "another task draws another batch"


class Slips(Quadratic):
    """A user's problem with a common slip in one of its oracles."""

    def __init__(self, slip: str) -> None:
        super().__init__()
        self.slip = slip

    def lower_grad(self, shard, x, y, batch=None):
        if self.slip == "in place":
            y *= 0
        gradient = super().lower_grad(shard, x, y, batch)
        return gradient[:1] if self.slip == "shape" else gradient


@pytest.mark.parametrize(
    "slip, says", [("shape", r"Slips\.lower_grad of client 0: shape \(1,\)"), ("in place", "read-only")]
)
def test_a_slip_in_an_oracle_is_told_and_not_averaged(slip: str, says: str) -> None:
    d = quadratic()
    d.link._workers[0] = Client(Oracles(Slips(slip), d.parts.problem.shard(0, 18)), 0, 0, 0)
    with pytest.raises(ValueError, match=says):
        play(d, 1)


def test_looking_at_a_run_does_not_change_it(run_file) -> None:
    base = options(run_rounds=20, clients_batch=5, clients_local_steps="[1,4]")
    often = run_file(*base, *options(record_every=1), name="often.h5")
    seldom = run_file(*base, *options(record_every=20, record_metrics=False), name="seldom.h5")
    np.testing.assert_array_equal(trajectory(often, "x")[-1], trajectory(seldom, "x")[-1])


def test_local_steps_are_drawn_from_the_range_given() -> None:
    d = play(quadratic(clients={"local_steps": [2, 5]}), 10)
    steps = {(d.link.kinds[e[1]], e[6]) for e in d.link.events}
    assert steps == {*(("lower", n) for n in (2, 3, 4, 5)), ("product", 1), ("cross", 1)}


def test_local_steps_drawn_for_clients_stay_with_them() -> None:
    d = play(quadratic(clients={"local_steps": [1, 9], "steps_by": "client"}), 10)
    steps = {(e[0], e[6]) for e in d.link.events if d.link.kinds[e[1]] == "lower"}
    assert len(steps) == 18 and len({n for _, n in steps}) > 3


@pytest.mark.parametrize("algorithm", ["afbo", "fedmbo"])
def test_the_same_seed_gives_the_same_bits_on_virtual(run_file, algorithm: str) -> None:
    base = options(run_algorithm=algorithm, run_rounds=15, clients_batch=7)
    base += options(clients_local_steps="[1,3]") if algorithm == "afbo" else options(clients_participation=0.5)
    one, two = (run_file(*base, name=name) for name in ("one.h5", "two.h5"))
    other = run_file(*base, *options(run_seed=1), name="other.h5")
    for column in ("x", "y", "time", "upper", "accuracy"):
        np.testing.assert_array_equal(trajectory(one, column), trajectory(two, column))
    assert (trajectory(one, "x")[-1] != trajectory(other, "x")[-1]).any()


@needs_mpi
@pytest.mark.parametrize(
    ("problem", "numbers"), [("quadratic", (2, 5)), pytest.param("hypercleaning", (3,), marks=pytest.mark.slow)]
)
def test_fedmbo_has_the_same_bits_on_any_number_of_ranks(run_file, problem: str, numbers: tuple[int, ...]) -> None:
    base = options(
        run_algorithm="fedmbo", run_problem=problem, run_rounds=8, clients_batch=6, clients_participation=0.5,
        record_every=2,
    )  # fmt: skip
    base += options(problem_noise=0.5) if problem == "quadratic" else []
    alone = run_file(*base, name="virtual.h5")
    for ranks in numbers:
        path = run_file(*base, "-n", ranks, name=f"{ranks}.h5")
        for column in ("x", "y", "upper", "lower", "grad_norm"):
            np.testing.assert_array_equal(trajectory(alone, column), trajectory(path, column), err_msg=f"{ranks} ranks")
