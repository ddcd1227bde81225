"""Arithmetic that comes out alike on every processor, so that no decision hangs on the last bit of a sum.

Linear-algebra libraries add in an order of their own for each processor, and exponentials and logarithms differ in
their last bits. So products that decide something are added up in a fixed order, and figures are rounded where such
noise enters and before they are compared: values that are equal but for rounding count as equal, and the first wins.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

BITS = 36  # of a rounded mantissa, 11 decimal digits: what rounding adds up to in long sums stays well below
DIGITS = 9  # after the point, of figures that may be zero but for rounding


@overload
def coarse(values: float) -> float: ...
@overload
def coarse(values: NDArray[np.float64]) -> NDArray[np.float64]: ...
def coarse(values: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
    """Return values with `BITS` binary digits each; zeros and infinities stay."""
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.rint(mantissa * 2.0**BITS), exponent - BITS)
    return np.asarray(rounded) if isinstance(values, np.ndarray) else float(rounded)


def weighed(rows: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `rows @ weights`, [N] of [N, K] and [K], added up from the first column to the last."""
    total = rows[:, 0] * weights[0]
    for column in range(1, len(weights)):
        total = total + rows[:, column] * weights[column]
    return np.asarray(total, dtype=np.float64)
