"""`fbompi reproduce`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fbompi.errors import UserError
from fbompi.options import JSON
from fbompi.status import MISTAKE, RESUMABLE

EVERYTHING = "all"


def names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Experiments that begin so; directories, where a page is made of them."""
    if context.params.get("docs"):
        return [CompletionItem(incomplete, type="dir")]
    from fbompi.registry import experiments

    known = {name: f"{found.figure}: {found.about}" for name, found in experiments().items()}
    known[EVERYTHING] = "one after another"
    return [CompletionItem(name, help=words) for name, words in known.items() if name.startswith(incomplete)]


@click.command()
@click.argument("what", nargs=-1, metavar="[NAME...]", shell_complete=names)
@click.option("--scale", type=click.Choice(["small", "paper"]), default="small", show_default=True,
              help="A minute or so on two cores, or the paper's sizes.")  # fmt: skip
@click.option("--out", type=click.Path(), metavar="DIR", help="Where everything goes; else reproductions/NAME.")
@click.option("-n", "--ranks", default=1, type=click.IntRange(1), help="Every run on so many ranks of MPI.")
@click.option("--list", "listing", is_flag=True, help="Tell which experiments there are.")
@click.option("--docs", type=click.Path(), metavar="FILE", help="Write a page about the directories that are named.")
@JSON
def reproduce(
    what: tuple[str, ...], scale: Any, out: str | None, ranks: int, listing: bool, docs: str | None, as_json: bool
) -> None:
    """Run a paper's experiment again, and tell which of its claims hold.

    All methods and seeds are run, each in a process and a file of its own; the same line again goes on where it was.
    In the directory are then runs/*.h5, table.md and .json (beside what the paper prints), figure.png and .svg (in
    the paper's form) and verdicts.json: holds, holds in part or does not hold, computed from the runs, with the
    measured figure. Where step sizes are tuned, every method is offered the same values, at a seed of its own.

    \b
    fbompi reproduce --list
    fbompi reproduce afbo-iid
    fbompi reproduce afbo-stragglers --scale paper --out stragglers
    fbompi reproduce afbo-iid -n 4                     on MPI, where delays are injected
    fbompi reproduce all --out reproductions
    fbompi reproduce --docs docs/reproduction.md reproductions stragglers
    """
    from fbompi.links import mpi

    if mpi.launched_ranks() > 1:
        if mpi.launched_rank():
            return  # rank 0 says it
        raise UserError("reproduce starts its runs itself: leave mpirun out, and say -n 4")
    if listing:
        return _list(as_json)
    if not what:
        raise UserError("reproduce: expected the name of an experiment: fbompi reproduce --list")
    if docs:
        from fbompi.reproduce.documentation import document

        count = document([Path(word) for word in what], Path(docs))
        click.echo(f"{docs}: {count} experiments")
        return
    from fbompi.config import nearest
    from fbompi.registry import experiments

    known = experiments()
    for name in what:
        if name not in (*known, EVERYTHING):
            raise UserError(f'reproduce "{name}": no such experiment: {nearest(name, [*known, EVERYTHING])}')
    chosen = list(known) if EVERYTHING in what else list(dict.fromkeys(what))
    reports, status = [], 0
    for name in chosen:
        base = Path(out) if out else Path("reproductions")
        place = base if out and len(chosen) == 1 else base / (name if scale == "small" else f"{name}-{scale}")
        try:
            report, ended = _reproduce(known[name](), scale, place, ranks, as_json)
        except UserError as e:
            if len(chosen) == 1:
                raise
            click.echo(f"fbompi: {e.line}", err=True)  # the others can be had
            status = status or MISTAKE
            continue
        reports += [report] if report else []
        status = ended or status
        if ended == RESUMABLE:
            break
    if as_json:
        click.echo(json.dumps(reports))
    if status:
        raise SystemExit(status)


def _reproduce(experiment: Any, scale: Any, place: Path, ranks: int, as_json: bool) -> tuple[Any, int]:
    """One experiment: what is in its verdicts.json, and the exit status."""
    from fbompi.reproduce.execution import perform
    from fbompi.reproduce.output import page, write

    def tell(number: int, total: int, outcome: Any) -> None:
        seconds = f", {outcome.seconds:.1f} s" if outcome.status is not None else ""
        if not as_json:
            click.echo(f"{number}/{total} {outcome.run.path}: {outcome.words}{seconds}")
            sys.stdout.flush()

    try:
        (place / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"--out {place}: cannot be made: {e.strerror}") from None
    done = perform(experiment, scale, place / "runs", ranks, tell)
    if not done.results:
        if done.failed:
            click.echo(f"fbompi: {experiment.name}: failed: {', '.join(done.failed)}", err=True)
        elif not as_json:
            click.echo(f"fbompi: {experiment.name}: not complete; the same command goes on", err=True)
        return None, done.status
    report = write(experiment, scale, ranks, done, place)
    if not as_json:
        click.echo(f"\n{page(report)}\n\n{place}\n")
    return report, done.status


def _list(as_json: bool) -> None:
    from fbompi.registry import experiments

    known = experiments()
    if as_json:
        figures = {
            name: {"paper": e.paper, "figure": e.figure, "about": e.about, "claims": [claim.text for claim in e.claims],
                   "data": {"small": e.small.data, "paper": e.full.data}}
            for name, e in known.items()
        }  # fmt: skip
        click.echo(json.dumps(figures))
        return
    width = max(map(len, known), default=0)
    for name, e in known.items():
        click.echo(f"{name:<{width}}  {e.figure} of {e.paper.partition(':')[2].strip()}")
        click.echo(f"{'':<{width}}  {e.about}")
        for claim in e.claims:
            click.echo(f"{'':<{width}}    claim: {claim.text}")
