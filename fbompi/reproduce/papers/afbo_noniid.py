"""Figure 2 of the AFBO paper: hyper-cleaning on MNIST that is not IID."""

from __future__ import annotations

from fbompi.reproduce.papers.afbo import CLEANING, NON_IID, Race
from fbompi.reproduce.papers.afbo_iid import AfboIid


class AfboNonIid(Race):
    """Who cleans MNIST first, two digits per client."""

    name = "afbo-noniid"
    figure = "Figure 2"
    about = (
        "Hyper-cleaning of MNIST by 18 clients that hold two digits each and whose answers have heavy-tailed delays: "
        "accuracy against time."
    )
    title = "hyper-cleaning, two digits per client: 18 clients, heavy-tailed delays, half of the labels wrong"
    keys = {**CLEANING, **NON_IID}
    claims = AfboIid.claims
