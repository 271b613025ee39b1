"""Figure 1 of the AFBO paper: hyper-cleaning on IID MNIST."""

from __future__ import annotations

from fbompi.reproduce.experiment import Claim
from fbompi.reproduce.papers.afbo import Race, is_first


class AfboIid(Race):
    """Who cleans MNIST first, samples dealt out at random."""

    name = "afbo-iid"
    figure = "Figure 1"
    about = "Hyper-cleaning of IID MNIST by 18 clients whose answers have heavy-tailed delays: accuracy against time."
    title = "hyper-cleaning, IID: 18 clients, heavy-tailed delays, half of the labels wrong"
    claims = (
        Claim(
            "AFBO is the most efficient: it reaches any accuracy before ADBO, SDBO and FedNest",
            is_first,
            "AFBO shortens its steps by the age of its vectors; near the end of the time that was run, a method that "
            "waits for exact cutting planes may get a little further.",
        ),
    )
