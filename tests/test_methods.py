"""What holds for every method: it runs on both links, and a synchronous one has the same bits on both."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import ROOT, needs_mpi, options, trajectory
from federation import federation, play

from fbompi import registry

PAGE = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
PAPERS = ("afbo", "fedmbo", "memfbo", "fism", "irig", "rabo", "rafbo")
BASELINES = (
    "fednest", "lfednest", "simfbo", "shrofbo", "aggitd", "adbo", "sdbo", "afl", "fedavg", "fedprox",
)  # fmt: skip


def problem_for(name: str) -> list[str]:
    return options(run_problem="location" if registry.algorithm(name).family == "nonsmooth" else "quadratic")


def test_every_method_of_the_papers_and_every_baseline_is_there() -> None:
    assert set(registry.algorithms()) == {*PAPERS, *BASELINES}


@needs_mpi
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in ("memfbo", "rabo") else [pytest.mark.slow]) for n in (*PAPERS, *BASELINES)],
)
def test_every_method_runs_on_both_links_and_synchronous_ones_with_the_same_bits(run_file, name: str) -> None:
    method = registry.algorithm(name)
    keys = options(run_algorithm=name, run_rounds=6, record_every=2, clients_count=5, clients_participation=0.6)
    keys += problem_for(name)
    if "batch" in method.client_keys:
        keys += options(clients_batch=4, problem_noise=0.3)
    if "local_steps" in method.client_keys:
        keys += options(clients_local_steps="[1,3]")
    if "capacity" in method.client_keys:
        keys += options(clients_capacity="[1.0,0.5,0.25]")
    one, three = run_file(*keys, name="one.h5"), run_file("-n", 3, *keys, name="three.h5")
    columns = ("x", "upper", "lower", *(() if method.family == "nonsmooth" else ("y",)))
    for column in columns:
        alone, ranks = trajectory(one, column), trajectory(three, column)
        assert np.isfinite(alone).all() and np.isfinite(ranks).all(), column
        if method.facts["communication"] == "synchronous":
            np.testing.assert_array_equal(alone, ranks, err_msg=column)


@pytest.mark.parametrize("name", [*PAPERS, *BASELINES])
def test_costs_are_counted_in_the_same_columns_and_never_fall(run_file, name: str) -> None:
    path = run_file(*options(run_algorithm=name, run_rounds=4, record_every=1, clients_count=4), *problem_for(name))
    counted = ("communication", "bytes_down", "bytes_up", "gradients", "work", "client_seconds", "server_seconds")
    for column in counted:
        values = trajectory(path, column)
        assert values[0] == 0 and values[-1] > 0 and (np.diff(values) >= 0).all(), (column, values)
    with h5py.File(path) as file:
        events = file["events"][:]
        assert events["bytes_up"].sum() == trajectory(path, "bytes_up")[-1]
        assert events["bytes"].sum() == trajectory(path, "bytes_up")[-1] + trajectory(path, "bytes_down")[-1]
        assert file["clients"]["peak_memory"].max() > 0


@pytest.mark.parametrize("name", [*PAPERS, *BASELINES])
def test_every_method_says_where_it_comes_from(name: str) -> None:
    method = registry.algorithm(name)
    assert method.paper and set(method.facts) == {"order", "communication", "rate"}
    assert method.facts["communication"] in ("synchronous", "asynchronous")
    assert f"`{name}`" in PAGE, "docs/methods.md has a table of all methods"


# The page on methods of one's own


def example(tmp_path: Path) -> str:
    """The method that the page writes, put where the page says."""
    code = re.search(r"```python\n(.*?)\n```", PAGE, re.S)[1]
    (tmp_path / "soba.py").write_text(code + "\n", encoding="utf-8")
    return code


def test_the_method_of_the_page_is_short() -> None:
    code = re.search(r"```python\n(.*?)\n```", PAGE, re.S)[1]
    assert len(code.splitlines()) < 60
    ast.parse(code)


def test_the_method_of_the_page_runs_word_for_word_and_reaches_the_solution(here, tmp_path: Path) -> None:
    example(tmp_path)
    for line in re.search(r"```sh\n(fbompi run -o run.algorithm=soba.*?)\n```", PAGE, re.S)[1].splitlines():
        result = here(*line.split()[1:], "--quiet")
        assert result.status == 0, result
    assert trajectory(tmp_path / "Soba-quadratic-1.h5", "x_error")[-1] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("condition", [3, 20, 100, 1000])
def test_the_automatic_step_waits_for_y_and_v_where_they_take_one_step_for_each_of_its_own(
    tmp_path: Path, condition: float
) -> None:
    """The page's method on quadratics: the error hardly grows, whatever the condition; DoG alone reaches 10^66."""
    example(tmp_path)
    tables = {"algorithm": f"{tmp_path}/soba.py:Soba", "problem": "quadratic", "rounds": 600}
    d, errors = federation({"run": tables, "problem": {"condition": condition}}), []
    for _ in range(600):
        play(d, 1)
        errors.append(d.parts.problem.exact(d.state.x, d.state.y, 18)["x_error"])
    print(f"condition {condition}: largest {max(errors):.3f}, last {errors[-1]:.2g}, {d.state.rule.alarms} alarms")
    assert max(errors) <= 1.3 and errors[-1] < 0.15


FIGURE = "    def figures(self, s):\n        return {'q': 1.0}\n\n    def start"
SLIPS = {
    "no method": ("Soba(Method)", "Soba", "subclass"),
    "no round": ("    def round(self, s, link):", "    def run(self, s, link):", "lacks round"),
    "no name": ('    name = "soba"\n', "", "lacks name"),
    "no task": ('@task(takes="x y y", gives="y y x")\n', "", "is not declared with @task"),
    "no word": ('takes="x y y"', 'takes="x y z"', "no word z"),
    "no dataclass": ("    Parameters = Parameters", "    Parameters = dict", "Parameters is not a dataclass"),
    "a name of the run": ('{"directions": directions}', '{"hello": directions}', "the run itself has one"),
    "no such kind": ('link, "directions"', 'link, "direction"', "KeyError: 'direction'"),
    "in start": ("np.zeros_like(y)", "np.zeros_like(z)", "NameError: name 'z'"),
    "a short answer": ("client.lower_grad(x, y),", "client.lower_grad(x, y)[:1],", 'for "y", expected (20,)'),
    "too few answers": (", f_x - client.cross(x, y, v)", "", "2 arrays, expected 3: y y x"),
    "a figure without a meaning": ("    def start", FIGURE, "figures gives q, which figure_meanings does not explain"),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_in_a_method_is_told_with_the_line_and_without_ours(here, tmp_path: Path, slip: str) -> None:
    found, broken, says = SLIPS[slip]
    code = example(tmp_path)
    assert found in code
    (tmp_path / "soba.py").write_text(code.replace(found, broken), encoding="utf-8")
    result = here("run", *options(run_algorithm="soba.py:Soba", run_problem="quadratic", run_rounds=2))
    assert result.status == 2 and says in result.err and "fbompi/run.py" not in result.err, result


@needs_mpi
def test_a_short_answer_is_refused_on_ranks_too(fbompi, tmp_path: Path) -> None:
    found, broken, says = SLIPS["a short answer"]
    (tmp_path / "soba.py").write_text(example(tmp_path).replace(found, broken), encoding="utf-8")
    result = fbompi("run", "-n", 3, *options(run_algorithm="soba.py:Soba", run_problem="quadratic", run_rounds=2))
    assert result.status != 0 and says in result.err, result


def test_results_without_a_meaning_leave_a_file_that_says_it_failed(fbompi, tmp_path: Path) -> None:
    code = example(tmp_path).replace(
        "    def start", "    def results(self, s):\n        return {'q': s.x}\n\n    def start"
    )
    (tmp_path / "soba.py").write_text(code, encoding="utf-8")
    keys = options(run_algorithm="soba.py:Soba", run_problem="quadratic", run_rounds=2)
    assert fbompi("run", *keys, "--out", tmp_path / "q.h5").status != 0
    with h5py.File(tmp_path / "q.h5") as file:
        assert file.attrs["status"] == "failed" and "x" in file["final"]


def test_two_files_of_one_name_do_not_meet(here, tmp_path: Path) -> None:
    code = example(tmp_path)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    (tmp_path / "one/my.py").write_text(code, encoding="utf-8")
    (tmp_path / "two/my.py").write_text("from fbompi.problems.quadratic import Quadratic as Mine\n", encoding="utf-8")
    result = here("run", *options(run_algorithm="one/my.py:Soba", run_problem="two/my.py:Mine", run_rounds=2))
    assert result.status == 0, result


@pytest.mark.parametrize("problem", ["quadratic", "location"])
def test_figures_for_machines_are_json_that_every_machine_reads(here, problem: str) -> None:
    method = "fedmbo" if problem == "quadratic" else "fism"
    keys = options(run_algorithm=method, run_problem=problem, run_rounds=2, clients_count=3)

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    result = here("run", "--json", "--quiet", *keys)
    assert json.loads(result.out, parse_constant=refuse)["costs"]["communication"] > 0
