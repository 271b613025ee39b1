"""Watching a run and writing it down."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from fbompi import checkpoint
from fbompi.checkpoint import Checkpoint
from fbompi.errors import UserError
from fbompi.links.link import EVENT
from fbompi.messages import COSTS
from fbompi.record import RunFile

IN_SCRIPTS = ("client left out", "answer rejected")  # incidents that happen again where rounds are gone through again
EVENTS_AT_ONCE = 50_000  # events kept in memory between two rows of the trajectory


class Recorder:
    """Watches a run and writes it down; evaluation is asked for here and never waited for.

    Of a run that goes on, the rounds between its checkpoint and the end of its file are gone through again: what they
    give is there already and is only compared.
    """

    def __init__(self, file: RunFile, driver: Any, progress: Any, resumed: Checkpoint | None = None) -> None:
        self.file, self.driver, self.progress = file, driver, progress
        self.settings = driver.parts.config.record
        rounds = file.file["trajectory/round"][:].tolist()
        self._row_of = {round_: row for row, round_ in enumerate(rounds)}
        self._known = rounds[-1] if rounds else -1  # the last round that was recorded before
        self._repeated = file.events - (resumed.events if resumed else 0)  # events that come again
        self._ages = list(resumed.ages) if resumed else [0.0, 0.0]
        self._last_row = max(0, len(rounds) - 1)
        self._count()
        self._memory = file.file["clients"]["peak_memory"].astype(np.int64)
        self._last_checkpoint, self._cost, self._kept = time.perf_counter(), 0.0, -1  # when, how long it took, of what
        self._warned = False

    def _count(self) -> None:
        """Sum up what the file has."""
        events, incidents = self.file.file["events"][:], self.file.file["incidents"][:]
        repeated = [int(row["take"]) for row in incidents if row["what"].decode() in IN_SCRIPTS]
        self._counted = {name: float(events[name].sum()) for name in (*COSTS[:-1], "bytes", "bytes_up", "seconds")}
        self._steps = 1 + max([-1, *events["take"][-1:], *repeated[-1:]])  # known already
        times = self.file.file["trajectory/time"][-1:], events["time_arrived"][-1:]
        self._recorded = float(max([0.0, *times[0], *times[1]]))  # the last moment

    @property
    def behind(self) -> bool:
        """Whether rounds are gone through again."""
        return self.driver.state.round <= self._known

    def see(self, state: Any, link: Any) -> None:
        """Called before the first round and after each."""
        if self.behind:
            link.stand_at(self._recorded)
        self.progress.show(state.round, link.now)
        self.fetch(link)
        self._note_ages(link)
        if not (state.round in self._row_of and self._same(state, link)):
            if self._row_due(state):
                self._write_row(state, link)
            elif len(link.events) > EVENTS_AT_ONCE:
                self._write_events(link)
        if self._checkpoint_due(state):
            self.keep(state, link)

    def _row_due(self, state: Any) -> bool:
        """Whether this round gets a row; between those that are there it is too late for one."""
        return not self.behind and (state.round % self.settings.every == 0 or self.driver.over)

    def _note_ages(self, link: Any) -> None:
        new = link.events[self._aged :]
        self._ages[0] += sum(event[5] for event in new)
        self._ages[1] += len(new)
        self._aged += len(new)

    _aged = 0  # of the events in memory, those whose ages are summed

    def _same(self, state: Any, link: Any) -> bool:
        """Whether the round that was gone through again gave what was recorded; if not, the file ends before it."""
        index = self._row_of[state.round]
        row = self.file.row(index)
        pairs = [(row["grad_norm"], state.gradient_norm)]
        pairs += [(row[name], getattr(state, name)) for name in ("x", "y") if name in row]
        self._write_events(link)
        if all(np.array_equal(old, new, equal_nan=True) for old, new in pairs):
            self._ages = [0.0, 0.0]
            self._last_row = index
            self.driver.server_seconds = float(row["server_seconds"])  # what was measured then stands
            if np.isnan(row["upper"]):
                self._evaluate(state, link)
            return True
        print(
            f"fbompi: round {state.round} gave other bits than were recorded (another machine or library?): what the "
            "file has from there on is replaced", file=sys.stderr,
        )  # fmt: skip
        self.file.cut(index, self.file.events - self._repeated, link.takes)
        self._row_of = {round_: row for round_, row in self._row_of.items() if row < index}
        self._known, self._repeated, link.script = state.round - 1, 0, None
        self._count()
        return False

    def _write_row(self, state: Any, link: Any) -> None:
        problem, clients = self.driver.parts.problem, self.driver.parts.clients
        total, count = self._ages
        self._write_events(link)
        self._ages = [0.0, 0.0]
        figures = self.driver.method.figures(state)
        row = {"round": state.round, "time": link.now, "grad_norm": state.gradient_norm,
               "age": total / count if count else 0.0, "smoothness": self.driver.method.ell,
               **self._counters(link), **figures}  # fmt: skip
        if unknown := set(figures) - set(self.driver.method.figure_meanings):
            raise UserError(f"method: figures gives {', '.join(unknown)}, which figure_meanings does not explain")
        if hasattr(problem, "exact"):
            row.update(problem.exact(state.x, state.y, clients))
            if unknown := set(row) - set(self.file.columns):
                raise UserError(f"problem: exact gives {', '.join(unknown)}, which exact_meanings does not explain")
            self.progress.note(row)
        self._last_row = self.file.append(row, (state.x, state.y) if "x" in self.file.file["trajectory"] else None)
        self._row_of[state.round] = self._last_row
        self.file.flush()
        self._evaluate(state, link)

    def _evaluate(self, state: Any, link: Any) -> None:
        if self.settings.metrics:
            link.evaluate(state.round, state.x, state.y)

    def finish(self, link: Any) -> None:
        """Wait for the evaluations under way, and write down what else arrived meanwhile."""
        link.finish_evaluations()
        self.fetch(link)
        self._note_ages(link)
        self._write_events(link)
        self.file.fill(self._last_row, self._counters(link))
        self.file.flush()

    # Checkpoints

    def _checkpoint_due(self, state: Any) -> bool:
        every = self.settings.checkpoint_every
        if self.driver.over or not state.round:
            return False
        if every != "auto":
            return bool(every) and state.round % every == 0
        since = time.perf_counter() - self._last_checkpoint
        return since > max(checkpoint.AT_LEAST, self._cost / checkpoint.SHARE)

    def keep(self, state: Any, link: Any) -> bool:
        """Have a checkpoint of this round beside the run file; whether there is one. If not, the last one stands."""
        if state.round == self._kept:
            return True
        begin = time.perf_counter()
        self._write_events(link, durable=True)
        try:
            checkpoint.write(self.file.path, self.taken(state, link))
            self._kept = state.round
            return True
        except OSError as e:
            if not self._warned:
                print(f"fbompi: no checkpoint could be written: {e.strerror or e}; the last stands", file=sys.stderr)
            self._warned = True
            return False
        finally:
            self._last_checkpoint = time.perf_counter()
            self._cost = self._last_checkpoint - begin

    def taken(self, state: Any, link: Any) -> Checkpoint:
        """The run as it is now."""
        rows = sum(round_ <= state.round for round_ in self._row_of) if self.behind else self.file.rows
        events = self.file.events - self._repeated
        return Checkpoint(
            self.file.id, rows, events, self._ages, self.driver.server_seconds, state, link.saved()
        )  # fmt: skip

    # The parts of a row

    def _counters(self, link: Any) -> dict[str, float]:
        """The costs so far."""
        c = self._counted
        return {
            "communication": link.round, "bytes_down": c["bytes"] - c["bytes_up"], "bytes_up": c["bytes_up"],
            "client_seconds": c["seconds"], "server_seconds": self.driver.server_seconds,
            **{name: c[name] for name in COSTS[:-1]},
        }  # fmt: skip

    def _write_events(self, link: Any, durable: bool = False) -> None:
        again = min(self._repeated, len(link.events))
        if len(link.events) > again:
            rows = np.array(link.events[again:], EVENT)
            for name in self._counted:
                self._counted[name] += float(rows[name].sum())
            np.maximum.at(self._memory, rows["client"], rows["memory"])
            self.file.append_events(rows)
        self._repeated -= again
        link.events.clear()
        self._aged = 0
        new = [
            incident for incident in link.incidents if incident.take >= self._steps or incident.what not in IN_SCRIPTS
        ]
        if new:
            self.file.append_incidents(new)
        link.incidents.clear()
        self.file.tell_clients(tasks_done=link.tasks_done, peak_memory=self._memory, rejected=link.rejected,
                               state=link.client_state, **link.places())  # fmt: skip
        self.file.flush(durable)

    def fetch(self, link: Any) -> None:
        """Complete the rows whose evaluation has come in."""
        for round_, parts in link.evaluated:
            if round_ in self._row_of:  # else it was replaced meanwhile
                row = self.driver.row(parts)
                self.file.fill(self._row_of[round_], row)
                self.progress.note(row)
        if link.evaluated:
            link.evaluated.clear()
            self.file.flush()
