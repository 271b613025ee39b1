"""A person can see who holds what: before a run by `fbompi data show`, after it in the run file."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import needs_mpi, options

from fbompi.problems.hypercleaning import HyperCleaning

SORTED = options(problem_partition="classes", problem_classes_per_client=3, clients_count=5, problem_seed=7)


def table(fbompi, *arguments: str) -> dict:
    return json.loads(fbompi("data", "show", "--json", *arguments).out)


def test_show_tells_samples_by_client_and_class(here) -> None:
    shown = table(here, *SORTED)
    problem = HyperCleaning(partition="classes", classes_per_client=3, seed=7)
    assert shown["clients"] == 5 and "3 classes per client" in shown["rule"] and "seed 7" in shown["rule"]
    for part, (labels, places) in {
        "train": (problem.labels, [p.train for p in problem.parts(5)]),
        "validation": (problem.labels, [p.validation for p in problem.parts(5)]),
        "test": (problem.test_labels, [p.test for p in problem.parts(5)]),
    }.items():
        assert shown["tables"][part] == [np.bincount(labels[held], minlength=10).tolist() for held in places]


def test_show_prints_a_row_per_client_and_the_totals(here) -> None:
    lines = here("data", "show", *SORTED).out.splitlines()
    assert lines[0].startswith("hypercleaning, 5 clients; digits: 3 classes per client")
    rows = [line.split() for line in lines[2:-1]]
    assert [row[0] for row in rows] == list("01234")
    assert all(row[4] == "3" and row[5:].count(".") == 7 for row in rows)
    assert sum(int(row[1]) for row in rows) == 900 and "train 900" in lines[-1]


def test_show_does_not_flood_a_terminal(here) -> None:
    result = here("data", "show", *options(clients_count=300))
    assert len(result.out.splitlines()) < 50 and "260 more" in result.out


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_show_draws_a_partition(here, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    result = here("data", "show", *SORTED, "--plot", f"map.{ending}")
    assert result.status == 0 and result.out.strip() == f"map.{ending}", result
    assert (tmp_path / f"map.{ending}").stat().st_size > 3000


def test_show_refuses_with_one_line(here) -> None:
    for arguments, words in {
        ("-o", "run.problem=quadratic"): ["run.problem", "quadratic"],
        ("-o", "run.problem=location"): ["run.problem", "location"],
        ("-o", "clients.count=5000"): ["clients.count", "5000"],
        ("-o", "problem.alpha=0"): ["problem.alpha", "above 0"],
        ("--plot", "nowhere/map.png"): ["nowhere/map.png"],
        ("--plot", "map.nonsense"): ["map.nonsense"],
    }.items():
        result = here("data", "show", *arguments)
        assert result.status == 2 and result.err.count("\n") == 1 and all(word in result.err for word in words), result


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=needs_mpi)])
def test_the_run_file_describes_the_partition(here, run_file, ranks: int) -> None:
    shown = table(here, *SORTED)
    path = run_file("-n", ranks, *SORTED, *options(run_rounds=1))
    with h5py.File(path) as file:
        assert file["partition"].attrs["rule"] == shown["rule"]
        for name, counts in shown["tables"].items():
            assert file["partition"][name][:].tolist() == counts
            assert "one column per class" in file["partition"][name].attrs["meaning"]
        held = file["partition/train"][:].sum(axis=1)
        np.testing.assert_array_equal(file["clients"]["shard_size"], held)
    assert f"data: {shown['rule']}" in here("inspect", path).out


def test_a_problem_of_ones_own_that_fails_is_told_with_its_own_lines(here, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def __init__(self):\n        raise RuntimeError('no data today')\n", encoding="utf-8"
    )
    result = here("data", "show", "-o", "run.problem=mine.py:Mine")
    assert result.status == 2 and "no data today" in result.err and "cli.py" not in result.err, result


def test_list_shows_data_sets_too(here) -> None:
    assert here("list", "data").out == here("data", "list").out
    assert json.loads(here("list", "data", "--json").out)["sets"][0]["name"] == "digits"
