"""Ranges of prices: an optimum's prices need not be unique (DESIGN plan page)."""

from __future__ import annotations

import numpy as np

from optimizer.bound import Shed
from optimizer.component import Component
from optimizer.layout import build_rounds
from optimizer.problem import Problem
from optimizer.shedding import shed_prices


def engine_price_range(problem: Problem, engine: str, part: float = 1e-4) -> tuple[float, float]:
    """[low, high] price of one unit of work/s on `engine`: one-sided slopes of the optimum, in ms.

    `part` of the engine's capacity is taken off as load that must be there anyway, then given.
    """
    for round_ in build_rounds(problem)[0]:
        if engine in round_.layout.engines:
            j = round_.layout.engines.index(engine)
            if round_.capacity[j] <= 0:
                return 0.0, 0.0
            nothing = np.where(round_.usable.any(axis=1), 0.0, round_.demand)
            shed = Shed(nothing, shed_prices(round_))
            component = Component(round_.layout)
            step = part * float(round_.capacity[j])
            values = [component.value(round_, shed, j, extra) for extra in (-step, 0.0, step)]
            low, high = (values[1] - values[0]) / step, (values[2] - values[1]) / step
            return min(low, high), max(low, high)
    return 0.0, 0.0
