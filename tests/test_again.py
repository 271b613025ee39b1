"""`fbompi run --resume`: the same line again and again, until the run is complete."""

from __future__ import annotations

import h5py
import numpy as np
from conftest import ROOT, needs_mpi, options, trajectory

KEYS = options(
    run_algorithm="fedmbo", run_problem=f"{ROOT}/tests/stopping.py:Quadratic", run_rounds=12, clients_count=3
)


def again(here, *more: object, **alarm: str):
    return here("run", "--quiet", *KEYS, *more, "--out", "run.h5", "--resume", **alarm)


def test_one_line_begins_goes_on_and_finds_all_done(here, tmp_path) -> None:
    assert here("run", "--quiet", *KEYS, "--out", "whole.h5").status == 0
    starts = 0
    while (result := again(here, alarm="SIGUSR1@40")).status == 75:
        starts += 1
    assert result.status == 0 and starts > 1, result
    assert np.array_equal(trajectory(tmp_path / "run.h5", "x"), trajectory(tmp_path / "whole.h5", "x"))
    before = (tmp_path / "run.h5").read_bytes()
    result = again(here)
    assert result.status == 0 and "complete, 12 of 12 rounds" in result.out
    assert (tmp_path / "run.h5").read_bytes() == before


def test_more_rounds_prolong_it(here, tmp_path) -> None:
    for rounds in (12, 14):
        assert again(here, *options(run_rounds=rounds)).status == 0
        assert trajectory(tmp_path / "run.h5", "round")[-1] == rounds
    result = again(here, *options(run_rounds=13))
    assert result.status == 2 and "has rounds up to 14 already" in result.err


def test_fewer_rounds_than_its_checkpoint_has_are_refused(here, tmp_path) -> None:
    rare = options(record_every=10)
    assert again(here, *rare, alarm="SIGUSR1@40").status == 75
    recorded = trajectory(tmp_path / "run.h5", "round")[-1]
    result = again(here, *rare, *options(run_rounds=recorded + 1))
    assert result.status == 2 and "run.rounds = 1: run.h5 has rounds up to" in result.err, result
    assert again(here, *rare).status == 0


def test_the_file_of_another_run_is_refused(here, tmp_path) -> None:
    assert again(here).status == 0
    result = again(here, *options(run_seed=1))
    assert result.status == 2 and "run.seed is 0 there, 1 here" in result.err and len(result.err.splitlines()) <= 2


def test_it_wants_a_name_and_does_not_go_with_overwrite(here) -> None:
    result = here("run", "--resume")
    assert result.status == 2 and "--out" in result.err
    assert here("run", "--resume", "--overwrite", "--out", "run.h5").status == 2


@needs_mpi
def test_on_ranks_too(fbompi, tmp_path) -> None:
    words = ["run", "-n", 2, "--quiet", *KEYS, "--out", "run.h5", "--resume"]
    assert fbompi(*words, FBOMPI_TEST_SIGNAL="SIGTERM@30").status == 75
    assert fbompi(*words).status == 0
    assert fbompi(*words).status == 0
    with h5py.File(tmp_path / "run.h5", "r") as file:
        assert file.attrs["status"] == "complete" and len(file["starts"]) == 2
