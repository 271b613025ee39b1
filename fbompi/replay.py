"""Running the log of arrivals of a run again, in one process: the same tasks, answers taken in the same steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fbompi.config import Source, resolve
from fbompi.errors import UserError
from fbompi.links.link import Script, Stalled
from fbompi.links.virtual import VirtualLink
from fbompi.record import reading, script_of
from fbompi.resume import announce_code, tables_of
from fbompi.run import Driver, build, link_arguments


class ReplayLink(VirtualLink):
    """All clients in this process; who answers when is as in the log, and when it is over, so is the run."""

    name = "replay"

    def __init__(self, script: Script, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._script = script

    def reset_clock(self) -> None:
        """The introduction is not in the log; what follows is."""
        super().reset_clock()
        self.script = self._script

    @property
    def over(self) -> bool:
        """Whether nothing is left of the log."""
        return not self.script


@dataclass
class Comparison:
    """How a replay and the record agree, over all recorded rounds."""

    rounds: int = 0
    different: int = 0
    first: int | None = None  # round that differs
    largest: float = 0.0  # difference in x or y

    def add(self, round_: int, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Compare one round: what was recorded with what came out."""
        self.rounds += 1
        if all(np.float64(old).tobytes() == np.float64(new).tobytes() for old, new in pairs):
            return
        self.different += 1
        self.first = round_ if self.first is None else self.first
        gaps = [
            np.max(np.abs(np.subtract(old, new)), initial=0.0) for old, new in pairs if np.shape(old) == np.shape(new)
        ]
        self.largest = max(self.largest, *map(float, gaps))


@dataclass
class Replay:
    """A run, gone through again; `driver.state` is the method's state, `driver.setting` the federation."""

    driver: Driver
    comparison: Comparison

    @property
    def state(self) -> Any:
        """The server's state after the last round that was replayed."""
        return self.driver.state


def replay(path: str | Path, until: int | None = None, show: Any = None) -> Replay:
    """Replay a run, up to a round or to the end of its log, comparing every recorded iterate.

    Parameters
    ----------
    path
        The run file; a run that was killed is replayed as far as its file goes.
    until
        The outer round after which to stop.
    show
        Called with the round and the number of rounds after each.
    """
    with reading(path) as file:
        tables = tables_of(path, dict(file.attrs))
        announce_code(path, tables)
        config = resolve(tables, Source(str(path)))
        script = script_of(path, file, 0, 0)
        last = int(max(file["trajectory/round"][:], default=0))
    if until is not None and until > last:
        raise UserError(f"--until {until}: {path} has rounds up to {last}")
    end = last if until is None else until
    parts = build(config)
    link = ReplayLink(script, [parts.client(i) for i in range(parts.clients)], *link_arguments(parts))
    driver, comparison = Driver(parts, link), Comparison()

    def advance_to(round_: int) -> None:
        while driver.state.round < round_:
            done = driver.state.round
            if driver.over:
                raise UserError(
                    f"{path}: the run is over after round {done} here, and the file has rounds up to {last}"
                )
            if link.over:
                raise UserError(f"{path}: the log of arrivals ends in round {done}, before round {round_}")
            try:
                driver.advance()
            except Stalled as e:
                raise UserError(f"{path}: round {done + 1}: {e}") from None
            except UserError as e:
                raise UserError(f"{path}: round {done + 1}: {e.line}", e.frames) from None
            if show is not None:
                show(driver.state.round, end)

    for round_, recorded in _recorded(path):
        if round_ <= end:
            advance_to(round_)
            state = driver.state
            now = {"x": state.x, "y": state.y, "grad_norm": state.gradient_norm}
            comparison.add(round_, [(array, now[name]) for name, array in recorded])
    advance_to(end)
    return Replay(driver, comparison)


def _recorded(path: str | Path) -> Iterator[tuple[int, list[tuple[str, Any]]]]:
    """What a run file has of every recorded round that can be compared; what happens meanwhile is not the file's."""
    with reading(path) as file:
        trajectory, rounds = file["trajectory"], file["trajectory/round"][:].tolist()
        for row, round_ in enumerate(rounds):
            names = [name for name in ("x", "y", "grad_norm") if name in trajectory]
            found = [(name, np.asarray(trajectory[name][row], np.float64)) for name in names]
            if row == len(rounds) - 1 and file.attrs["status"] == "complete":
                found += [(name, np.asarray(file["final"][name], np.float64)) for name in ("x", "y")]
            yield round_, found
