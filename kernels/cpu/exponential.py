"""exp of a whole array, for arguments at most 0.

A loop that the compiler turns into vector instructions, where the C library is called number by number: the softmax
of a gradient costs a tenth of the pass, not half of it. The relative error is below one rounding unit; NaN stays NaN.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numba.extending import overload

LOG2_E = 1 / math.log(2)
# Taylor's series on |r| ≤ ½·log 2 leaves out less than one rounding from these degrees on.
SERIES64 = tuple(1 / math.factorial(k) for k in range(13, -1, -1))
SERIES32 = tuple(np.float32(1 / math.factorial(k)) for k in range(7, -1, -1))
# log 2 in two parts: the first has so few digits that its product with the exponent is exact.
HIGH64, LOW64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
HIGH32, LOW32 = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Adding this rounds to an integer, which then stands in the lowest bits.
ROUND64, ROUND32 = 1.5 * 2.0**52, np.float32(1.5 * 2.0**23)


def exponentials(values, count):
    """Replace the first `count` numbers of a flat array, all at most 0, by their exponentials."""


@overload(exponentials, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _exponentials(values, count):
    if values.dtype == numba.float64:

        def double(values, count):
            for i in range(count):
                x = values[i]
                x = -708.0 if x < -708.0 else x
                shifted = x * LOG2_E + ROUND64
                n = shifted - ROUND64
                r = (x - n * HIGH64) - n * LOW64
                series = SERIES64[0]
                for k in range(1, 14):
                    series = series * r + SERIES64[k]
                exponent = np.int64(np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52)
                power = np.int64(exponent).view(np.float64)
                values[i] = series * power

        return double

    def single(values, count):
        for i in range(count):
            x = values[i]
            x = np.float32(-87.0) if x < np.float32(-87.0) else x
            shifted = np.float32(x * np.float32(LOG2_E)) + ROUND32
            n = shifted - ROUND32
            r = (x - n * HIGH32) - n * LOW32
            series = SERIES32[0]
            for k in range(1, 8):
                series = series * r + SERIES32[k]
            exponent = np.int32(np.float32(shifted).view(np.int32) + np.int32(127)) << np.int32(23)
            power = np.int32(exponent).view(np.float32)
            values[i] = series * power

    return single
