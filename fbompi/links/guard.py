"""Which answers are let in: a number that is not finite, or a vector of absurd length, would spoil every average.

What is usual is known from the clients themselves: the largest median, so far, of the lengths of their last answers of
a kind. A few clients cannot move a median, and an answer that converges to 0 does not make honest ones absurd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fbompi.config import Faults
from fbompi.messages import Array, Task, TaskFunction, Update

ENOUGH = 3  # clients whose lengths tell what is usual


class Guard:
    """Judges answers; `lengths` by kind and client (NaN: not heard), `usual` by kind (negative: not known yet),
    `offences` in a row by client.

    Only those to tasks of the method, which are named here: others are let in.
    What is usual is looked for anew when as many answers of a kind have come as clients were heard, and before any is
    called absurd: a median of many clients takes longer than all else that is done about one answer.
    """

    kept = ("lengths", "usual", "until", "offences")  # for checkpoints

    def __init__(self, settings: Faults, clients: int, functions: dict[str, TaskFunction]) -> None:
        self.absurd, self.most_offences = settings.absurd, settings.offences
        self.lengths = {kind: np.full(clients, np.nan) for kind in functions}
        self.usual = dict.fromkeys(functions, -1.0)
        self.until = dict.fromkeys(functions, 0)  # answers until what is usual is looked for anew
        self.offences = np.zeros(clients, np.int64)
        self.suspicious = False  # whether answers must also be plausible, as their tasks declare it
        self._functions = functions
        self._enough = min(ENOUGH, clients)

    def can_judge(self, kind: str, here: Sequence[Update]) -> bool:
        """Whether enough clients have been heard, with answers that are here, to know what is usual of this kind."""
        if self.usual.get(kind, 0.0) >= 0:
            return True
        heard = set(np.flatnonzero(~np.isnan(self.lengths[kind])).tolist())
        return len(heard | {update.client for update in here if update.kind == kind}) >= self._enough

    def measure(self, updates: Sequence[Update]) -> list[float]:
        """The lengths of these answers; what is usual takes account of them, when it is time to."""
        found = [_length(update.arrays) for update in updates]
        for kind in {update.kind for update in updates} & self.usual.keys():
            here = {u.client: length for u, length in zip(updates, found) if u.kind == kind and math.isfinite(length)}
            self.until[kind] -= len(here)
            if self.until[kind] <= 0 or any(self._is_absurd(kind, length) for length in here.values()):
                self._look_around(kind, here)
        return found

    def _look_around(self, kind: str, here: dict[int, float]) -> None:
        """Find out what is usual of a kind, from the last answers of clients and those that are here."""
        lengths = self.lengths[kind].copy()
        lengths[list(here)] = list(here.values())
        heard = lengths[~np.isnan(lengths)]
        if len(heard) >= self._enough:
            self.usual[kind] = max(self.usual[kind], float(np.median(heard)))
            self.until[kind] = len(heard)

    def _is_absurd(self, kind: str, length: float) -> bool:
        """Where all answers of a kind have been 0, those of other kinds tell what is large."""
        usual = self.usual[kind] if self.usual[kind] > 0 else max(self.usual.values())
        return 0 < self.absurd * usual < length

    def complaint(self, update: Update, length: float, sent: Callable[[Task], Sequence[Array]]) -> str:
        """What is wrong with an answer, in words; empty, if nothing is. `sent` gives what the client was sent."""
        if update.kind not in self.usual:
            return ""
        if not math.isfinite(length):
            return "not finite"
        if self._is_absurd(update.kind, length):
            return f"of length {length:.3g}, where {self.usual[update.kind]:.3g} is usual"
        plausible = self._functions[update.kind].plausible
        if self.suspicious and plausible is not None and not plausible(sent(update.task), update.arrays):
            return "not plausible"
        return ""

    def accept(self, update: Update, length: float) -> None:
        if update.kind in self.usual:
            self.lengths[update.kind][update.client] = length
        self.offences[update.client] = 0

    def reject(self, client: int) -> bool:
        """Count an offence; True if it was one too many."""
        self.offences[client] += 1
        return bool(self.offences[client] >= self.most_offences)


def _length(arrays: Sequence[Array]) -> float:
    """Of all arrays together; infinite, where the square is not a number."""
    square = sum(float(np.vdot(array, array)) for array in arrays)
    return math.sqrt(square) if square < math.inf else math.inf
