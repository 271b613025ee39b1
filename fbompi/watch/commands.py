"""`fbompi watch`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from fbompi.options import JSON


@click.command()
@click.argument("run_file", type=click.Path(), metavar="RUN.h5")
@click.option("--every", default=1.0, show_default=True, type=click.FloatRange(0.05, 86400.0), metavar="SECONDS",
              help="Look so often; more seldom where looking would take more than 1 % of the time.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look once.")
@JSON
def watch(run_file: str, every: float, once: bool, as_json: bool) -> None:
    """Follow a run while it is written, from any terminal: rounds, rate, time left, metrics, clients, incidents.

    Waits for a file that is not there yet, and ends with the run: status 0 complete, 4 complete with losses, 75
    interrupted or killed, 1 failed. Ctrl-C ends watching, not the run. Without a terminal it prints a block of lines
    per change, with --json one object per look.

    \b
    fbompi watch run.h5
    fbompi watch run.h5 --every 10 > run.log
    fbompi watch run.h5 --once --json | jq .seconds_left
    """
    from fbompi.watch.follow import follow
    from fbompi.watch.screen import screen

    shown = screen(as_json)
    try:
        status = follow(Path(run_file), every, once, shown)
    except KeyboardInterrupt:
        shown.end()
        status = 130
    except BrokenPipeError:  # whoever read us has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    if status:
        raise SystemExit(status)
