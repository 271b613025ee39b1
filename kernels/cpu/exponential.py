"""exp of a whole array, for arguments at most 0.

A loop that the compiler turns into vector instructions, where the C library is called number by number: the softmax
of a gradient costs a tenth of the pass, not half of it. The relative error is below one rounding unit; NaN stays NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba.extending import overload

LOG2_E = 1 / math.log(2)


@dataclass(frozen=True)
class Format:
    """What the computation needs to know of a type of numbers."""

    real: Any
    whole: Any
    digits: int  # of the fraction, in bits
    bias: int  # of the exponent
    lowest: float  # below it the result is that of this
    degree: int  # of Taylor's series on |r| ≤ ½·log 2, which leaves out less than one rounding
    # log 2 in two parts: the first has so few digits that its product with the exponent is exact.
    high: float
    low: float


DOUBLE = Format(np.float64, np.int64, 52, 1023, -708.0, 13, 6.93147180369123816490e-01, 1.90821492927058770002e-10)
SINGLE = Format(np.float32, np.int32, 23, 127, -87.0, 7, 0.693359375, -2.12194440e-4)


def exponentials(values, count):
    """Replace the first `count` numbers of a flat array, all at most 0, by their exponentials."""


@overload(exponentials, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _exponentials(values, count):
    of = DOUBLE if values.dtype == numba.float64 else SINGLE
    real, whole = of.real, of.whole
    series = tuple(real(1 / math.factorial(k)) for k in range(of.degree, -1, -1))
    log2_e, high, low, lowest = (real(number) for number in (LOG2_E, of.high, of.low, of.lowest))
    rounder = real(1.5 * 2.0**of.digits)  # adding this rounds to an integer, which then stands in the lowest bits
    bias, digits = whole(of.bias), whole(of.digits)

    def replace(values, count):
        for i in range(count):
            x = values[i]
            x = lowest if x < lowest else x
            shifted = real(x * log2_e) + rounder
            n = shifted - rounder
            r = (x - n * high) - n * low
            power = whole(whole(real(shifted).view(whole) + bias) << digits).view(real)
            total = series[0]
            for k in range(1, len(series)):
                total = total * r + series[k]
            values[i] = total * power

    return replace
