"""Refusing traffic on purpose: prices, strict priority, fairness."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from optimizer.layout import Round

Array = npt.NDArray[np.float64]

LEVEL_RATIO = 10.0
MAX_LEVELS = 4


def shed_prices(round_: Round) -> Array:
    """[R] ms per refused request/s: above any latency a request could cost, ×10 a priority level.

    Per unit of work, so that one level never trades many cheap requests of a higher one.
    """
    layout = round_.layout
    _, slope = round_.curves(round_.capacity)
    usable = round_.usable
    mean_work = np.where(usable, layout.work, 0.0).sum(axis=1) / np.maximum(
        1, usable.sum(axis=1)
    )
    mean_work = np.where(mean_work > 0, mean_work, 1.0)
    worst = (
        layout.cost
        + layout.gamma[:, None]
        + (layout.work + layout.kappa[:, None]) * slope
    )
    base = 2.0 * float(
        np.max(np.where(usable, worst / mean_work[:, None], 1.0), initial=1.0)
    )
    levels = sorted(set(layout.priority))
    span = min(1.0, (MAX_LEVELS - 1) / max(1, len(levels) - 1))
    rank = np.array([levels.index(p) for p in layout.priority]) * span
    prices: Array = base * LEVEL_RATIO**rank * mean_work
    return prices
