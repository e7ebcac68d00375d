"""Lower bounds from prices: what any plan must cost at least, by Lagrangian duality.

For any prices π of a request at a row and p of work on an engine, the objective minus priced constraints
splits into one trivial minimum per column and per engine. Their sum is a bound whatever the prices, so it is
a certificate for early stops, for integer shares and, with last round's prices, for keeping the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.grid import Index
from optimizer.layout import Round

Array = npt.NDArray[np.float64]


STAY, FREE, MOVE = 0, 1, 2
"""Families of flow columns: kept, moved free of churn, moved and paid for."""


@dataclass(frozen=True)
class Duals:
    """Prices of the rows of a component."""

    row: Array
    """[R] π, ms per request/s."""
    engine: Array
    """[E] p, ms per work/s."""
    free: Array
    """[R] ≤ 0, of the free-move allowance."""


@dataclass(frozen=True)
class Shed:
    """What is refused on purpose."""

    floor: Array
    """[R] requests/s refused whatever it costs."""
    price: Array
    """[R] ms per refused request/s."""
    decided: bool = False
    """Exactly the floor, decided by priority and fairness before latency is looked at."""


class Tangents:
    """The tangents of every engine's cost per replica, h₁ = ρ·A + ω·B, in the mix of one round."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        grids, of = round_.layout.grids, round_.layout.grid_of
        self.points = np.array([grids[g].points for g in of], dtype=np.intp)
        self.limit = np.array([grids[g].limit for g in of])

    def at(self, engine: Index, point: Index) -> tuple[Array, Array, Array]:
        """(slope, intercept, load) of given tangents."""
        curves, rho, omega = self._round.layout.curves, self._round.rho[engine], self._round.omega[engine]
        load = curves.loads(engine, point)
        a, da, b, db = curves.congestion(engine, load)
        slope = rho * da + omega * db
        return slope, rho * a + omega * b - slope * load, load

    def highest_at(self, load: Array) -> Index:
        """[E] the tangent that is highest at each engine's load per replica."""
        every = np.arange(len(load), dtype=np.intp)
        below = self._round.layout.curves.below(every, load)
        above = np.minimum(below + 1, self.points - 1)
        low, high = (
            slope * load + height for slope, height, _ in (self.at(every, p) for p in (below, above))
        )
        return np.where(high > low, above, below)

    def conjugate(self, price: Array) -> Array:
        """[E] a lower bound of h₁(l) − price·l over 0 ≤ l ≤ limit: the crossing of the tangents around it."""
        every = np.arange(len(price), dtype=np.intp)
        low, high = np.zeros(len(price), dtype=np.intp), self.points - 1
        while np.any(high - low > 1):  # invariant: slope(low) < price ≤ slope(high), where there are such
            middle = (low + high) // 2
            less = self.at(every, middle)[0] < price
            low, high = np.where(less, middle, low), np.where(less, high, middle)
        (s0, b0, _), (s1, b1, _) = self.at(every, low), self.at(every, high)
        rise = s1 - s0
        cross = np.divide(b0 - b1, rise, out=self.limit.copy(), where=rise > 0)
        inside = np.where(
            s1 < price,
            s1 * self.limit + b1 - price * self.limit,
            s0 * cross + b0 - price * cross,
        )
        return np.where(s0 >= price, 0.0, np.minimum(0.0, inside))


def stay_costs(round_: Round, duals: Duals) -> Array:
    """[R, E] reduced costs of keeping traffic where it is; infinite where it cannot stay."""
    base = round_.layout.cost + round_.layout.work * duals.engine - duals.row[:, None]
    return np.where(round_.usable, base, np.inf)


def move_costs(round_: Round, duals: Duals) -> list[tuple[int, Array]]:
    """(family, [R, E] reduced costs) of the kinds of move that are open; infinite where one is not."""
    layout, base, out = round_.layout, stay_costs(round_, duals), []
    if np.any(round_.free > 0.0):
        out.append((FREE, np.where(round_.free_open, base - duals.free[:, None], np.inf)))
    if np.any(round_.free < 1.0):
        paid = layout.gamma[:, None] + layout.kappa[:, None] * duals.engine
        out.append((MOVE, np.where(round_.move_open, base + paid, np.inf)))
    return out


def lagrange_bound(round_: Round, tangents: Tangents, duals: Duals, shed: Shed) -> float:
    """A lower bound of the objective in ms·requests/s, valid for any duals of the right sign."""
    d = round_.demand
    stay_part = np.zeros(len(d))
    if np.any(round_.stay > 0):
        stay_part = (
            round_.stay * np.where(round_.stay > 0, np.minimum(0.0, stay_costs(round_, duals)), 0.0)
        ).sum(axis=1)
    least, each = np.zeros(len(d)), np.zeros(len(d))
    room = np.maximum(0.0, round_.layout.max_share - round_.stay)
    for _, reduced in move_costs(round_, duals):
        least = np.minimum(least, reduced.min(axis=1))
        each += (room * np.where(reduced < 0, reduced, 0.0)).sum(axis=1)
    moved = np.maximum(least, each)
    margin = shed.price - duals.row
    refused = shed.floor if shed.decided else np.where(margin >= 0, shed.floor, np.maximum(d, shed.floor))
    return float(
        d @ (duals.row + duals.free * round_.free + stay_part + moved)
        + round_.scale @ tangents.conjugate(duals.engine)
        + margin @ refused
    )
