"""Figure 3 of the AFBO paper: regularisation coefficients on Covertype."""

from __future__ import annotations

from fbompi.reproduce.experiment import Claim
from fbompi.reproduce.papers.afbo import COVTYPE, COVTYPE_FULL, COVTYPE_SMALL, REMARKS, Race, is_first

COVTYPE_REMARKS = (
    "The printed penalty, linear in the classifier, has no lower solution; here it is Σ exp(φ_j)·ω_j², and ω is "
    "softmax regression on all seven kinds of forest.",
    REMARKS[0].replace("half of the labels are wrong, ", ""),
)


class AfboCovtype(Race):
    """Who learns coefficients on Covertype first."""

    name = "afbo-covtype"
    figure = "Figure 3"
    about = (
        "A regularisation coefficient per feature of Covertype, 18 clients whose answers have heavy-tailed delays: "
        "accuracy against time."
    )
    title = "regularisation coefficients, Covertype: 18 clients, heavy-tailed delays"
    keys = COVTYPE
    small = COVTYPE_SMALL
    full = COVTYPE_FULL
    remarks = COVTYPE_REMARKS
    claims = (
        Claim(
            "AFBO achieves the best performance: it reaches any accuracy before ADBO, SDBO and FedNest",
            is_first,
            "The curves of accuracy are flat here, and the order at a level can be that of a single outer round.",
        ),
    )
