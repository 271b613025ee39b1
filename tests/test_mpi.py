"""Real ranks: every client is served, delays can be injected, other MPI libraries work, many ranks work."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from conftest import PYTHONS, ROOT, needs_mpi, options, trajectory

from fbompi import launch
from fbompi.doctor import page

pytestmark = needs_mpi


def mpirun(ranks: int, *arguments, cwd) -> subprocess.CompletedProcess:
    """mpirun by hand, as on a cluster."""
    launcher = launch.find_launcher()
    words = [launcher.path, *launch.flags(launcher, ranks), "-n", str(ranks), sys.executable, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_no_client_starves(run_file) -> None:
    path = run_file("-n", 4, *options(run_rounds=60, clients_count=30))
    with h5py.File(path, "r") as file:
        done, rank = file["clients"]["tasks_done"], file["clients"]["rank"]
    assert set(rank) == {1, 2, 3}
    assert done.min() > 0.4 * done.mean(), done


def test_mpirun_by_hand_is_the_same_as_n(tmp_path) -> None:
    done = mpirun(3, "-m", "fbompi", "run", "-o", "run.rounds=5", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["status"] == "complete" and figures["ranks"] == 3 and figures["link"] == "mpi"


@pytest.mark.alone
def test_injected_delays_are_held_in_real_time(run_file) -> None:
    base = options(
        run_problem="quadratic", run_rounds=2, algorithm_inner_rounds=2, algorithm_terms=2, algorithm_quorum=0,
        delays_model="none", delays_compute=1.0,
    )  # fmt: skip
    fast = trajectory(run_file("-n", 3, *base, name="fast.h5"), "time")[-1]
    held = trajectory(run_file("-n", 3, *base, *options(delays_inject=0.05), name="held.h5"), "time")[-1]
    assert held >= 10 * 0.05 > fast  # two rounds of 2 + 2 + 1 exchanges


def test_stragglers_injected_on_mpi_answer_less_often(run_file) -> None:
    path = run_file("-n", 3, *options(run_problem="quadratic", run_rounds=40, delays_stragglers=4, delays_factor=20,
                                      delays_inject=0.001, algorithm_quorum=2))  # fmt: skip
    with h5py.File(path, "r") as file:
        clients = file["clients"][:]
    slow = clients["delay_factor"] > 1
    assert slow.sum() == 4
    assert clients["tasks_done"][slow].mean() < 0.6 * clients["tasks_done"][~slow].mean()


def test_one_rank_under_mpirun_takes_the_virtual_link(tmp_path) -> None:
    done = mpirun(1, "-m", "fbompi", "run", "-o", "run.rounds=2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["link"] == "virtual"


def test_commands_that_read_do_not_start_mpi(fbompi) -> None:
    code = "import sys; from click.testing import CliRunner; from fbompi.cli import fbompi; "
    code += "CliRunner().invoke(fbompi, ['list']); CliRunner().invoke(fbompi, ['run', '-o', 'run.rounds=1', '--out', "
    code += "'/dev/null/x']); sys.exit('mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0


def test_more_ranks_than_clients_is_no_harm(run_file) -> None:
    path = run_file("-n", 5, *options(run_problem="quadratic", run_rounds=5, clients_count=2, algorithm_quorum=1))
    assert h5py.File(path, "r").attrs["status"] == "complete"


@pytest.mark.slow
@pytest.mark.alone
def test_bench_link_gives_a_ratio(fbompi) -> None:
    result = fbompi("bench", "link", "-n", 3, "--updates", 2000, "--json")
    assert result.status == 0, result
    assert 0.05 < json.loads(result.out)["ratio"] < 5


def test_an_error_told_late_by_the_server_ends_the_job(fbompi, tmp_path) -> None:
    (tmp_path / "late.py").write_text(
        "from fbompi.errors import UserError\n"
        "from fbompi.problems.quadratic import Quadratic\n"
        "class Late(Quadratic):\n"
        "    def exact(self, x, y, clients):\n"
        "        raise UserError('too late')\n"
    )
    result = fbompi("run", "-n", 3, "-o", "run.problem=late.py:Late", "--out", "late.h5", timeout=30)
    assert result.status == 2 and result.err.count("fbompi: too late") == 1, result
    assert h5py.File(tmp_path / "late.h5", "r").attrs["status"] == "failed"


def test_doctor_finds_that_ranks_meet(fbompi) -> None:
    result = fbompi("doctor", "--json")
    assert result.status == 0, result
    assert json.loads(result.out)["two_ranks"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHONS)
@pytest.mark.parametrize("tolerance", ["1", "0"])
def test_doctor_tries_what_becomes_of_a_job_that_loses_a_rank(fbompi, name: str, tolerance: str) -> None:
    found = fbompi("doctor", "--json", python=PYTHONS[name], FBOMPI_FAULT_TOLERANCE=tolerance)
    findings = json.loads(found.out)
    trial = findings["lost_rank"]
    outlives = findings["mpi"]["ulfm"] and tolerance == "1"
    assert (trial["noticed"] is not None) == outlives and trial["ends"] < 30, findings
    assert not outlives or trial["noticed"] < 5
    assert findings["mpi"]["heartbeat"] == (findings["mpi"]["threads"] == "multiple")
    said = page(findings)
    assert ("the job goes on" if outlives else "ends the job: fbompi resume goes on") in said
    assert "a rank that stands still is given up" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in PYTHONS if n != "default"] or [pytest.param("", marks=pytest.mark.skip(
    reason="no environment with another MPI in FBOMPI_TEST_PYTHONS"))])  # fmt: skip
def test_another_mpi_library_gives_the_same_bits_and_reaches_x_star(run_file, name: str) -> None:
    sync = options(run_algorithm="fedmbo", run_rounds=5, clients_batch=6)
    alone = run_file(*sync, name="virtual.h5")
    other = run_file(*sync, "-n", 3, name="other.h5", python=PYTHONS[name], timeout=300)
    np.testing.assert_array_equal(trajectory(alone, "x"), trajectory(other, "x"))
    converge = options(run_problem="quadratic", run_rounds=120, algorithm_step_x=0.014, algorithm_quorum=14)
    path = run_file(*converge, "-n", 2, name="converge.h5", python=PYTHONS[name], timeout=300)  # more wait busily
    with h5py.File(path, "r") as file:
        print(file.attrs["mpi"], "2 ranks: relative error", file["trajectory/x_error"][-1])
    assert trajectory(path, "x_error")[-1] < 1e-2


@pytest.mark.slow
def test_64_ranks_host_126_clients(run_file) -> None:
    soon = options(run_rounds=7, algorithm_inner_rounds=30, algorithm_terms=1, algorithm_quorum=90)
    path = run_file("-n", 64, *options(clients_count=126), *soon, timeout=600)
    with h5py.File(path, "r") as file:
        assert file.attrs["status"] == "complete"
        assert len(set(file["clients"]["rank"])) == 63 and (file["clients"]["tasks_done"] > 0).all()
        assert file["trajectory/accuracy"][-1] > 0.85
