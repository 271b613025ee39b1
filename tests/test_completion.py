"""Tab completes commands, options, files and keys."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PROGRAM = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from fbompi.cli import main
main()
"""
PRESS = """
compopt() { echo "$@"; }
eval "$(fbompi completion bash)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_fbompi_completion fbompi
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def press(tmp_path: Path):
    """Press Tab after these words in a real bash; what it offers."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    (tmp_path / "fbompi").write_text(PROGRAM)
    (tmp_path / "fbompi").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def offered(*words: str) -> list[str]:
        line = ["bash", "--norc", "-c", PRESS, "bash", "fbompi", *words]
        done = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30)
        assert not done.stderr, done.stderr
        return done.stdout.split()

    return offered


def test_bash_completes_commands_files_and_keys(press) -> None:
    assert press("wa") == ["watch"]
    assert press("run", "--ov") == ["--overwrite"]
    assert press("inspect", "") == ["-o", "default"]  # files
    assert press("run", "-o", "run.ro") == ["-o", "nospace", "run.rounds="]  # the value follows at once
    assert press("run", "-o", "algorithm.term")[-1] == "algorithm.terms="  # afbo's, as without a name
    for named in (["run.algorithm=fedprox"], ["run.algorithm", "=", "fedprox"]):  # bash takes words apart
        assert press("run", "-o", *named, "-o", "algorithm.prox")[-1] == "algorithm.proximity="
    assert press("sweep", "-o", "clients.local") == ["-o", "nospace", "clients.local_steps="]


def test_pressing_tab_loads_no_file_of_the_user(press, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("open('loaded', 'w')\nclass Own: pass\n")
    for words in (["run.problem=own.py:Own"], ["run.problem", "=", "own.py:Own"], ["run.problem=own.py", ":", "Own"]):
        assert "run.rounds=" in press("run", "-o", *words, "-o", "run.")
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_says_how_to_install_it(here, shell: str) -> None:
    result = here("completion", shell)
    assert result.status == 0 and f"fbompi completion {shell}" in result.out and "_FBOMPI_COMPLETE" in result.out
    assert result.out.startswith("#compdef fbompi\n") == (shell == "zsh")
    assert here("completion", "tcsh").status == 2
