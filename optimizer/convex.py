"""Two small regressions on sequences: isotonic (non-decreasing) and the lower convex envelope."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

Array = npt.NDArray[np.float64]


def isotonic(values: Array, weights: Array | None = None) -> Array:
    """The non-decreasing sequence nearest to `values` in (weighted) least squares."""
    fitted: Array = isotonic_regression(values, weights=weights).x
    return fitted


def lower_hull(x: Array, y: Array) -> Array:
    """The lower convex envelope of the points (x, y), x increasing, evaluated at each x."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return np.interp(x, x[kept], y[kept])
