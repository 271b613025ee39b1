"""`fbompi job`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from fbompi.completion import keys
from fbompi.errors import UserError
from fbompi.options import JSON, KEYS

PLUGINS = {"openmpi": "pmix", "mpich": "pmi2"}  # of srun, by MPI library
MOST_TASKS = 32  # on a node, unless somebody says how many


@click.command()
@click.argument("config", required=False, type=click.Path())
@KEYS
@click.option("--nodes", default=1, show_default=True, type=click.IntRange(1), help="Nodes.")
@click.option("--ntasks", type=click.IntRange(1), help="Ranks, one the server; else one for each client and one more, "
              f"at most {MOST_TASKS} on a node. With 1 the run is in one process.")  # fmt: skip
@click.option("--cpus", default=1, show_default=True, type=click.IntRange(1), help="Threads of each rank.")
@click.option(
    "--time", default="01:00:00", show_default=True, metavar="TIME", help="Time limit of one start of the job."
)
@click.option("--before", type=click.IntRange(1), metavar="SECONDS",
              help="Stop so long before the limit; else a tenth of it, within 1 and 10 minutes.")  # fmt: skip
@click.option("--gpus", default=0, type=click.IntRange(0), help="GPUs of each node.")
@click.option("--launcher", default="mpirun", show_default=True, type=click.Choice(["mpirun", "srun"]),
              help="What starts the ranks; runs outlive dead ranks under mpirun only.")  # fmt: skip
@click.option("--mpi", metavar="PLUGIN", help="For srun: pmix, pmi2, ...; else that of the MPI library found here.")
@click.option("--bind", is_flag=True, help="Bind each rank to its own cores.")
@click.option("--partition", help="Slurm's.")
@click.option("--account", help="Slurm's.")
@click.option("--sbatch", "directives", multiple=True, metavar="DIRECTIVE", help="Another one: --sbatch=--qos=long")
@click.option("--module", "modules", multiple=True, metavar="NAME", help="module load NAME in the script.")
@click.option("--array", "lists", multiple=True, metavar="SECTION.KEY=A,B,C", shell_complete=keys,
              help="Values of a key: a job array of all combinations, and a job that compares them.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), help="So many seeds of each, in the same array.")
@click.option(
    "--at-once", default=0, type=click.IntRange(0), metavar="RUNS", help="Runs of the array at the same time."
)
@click.option("--out", type=click.Path(), help="The run file; of an array the directory of its run files.")
@click.option("--script", type=click.Path(), help="The script's name; else CONFIG.slurm.")
@click.option("--overwrite", is_flag=True, help="Replace a script of that name.")
@click.option("--submit", is_flag=True, help="Submit it, too.")
@JSON
def job(
    config: str | None, options: tuple[str, ...], lists: tuple[str, ...], seeds: int | None, out: str | None,
    script: str | None, overwrite: bool, submit: bool, as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Write a Slurm script for a run, or for an array of runs; with --submit, submit it.

    Before the time is up the run is checkpointed and the job queued again, until the run is complete. Submitted
    anew, it goes on with its run file. --time as Slurm has it: 90 (minutes), 1:30:00, 2-12 (days-hours).

    \b
    fbompi job jobs/hypercleaning.toml --ntasks 4 --time 00:30:00
    fbompi job jobs/hypercleaning.toml --nodes 2 --ntasks 64 --time 12:00:00 --launcher srun --submit
    fbompi job jobs/hypercleaning.toml --array run.algorithm=afbo,fedmbo --seeds 3 --ntasks 4 --submit
    """
    from fbompi.config import load
    from fbompi.job.script import array_script, compare_script, run_script
    from fbompi.job.submission import submit as sbatch
    from fbompi.job.submission import write
    from fbompi.sweep.plan import plan

    stem = Path(script or config or "fbompi").stem
    loaded = load(config, options)  # a mistake is told here, not in the queue
    asked_for = _job(stem, loaded.clients.count, **asked)
    path = Path(script or f"{stem}.slurm")
    scripts: dict[Path, str] = {}
    if lists or seeds is not None:
        directory = Path(out or f"{stem}-sweep")
        runs = plan(config, [*options, *lists], seeds, directory)
        files = [str(run.path) for run in runs]
        scripts[path] = array_script(asked_for, config, runs)
        scripts[path.with_name(f"{path.stem}-compare{path.suffix}")] = compare_script(asked_for, directory)
    else:
        files = [out or loaded.run.out or f"{stem}.h5"]
        scripts[path] = run_script(asked_for, config, options, files[0])
    write(scripts, overwrite)
    told: dict[str, Any] = {"scripts": [str(name) for name in scripts], "runs": files, "jobs": []}
    if submit:
        for name in scripts:
            told["jobs"].append(sbatch(name, after=told["jobs"][:1]))
    if as_json:
        click.echo(json.dumps(told))
        return
    for i, name in enumerate(scripts):
        click.echo(f"{name}: job {told['jobs'][i]}" if submit else f"{name}")
    if not submit:
        click.echo(f"submit it with: {_by_hand(list(scripts))}")


def _job(
    name: str, clients: int | str, ntasks: int | None, launcher: str, mpi: str | None, bind: bool, cpus: int,
    partition: str | None, account: str | None, directives: tuple[str, ...], time: str, before: int | None, **rest: Any,
) -> Any:  # fmt: skip
    from fbompi.job.script import Job, seconds_of
    from fbompi.launch import find_launcher

    found = find_launcher()
    family = found.family if found else ""
    if before is not None and before >= seconds_of(time):
        raise UserError(f"--before {before}: the whole job has {seconds_of(time)} s; expected less")
    if ntasks is None:
        most = MOST_TASKS * rest["nodes"]
        ntasks = min(clients + 1, most) if isinstance(clients, int) else most
    if ntasks < rest["nodes"]:
        raise UserError(f"--ntasks {ntasks}: there are {rest['nodes']} nodes; expected at least a rank on each")
    bindings = {"openmpi": "--map-by slot:PE=$threads --bind-to core", "mpich": "-bind-to core:$threads"}
    binding = "--cpu-bind=cores" if launcher == "srun" else bindings.get(family, "")
    if bind and not binding:
        raise UserError("--bind: there is no mpirun of Open MPI or MPICH here whose flags are known; set FBOMPI_MPIRUN")
    named = [f"--{key}={value}" for key, value in (("partition", partition), ("account", account)) if value]
    for text in directives:
        if not text.startswith("-") or "\n" in text:
            raise UserError(f"--sbatch {text}: expected an option of sbatch, such as --sbatch=--qos=long")
    return Job(
        name, ntasks=ntasks, launcher=launcher, mpi=PLUGINS.get(family, "") if mpi is None else mpi, cpus=cpus,
        binding=binding if bind else "", directives=(*named, *directives), time=time, before=before or 0,
        path=str(Path(sys.executable).parent), made_by=shlex.join(["fbompi", *sys.argv[1:]]), **rest,
    )  # fmt: skip


def _by_hand(scripts: list[Path]) -> str:
    first, *rest = [shlex.quote(str(path)) for path in scripts]
    if not rest:
        return f"sbatch {first}"
    return f"sbatch --dependency=afterany:$(sbatch --parsable {first}) {rest[0]}"
