"""What a paper's experiment is: configurations at two sizes, a table, a figure, and claims with judges.

A judge is a function from results to a verdict: the outcome is computed, never written down. What is written down is
what the paper says, and what is likely behind it where that is not found here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fbompi.runs import Run

ScaleName = Literal["small", "paper"]
Keys = Mapping[str, Any]  # section.key: value, as -o has them; a value may be Tuned
Results = Mapping[str, Sequence[Run]]  # by the case's name, one run per seed
Outcome = Literal["holds", "holds in part", "does not hold"]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, with the figure that says so."""

    outcome: Outcome
    measured: str
    sentence: str


def judged(parts: Sequence[bool], measured: str, sentence: str, enough: float = 0.5) -> Verdict:
    """A claim holds where all its parts do, in part where at least `enough` of them do, otherwise not at all."""
    share = sum(map(bool, parts)) / len(parts) if parts else 0.0
    outcome: Outcome = "holds" if share == 1 else "holds in part" if share >= enough and share > 0 else "does not hold"
    return Verdict(outcome, measured, sentence)


@dataclass(frozen=True)
class Claim:
    """A statement of a paper.

    Parameters
    ----------
    text
        What is claimed.
    judge
        From results to a verdict. Numbers that are not known must not make it hold.
    otherwise
        What is likely behind it where the claim does not hold here.
    """

    text: str
    judge: Callable[[Results], Verdict]
    otherwise: str = ""


@dataclass(frozen=True)
class Tuned:
    """A key whose value is chosen for every case from the same few values, by `Experiment.score` at the pilot seed.

    With `like`, the name of another case, it is the value that was chosen there.
    """

    values: tuple[Any, ...]
    like: str = ""


@dataclass(frozen=True)
class Scale:
    """A size at which an experiment is run.

    Parameters
    ----------
    keys
        Of all runs, on top of `Experiment.keys`.
    seeds
        A run for each.
    data
        Sets that must have been imported.
    instead
        Keys on top of these where a set is missing; without any, that is an error.
    """

    keys: Keys
    seeds: tuple[int, ...] = (1, 2)
    data: tuple[str, ...] = ()
    instead: Keys | None = None


@dataclass
class Table:
    """Figures in rows; numbers are shown to four digits, None as a dash."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = field(default_factory=list)

    def cells(self) -> list[list[str]]:
        return [[_cell(value) for value in row] for row in self.rows]


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return "never" if math.isinf(value) else f"{value:.4g}"
    return str(value)


class Experiment(ABC):
    """An experiment of a paper. A subclass with a `name`, in a file of its own, is all that it takes."""

    name: ClassVar[str]
    paper: ClassVar[str]  # authors: title
    figure: ClassVar[str]  # of the paper: Figure 1, Table I
    about: ClassVar[str]  # what is run, in one sentence
    keys: ClassVar[Keys] = {}  # of all runs at either scale
    small: ClassVar[Scale]
    full: ClassVar[Scale]  # the paper's sizes
    claims: ClassVar[Sequence[Claim]]
    pilot: ClassVar[int] = 0  # the seed at which Tuned keys are chosen
    on_ranks: ClassVar[Keys] = {}  # on top of all where runs are on MPI
    remarks: ClassVar[Sequence[str]] = ()  # where the setting differs from the paper's

    @abstractmethod
    def cases(self, scale: ScaleName) -> Mapping[str, Keys]:
        """The keys of each case, by the name that it has in the table and the figure."""

    @abstractmethod
    def table(self, results: Results) -> Table:
        """The figures, beside the paper's where it prints any."""

    @abstractmethod
    def draw(self, figure: Any, results: Results) -> None:
        """Draw into a matplotlib Figure, in the paper's form; readable without the paper."""

    def score(self, run: Run) -> float:
        """What Tuned keys are chosen for: the larger the better."""
        raise NotImplementedError(f"{self.name} has tuned keys and no score")

    def order(self, results: Results) -> list[str]:
        """Cases from the best to the worst, where a run on MPI is to confirm the order of one on a virtual clock."""
        return []

    def scale(self, name: ScaleName) -> Scale:
        return self.small if name == "small" else self.full
