"""FedAvg (McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017): one level, the baseline without loss tuning.

x stays as it starts; y is trained on the lower objectives. With a `step_x` both are trained, on f_i + g_i, as one model
on all samples: single-level training where x is a part of the model (a backbone). In a round clients take local steps
from the server's y, and the server averages where they end, with equal weights, the objective being the mean of the
g_i. With more than one local step and clients that differ, it ends where the mean of their drifts is 0, not at y*(x);
FedProx (`fedprox`) holds them back. The method is standard, and is written from memory.

Clients of small capacity train submodels (`masks`): only what they hold travels, and each coordinate is averaged over
those who hold it; where nobody does, it stays. These are the single level baselines of the RABO paper: ``masks =
"static"``, ``"rolling"`` (FedRolex), ``"ordered"`` (HeteroFL), ``"importance"`` (as FIARSE and OAP, but with masks
fixed in a round and no gradient through them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fbompi.algorithms.masks import COVERING, Covering, MaskParameters, Submodels
from fbompi.algorithms.method import Method, State
from fbompi.algorithms.setting import Setting, SmoothnessKey
from fbompi.algorithms.steps import StepYKey
from fbompi.client import Client
from fbompi.config import AtLeast
from fbompi.errors import UserError
from fbompi.links.link import Link
from fbompi.messages import Array, Shapes, TaskFunction, task


@task(takes="x y 1 1", gives="y", local_steps=True)
def train(client: Client, x: Array, y: Array, step: Array, mu: Array) -> Array:
    """Where local steps on g_i + ½μ‖y − (the server's y)‖² end."""
    center = y
    for _ in range(client.local_steps):
        y = y - step[0] * (client.lower_grad(x, y) + mu[0] * (y - center))
    return y


@task(takes="held_x held_y part_x part_y 1 1", gives="part_y", local_steps=True)
def train_part(
    client: Client, held_x: Array, held_y: Array, x: Array, y: Array, step: Array, mu: Array
) -> Array:  # fmt: skip
    """The same on a submodel."""
    return train(client.held(held_x, held_y), x, y, step, mu)


@task(takes="x y 1 1 1", gives="x y", local_steps=True)
def joint(client: Client, x: Array, y: Array, step: Array, mu: Array, step_x: Array) -> tuple[Array, Array]:
    """Where local steps on f_i + g_i, and the same penalty on y, end; it has about twice the curvature of g_i in y."""
    center = y
    for _ in range(client.local_steps):
        f_x, f_y = client.upper_grad(x, y)
        batch = client.draw()
        g_x, g_y = client.lower_grad_x(x, y, batch), client.lower_grad(x, y, batch)
        x, y = x - step_x[0] * (f_x + g_x), y - 0.5 * step[0] * (f_y + g_y + mu[0] * (y - center))
    return x, y


@task(takes="held_x held_y part_x part_y 1 1 1", gives="part_x part_y", local_steps=True)
def joint_part(
    client: Client, held_x: Array, held_y: Array, x: Array, y: Array, step: Array, mu: Array, step_x: Array
) -> tuple[Array, Array]:  # fmt: skip
    """The same on a submodel."""
    return joint(client.held(held_x, held_y), x, y, step, mu, step_x)


@dataclass(kw_only=True)
class FedAvgParameters(MaskParameters):
    """Parameters of FedAvg."""

    masked: Annotated[
        Literal["both", "x", "y"], "of which variable clients hold a part; of the other they hold all"
    ] = "y"
    step_y: StepYKey = "auto"
    step_x: Annotated[float, "local step on x, trained with y on f + g; 0: x stays", AtLeast(0)] = 0.0
    smoothness: SmoothnessKey = "auto"


@dataclass(kw_only=True)
class FedAvgState(Covering, State):
    """What the server knows between two rounds."""


class FedAvg(Method):
    """Averages of models trained locally; the upper variable stays as it is."""

    name = "fedavg"
    paper = "McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data"
    facts = {"order": "first", "communication": "synchronous", "rate": "O(1/√(nET)) nonconvex, one level"}
    Parameters: ClassVar[Any] = FedAvgParameters
    client_keys = ("local_steps", "batch", "capacity")
    tasks = {"train": train, "train_part": train_part, "joint": joint, "joint_part": joint_part}
    figure_meanings = {"covering_y": COVERING["covering_y"]}
    proximity = 0.0  # μ

    def __init__(self, parameters: Any, setting: Setting) -> None:
        super().__init__(parameters, setting)
        self.submodels = Submodels(parameters, setting)
        self.whole = parameters.masks != "given" and setting.capacity.min() == 1
        self.joint = parameters.step_x > 0
        if self.joint and (setting.shapes.owners < setting.clients).any():
            raise UserError(
                f"algorithm.step_x = {parameters.step_x}: in this problem clients own parts of x, which is then no "
                "part of a model that all of them train"
            )

    @classmethod
    def used_tasks(cls, parameters: Any, shapes: Shapes) -> dict[str, TaskFunction]:
        kind = "joint" if parameters.step_x > 0 else "train"
        return {name: cls.tasks[name] for name in (kind, f"{kind}_part")}

    def start(self, x: Array, y: Array) -> FedAvgState:
        return FedAvgState(x=x, y=y)

    def round(self, s: FedAvgState, link: Link) -> None:
        """Local steps everywhere, and the average of where they end."""
        numbers = [np.array([self.local_step()]), np.array([self.proximity])]
        kind, place = ("joint", 1) if self.joint else ("train", 0)  # of y in an answer
        if self.joint:
            numbers.append(np.array([self.p.step_x]))
        if self.whole:
            updates = self.ask(link, kind, s.x, s.y, *numbers)
            x, y = (self.mean(updates) if self.joint else s.x), self.mean(updates, place)
            s.cover(holders_y=np.array([len({update.client for update in updates})]))
        else:
            dealt = self.submodels.deal(s.round, s.x, s.y)
            invited = self.setting.participation.invited(link.round)
            updates = dealt.ask(link, f"{kind}_part", invited, s.x, s.y, *numbers)
            x, y = s.x, s.y
            if self.joint:
                ends, holders = dealt.mean_x(updates)
                x = np.where(holders, ends, x)
            ends, holders = dealt.mean_y(updates, place)
            y = np.where(holders, ends, y)
            s.cover(holders_y=dealt.covered(updates)[1])
        s.x, s.y = self.setting.project_x(x) if self.joint else x, self.setting.project_y(y)
        s.round += 1

    def local_step(self) -> float:
        """As given, or 1/(ℓ + μ), which no quadratic makes unstable."""
        return 1 / (self.ell + self.proximity) if self.p.step_y == "auto" else float(self.p.step_y)

    def figures(self, s: FedAvgState) -> dict[str, float]:
        return {"covering_y": s.covering()["covering_y"]}
