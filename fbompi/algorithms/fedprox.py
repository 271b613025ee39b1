"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020): FedAvg with local models held to the server's.

The local step is that of the authors' program, y − β(∇g_i(y) + μ(y − ȳ)) with the server's ȳ; μ = 0 is FedAvg. There
clients are weighted by their samples, here equally as in `fedavg`. Unequal local work, which the paper allows, is
``clients.local_steps = [low, high]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fbompi.algorithms.fedavg import FedAvg, FedAvgParameters
from fbompi.algorithms.setting import Setting
from fbompi.config import AtLeast


@dataclass(kw_only=True)
class FedProxParameters(FedAvgParameters):
    """Parameters of FedProx."""

    proximity: Annotated[float, "μ, how strongly local models are held to the server's", AtLeast(0)] = 0.1


class FedProx(FedAvg):
    """FedAvg with local models held to the server's."""

    name = "fedprox"
    paper = "Li et al.: Federated Optimization in Heterogeneous Networks"
    facts = {"order": "first", "communication": "synchronous", "rate": "O(1/T) nonconvex, one level"}
    Parameters = FedProxParameters

    def __init__(self, parameters: FedProxParameters, setting: Setting) -> None:
        super().__init__(parameters, setting)
        self.proximity = parameters.proximity
