"""The command line. Commands import what they need when they run: help is quick, and MPI starts only for runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any

import click

from fbompi import __version__
from fbompi.completion import completion
from fbompi.data.commands import data
from fbompi.errors import UserError
from fbompi.job.commands import job
from fbompi.options import JSON, KEYS, QUIET
from fbompi.plots.commands import compare, plot, report
from fbompi.reproduce.commands import reproduce
from fbompi.sweep.commands import sweep
from fbompi.watch.commands import watch

# Linear algebra with threads of its own would give other bits on another number of cores, and ranks would fight
# for cores. It must be said before NumPy is loaded, and can be overruled from outside.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

RANKS = click.option("-n", "--ranks", type=click.IntRange(1), help="Start mpirun with so many ranks, one the server.")


class Lines(click.Command):
    """A command whose help keeps the lines of its epilog."""

    epilog_lines: Callable[[], str] | None = None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog_lines is not None:
            formatter.write_paragraph()
            formatter.write(self.epilog_lines())
            formatter.write_paragraph()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def fbompi() -> None:
    """Federated bilevel optimization, run for real on MPI.

    \b
    fbompi run                     a first run in this process, seconds
    fbompi run -n 4                the same on MPI: a server and three ranks of clients
    fbompi watch RUN.h5            how it is going, live
    fbompi inspect RUN.h5          what happened
    fbompi resume RUN.h5           go on with a run that was stopped or killed
    fbompi sweep -o KEY=A,B        all combinations, times seeds, compared
    fbompi job CONFIG --submit     a Slurm job that goes on until its run is complete
    fbompi replay RUN.h5 --verify  the same arrivals again, in one process
    fbompi plot RUN.h5             a picture of it; compare and report for several runs
    fbompi reproduce --list        the papers' experiments, and which of their claims hold

    Exit status: 0 complete, 1 failed, 2 a mistake told in one line, 4 complete with losses, 75 stopped, resumable.
    """


@fbompi.command(cls=Lines)
@click.argument("config", required=False, type=click.Path())
@KEYS
@click.option("--out", type=click.Path(), help="The run file (same as -o run.out=...).")
@RANKS
@click.option("--overwrite", is_flag=True, help="Replace an existing run file.")
@click.option(
    "--resume", "go_on", is_flag=True, help="Go on with the run file if it is there; one that is complete stays."
)
@QUIET
@JSON
@click.option("--show-config", is_flag=True, help="Print the whole configuration as TOML and stop.")
def run(
    config: str | None, options: tuple[str, ...], out: str | None, ranks: int | None, overwrite: bool, go_on: bool,
    quiet: bool, as_json: bool, show_config: bool,
) -> None:  # fmt: skip
    """Run a configuration (TOML); without one, a built-in example that takes seconds.

    Alone: all clients in this process, on a virtual clock. Under mpirun or srun, or with -n: rank 0 is the server
    and the other ranks host the clients.

    \b
    fbompi run -n 4 -o run.rounds=100 --out first.h5
    mpirun -n 64 fbompi run jobs/hypercleaning.toml
    fbompi run -o run.algorithm=fedmbo -o run.problem=quadratic
    fbompi run jobs/hypercleaning.toml --out run.h5 --resume     # again and again, until it is complete
    """
    from fbompi import config as configuration

    source = configuration.Source()

    def load() -> configuration.Config:
        nonlocal source
        loaded = configuration.load(config, options, out)
        source = loaded.source
        return loaded

    if show_config:
        click.echo(load().text(), nl=False)
        return
    if go_on and overwrite:
        raise click.UsageError("--resume goes on with a run file and --overwrite replaces it; leave one out")
    if go_on and (path := _complete(load)):
        return _show(path, as_json)
    if ranks is not None and ranks > 1 and _launch(ranks, quiet, load):
        return
    from fbompi import start

    try:
        ended = start.run(load, overwrite, quiet, go_on)
    except UserError as e:
        raise source.locate(e) from None
    _tell(ended, as_json)


@fbompi.command()
@click.argument("run_file", type=click.Path())
@KEYS
@RANKS
@QUIET
@JSON
def resume(run_file: str, options: tuple[str, ...], ranks: int | None, quiet: bool, as_json: bool) -> None:
    """Go on with a run that was stopped or killed, from its last checkpoint, on any number of ranks.

    What is recorded after the checkpoint is gone through again and compared. With -o only run.rounds and the keys
    of [record] may change; a complete run is prolonged by more rounds.

    \b
    fbompi resume run.h5
    fbompi resume run.h5 -n 4
    mpirun -n 64 fbompi resume run.h5 -o run.rounds=2000
    """
    from pathlib import Path

    path = Path(run_file)

    def check() -> None:
        from fbompi.resume import resumed_config

        resumed_config(path, options, ranks or 1)

    if ranks is not None and ranks > 1 and _launch(ranks, quiet, check):
        return
    from fbompi import start

    _tell(start.resume(path, options, quiet), as_json)


@fbompi.command()
@click.argument("run_file", type=click.Path())
@click.option("--verify", is_flag=True, help="Exit with status 1 unless every recorded iterate has the same bits.")
@click.option("--until", type=click.IntRange(0), help="Stop after this outer round.")
@click.option("--python", "interactive", is_flag=True, help="Then open Python with the state at that round.")
@QUIET
@JSON
def replay(run_file: str, verify: bool, until: int | None, interactive: bool, quiet: bool, as_json: bool) -> None:
    """Run the recorded arrivals again in one process, and compare every recorded iterate.

    In Python: fbompi.replay.replay("run.h5", until=20).state

    \b
    fbompi replay run.h5 --verify
    fbompi replay run.h5 --until 20 --python
    """
    from fbompi.progress import Progress
    from fbompi.replay import replay as again

    progress = Progress(0, "", quiet)
    replayed = again(run_file, until, progress.count)
    progress.end()
    found, state = replayed.comparison, replayed.state
    figures = {"round": state.round, "compared": found.rounds, "different": found.different, "first": found.first,
               "largest_difference": found.largest}  # fmt: skip
    if as_json:
        click.echo(json.dumps(figures))
    elif found.different:
        click.echo(
            f"round {state.round}: {found.different} of {found.rounds} recorded rounds have other bits, the first is "
            f"round {found.first}; the largest difference is {found.largest:.3g}"
        )
    else:
        click.echo(f"round {state.round}: all {found.rounds} recorded rounds have the same bits")
    if interactive:
        import code

        names = ", ".join(vars(state))
        local = {"replayed": replayed, "state": state, "driver": replayed.driver}
        code.interact(f"state after round {state.round}: {names}", local=local, exitmsg="")
    if verify and found.different:
        raise SystemExit(1)


def _launch(ranks: int, quiet: bool, check: Callable[[], object]) -> bool:
    """Become mpirun for this command line; True on a rank that mpirun started already, where there is nothing to do."""
    from fbompi.links import mpi

    if mpi.launched_ranks() > 1:
        if mpi.launched_rank():
            return True  # rank 0 says it
        raise UserError(f"-n {ranks}: mpirun is running already; leave -n out")
    from fbompi.launch import launch

    check()  # a mistake is told here, once, before any rank starts
    launch(ranks, _without_ranks(sys.argv[1:]), quiet)
    return True


def _complete(load: Callable[[], Any]) -> str:
    """The run file of a configuration, if there is nothing left to do about it. Mistakes are told later, once."""
    from fbompi.resume import begun

    try:
        config = load()
        return config.run.out if begun(config) == "complete" else ""
    except UserError:
        return ""


def _show(path: Any, as_json: bool) -> None:
    """What a complete run has to show."""
    from fbompi.links.mpi import launched_rank
    from fbompi.summary import page, summary

    if launched_rank() == 0:
        figures = summary(path)
        click.echo(json.dumps(figures) if as_json else f"{page(figures)}\n\n{path}")


def _tell(ended: Any, as_json: bool) -> None:
    """What a finished run has to show."""
    if ended is None:  # on a rank that is not the server
        return
    try:
        _show(ended.path, as_json)
    finally:  # mpirun may have closed our output with a rank that was lost
        if ended.losses:
            ended.leave()


def _without_ranks(arguments: list[str]) -> list[str]:
    """The same command line, less -n."""
    kept, skip = [], False
    for word in arguments:
        if skip:
            skip = False
        elif word in ("-n", "--ranks"):
            skip = True
        elif not word.startswith("--ranks=") and not (word.startswith("-n") and word[2:].isdigit()):
            kept.append(word)
    return kept


def _keys_table() -> str:
    """Every key with its default and meaning, from the annotations that also check it."""
    from fbompi.config import SECTIONS, Run, keys_of
    from fbompi.registry import algorithm, problem

    default = Run()
    sections = {**SECTIONS, f"algorithm ({default.algorithm})": algorithm(default.algorithm).Parameters,
                f"problem ({default.problem})": problem(default.problem)}  # fmt: skip
    lines = ["Keys, with their defaults (other methods and problems: fbompi list):"]
    for name, section in sections.items():
        lines.append(f"\n  [{name}]")
        lines += key_lines(keys_of(section) or {})
    return "\n".join(lines) + "\n"


def key_lines(keys: dict[str, Any]) -> list[str]:
    """One line per key: name, default, meaning and what is expected."""
    lines = []
    for key in keys.values():
        default = "required" if key.default is MISSING else json.dumps(key.default)
        lines.append(f"    {key.name + ' = ' + default:<28} {key.meaning}; {key.expected()}")
    return lines


run.epilog_lines = _keys_table  # type: ignore[attr-defined]


@fbompi.command()
@click.argument("run_file", type=click.Path())
@JSON
def inspect(run_file: str, as_json: bool) -> None:
    """Tell what was run and how it went.

    \b
    fbompi inspect afbo-hypercleaning-1.h5
    fbompi inspect run.h5 --json | jq .metrics.accuracy.last
    """
    from fbompi.summary import page, summary

    figures = summary(run_file)
    click.echo(json.dumps(figures) if as_json else page(figures))


@fbompi.command("list")
@click.argument("what", required=False, type=click.Choice(["algorithms", "problems", "data", "kernels"]))
@JSON
def list_(what: str | None, as_json: bool) -> None:
    """List methods and problems with their parameters, the data sets, and the kernels.

    \b
    fbompi list
    fbompi list algorithms --json
    """
    if what == "data":
        return click.get_current_context().invoke(data.commands["list"], check=False, as_json=as_json)
    from fbompi.listing import listing, listing_page

    figures = listing(what)
    click.echo(json.dumps(figures) if as_json else listing_page(figures))


@fbompi.command()
@JSON
def doctor(as_json: bool) -> None:
    """Look at this machine: MPI and its launcher, threads, HDF5, accelerators; what works and what does not.

    \b
    fbompi doctor
    """
    from fbompi import doctor as examination

    findings = examination.examine()
    click.echo(json.dumps(findings) if as_json else examination.page(findings))
    if not findings["usable"]:
        raise SystemExit(1)


@fbompi.group()
def bench() -> None:
    """Measure, as ratios within one run.

    \b
    fbompi bench link -n 4
    fbompi bench kernels --threads 1
    """


@bench.command()
@click.option("-n", "--ranks", default=4, type=click.IntRange(2), help="Start mpirun with so many ranks.")
@click.option("--numbers", default=7850, show_default=True, type=click.IntRange(1), help="float64 numbers per message.")
@click.option("--updates", default=20000, show_default=True, type=click.IntRange(100), help="Updates per measurement.")
@click.option("--per-rank", default=6, show_default=True, type=click.IntRange(1), help="Clients on each rank.")
@JSON
def link(ranks: int, numbers: int, updates: int, per_rank: int, as_json: bool) -> None:
    """Server updates per second through the mpi link, beside a bare echo of the same messages.

    The echo keeps one message per rank under way and does nothing else. Through the link, clients send back what
    they get, and the server takes each answer as its new iterate: all that a link does, and no arithmetic.

    \b
    fbompi bench link -n 4
    """
    from fbompi.links import mpi

    if not mpi.under_launcher():
        from fbompi.launch import launch

        launch(ranks, _without_ranks(sys.argv[1:]), quiet=as_json)
    from fbompi.bench.link import link_figures, link_page

    figures = link_figures(numbers, updates, per_rank)
    if figures is not None:
        click.echo(json.dumps(figures) if as_json else link_page(figures))


@bench.command("kernels")
@click.option("--threads", default="1,2", show_default=True, help="Numbers of threads, separated by commas.")
@click.option("--repeats", default=9, show_default=True, type=click.IntRange(2), help="Repetitions of each.")
@JSON
def bench_kernels(threads: str, repeats: int, as_json: bool) -> None:
    """Each kernel against NumPy, PyTorch and JAX (where installed) and against this machine's own limit.

    All contestants take turns within one run; compiling is not timed. Takes a minute or two per number of threads.

    \b
    fbompi bench kernels --threads 1
    """
    from fbompi.bench import kernels

    cases = kernels.figures(_counts("--threads", threads), repeats)
    click.echo(json.dumps(kernels.as_json(cases)) if as_json else kernels.page(cases))


@bench.command("location")
@click.option("--dim", default=10, show_default=True, type=click.IntRange(1), help="n, the dimension.")
@click.option("--balls", default=10_000, show_default=True, type=click.IntRange(1), help="m, the number of balls.")
@click.option("--clients", default="1,2,4,8", show_default=True, help="S of FISM, separated by commas.")
@click.option("--repeats", default=10, show_default=True, type=click.IntRange(1), help="Draws of the problem.")
@JSON
def bench_location(dim: int, balls: int, clients: str, repeats: int, as_json: bool) -> None:
    """Table I of the paper of FISM: iterations and time of IR-IG and FISM until the stopping rule holds.

    Beside them IR-IG written down in NumPy, a few seconds of it, and what the paper prints. Takes a minute.

    \b
    fbompi bench location
    fbompi bench location --dim 50 --balls 5000 --repeats 3
    """
    from fbompi.bench import location

    figures = location.figures(dim, balls, _counts("--clients", clients), repeats)
    click.echo(json.dumps(figures) if as_json else location.page(figures))


def _counts(option: str, text: str) -> list[int]:
    """Whole numbers separated by commas."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise UserError(f"{option} {text}: expected whole numbers of at least 1, such as 1,2")
    return [int(word) for word in words]


for _command in (data, plot, compare, report, watch, sweep, job, reproduce, completion):
    fbompi.add_command(_command)


def main() -> None:
    """The entry point: one clear line and status 2 for what the user can mend."""
    from fbompi.links.mpi import launched_rank

    try:
        fbompi(standalone_mode=False)
    except UserError as e:
        click.echo(f"{e.frames}fbompi: {e.line}", err=True)
        _leave(2)
    except click.exceptions.Exit as e:
        raise SystemExit(e.exit_code) from None
    except click.ClickException as e:
        if launched_rank() == 0:
            e.show()
        _leave(2)
    except click.exceptions.Abort:
        _leave(130)
    except KeyboardInterrupt:
        _leave(130)


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    raise SystemExit(status)
