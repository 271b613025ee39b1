"""`fbompi plot`, `compare` and `report`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fbompi.options import JSON

RUNS = click.argument("run_files", type=click.Path(), nargs=-1, required=True, metavar="RUN.h5...")
KIND_NAMES = ("overview", "metrics", "costs", "staleness", "timeline", "weights", "partition")
AXIS_NAMES = ("round", "communication", "time", "bytes", "calls")


@click.command()
@RUNS
@click.option(
    "-k", "--kind", type=click.Choice(KIND_NAMES), default="overview", show_default=True, help="What to draw."
)
@click.option("--against", type=click.Choice(AXIS_NAMES), default="round", show_default=True, help="The x axis.")
@click.option("-m", "--metric", default="", metavar="NAME", help="A column of the trajectory; else the most telling.")
@click.option("-o", "--out", default="", type=click.Path(), metavar="FILE", help="PNG, SVG or PDF; else RUN-KIND.png.")
def plot(run_files: tuple[str, ...], kind: str, against: str, metric: str, out: str) -> None:
    """Draw runs, also such as are still under way: one figure with what applies, or one kind of picture.

    \b
    overview    what applies to the run, in one figure
    metrics     every metric against one axis
    costs       one metric against rounds, time, bytes and oracle calls
    staleness   how old answers were when they arrived
    timeline    who computed, who waited, when answers arrived; stragglers, rejected answers, lost clients
    weights     mean weights of clean and of corrupted samples
    partition   the map of clients and classes

    \b
    fbompi plot run.h5
    fbompi plot run.h5 -k timeline -o timeline.pdf
    fbompi plot afbo.h5 fedmbo.h5 -k metrics -m accuracy --against bytes -o accuracy.svg
    """
    from fbompi.plots.kinds import plot as draw

    path = Path(out or f"{Path(run_files[0]).stem}-{kind}.png")
    draw(run_files, kind, against, metric, path)
    click.echo(str(path))


@click.command()
@RUNS
@click.option("--target", default="", metavar="METRIC=VALUE", help="A level to reach: accuracy=0.9 or x_error<=0.01.")
@click.option("-m", "--metric", default="", metavar="NAME", help="What the figure shows; else the target's metric.")
@click.option("-o", "--out", default="", type=click.Path(), metavar="FILE", help="Draw a figure, too: PNG, SVG or PDF.")
@JSON
def compare(run_files: tuple[str, ...], target: str, metric: str, out: str, as_json: bool) -> None:
    """Put runs side by side. Runs that differ only in run.seed are one group: means and 95 % intervals over seeds.

    Prints metrics at the end, costs, what it takes to reach a target, and how many times less that is than for the
    first group; then what differs between the groups' configurations. Without --target it is the level that all
    runs reach.

    \b
    fbompi compare afbo-*.h5 fedmbo-*.h5
    fbompi compare afbo-*.h5 fedmbo-*.h5 --target accuracy=0.9 -o comparison.pdf
    fbompi compare a.h5 b.h5 --json
    """
    from fbompi.comparison import compare as compared
    from fbompi.comparison import page
    from fbompi.runs import Run

    runs = [Run(path) for path in run_files]
    figures = compared(runs, target)
    if out:
        from fbompi.plots.comparison import plot as draw

        draw(runs, figures, metric, Path(out))
    click.echo(json.dumps(figures) if as_json else page(figures))
    if out and not as_json:
        click.echo(f"\n{out}")


@click.command()
@RUNS
@click.option("-o", "--out", default="report.html", type=click.Path(), metavar="FILE", show_default=True)
def report(run_files: tuple[str, ...], out: str) -> None:
    """Write one HTML page of runs: curves, costs, clients' timelines, what differs, incidents.

    The page is whole in itself: it fetches nothing, and opens without a network.

    \b
    fbompi report run.h5
    fbompi report afbo-*.h5 fedmbo-*.h5 -o comparison.html
    """
    from fbompi.report.page import report as write

    write(run_files, Path(out))
    click.echo(out)
