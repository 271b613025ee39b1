"""Who takes part: as many as asked for, drawn as asked for, the same on every machine, and never nobody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from federation import federation, play
from hypothesis import given, settings
from hypothesis import strategies as st

from fbompi.config import Clients
from fbompi.errors import UserError
from fbompi.participation import Participation

M = 18


def participation(clients: int = M, seed: int = 0, **keys) -> Participation:
    return Participation(Clients(**keys), clients, seed)


def test_everyone_is_invited_in_client_order_unless_something_else_is_asked_for() -> None:
    assert participation().invited(5).tolist() == list(range(M))


@given(st.integers(1, 40), st.floats(0.01, 1), st.booleans(), st.integers(0, 500), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_a_sample_has_the_size_asked_for(m: int, fraction: float, replacement: bool, round_: int, seed: int) -> None:
    who = participation(m, seed, participation=fraction, replacement=replacement)
    drawn = who.sample(round_)
    assert len(drawn) == who.count == max(1, round(fraction * m)) and set(drawn) <= set(range(m))
    assert replacement or len(set(drawn)) == len(drawn)
    assert who.invited(round_).tolist() == (sorted(drawn) if who.count < m or replacement else list(range(m)))
    np.testing.assert_array_equal(
        participation(m, seed, participation=fraction, replacement=replacement).sample(round_), drawn
    )


def test_all_clients_are_drawn_equally_often() -> None:
    who = participation(participation=1 / 3)
    counts = np.bincount(np.concatenate([who.sample(r) for r in range(3000)]), minlength=M)
    expected, spread = 1000, np.sqrt(3000 * (1 / 3) * (2 / 3))
    assert np.abs(counts - expected).max() < 4 * spread


def test_where_more_are_wanted_than_are_there_all_come_before_anyone_comes_again() -> None:
    drawn = participation(4, participation=0.5).sample(3, count=10)
    assert sorted(np.bincount(drawn)) == [2, 2, 3, 3]


def stays(here: np.ndarray, present: bool) -> np.ndarray:
    """The lengths of all complete periods of one client."""
    change = np.flatnonzero(np.diff(here.astype(int))) + 1
    pieces = np.split(here, change)[1:-1]
    return np.array([len(piece) for piece in pieces if piece[0] == present])


def test_anarchic_clients_stay_and_are_away_as_long_as_asked_for() -> None:
    who, rounds = participation(100, presence="anarchic", stay=8.0, away=4.0), 2000
    here = np.zeros((100, rounds), bool)
    for r in range(rounds):
        here[who.present(r), r] = True
    lengths = {present: np.concatenate([stays(row, present) for row in here]) for present in (True, False)}
    assert lengths[True].mean() == pytest.approx(8, rel=0.05) and lengths[False].mean() == pytest.approx(4, rel=0.05)
    assert here.mean() == pytest.approx(8 / 12, abs=0.02) and here[:, 0].mean() == pytest.approx(8 / 12, abs=0.15)
    assert lengths[True].std() == pytest.approx(np.sqrt(8 * 7), rel=0.1), "geometric lengths"


def test_going_back_in_rounds_finds_the_same_clients() -> None:
    who = participation(presence="anarchic", stay=3.0, away=3.0)
    there = [who.present(r).tolist() for r in range(50)]
    assert [who.present(r).tolist() for r in (40, 7, 49, 0)] == [there[r] for r in (40, 7, 49, 0)]


def test_there_is_always_somebody() -> None:
    who = participation(2, presence="anarchic", stay=1.0, away=50.0)
    assert min(len(who.present(r)) for r in range(500)) >= 1


def scheduled(tmp_path: Path, text: str, clients: int = 4) -> Participation:
    file = tmp_path / "schedule.csv"
    file.write_text(text)
    return participation(clients, presence="schedule", schedule=str(file))


def test_a_schedule_is_used_row_by_row(tmp_path: Path) -> None:
    who = scheduled(tmp_path, "# clients\n0, 2\n3,1\n")
    assert [who.invited(r).tolist() for r in range(3)] == [[0, 2], [1, 3], [0, 2]]


@pytest.mark.parametrize("text", ["", "0,x", "4", "-1", "# nobody\n"])
def test_a_bad_schedule_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"schedule\.csv"):
        scheduled(tmp_path, text)


def test_a_schedule_that_is_not_there_is_told(here) -> None:
    result = here("run", "-o", "clients.presence=schedule", "-o", "clients.schedule=nowhere.csv")
    assert result.status == 2 and "clients.schedule" in result.err and result.err.count("\n") == 1, result


@pytest.mark.parametrize("keys", [{"participation": 0.3}, {"presence": "anarchic", "stay": 4.0, "away": 4.0}])
def test_an_asynchronous_method_asks_only_those_invited_and_still_gets_there(keys: dict) -> None:
    """Once every client has been heard: before that, averages over all would lack some."""
    d = federation({"run": {"problem": "quadratic", "rounds": 400}, "clients": keys, "algorithm": {"step_x": 0.014}})
    play(d, 1)
    begin, who = d.link.round, d.setting.participation
    d.link.events.clear()
    play(d, 20)
    for event in d.link.events:
        client, sent = event[0], event[3]
        assert sent < begin or client in who.invited(sent)
    play(d, 380)
    assert d.parts.problem.exact(d.state.x, d.state.y, M)["x_error"] < 0.1


def test_nobody_waits_for_the_slowest_where_fewer_are_asked_than_the_quorum() -> None:
    slow = {"model": "lognormal", "stragglers": 4, "factor": 50.0}
    times = {}
    for fraction in (1.0, 0.1):
        tables = {"run": {"problem": "quadratic"}, "clients": {"participation": fraction}, "delays": slow}
        times[fraction] = play(federation(tables), 30).link.now
    assert times[0.1] < 5 * times[1.0], times


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memfbo", "simfbo", "shrofbo", "rabo", "rafbo", "aggitd", "fedmbo", "fednest"])
@pytest.mark.parametrize(
    "keys", [{"count": 18, "participation": 0.1}, {"count": 10, "presence": "anarchic", "stay": 2.0, "away": 6.0}]
)
def test_automatic_steps_go_on_where_few_clients_are_asked(name: str, keys: dict) -> None:
    """What sampling adds to residuals must not be taken for a lag of y: the step would be cut for ever."""
    run = {"problem": "quadratic", "algorithm": name, "rounds": 300}
    d = play(federation({"run": run, "clients": keys, "delays": {"model": "none"}}), 300)
    error = d.parts.problem.exact(d.state.x, d.state.y, keys["count"])["x_error"]
    print(f"{name} {keys}: error {error:.2f}, last step {d.state.step:.1e}, {d.state.rule.alarms} alarms")
    assert error < 0.75 and d.state.step > 1e-6
