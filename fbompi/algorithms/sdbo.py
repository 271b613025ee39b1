"""SDBO: ADBO in which the master waits for every worker in every iteration (Jiao, Yang, Wu, Song, Jian; ICLR 2023).

The synchronous method with which the papers on ADBO and AFBO compare; it has no text of its own. Where only some
clients are invited, it waits for these, and the others' last x_i and y_i stand.
"""

from __future__ import annotations

from typing import Any

from fbompi.algorithms.adbo import Adbo, PlaneParameters
from fbompi.algorithms.recent import EVER


class Sdbo(Adbo):
    """Cutting planes for the lower level, answers of all workers."""

    name = "sdbo"
    facts = {**Adbo.facts, "communication": "synchronous"}
    Parameters = PlaneParameters

    @classmethod
    def patience(cls, parameters: Any, clients: int) -> tuple[int, int]:
        return clients, EVER
