"""Being asked to stop: the server finishes its round, the hosts leave it to the server."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Hearing(ABC):
    """While it is entered, signals that ask to stop are told to `_hear`."""

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._hear) for number in STOPPING}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @abstractmethod
    def _hear(self, number: int, frame: FrameType | None) -> None: ...


class Stop(Hearing):
    """While it is entered, the first signal is only noted; the second ends the process as usual."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """Somebody else was asked to stop us; signals still count from the first."""
        self.asked = True

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.__exit__()


def leave_to_server() -> None:
    """For a host: launchers signal every rank, and the server needs this one's answers to end in order.

    A handler that does nothing, where ignoring the signal would do too, lets a pulse see it and tell the server.
    """
    for number in STOPPING:
        signal.signal(number, _leave)


def ignore() -> None:
    """For a rank that has nothing left to stop: killed on its way out it would take the others with it."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    """Nothing: the server decides."""
