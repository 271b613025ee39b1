"""Verdicts are computed: data that would falsify a claim falsify it. Every experiment runs at its small scale."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fbompi.config import resolve
from fbompi.errors import UserError
from fbompi.registry import experiments
from fbompi.reproduce import measures
from fbompi.reproduce.documentation import document
from fbompi.reproduce.execution import Execution, missing_data, perform
from fbompi.reproduce.experiment import Claim, Experiment, Scale, Table, Tuned, Verdict, judged
from fbompi.reproduce.output import page, write
from fbompi.reproduce.papers import afbo, afbo_afl, afbo_delays, afbo_stragglers


class Fake(dict):
    """A run's columns, without a run."""


def race(**times: Sequence[float]) -> dict[str, list[Fake]]:
    """Runs of 12 seconds that have accuracies 0.1, 0.5, 0.7 and 0.8 at time 0 and at these times."""
    results = {}
    for name, passed in times.items():
        accuracy = [0.1, 0.5, 0.7, 0.8][: len(passed) + 1]
        results[name] = [Fake(time=np.array([0.0, *passed, 12.0]), accuracy=np.array([*accuracy, accuracy[-1]]))]
    return results


class Toy(Experiment):
    """The smallest experiment there is."""

    paper, figure, about = "Nobody: Nothing", "Figure 0", "Two quadratics."
    keys = {"run.problem": "quadratic", "clients.count": 2, "run.rounds": 3, "record.every": 1}
    small = Scale({"algorithm.step_x": Tuned((0.001, 0.01))}, seeds=(1,))
    full = Scale({}, data=("mnist",))
    claims = (
        Claim("all is well", lambda r: judged([len(r["AFBO"]) == 1], "1 run", "There is one.")),
        Claim("all is ill", lambda r: judged([False], "0", "It is not."), "it never was"),
    )

    def cases(self, scale: Any) -> dict[str, Any]:
        return {"AFBO": {}, "FedMBO | all": {"run.algorithm": "fedmbo"}}

    def score(self, run: Any) -> float:
        return -measures.last(run, "x_error")

    def table(self, results: Any) -> Table:
        return Table(["method", "error"], [[name, measures.last(runs[0], "x_error")] for name, runs in results.items()])

    def draw(self, figure: Any, results: Any) -> None:
        figure.subplots().plot([0, 1])


Toy.name = "toy"  # not in the class: only experiments of papers are found by name


# The framework


def test_a_claim_holds_only_where_all_its_parts_do() -> None:
    assert judged([True, True], "", "").outcome == "holds"
    assert judged([True, False], "", "").outcome == "holds in part"
    assert judged([True, False, False], "", "").outcome == "does not hold"
    assert judged([], "", "").outcome == "does not hold"
    assert judged([False], "", "", enough=0).outcome == "does not hold"


def test_measures_know_what_was_not_reached() -> None:
    run = Fake(time=np.array([0.0, 1.0, 2.0, 4.0]), accuracy=np.array([0.1, np.nan, 0.5, 0.7]))
    assert measures.passage(run, "accuracy", 0.5) == 2 and measures.passage(run, "accuracy", 0.9) == np.inf
    assert measures.last(run, "accuracy") == measures.best(run, "accuracy") == 0.7
    assert measures.value_at(run, "accuracy", 3.0) == 0.5 and np.isnan(measures.value_at(run, "accuracy", 5.0))
    assert measures.average_until(run, "accuracy", 4.0) == pytest.approx((0.1 * 2 + 0.5 * 2) / 4)
    assert measures.average_until(run, "accuracy", 8.0) == pytest.approx((0.1 * 2 + 0.5 * 2 + 0.7 * 4) / 8)
    assert measures.mean([1.0, np.inf]) == np.inf and np.isnan(measures.ratio(np.inf, np.inf))
    assert measures.ratio(2.0, 1.0) == 2 and measures.ratio(np.inf, 1.0) == np.inf


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Execution:
    """The toy experiment, run."""
    return perform(Toy(), "small", tmp_path_factory.mktemp("runs"), 1, lambda n, of, o: None)


def test_an_experiment_runs_tunes_tells_and_goes_on(done: Execution, tmp_path: Path) -> None:
    experiment = Toy()
    assert done.chosen == {"AFBO": {"algorithm.step_x": 0.01}, "FedMBO | all": {"algorithm.step_x": 0.01}}
    assert [run.seed for runs in done.results.values() for run in runs] == [1, 1]
    report = write(experiment, "small", 1, done, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "table.md", "table.json", "figure.png", "figure.svg", "verdicts.json",
    }  # fmt: skip
    assert report == json.loads((tmp_path / "verdicts.json").read_text())
    assert [v["outcome"] for v in report["verdicts"]] == ["holds", "does not hold"]
    assert [v["reason"] for v in report["verdicts"]] == ["", "it never was"]
    assert "HOLDS: all is well\n  1 run. There is one." in page(report) and "Why, probably: it never was" in page(
        report
    )
    assert "| FedMBO \\| all |" in (tmp_path / "table.md").read_text()
    told: list[tuple[int, int, str]] = []
    again = perform(experiment, "small", done.runs[0].parent, 1, lambda n, of, o: told.append((n, of, o.words)))
    assert told == [(number, 6, "complete already") for number in range(1, 7)] and again.chosen == done.chosen

    made = document([tmp_path], tmp_path / "docs" / "r.md")
    text = (tmp_path / "docs" / "r.md").read_text()
    assert made == 1 and "**Does not hold**: 0. It is not. Why, probably: it never was" in text
    assert "chosen at seed 0" in text.lower() and (tmp_path / "docs" / "r" / "toy-small.svg").exists()
    with pytest.raises(UserError, match=r"holds no verdicts\.json"):
        document([done.runs[0].parent], tmp_path / "r.md")


class Wild(Toy):
    """One of the steps that are offered is much too long."""

    small = Scale({"algorithm.step_x": Tuned((1e9, 0.01))}, seeds=(1,))

    def cases(self, scale: Any) -> dict[str, Any]:
        like = {"algorithm.step_x": Tuned((1e9, 0.01), like="AFBO"), "clients.count": 3}
        return {"AFBO": {"run.rounds": 8}, "three": like}


def test_a_step_with_which_a_method_fails_is_not_chosen(tmp_path: Path) -> None:
    told: list[str] = []
    done = perform(Wild(), "small", tmp_path, 1, lambda n, of, o: told.append(o.words))
    assert told[0].startswith("failed") and told[1:] == ["complete"] * 3  # "three" has no pilots of its own
    assert done.chosen == {"AFBO": {"algorithm.step_x": 0.01}}
    assert done.results["three"][0].config["algorithm"]["step_x"] == 0.01


def test_where_every_step_fails_the_runs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wild, "small", Scale({"algorithm.step_x": Tuned((1e9,))}, seeds=(1,)))
    done = perform(Wild(), "small", tmp_path, 1, lambda n, of, o: None)
    assert not done.results and done.status == 1 and len(done.failed) == 1


def test_names_are_completed() -> None:
    from click.shell_completion import ShellComplete

    from fbompi.cli import fbompi as program

    offered = ShellComplete(program, {}, "fbompi", "_FBOMPI_COMPLETE").get_completions(["reproduce"], "a")
    assert {item.value for item in offered} == {n for n in experiments() if n.startswith("a")} | {"all"}


def test_the_order_on_ranks_is_compared_with_that_on_the_virtual_clock(done, tmp_path: Path) -> None:
    for place, ranks, order in (("one", 1, "abc"), ("four", 4, "abc"), ("three", 3, "acb")):
        (tmp_path / place).mkdir()
        report = write(Toy(), "small", ranks, done, tmp_path / place) | {"order": list(order)}
        (tmp_path / place / "verdicts.json").write_text(json.dumps(report))
    document([tmp_path / "one", tmp_path / "four", tmp_path / "three"], tmp_path / "r.md")
    page = (tmp_path / "r.md").read_text()
    assert "a, b, c on 4 ranks with injected delays, a, b, c on the virtual clock: the order is **the same**" in page
    assert (
        "a, c, b on 3 ranks with injected delays, a, b, c on the virtual clock: the order is **not the same**" in page
    )


def test_a_set_that_is_missing_is_named(here) -> None:
    with pytest.raises(UserError, match="reproduce toy: mnist is not imported: fbompi data get mnist"):
        missing_data(Toy(), "paper")
    said = here("reproduce", "afbo-iid", "--scale", "paper")
    assert said.status == 2 and "mnist is not imported" in said.err and len(said.err.splitlines()) == 1


def test_the_command_lists_and_corrects(here) -> None:
    known = json.loads(here("reproduce", "--list", "--json").out)
    assert set(known) == set(experiments()) and all(name in here("reproduce", "--list").out for name in known)
    wrong = here("reproduce", "afbo-id")
    assert wrong.status == 2 and 'did you mean "afbo-iid"' in wrong.err
    assert here("reproduce").status == 2


@pytest.mark.parametrize("name", sorted(experiments()))
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_configurations_are_valid_and_told(name: str, scale: Any) -> None:
    """At either scale, whether or not the data are there: every key is one that the method or the problem has."""
    experiment = experiments()[name]()
    assert experiment.paper and experiment.figure and experiment.about.endswith(".") and experiment.claims
    assert not {claim.text for claim in experiment.claims if claim.text.endswith(".")}
    size = experiment.scale(scale)
    for case in experiment.cases(scale).values():
        for instead in ({}, size.instead or {}):
            tables: dict[str, dict[str, Any]] = {}
            for key, value in {**experiment.keys, **size.keys, **case, **instead, **experiment.on_ranks}.items():
                section, _, word = key.partition(".")
                tables.setdefault(section, {})[word] = value.values[0] if isinstance(value, Tuned) else value
            resolve(tables)


# The claims: what would falsify them does


def test_afbo_first() -> None:
    good = race(AFBO=[1, 2, 3], ADBO=[2, 3, 4], SDBO=[4, 5, 6], FedNest=[4, 5, 6])
    assert afbo.is_first(good).outcome == "holds"
    never = race(AFBO=[1, 2], ADBO=[2, 3, 4], SDBO=[4, 5, 6], FedNest=[4, 5, 6])  # does not get to 0.8
    assert afbo.is_first(never).outcome in ("holds in part", "does not hold")
    late = race(AFBO=[1, 6, 7], ADBO=[2, 3, 4], SDBO=[4, 5, 6], FedNest=[4, 5, 6])
    assert afbo.is_first(late).outcome in ("holds in part", "does not hold")
    last = race(AFBO=[9, 10, 11], ADBO=[2, 3, 4], SDBO=[4, 5, 6], FedNest=[4, 5, 6])
    assert afbo.is_first(last).outcome == "does not hold"
    overtaken = race(AFBO=[1, 2, 9], ADBO=[3, 4, 5])  # at the very top
    assert afbo.is_first(overtaken).outcome == "holds in part" and "ADBO" in afbo.is_first(overtaken).measured
    shorter = {**race(AFBO=[1, 2]), "ADBO": [Fake(time=np.array([0, 9, 99.0]), accuracy=np.array([0.1, 0.5, 0.9]))]}
    assert afbo.is_first(shorter).outcome == "holds"  # what ADBO gets in 99 s is no match for what AFBO had 12 s for
    tie = race(AFBO=[2, 3, 4], ADBO=[2, 3, 4])
    assert afbo.is_first(tie).outcome == "does not hold"


def paced(paces: dict[str, float]) -> dict[str, list[Fake]]:
    """Runs whose accuracy goes from 0.1 to 0.9, so many times slower than one step a second."""
    return {name: [Fake(time=pace * np.arange(9.0), accuracy=np.linspace(0.1, 0.9, 9))] for name, pace in paces.items()}


def with_stragglers(**slower: float) -> dict[str, list[Fake]]:
    """Methods of equal pace, and how many times slower each is with five stragglers."""
    return paced({f"{name}{end}": times for name, pace in slower.items() for end, times in (("", 1), (FIVE, pace))})


FIVE = ", 5 stragglers"


def test_stragglers_hurt_only_those_who_wait() -> None:
    def outcomes(**slower: float) -> tuple[str, str]:
        results = with_stragglers(**slower)
        return (
            afbo_stragglers.synchronous_suffer(results).outcome,
            afbo_stragglers.asynchronous_hardly_suffer(results).outcome,
        )

    assert outcomes(AFBO=1.1, ADBO=1.2, SDBO=5, FedNest=4) == ("holds", "holds")
    assert outcomes(AFBO=2.1, ADBO=2.2, SDBO=5, FedNest=4) == ("holds", "holds in part")
    assert outcomes(AFBO=4.1, ADBO=5.2, SDBO=5, FedNest=4) == ("holds", "does not hold")
    assert outcomes(AFBO=1.1, ADBO=1.2, SDBO=1.3, FedNest=4) == ("holds in part", "holds")
    assert outcomes(AFBO=1.4, ADBO=1.4, SDBO=1.3, FedNest=1.1) == ("does not hold", "holds in part")
    results = with_stragglers(AFBO=1.1, ADBO=1.2, SDBO=5, FedNest=4)
    assert afbo_stragglers.first_with_stragglers(results).outcome == "holds"
    results = with_stragglers(AFBO=3, ADBO=1.2, SDBO=5, FedNest=4)
    assert afbo_stragglers.first_with_stragglers(results).outcome == "does not hold"


def delays(iid: Sequence[float], other: Sequence[float], covtype: Sequence[float]) -> dict[str, list[Fake]]:
    """How many times slower AFBO, ADBO, SDBO and FedNest are with a heavy tail, on each task."""
    paces = {}
    for task, slower in zip(afbo_delays.TASKS, (iid, other, covtype)):
        for name, times in zip(afbo.METHODS, slower):
            paces[f"{name}, {task}, {afbo_delays.EQUAL}"] = 1.0
            paces[f"{name}, {task}, {afbo_delays.HEAVY}"] = times
    return paced(paces)


def test_delays_leave_only_afbo_its_rate() -> None:
    good = delays([1.1, 2.1, 4, 4], [1.3, 2.8, 6, 6], [1, 2.1, 3, 3])
    judges = (
        afbo_delays.afbo_is_best, afbo_delays.only_afbo_keeps_its_rate, afbo_delays.synchronous_lose_more,
        afbo_delays.non_iid_hurts_more,
    )  # fmt: skip
    assert [judge(good).outcome for judge in judges] == ["holds"] * 4
    bad = delays([4, 3, 2, 1], [4, 3, 2, 1], [4, 3, 2, 1])
    assert [judge(bad).outcome for judge in judges] == ["does not hold"] * 4
    some = delays([2.1, 2.5, 4, 4], [2.4, 2.6, 4, 4.5], [1, 2.1, 3, 3])
    assert [judge(some).outcome for judge in judges] == ["holds", "holds in part", "holds", "holds in part"]
    others_keep_too = delays([1.1, 1.2, 1.2, 1.2], [1.1, 1.2, 1.2, 1.2], [1.1, 1.2, 1.2, 1.2])
    assert afbo_delays.only_afbo_keeps_its_rate(others_keep_too).outcome == "holds in part"


def test_afl_is_behind_for_lack_of_a_distributed_hypergradient() -> None:
    def outcomes(*ends: float) -> list[str]:
        names = ("AFBO, IID", "AFL, IID", "AFBO, non-IID", "AFL, non-IID")
        results = {
            name: [Fake(time=np.arange(6.0), accuracy=np.array([0.1, *5 * [end]]), upper=np.ones(6))]
            for name, end in zip(names, ends)
        }
        judges = (afbo_afl.afl_is_worse, afbo_afl.heterogeneity_is_the_reason, afbo_afl.little_degeneration)
        return [judge(results).outcome for judge in judges]

    assert outcomes(0.9, 0.89, 0.9, 0.88) == ["holds"] * 3
    assert outcomes(0.84, 0.82, 0.84, 0.86) == ["holds in part", "does not hold", "holds"]
    assert outcomes(0.8, 0.9, 0.7, 0.8) == ["does not hold"] * 3
    assert outcomes(0.9, 0.88, 0.9, 0.84) == ["holds", "holds", "holds in part"]
    assert outcomes(np.nan, np.nan, np.nan, np.nan) == ["does not hold"] * 3


# The small scale


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(experiments()))
def test_every_experiment_runs_at_its_small_scale(fbompi, real_data, tmp_path: Path, name: str) -> None:
    experiment = experiments()[name]()
    for data in experiment.small.data:
        real_data(data)
    done = fbompi("reproduce", name, "--out", "it", timeout=900)
    assert done.status == 0, done
    report = json.loads((tmp_path / "it" / "verdicts.json").read_text())
    assert len(report["verdicts"]) == len(experiment.claims) and report["table"]["rows"]
    for verdict in report["verdicts"]:
        assert Verdict(verdict["outcome"], verdict["measured"], verdict["sentence"]).measured
        assert verdict["measured"] in done.out
    for file in ("figure.png", "figure.svg", "table.md", "table.json"):
        assert (tmp_path / "it" / file).stat().st_size > 100
