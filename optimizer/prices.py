"""Ranges of prices: an optimum's prices need not be unique (DESIGN plan page).

An engine's price has a range, found by planning with a little more and a little less load there. A row's
price π has none of its own: where it is served, it follows from the engines' (c = π of one that gives some).
"""

from __future__ import annotations

import numpy as np

from optimizer.bound import Shed
from optimizer.component import Component
from optimizer.layout import Round, build_rounds
from optimizer.problem import Problem
from optimizer.shedding import MARGIN, least_shed, shed_prices
from optimizer.warm import Warm


def engine_price_range(problem: Problem, engine: str, part: float = 1e-4) -> tuple[float, float]:
    """[low, high] price of one unit of work/s on `engine`: one-sided slopes of the optimum, in ms.

    `part` of the engine's capacity is taken off as load that must be there anyway, then given. They differ
    at a kink of its curve, at its capacity (from what load there costs to what going elsewhere costs) and
    where traffic is refused (to what refusing more costs).
    """
    for round_ in build_rounds(problem)[0]:
        if engine in round_.layout.engines:
            j = round_.layout.engines.index(engine)
            return _range(round_, j, part) if round_.capacity[j] > 0 else (0.0, 0.0)
    return 0.0, 0.0


def _range(round_: Round, j: int, part: float) -> tuple[float, float]:
    planned, shed, spare = _refusing(round_)
    component, step = Component(planned.layout), max(part * float(planned.capacity[j]), spare)
    points = (-step, 0.0, step, 2.0 * step) if spare else (-step, 0.0, 0.0, step)
    less, now, more, most = (component.value(planned, shed, j, extra) for extra in points)
    low, high = (now - less) / step, (most - more) / step
    return min(low, high), max(low, high)


def _refusing(round_: Round) -> tuple[Round, Shed, float]:
    """What is planned, what is refused at least, and the work/s that this leaves free all the same.

    As the planner does it: a round that refuses has no extra work for moves, and refuses what priority and
    fairness say, a hair more than it must. What goes beyond that is refused by price.
    """
    nothing = np.where(round_.usable.any(axis=1), 0.0, round_.demand)
    by_price = Shed(nothing, shed_prices(round_))
    flow = Component(round_.layout).solve(round_, by_price)
    if flow is None or not np.any(flow.shed > nothing + 1e-7 * round_.demand):
        return round_, by_price, 0.0
    without = Warm().without_kappa(round_)
    try:
        floor = least_shed(without)
    except ArithmeticError:
        return round_, by_price, 0.0
    work = float(round_.demand @ round_.layout.work.max(axis=1))
    return without, Shed(floor, shed_prices(without)), 4.0 * MARGIN * work
