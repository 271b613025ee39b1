"""Who is asked in a round of communication: everyone, a sample, those on a schedule, or those who happen to be there.

All of it is a function of the seed and of the round's number: nothing has to be saved, and a run on other ranks, or
begun again, asks the same clients.
"""

from __future__ import annotations

import numpy as np

from fbompi.config import Clients
from fbompi.errors import UserError
from fbompi.randomness import Table, stream
from fbompi.rows import read_rows

NOBODY = "no client is left: all were lost, or left out after answers that were rejected"


class Participation:
    """The clients of every round of communication, but for those in `gone`, which were left out for good."""

    def __init__(self, settings: Clients, clients: int, seed: int) -> None:
        self.clients, self.seed, self.replacement = clients, seed, settings.replacement
        self.gone: set[int] = set()
        self.count = max(1, round(settings.participation * clients))
        self._everyone = np.arange(clients)
        self._comings = (
            Comings(clients, settings.stay, settings.away, seed) if settings.presence == "anarchic" else None
        )
        self._schedule = read_schedule(settings.schedule, clients) if settings.presence == "schedule" else None

    def present(self, round_: int) -> np.ndarray:
        """Who can be asked in this round, in rising order; never nobody.

        Where all that would be there are gone, it is all others.
        """
        here = self._expected(round_)
        if not self.gone:
            return here
        here = here[~np.isin(here, list(self.gone))]
        return here if len(here) else self.left()

    def left(self) -> np.ndarray:
        """All clients that are not gone, in rising order; never nobody."""
        left = np.setdiff1d(self._everyone, list(self.gone))
        if not len(left):
            raise UserError(NOBODY)
        return left

    def _expected(self, round_: int) -> np.ndarray:
        if self._comings is not None:
            return self._comings.present(round_)
        if self._schedule is not None:
            return self._schedule[round_ % len(self._schedule)]
        return self._everyone

    def sample(self, round_: int, count: int | None = None) -> np.ndarray:
        """Clients drawn for this round, in the order of drawing: as many as are sampled, or are there.

        With a `count`, exactly so many: who is drawn without replacement comes again only after all others.
        """
        here = self.present(round_)
        rng = stream(self.seed, "participation", round_)
        wanted = self.count if count is None else count
        if self.replacement:
            return here[rng.integers(len(here), size=wanted)]
        if count is None:
            return rng.permutation(here)[:wanted]
        turns = [rng.permutation(here) for _ in range(-(-wanted // len(here)))]
        return np.concatenate([here[:0], *turns])[:wanted]

    def invited(self, round_: int) -> np.ndarray:
        """The same clients in client order, in which sums over them run."""
        if self.count == self.clients and not self.replacement:
            return self.present(round_)
        return np.sort(self.sample(round_))


class Comings:
    """Clients that come and go: stays and absences of geometric length, in rounds of communication."""

    def __init__(self, clients: int, stay: float, away: float, seed: int) -> None:
        self.clients, self.stay, self.away, self.seed = clients, stay, away, seed
        self._lengths = Table(seed, "presence", self._draw)
        self._begin()

    def _draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Stays and absences in turn, whichever is first: numbers to be scaled by their mean."""
        return rng.random(size)

    def _length(self, client: int, index: int, here: bool) -> int:
        """Geometric with the mean of a stay or of an absence, at least 1."""
        mean = self.stay if here else self.away
        u = float(self._lengths.value(client, index))
        return 1 if mean <= 1 else 1 + int(np.log1p(-u) / np.log1p(-1 / mean))

    def _begin(self) -> None:
        """Before the first round each client is there with its long-run probability."""
        rng = stream(self.seed, "presence", self.clients, 1 << 32)
        self._here = rng.random(self.clients) < self.stay / (self.stay + self.away)
        self._index = np.zeros(self.clients, np.int64)
        self._until = np.array([self._length(c, 0, bool(self._here[c])) for c in range(self.clients)])
        self._round = 0

    def present(self, round_: int) -> np.ndarray:
        if round_ < self._round:
            self._begin()
        self._round = round_
        while (over := np.flatnonzero(self._until <= round_)).size:
            for c in over.tolist():
                self._here[c] = not self._here[c]
                self._index[c] += 1
                self._until[c] += self._length(c, int(self._index[c]), bool(self._here[c]))
        if self._here.any():
            return np.flatnonzero(self._here)
        return np.flatnonzero(self._until == self._until.min())  # nobody is there: those who come next are waited for


def read_schedule(path: str, clients: int) -> list[np.ndarray]:
    """Who takes part in each round: a row of client numbers each, used in turn."""
    if not path:
        raise UserError(
            'clients.schedule = "": presence "schedule" needs a CSV file, one row of client numbers per round'
        )
    rows = []
    for number, who in read_rows(path, "clients.schedule", "client numbers", int):
        row = sorted(set(who))
        if row[0] < 0 or row[-1] >= clients:
            raise UserError(f"{path}, line {number}: there are clients 0 to {clients - 1}, not {row}")
        rows.append(np.array(row))
    if not rows:
        raise UserError(f"{path}: holds no row of client numbers")
    return rows
