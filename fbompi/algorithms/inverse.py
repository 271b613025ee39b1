"""H⁻¹b from products with H alone: the Neumann sum and conjugate gradients.

H is whatever `product` applies: a client's own Hessian, or the average of all clients', one round of communication per
product. Neither function looks at anything but products, so H is never a matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fbompi.messages import Array

Product = Callable[[Array], Array]  # v -> H v


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
