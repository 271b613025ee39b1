"""`fbompi sweep`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from fbompi.completion import keys
from fbompi.errors import UserError
from fbompi.options import JSON


@click.command()
@click.argument("config", required=False, type=click.Path())
@click.option("-o", "--option", "options", multiple=True, metavar="SECTION.KEY=A,B,C", help="Values of a key.",
              shell_complete=keys)  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), help="So many seeds, counted from run.seed; else one.")
@click.option("--out", type=click.Path(), metavar="DIR", help="Where run files go; else CONFIG-sweep.")
@click.option("-n", "--ranks", default=1, type=click.IntRange(1), help="Every run on so many ranks of MPI.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@JSON
def sweep(
    config: str | None, options: tuple[str, ...], seeds: int | None, out: str | None, ranks: int, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run all combinations of the listed values, times seeds, and compare them.

    Every run is a process and a file of its own, named by its values. Runs whose files are complete are skipped, those
    that were stopped, killed or failed are resumed: the same line again goes on where it was. A failed run does not
    keep the others from running. Ctrl-C finishes the round and stops (75). A list in brackets or a text in quotes
    is one value.

    \b
    fbompi sweep -o run.algorithm=afbo,fedmbo -o run.rounds=50 --seeds 3
    fbompi sweep jobs/hypercleaning.toml -o clients.local_steps=1,5,[1,5] -o run.seed=1,2 --out steps -n 4
    fbompi sweep -o delays.stragglers=0,2,4 --dry-run
    """
    from fbompi.links import mpi

    if mpi.launched_ranks() > 1:
        if mpi.launched_rank():
            return  # rank 0 says it
        raise UserError("a sweep starts its runs itself: leave mpirun out, and say -n 4")
    from fbompi.sweep.execution import Outcome, execute, exit_status
    from fbompi.sweep.plan import plan

    directory = Path(out or f"{Path(config).stem if config else 'fbompi'}-sweep")
    outcomes = [Outcome.ahead(run, ranks) for run in plan(config, options, seeds, directory)]
    if dry_run:
        told = [f"{outcome.step:<7} {outcome.run.path}" for outcome in outcomes]
        click.echo(json.dumps([outcome.figures() for outcome in outcomes]) if as_json else "\n".join(told))
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"--out {directory}: cannot be made: {e.strerror}") from None

    def tell(number: int, outcome: Outcome) -> None:
        seconds = f", {outcome.seconds:.1f} s" if outcome.status is not None else ""
        if not as_json:
            click.echo(f"{number}/{len(outcomes)} {outcome.run.path}: {outcome.words}{seconds}")
            sys.stdout.flush()

    asked = execute(config, outcomes, ranks, as_json or not sys.stderr.isatty(), tell)
    _compare(outcomes, as_json)
    failed = [str(outcome.run.path) for outcome in outcomes if outcome.words.startswith("failed")]
    left = sum(not outcome.words.startswith(("complete", "failed")) for outcome in outcomes)
    if failed:
        click.echo(f"fbompi: {len(failed)} of {len(outcomes)} runs failed: {', '.join(failed)}", err=True)
    if left:
        words = f"fbompi: {left} of {len(outcomes)} runs are not complete; the same command goes on"
        click.echo(words, err=True)
    if status := exit_status(outcomes, asked):
        raise SystemExit(status)


def _compare(outcomes: list, as_json: bool) -> None:
    """The table of `fbompi compare`, of all runs that have recorded anything."""
    from fbompi.comparison import compare, page
    from fbompi.runs import Run

    runs = [run for run in (Run(o.run.path) for o in outcomes if o.run.path.exists()) if len(run)]
    figures = compare(runs) if runs else None
    if as_json:
        click.echo(json.dumps({"runs": [outcome.figures() for outcome in outcomes], "comparison": figures}))
    elif figures is not None:
        click.echo(f"\n{page(figures)}")
