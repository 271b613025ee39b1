"""A federation in this process, for tests that look inside a method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fbompi import start
from fbompi.config import load, resolve
from fbompi.links.virtual import VirtualLink
from fbompi.run import Driver, build, link_arguments


def federation(tables: dict[str, Any]) -> Driver:
    """A driver on the virtual link, ready for its first round."""
    parts = build(resolve(tables))
    link = VirtualLink([parts.client(i) for i in range(parts.clients)], *link_arguments(parts))
    return Driver(parts, link)


def play(driver: Driver, rounds: int) -> Driver:
    """Run some rounds without recording."""
    for _ in range(rounds):
        driver.advance()
    return driver


def ran(path: Path, *words: str) -> Path:
    """A run on the virtual link with these words of the command line, from beginning to end; its run file."""
    start.run(lambda: load(None, [word for word in words if word != "-o"], str(path)), overwrite=True, quiet=True)
    return path
