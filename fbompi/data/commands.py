"""The commands about data sets. What they need is imported when they run: help is quick.

NumPy above all: the command line sets its threads after this file is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from fbompi.errors import UserError
from fbompi.options import JSON, KEYS, QUIET


@click.group()
def data() -> None:
    """Data sets: import original files, download them, list what is there.

    Sets are kept in the directory FBOMPI_DATA, or else in ~/.cache/fbompi/data.

    \b
    fbompi data list
    fbompi data get mnist
    """


@data.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--name", default="", help="Name of a set that is not one of the known ones.")
@QUIET
@JSON
def import_(paths: tuple[Path, ...], name: str, quiet: bool, as_json: bool) -> None:
    """Import data sets from their authors' files: files, or directories that are searched.

    MNIST, Covertype, CIFAR-10 (binary version) and Omniglot are recognised by their file names, compressed or not,
    and checked against the authors' content. Other sets: files in LIBSVM's text format, .npz archives (arrays X and
    y, or images and labels, and X_test and y_test for a test part), and with --name any set in MNIST's form.

    \b
    fbompi data import ~/downloads
    fbompi data import a9a a9a.t
    fbompi data import ~/fashion --name fashion-mnist
    """
    from fbompi.data.importing import find, import_set

    done = []
    for found, reader in find(list(paths), name).items():
        with Bar(found, quiet) as bar:
            import_set(reader, bar)
        done.append(_told(found, as_json))
    if as_json:
        click.echo(json.dumps(done))


@data.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--from", "prefix", default="", metavar="URL-PREFIX", help="Take the files from another place.")
@QUIET
@JSON
def get(names: tuple[str, ...], prefix: str, quiet: bool, as_json: bool) -> None:
    """Download the original files of known sets, check and import them.

    A download that broke off goes on where it stopped. What is in the cache already is checked and kept.

    \b
    fbompi data get mnist
    fbompi data get cifar10 --from https://mirror.example.org/cifar/
    """
    from fbompi.config import nearest
    from fbompi.data.known import KNOWN

    for name in names:
        if name not in KNOWN:
            raise UserError(f'data get "{name}": not a set that can be downloaded: {nearest(name, KNOWN)}')
    done = []
    for name in names:
        if not _sound(name):
            _get(name, prefix, quiet)
        done.append(_told(name, as_json))
    if as_json:
        click.echo(json.dumps(done))


def _get(name: str, prefix: str, quiet: bool) -> None:
    from fbompi.data.download import downloaded
    from fbompi.data.importing import find, import_set

    with Bar(f"{name}: downloading", quiet) as bar, downloaded(name, prefix, bar) as files, Bar(name, quiet) as writing:
        import_set(find(files)[name], writing)


def _sound(name: str) -> bool:
    """Whether a set is in the cache, undamaged."""
    from fbompi.data import store

    try:
        store.open_set(name)
        store.check(name)
    except UserError:
        return False
    return True


@data.command("list")
@click.option("--check", is_flag=True, help="Compare what is stored with its checksums.")
@JSON
def list_(check: bool, as_json: bool) -> None:
    """List the sets in the cache, and the known ones that are not.

    \b
    fbompi data list
    fbompi data list --check
    """
    from fbompi.data import store
    from fbompi.data.known import KNOWN

    there, damaged = [], []
    for name in [store.BUILT_IN, *store.stored()]:
        try:
            there.append(figures(name))
            if check and name != store.BUILT_IN:
                store.check(name)
        except UserError as e:
            damaged.append(e.line)
    missing = [name for name in KNOWN if not os.path.lexists(store.path_of(name))]
    if as_json:
        click.echo(json.dumps({"directory": str(store.directory()), "sets": there, "missing": missing,
                               "damaged": damaged}))  # fmt: skip
    else:
        click.echo(page(there, missing))
        if check and not damaged:
            click.echo("everything is as it was stored")
    if damaged:
        raise UserError("; ".join(damaged))


@data.command()
@click.argument("config", required=False, type=click.Path())
@KEYS
@click.option("--plot", type=click.Path(), metavar="FILE", help="Draw it into a PNG, SVG or PDF file instead.")
@JSON
def show(config: str | None, options: tuple[str, ...], plot: str | None, as_json: bool) -> None:
    """Show how the samples of a configuration are dealt out to its clients.

    \b
    fbompi data show jobs/fedmbo-hyperrep.toml
    fbompi data show -o problem.partition=dirichlet -o problem.alpha=0.1 --plot partition.png
    """
    from fbompi import config as configuration
    from fbompi.data import show as partition

    loaded = configuration.load(config, options)
    try:
        shown = partition.figures(loaded)
    except UserError as e:
        raise loaded.source.locate(e) from None
    if plot:
        partition.plot(shown, Path(plot))
    click.echo(json.dumps(shown) if as_json else plot or partition.page(shown))


def figures(name: str) -> dict[str, Any]:
    """What there is to know about a set, for machines."""
    from fbompi.data.store import open_set

    found = open_set(name)
    return {
        "name": name, "parts": found.parts, "features": found.features, "classes": found.classes,
        "image": list(found.image), "largest": found.largest, "bytes": found.path.stat().st_size,
        "checksum": found.checksum, "path": str(found.path),
    }  # fmt: skip


def page(there: list[dict[str, Any]], missing: list[str]) -> str:
    """The list as text."""
    from fbompi.data.known import KNOWN

    rows = [("name", "samples", "features", "classes", "MB", "path")]
    for found in there:
        rows.append((found["name"], _parts(found), f"{found['features']:,}", f"{found['classes']:,}",
                     f"{found['bytes'] / 1e6:,.1f}", found["path"]))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row in rows:
        numbers = "  ".join(text.rjust(width) for text, width in zip(row[2:5], widths[2:], strict=True))
        lines.append(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {numbers}  {row[5]}")
    if missing:
        lines.append("\nnot there:")
        width = max(len(name) for name in missing)
        for name in missing:
            files = ", ".join(KNOWN[name].downloads)
            lines.append(f"{name:<{width}}  fbompi data get {name}, or fbompi data import PATH of {files}")
    return "\n".join(lines)


def _parts(found: dict[str, Any]) -> str:
    return " + ".join(f"{count:,} {part}" for part, count in found["parts"].items())


def _told(name: str, as_json: bool) -> dict[str, Any]:
    """The figures of a set that is stored; as text they are told at once, so that a later failure leaves them."""
    found = figures(name)
    if not as_json:
        sizes = f"{_parts(found)} samples, {found['features']:,} features, {found['classes']:,} classes"
        click.echo(f"{name}: {sizes}: {found['path']}")
    return found


class Bar:
    """Progress on standard error: one line that moves on a terminal, a plain line every few seconds elsewhere."""

    def __init__(self, label: str, quiet: bool) -> None:
        self.label, self.quiet = label, quiet
        self.live = sys.stderr.isatty()
        self.interval = 0.1 if self.live else 5.0
        self.done = self.total = 0
        self._last = time.monotonic()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if self.live and not self.quiet:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def expect(self, count: int) -> None:
        self.total += count

    def advance(self, count: int) -> None:
        self.done += count
        if self.quiet or time.monotonic() - self._last < self.interval:
            return
        self._last = time.monotonic()
        share = min(1.0, self.done / max(self.total, self.done, 1))
        line = f"{self.label} {self.done / 1e6:,.0f} MB"
        if self.live:
            sys.stderr.write(f"\r{line:<32} [{'#' * int(30 * share):<30}] {share:4.0%}\x1b[K")
        else:
            sys.stderr.write(f"{line}, {share:.0%}\n")
        sys.stderr.flush()
