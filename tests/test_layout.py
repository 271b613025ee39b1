"""docs/layout.md is complete and exact: who has read it needs nothing of ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import ROOT, options
from federation import ran

from fbompi import registry
from fbompi.layout import FORMAT_VERSION

PAGE = (ROOT / "docs/layout.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"`([^`\n]+)`", PAGE))
SMALL = options(run_rounds=2, record_every=1, clients_count=3)


def parts_of(name: str) -> str:
    """The page's section on a member of the file."""
    found = re.search(rf"^## [^\n]*`/{name}`.*?(?=^## |\Z)", PAGE, re.M | re.S)
    assert found, f"no section on /{name}"
    return found[0]


def check(file: h5py.File) -> None:
    """That every name in a run file is on the page, in the section that it belongs to."""

    def named(words: set[str], section: str) -> None:
        known = set(re.findall(r"`([^`\n]+)`", section))
        assert words <= known, words - known

    named(set(file.attrs), PAGE.split("## Attributes of the file")[1].split("\n## ")[0])
    for name, member in file.items():
        section = parts_of(name)
        if isinstance(member, h5py.Dataset):
            named(set(member.dtype.names or ()), section)
            named({a for a in member.attrs if a not in (member.dtype.names or ())}, section)
        elif name == "checkpoint":
            named(set(member.attrs) | {k for k in member if k not in ("state", "link")}, section)
            named({k for k in [*member["link"].attrs, *member["link"]] if f"`{k}/…`" not in section}, section)
        else:
            named({*member.attrs, *member}, section)
            for dataset in member.values():
                named(set(dataset.attrs), section)


@pytest.mark.parametrize("method", list(registry.algorithms()))
def test_the_page_names_all_that_a_run_file_of_every_method_has(method: str, tmp_path: Path) -> None:
    problem = "location" if registry.algorithm(method).family == "nonsmooth" else "quadratic"
    with h5py.File(ran(tmp_path / "run.h5", *SMALL, *options(run_algorithm=method, run_problem=problem))) as file:
        check(file)


@pytest.mark.parametrize("problem", ["hypercleaning", "datacleaning", "regcoef", "vsloss"])
def test_the_page_names_all_that_a_problem_adds(problem: str, tmp_path: Path) -> None:
    with h5py.File(ran(tmp_path / "run.h5", *SMALL, *options(run_problem=problem))) as file:
        check(file)


def test_the_page_names_every_metric_there_is() -> None:
    for name in registry.problems():
        problem = registry.problem(name)
        for meanings in ("metric_meanings", "exact_meanings"):
            assert set(getattr(problem, meanings, {})) <= NAMES, name
    for name in registry.algorithms():
        method = registry.algorithm(name)
        assert {*method.figure_meanings, *method.result_meanings} <= NAMES, name


def test_the_page_tells_types_as_they_are(tmp_path: Path) -> None:
    with h5py.File(ran(tmp_path / "run.h5", *SMALL)) as file:
        for table in ("events", "clients"):
            for names, kind in re.findall(r"^\| (`[^|]*`) \| ((?:u?int|float|enum)[^|]*) \|", parts_of(table), re.M):
                for name in re.findall(r"`(\w+)`", names):
                    stored = file[table].dtype[name]
                    assert kind.removeprefix("enum of ") == np.dtype(stored.str).name, name
                    assert kind.startswith("enum") == (h5py.check_enum_dtype(stored) is not None), name
        assert f"`format_version` is {FORMAT_VERSION};" in PAGE


def test_ten_lines_without_us_give_the_curve(tmp_path: Path) -> None:
    ran(tmp_path / "run.h5", *options(run_rounds=6, record_every=2, clients_count=5))
    code = re.search(r"<!-- curve -->\n```python\n(.*?)\n```", PAGE, re.S)[1]
    assert len(code.splitlines()) <= 10 and re.findall(r"import (\w+)", code) == ["h5py"]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    table = np.loadtxt(done.stdout.splitlines())
    with h5py.File(tmp_path / "run.h5") as file:
        rows = file["trajectory"]
        moved = rows["bytes_down"][:] + rows["bytes_up"][:]
        np.testing.assert_allclose(table, np.stack([rows["round"], rows["time"], moved, rows["accuracy"]], axis=1))
