"""H⁻¹b from products with H alone: the Neumann sum and conjugate gradients.

H is whatever `product` applies: a client's own Hessian, or the average of all clients', one round of communication per
product. Neither function looks at anything but products, so H is never a matrix.

`curves_upwards` is what a server can see of a single client's product: that H is the Hessian of a convex function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fbompi.messages import Array, Plausible

Product = Callable[[Array], Array]  # v -> H v
ROUNDING = 1e-6  # of a product of vectors, as a part of that of their norms; features may be float32


def neumann(product: Product, b: Array, ell: float, terms: int) -> Array:
    """(1/ℓ) Σ_{u<terms} (I − H/ℓ)^u b, with one product less than terms.

    For H between μ and ℓ it is at most (1/μ)(1 − μ/ℓ)^terms ‖b‖ away from H⁻¹b. Products of fresh samples leave its
    mean what it is.
    """
    v = b / ell
    for _ in range(terms - 1):
        v = v - (product(v) - b) / ell
    return v


def conjugate_gradients(product: Product, b: Array, terms: int, tolerance: float = 0.0) -> Array:
    """H⁻¹b for a symmetric positive definite H, by at most `terms` products.

    It ends when ‖b − Hv‖ ≤ tolerance·‖b‖, and where it meets a direction along which H does not curve upwards (the
    Hessian of a network): no step can be taken there, and v is what was found before. H must be the same in all
    products.
    """
    v, r = np.zeros_like(b), b
    p, square = r, float(r @ r)
    enough = tolerance**2 * square
    for _ in range(terms):
        if square <= enough:
            break
        Hp = product(p)
        curvature = float(p @ Hp)
        if not curvature > 0:
            break
        alpha = square / curvature
        v = v + alpha * p
        r = r - alpha * Hp
        last, square = square, float(r @ r)
        p = r + (square / last) * p
    return v


def curves_upwards(v: int, product: int = 0) -> Plausible:
    """For `messages.task`: whether ⟨v, Hv⟩ ≥ 0, with v among the arrays of the task and Hv among those of the answer.

    It tells a flipped sign, which no average over clients can where every product is of one client, as in chains.
    """

    def plausible(task: Sequence[Array], answer: Sequence[Array]) -> bool:
        return upwards(task[v], answer[product])

    return plausible


def upwards(v: Array, Hv: Array) -> bool:
    """Whether ⟨v, Hv⟩ is not negative, rounding apart."""
    largest = float(np.abs(Hv).max(initial=0.0))
    if not np.isfinite(largest):
        return False
    Hv = Hv / largest if largest > 0 else Hv  # what a client sends may be too large to be squared
    return bool(v @ Hv >= -ROUNDING * np.linalg.norm(v) * np.linalg.norm(Hv))
