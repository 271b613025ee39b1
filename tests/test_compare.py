"""Comparisons against NumPy and SciPy by hand: 5 seeds of 3 methods."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import command, options
from federation import ran
from scipy import stats

from fbompi.comparison import Mean, compare, differences, grouped, page, t_quantile
from fbompi.errors import UserError
from fbompi.runs import Run

METHODS = ("afbo", "fedmbo", "memfbo")
SEEDS = range(5)
KEYS = options(run_problem="quadratic", run_rounds=16, record_every=2, clients_count=4, problem_condition=3)
COLUMNS = {"round": ["round"], "time": ["time"], "bytes": ["bytes_down", "bytes_up"],
           "calls": ["gradients", "hvps", "crosses"]}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        method: [
            ran(folder / f"{method}-{seed}.h5", *KEYS, *options(run_algorithm=method, run_seed=seed)) for seed in SEEDS
        ]
        for method in METHODS
    }


@pytest.fixture(scope="module")
def runs(files: dict[str, list[Path]]) -> list[Run]:
    """All of them, in disorder."""
    return [Run(files[method][seed]) for seed in SEEDS for method in METHODS]


def columns(path: Path, names: list[str]) -> np.ndarray:
    with h5py.File(path) as file:
        return np.sum([file["trajectory"][name][:] for name in names], axis=0)


def by_hand(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval, by SciPy."""
    mean, half = float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return mean, mean - half, mean + half


def check(figures: dict[str, Any], values: list[float]) -> None:
    assert (figures["mean"], figures["low"], figures["high"]) == pytest.approx(by_hand(values), rel=1e-6)
    assert figures["count"] == len(values)


def test_students_t_is_that_of_scipy() -> None:
    for freedom in [*range(1, 60), 100, 1000, 10**6]:
        assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6), freedom


def test_runs_that_differ_in_their_seed_are_one_group(runs: list[Run]) -> None:
    groups = grouped(runs)
    assert [group.label for group in groups] == list(METHODS)
    assert all(sorted(group.seeds) == list(SEEDS) for group in groups)


def test_means_and_intervals_of_final_metrics_are_those_by_hand(files: dict[str, list[Path]], runs: list[Run]) -> None:
    for row in compare(runs)["groups"]:
        for metric in ("x_error", "y_error", "upper", "grad_norm"):
            check(row["final"][metric], [columns(path, [metric])[-1] for path in files[row["label"]]])
        for cost, names in COLUMNS.items():
            totals = [columns(path, names)[-1] for path in files[row["label"]]]
            if np.ptp(totals):
                check(row["costs"][cost], totals)
            else:
                assert row["costs"][cost]["mean"] == row["costs"][cost]["low"] == totals[0]


def test_costs_to_a_target_and_speedups_are_those_by_hand(files: dict[str, list[Path]], runs: list[Run]) -> None:
    ends = [columns(path, ["x_error"])[-1] for paths in files.values() for path in paths]
    level = float(f"{(1 + max(ends)) / 2:.6g}")  # that all runs reach, from 1
    assert max(ends) < level < 1
    for text in (f"x_error<={level}", f"x_error={level}", f" x_error <= {level} "):
        figures = compare(runs, text)
        assert figures["target"]["text"] == f"x_error <= {level:.6g}"
        first: dict[str, float] = {}
        for row in figures["groups"]:
            paths = files[row["label"]]
            places = [np.flatnonzero(columns(path, ["x_error"]) <= level)[0] for path in paths]
            assert row["reached"] == 5
            for cost, names in COLUMNS.items():
                spent = [columns(path, names)[place] for path, place in zip(paths, places)]
                assert row["to_target"][cost]["mean"] == pytest.approx(np.mean(spent))
                if np.ptp(spent):
                    check(row["to_target"][cost], spent)
                first.setdefault(cost, float(np.mean(spent)))
                assert row["speedup"][cost] == pytest.approx(first[cost] / np.mean(spent))
    assert all(value == 1 for value in figures["groups"][0]["speedup"].values())


def test_who_does_not_reach_the_target_is_told_apart(files: dict[str, list[Path]], runs: list[Run]) -> None:
    ends = sorted(columns(path, ["x_error"]).min() for path in files["fedmbo"])
    figures = compare(runs, f"x_error<={(ends[2] + ends[3]) / 2:.17g}")
    row = next(row for row in figures["groups"] if row["label"] == "fedmbo")
    assert row["reached"] == 3 and row["to_target"]["time"]["count"] == 3
    assert row["speedup"]["time"] is None and "3 of 5" in page(figures)
    never = compare(runs, "x_error<=-1")
    assert all(row["reached"] == 0 and row["to_target"]["bytes"] is None for row in never["groups"])
    assert "0 of 5" in page(never)


def test_without_a_target_it_is_the_level_that_all_runs_reach(files: dict[str, list[Path]], runs: list[Run]) -> None:
    figures = compare(runs)
    best = [columns(path, ["x_error"]).min() for paths in files.values() for path in paths]
    assert figures["target"]["metric"] == "x_error" and figures["target"]["value"] == max(best)
    assert all(row["reached"] == 5 for row in figures["groups"])


def test_a_rising_metric_is_reached_from_below(tmp_path: Path) -> None:
    run = Run(ran(tmp_path / "run.h5", *options(run_rounds=12, record_every=3, clients_count=4)))
    figures = compare([run], "accuracy=0.3")
    place = np.flatnonzero(run["accuracy"] >= 0.3)[0]
    assert place > 0 and figures["groups"][0]["to_target"]["time"]["mean"] == run["time"][place]
    assert figures["groups"][0]["to_target"]["time"]["low"] is None  # one seed has no interval
    assert compare([run], "weight_corrupted=0.45")["target"]["rising"] is False


def test_what_differs_is_told(runs: list[Run], tmp_path: Path) -> None:
    same = options(run_algorithm="afbo", run_rounds=4)
    slow = Run(ran(tmp_path / "slow.h5", *KEYS, *same, *options(delays_stragglers=2)))
    quick = Run(ran(tmp_path / "quick.h5", *KEYS, *same))
    groups = grouped([slow, quick])
    assert differences(groups) == {"delays.stragglers": [2, 0]}
    assert [group.label for group in groups] == ["afbo, stragglers=2", "afbo, stragglers=0"]
    found = compare(runs)["differences"]
    assert found["run.algorithm"] == list(METHODS) and "run.seed" not in found and "run.out" not in found
    assert "and " in page(compare(runs)) and "keys that only some methods" in page(compare(runs))
    assert "nothing but their seeds" in page(compare(runs[::3]))


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_fits_a_terminal_and_loses_nothing(runs: list[Run], width: int) -> None:
    said, whole = page(compare(runs), width), page(compare(runs), 1000)
    assert max(map(len, said.splitlines())) <= width
    assert set(said.split()) == set(whole.split()) and "speed-up: times less" in said
    for row in compare(runs)["groups"]:
        assert said.count(f"  {row['label']} ") >= 4  # its line in every block


def test_the_table_rounds_to_the_intervals_digits() -> None:
    from fbompi.comparison import _words

    for values, text in {
        (0.12345, 0.12545, 0.12645): "0.1251 ± 0.0038", (3100.0, 3400.0, 3550.0): "3350 ± 570", (5.0, 5.0): "5 ± 0",
        (1e-9, 3e-9): "2e-09 ± 1.3e-08", (7.0,): "7",
    }.items():  # fmt: skip
        mean = Mean.of(values)
        assert mean is not None and _words(mean.figures()) == text
    assert Mean.of([np.nan]) is None and _words(None) == "–"


def test_doubtful_seeds_and_unfinished_runs_are_told(files: dict[str, list[Path]], tmp_path: Path) -> None:
    shutil.copy(files["afbo"][0], tmp_path / "again.h5")
    with h5py.File(tmp_path / "again.h5", "r+") as file:
        file.attrs["status"] = "running"
    said = page(compare([Run(files["afbo"][0]), Run(files["afbo"][1]), Run(tmp_path / "again.h5")]))
    assert "more than once" in said and "not complete" in said and "again.h5" in said


@pytest.mark.parametrize("target", ["accuracy", "accuracy=", "acuracy=1", "x_error<0.1", "x_error=nan", "=1"])
def test_a_target_that_makes_no_sense_is_told_in_one_line(runs: list[Run], target: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"--target {target}")) as e:
        compare(runs, target)
    assert "\n" not in e.value.line


def test_the_figures_band_is_the_interval_by_hand(files: dict[str, list[Path]], runs: list[Run]) -> None:
    pytest.importorskip("matplotlib")
    from fbompi.plots.comparison import band

    for group in grouped(runs):
        places, mean, half = band(group, "x_error", "round")
        values = np.array([columns(path, ["x_error"]) for path in files[group.label]])
        np.testing.assert_array_equal(places, columns(files[group.label][0], ["round"]))
        np.testing.assert_allclose(mean, values.mean(axis=0))
        assert half is not None and half[-1] == pytest.approx(by_hand(list(values[:, -1]))[2] - mean[-1])
        places, mean, _ = band(group, "x_error", "time")
        ends = [columns(path, ["time"])[-1] for path in files[group.label]]
        assert places[-1] == pytest.approx(min(ends)) and len(mean) == len(places)  # no run is prolonged


def test_the_command_gives_a_table_a_figure_and_figures_for_machines(
    files: dict[str, list[Path]], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    paths = [path for method in METHODS for path in files[method][:2]]
    result = command("compare", *paths, "-o", "all.svg", cwd=tmp_path)
    assert result.status == 0 and result.out.endswith("\nall.svg\n"), result
    for text in ("6 runs in 3 groups", "x_error", "±", "what differs", "times less to the target than afbo"):
        assert text in result.out, text
    assert "memfbo (2 runs)" in (tmp_path / "all.svg").read_text()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    result = command("compare", *paths, "--json", cwd=tmp_path)
    assert json.loads(result.out, parse_constant=refuse) == compare([Run(path) for path in paths])
    result = command("compare", *paths, "nothing.h5", "-o", "b.png", cwd=tmp_path)
    assert result.status == 2 and result.err.count("\n") == 1 and not (tmp_path / "b.png").exists()
