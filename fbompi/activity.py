"""Who did what when: the log of arrivals, client by client, as plots and reports show it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fbompi.runs import Run

SLOW = 2.0  # times as long as usual for an answer: a straggler
ENOUGH = 30  # answers for a median to be believed


@dataclass
class Activity:
    """The tasks of a run with their times, and what befell clients.

    The time between sending and arrival holds the way there, the computing and the way back. On the virtual link both
    ways take equally long; on MPI an answer is sent when it is computed, so that waiting comes before computing.
    """

    clients: int
    end: float  # of the run, as far as it is recorded
    client: np.ndarray
    sent: np.ndarray
    begun: np.ndarray  # when computing began, and how long it took
    compute: np.ndarray
    arrived: np.ndarray
    age: np.ndarray
    kind: np.ndarray
    rejected: np.ndarray
    slow: list[int]  # clients that are stragglers
    left: dict[int, float]  # since when clients are left out
    adopted: dict[int, float]  # when clients were adopted

    def shown(self, most: int) -> np.ndarray:
        """Which clients to show where there is no room for all: those that something befell, then slow ones, but some
        ordinary ones beside them."""
        if self.clients <= most:
            return np.arange(self.clients)
        marked = dict.fromkeys([*self.left, *self.adopted, *self.client[self.rejected].tolist(), *self.slow])
        chosen = list(marked)[: most * 3 // 4]
        ordinary = [c for c in range(min(self.clients, most + len(marked))) if c not in marked]
        return np.array(sorted([*chosen, *ordinary[: most - len(chosen)]]))

    def under_way(self, client: int) -> np.ndarray:
        """When a client had any task: stretches of time, (begin, end) in a row each, in order."""
        mine = self.client == client
        order = np.argsort(self.sent[mine], kind="stable")
        begin, end = self.sent[mine][order], self.arrived[mine][order]
        if not len(begin):
            return np.empty((0, 2))
        until = np.maximum.accumulate(end)
        first = np.concatenate([[True], begin[1:] > until[:-1]])  # a stretch begins after all that began before it
        last = np.concatenate([np.flatnonzero(first)[1:] - 1, [len(begin) - 1]])
        return np.stack([begin[first], until[last]], axis=1)

    def share(self, client: int, edges: np.ndarray) -> np.ndarray:
        """The part of the time between each two edges in which a client had a task."""
        stretches = self.under_way(client)
        if not len(stretches):
            return np.zeros(len(edges) - 1)
        lengths = stretches[:, 1] - stretches[:, 0]
        done = np.cumsum(lengths)
        covered = np.interp(edges, stretches.ravel(), np.stack([done - lengths, done], axis=1).ravel())
        return np.diff(covered) / np.diff(edges)


def activity(run: Run) -> Activity:
    """The activity of a run's clients."""
    log, count = run.arrivals, len(run.clients)
    times = np.isfinite(log["time_sent"]) & np.isfinite(log["time_arrived"])  # a damaged file may hold anything
    log = log[times & (log["client"] >= 0) & (log["client"] < count)]
    sent, arrived, client = log["time_sent"], log["time_arrived"], log["client"].astype(int)
    compute = np.minimum(np.nan_to_num(log["compute"]), arrived - sent)
    rejected = log["rejected"].astype(bool) if "rejected" in (log.dtype.names or ()) else np.zeros(len(log), bool)
    before = (arrived - sent - compute) / (2 if run.link == "virtual" else 1)
    left: dict[int, float] = {}
    adopted: dict[int, float] = {}
    for what, who, when in zip(*(run.incidents[name] for name in ("what", "client", "time"))) if _any(run) else ():
        if what == "client left out":
            left.setdefault(int(who), float(when))
        elif what == "client adopted":
            adopted.setdefault(int(who), float(when))
    time = run["time"][np.isfinite(run["time"])]
    end = max(float(arrived.max(initial=0.0)), float(time[-1]) if len(time) else 0.0)
    return Activity(count, end, client, sent, sent + before, compute, arrived, log["age"], log["kind"], rejected,
                    _slow(run, client, arrived - sent), left, adopted)  # fmt: skip


def _any(run: Run) -> bool:
    return bool(len(run.incidents))


def _slow(run: Run, client: np.ndarray, seconds: np.ndarray) -> list[int]:
    """Stragglers: those that the configuration made slow; on real ranks also those whose answers take far longer than
    is usual, where there are enough of them to tell."""
    slow = set(np.flatnonzero(np.asarray(run.clients["delay_factor"]) > 1).tolist())
    if run.link == "mpi":
        order = np.argsort(client, kind="stable")
        who, first = np.unique(client[order], return_index=True)
        medians = {
            c: float(np.median(part))
            for c, part in zip(who.tolist(), np.split(seconds[order], first[1:]))
            if len(part) >= ENOUGH
        }
        usual = float(np.median(list(medians.values()))) if medians else 0.0
        slow |= {c for c, median in medians.items() if median > SLOW * usual}
    return sorted(slow)
