"""Lower bounds from prices: what any plan must cost at least, by Lagrangian duality.

For any prices π of a request at a row and p of work on an engine, the objective minus priced constraints
splits into one trivial minimum per column and per engine. Their sum is a bound whatever the prices, so it is
a certificate for early stops, for integer shares and, with last round's prices, for keeping the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.grid import kinks
from optimizer.layout import Round

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Duals:
    """Prices of the rows of a component."""

    row: Array
    """[R] π, ms per request/s."""
    engine: Array
    """[E] p, ms per work/s."""
    free: Array
    """[R] ≤ 0, of the free-move allowance."""
    step: Array
    """[R] ≤ 0, of the step limit."""


class Segments:
    """The grid envelope of every engine's cost per replica, in the mix of one round.

    Engines with the same grid and mix share one set of slopes, intercepts and kinks.
    """

    def __init__(self, round_: Round) -> None:
        layout = round_.layout
        mixes = np.stack([layout.grid_of, round_.rho, round_.omega], axis=1)
        distinct, group = np.unique(mixes, axis=0, return_inverse=True)
        self._group = group.ravel()
        size = max(len(grid.load) for grid in layout.grids)
        shape = (len(distinct), size)
        self._slope, self._intercept = np.full(shape, np.inf), np.zeros(shape)
        self._load, self._kink = np.zeros(shape), np.full(shape, np.inf)
        count = np.zeros(len(distinct), dtype=np.intp)
        for g, (grid_index, rho, omega) in enumerate(distinct.tolist()):
            grid = layout.grids[int(grid_index)]
            n = count[g] = len(grid.load)
            slope, intercept = grid.slopes(rho, omega)
            self._slope[g, :n], self._intercept[g, :n], self._load[g, :n] = slope, intercept, grid.load
            self._kink[g, : n - 1] = kinks(slope, intercept, grid.load)
        self.points = count[self._group]
        self.limit = np.array([layout.grids[g].limit for g in layout.grid_of])

    @classmethod
    def of(cls, round_: Round) -> Segments:
        """The segments of a round."""
        return cls(round_)

    def at(self, engine: Index, point: Index) -> tuple[Array, Array, Array]:
        """(slope, intercept, load) of given tangents."""
        group = self._group[engine]
        return self._slope[group, point], self._intercept[group, point], self._load[group, point]

    def point_at(self, load: Array) -> Index:
        """[E] index of the tangent that is highest at each engine's load per replica."""
        out = np.zeros(len(load), dtype=np.intp)
        for g in range(len(self._kink)):
            mine = self._group == g
            out[mine] = np.searchsorted(self._kink[g], load[mine], side="left")
        return np.minimum(out, self.points - 1)

    def conjugate(self, price: Array) -> Array:
        """[E] min over 0 ≤ l ≤ limit of h₁(l) − price·l, of one replica."""
        point = np.zeros(len(price), dtype=np.intp)
        for g in range(len(self._slope)):
            mine = self._group == g
            point[mine] = np.searchsorted(self._slope[g], price[mine], side="left") - 1
        inside = point >= 0
        at = np.maximum(point, 0)
        load = np.minimum(self._kink[self._group, at], self.limit)
        height = self._slope[self._group, at] * load + self._intercept[self._group, at]
        return np.where(inside, np.minimum(0.0, height - price * load), 0.0)


def reduced_costs(round_: Round, duals: Duals) -> tuple[Array, Array, Array]:
    """[R, E] reduced costs of stay, free-move and paid-move columns; infinite where not usable."""
    layout = round_.layout
    base = layout.cost + layout.work * duals.engine - duals.row[:, None]
    base = np.where(round_.usable, base, np.inf)
    free = base - duals.free[:, None]
    move = base + layout.gamma[:, None] + layout.kappa[:, None] * duals.engine - duals.step[:, None]
    return base, free, move


def lagrange_bound(
    round_: Round, segments: Segments, duals: Duals, shed_floor: Array, shed_price: Array, step: float | None
) -> float:
    """A lower bound of the objective in ms·requests/s, valid for any duals of the right sign."""
    d = round_.demand
    stay, free, move = reduced_costs(round_, duals)
    stay_part = np.where(round_.stay > 0, round_.stay * np.minimum(0.0, stay), 0.0).sum(axis=1)
    least = np.minimum(0.0, np.minimum(move.min(axis=1), free.min(axis=1)))
    room = np.maximum(0.0, round_.layout.max_share - round_.stay)
    each = np.where(round_.usable, room * np.minimum(0.0, free) + room * np.minimum(0.0, move), 0.0).sum(
        axis=1
    )
    moved = np.maximum(least, each)
    shed = shed_price - duals.row
    over = 0.0 if step is None else step
    return float(
        d @ (duals.row + duals.free * round_.free + duals.step * over + stay_part + moved)
        + round_.scale @ segments.conjugate(duals.engine)
        + np.where(shed >= 0, shed * shed_floor, shed * np.maximum(d, shed_floor)).sum()
    )
