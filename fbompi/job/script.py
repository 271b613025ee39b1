"""The text of a Slurm script. What jobs/*.slurm have was written by it, too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fbompi.errors import UserError
from fbompi.sweep.plan import Planned

RESTARTS = 100  # of one job: one whose time does not even suffice to start would come back for ever
COMPARE_TIME = "00:15:00"


def seconds_of(time: str) -> int:
    """A time as Slurm writes it: 90, 90:00, 1:30:00, 2-12, 2-12:30 or 2-12:30:00."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time.strip())
    if found is None:
        raise UserError(
            f"--time {time}: expected minutes, hours:minutes:seconds or days-hours, such as 90, 1:30:00, 2-12"
        )
    days, *rest = found.groups()
    numbers = [int(word) for word in rest if word is not None]
    if days is not None:  # from hours down
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:  # from minutes down
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if total < 60:
        raise UserError(f"--time {time}: Slurm counts whole minutes; expected at least 1")
    return total


def notice(time: str) -> int:
    """How many seconds before its end a job is told: a tenth of its time, within one and ten minutes."""
    total = seconds_of(time)
    return min(max(total // 10, 60), 600, total // 2)


@dataclass(frozen=True)
class Job:
    """What a script asks of Slurm, and how it starts the ranks."""

    name: str
    nodes: int = 1
    ntasks: int = 4
    cpus: int = 1
    time: str = "01:00:00"
    before: int = 0  # seconds before the end at which the run is told; 0: `notice`
    gpus: int = 0  # per node
    launcher: str = "mpirun"
    mpi: str = ""  # srun's plugin: pmix, pmi2; empty: the cluster's default
    binding: str = ""  # flags of the launcher that give every rank its cores
    at_once: int = 0  # runs of an array; 0: as Slurm likes
    directives: tuple[str, ...] = ()  # further ones
    modules: tuple[str, ...] = ()
    path: str = ""  # where fbompi is installed
    made_by: str = "fbompi job"


def run_script(job: Job, config: str | None, options: Sequence[str], out: str) -> str:
    """A script for one run."""
    words = shlex.join([*([config] if config else []), *_options(options), "--out", out])
    lines = [*_head(job), "#SBATCH --output=%x-%j.log", "", *_environment(job), "", *_TRAPS, ""]
    return "\n".join([*lines, _start(job, words), *_END]) + "\n"


def array_script(job: Job, config: str | None, runs: Sequence[Planned]) -> str:
    """A script for a job array: a run and a run file each."""
    percent = f"%{job.at_once}" if job.at_once else ""
    lines = [*_head(job), f"#SBATCH --array=1-{len(runs)}{percent}", "#SBATCH --output=%x-%A_%a.log", ""]
    lines += [*_environment(job), "", *_TRAPS, "", "case $SLURM_ARRAY_TASK_ID in"]
    for number, run in enumerate(runs, 1):
        lines.append(f"    {number}) run=({shlex.join([*_options(run.options), '--out', str(run.path)])}) ;;")
    lines += ["esac", f"mkdir -p {shlex.quote(str(runs[0].path.parent))}"]
    words = f'{shlex.quote(config)} "${{run[@]}}"' if config else '"${run[@]}"'
    return "\n".join([*lines, _start(job, words), *_END]) + "\n"


def compare_script(job: Job, directory: Path) -> str:
    """A script that compares what an array has run."""
    where = shlex.quote(str(directory))
    lines = [
        "#!/bin/bash",
        f"# Compares the runs in {directory}: sbatch --dependency=afterany:NUMBER-OF-THE-ARRAY this file",
        f"#SBATCH --job-name={job.name}-compare",
        "#SBATCH --ntasks=1",
        f"#SBATCH --time={COMPARE_TIME}",
        *(f"#SBATCH {text}" for text in job.directives),
        "#SBATCH --output=%x-%j.log",
        "",
        *_installation(job),
        "",
        f"fbompi compare {where}/*.h5 --out {where}/comparison.png",
        f"fbompi compare {where}/*.h5 --json > {where}/comparison.json",
        f"fbompi report {where}/*.h5 --out {where}/report.html",
    ]
    return "\n".join(lines) + "\n"


def _head(job: Job) -> list[str]:
    gpus = [f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []
    return [
        "#!/bin/bash",
        f"# Written by: {job.made_by}",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.nodes}",
        f"#SBATCH --ntasks={job.ntasks}",
        f"#SBATCH --cpus-per-task={job.cpus}",
        *gpus,
        f"#SBATCH --time={job.time}",
        f"#SBATCH --signal=B:USR1@{job.before or notice(job.time)}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        *(f"#SBATCH {text}" for text in job.directives),
    ]


def _installation(job: Job) -> list[str]:
    """How fbompi and MPI are found; in a script that was written for nobody in particular, what to fill in."""
    lines = [f"module load {shlex.quote(name)}" for name in job.modules]
    if job.path:
        lines.append(f"export PATH={shlex.quote(job.path)}:$PATH")
    return lines or ["# module load openmpi              # your cluster's MPI; mpi4py finds it",
                     "# source .venv/bin/activate        # where fbompi is installed"]  # fmt: skip


def _environment(job: Job) -> list[str]:
    binding = [f'export FBOMPI_MPIRUN="{job.binding}"'] if job.binding and job.launcher == "mpirun" else []
    return [
        *_installation(job),
        "# The threads of one rank; left alone, every rank would take all cores.",
        "threads=${SLURM_CPUS_PER_TASK:-1}",
        "export OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads MKL_NUM_THREADS=$threads",
        "export NUMBA_NUM_THREADS=$threads",
        "export FBOMPI_CACHE=node  # compiled kernels stay there, for all its ranks and later jobs",
        *binding,
    ]


_TRAPS = [
    "# Before the time is up Slurm tells this shell, which tells the run. It finishes its round, writes a checkpoint",
    "# and leaves with 75; the job is queued again and goes on from there. What is cancelled is not queued again.",
    "trap 'interrupted=yes time_is_up=yes; kill -USR1 $job' USR1",
    "trap 'interrupted=yes' TERM  # Slurm tells the run itself",
]
_END = [
    "job=$! interrupted=yes",
    'while [ "$interrupted" ]; do interrupted=; wait $job; status=$?; done',
    "",
    "# Not after 0 (complete), 2 (a mistake in the configuration), 4 (complete, with losses).",
    f'if [ "$time_is_up" ] && [[ $status != [024] ]] && ((${{SLURM_RESTART_COUNT:-0}} < {RESTARTS})); then',
    '    echo "job $SLURM_JOB_ID: time is up, back into the queue"',
    '    scontrol requeue "$SLURM_JOB_ID" || echo "submit it again: it goes on where it was"',
    "fi",
    "exit $status",
]


def _start(job: Job, words: str) -> str:
    """The line that starts the ranks."""
    if job.launcher == "srun" and job.ntasks > 1:
        flags = [f"--mpi={job.mpi}" if job.mpi else "", "--cpus-per-task=$threads", job.binding]
        return " ".join(["srun", *filter(None, flags), "fbompi run", words, "--resume &"])
    ranks = ' -n "$SLURM_NTASKS"' if job.ntasks > 1 else ""
    return f"fbompi run{ranks} {words} --resume &"


def _options(options: Sequence[str]) -> list[str]:
    return [word for option in options for word in ("-o", option)]
