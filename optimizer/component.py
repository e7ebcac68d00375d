"""One component of the fleet as a living linear program (DESIGN plan page).

Rows: demand Σx + shed = d; engines Σ(a·x) + κ·m − Σy = 0; free moves Σf ≤ free·d; step Σm − over ≤ step·d.
Columns: stay s ≤ d·stay, free move f, paid move m, per (row, engine); pieces y of each engine's load, priced
by the tangents of the fixed grid; shed; over. Pieces and moves are generated until none is missing.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.bound import FREE, MOVE, STAY, Duals, Shed, Tangents, lagrange_bound, move_costs
from optimizer.grid import Index
from optimizer.layout import Layout, Round
from optimizer.lp import Ints, Model, Status

Array = npt.NDArray[np.float64]

FIRST_COLUMNS = (12, 5)
"""Flow columns to begin with: the nearest engines of each row, the nearest rows of each engine."""
NEW_COLUMNS = (4, 1)
"""Flow columns added at a time: the cheapest engines of each row, the cheapest rows of each engine."""
NEAR = (1, 4, 16, 64, 256, 1024, 4096)
"""Distances, in grid points, of the tangents used next on both sides of an engine's load."""
PRICE_TOLERANCE = 1e-9
MAX_ROUNDS = 200


@dataclass(frozen=True)
class Flow:
    """What the planner decided for a component; rates in requests/s."""

    round: Round
    """What was planned (a round that sheds is planned without κ)."""
    x: Array
    """[R, E]"""
    shed: Array
    """[R]"""
    duals: Duals
    bound: float
    """Lower bound of the objective, ms·requests/s."""
    exact: bool
    notes: tuple[str, ...]


class Component:
    """The linear program of one component, kept between rounds while its layout stays the same."""

    def __init__(self, layout: Layout, clock: Callable[[], float] = time.perf_counter) -> None:
        self.layout = layout
        rows, engines = len(layout.rows), len(layout.engines)
        self._model = model = Model("component", clock)
        zeros = np.zeros(rows)
        self._demand = model.add_rows(True, zeros)
        self._engine = model.add_rows(True, np.zeros(engines))
        self._free = model.add_rows(False, zeros)
        self._step = model.add_rows(False, np.full(rows, np.inf))
        ones = np.ones(rows)
        self._shed = model.add_columns(zeros, np.full(rows, np.inf), [self._demand], [ones])
        self._over = model.add_columns(zeros, np.full(rows, np.inf), [self._step], [-ones])
        self._flows = _Flows(layout)
        self._last: Duals | None = None
        self._carried = np.zeros(0, dtype=bool)
        slots = len(_near(layout)) + 5  # and three that may bind, and both ends of the grid
        count = engines * slots
        of_piece = np.repeat(self._engine, slots)
        pieces = model.add_columns(np.zeros(count), np.zeros(count), [of_piece], [-np.ones(count)])
        self._pieces = _Pieces(layout, pieces)

    def solve(
        self, round_: Round, shed: Shed, step: float | None = None, deadline: float = math.inf
    ) -> Flow | None:
        """The optimal flow of a round, or the best found before `deadline`; None when nothing was found."""
        self._update(round_, shed, step)
        found: tuple[FlowIndex, Array, Duals] | None = None
        complete = False
        notes: dict[str, None] = {}
        for _ in range(MAX_ROUNDS):
            solution = self._model.solve(deadline)
            if solution.solver != "warm":
                notes[f"solved by rung {solution.solver}"] = None
            if solution.status is Status.NONE:
                break
            duals = self._duals(solution.duals)
            found = self._flows.all(), solution.x, duals
            complete = solution.status is Status.OPTIMAL and not self._grow(round_, solution.x, duals)
            if complete or solution.status is Status.FEASIBLE:
                break
        if found is None:
            return None
        if not complete:
            notes["stopped before the optimum"] = None
        bound = lagrange_bound(round_, self._tangents, found[2], shed, step)
        return self._flow(round_, found, bound, complete, tuple(notes))

    def value(self, round_: Round, shed: Shed, engine: int, extra: float) -> float:
        """The optimum in ms·requests/s with `extra` work/s that one engine must carry besides."""
        self._update(round_, shed, None)
        self._model.set_rhs(self._engine, -extra * np.eye(len(self._engine))[engine], equal=True)
        value = math.nan
        for _ in range(MAX_ROUNDS):
            solution = self._model.solve()
            if solution.status is not Status.OPTIMAL:
                break
            value = self._model.cost_of(solution.x)
            if not self._grow(round_, solution.x, self._duals(solution.duals)):
                break
        self._model.set_rhs(self._engine, np.zeros(len(self._engine)), equal=True)
        return value

    def bound(self, round_: Round, shed: Shed) -> float | None:
        """What any plan for a round must cost, by the prices of the last one; None before there are any."""
        if self._last is None:
            return None
        unlimited = dataclasses.replace(self._last, step=np.zeros(len(round_.demand)))
        return lagrange_bound(round_, Tangents(round_), unlimited, shed, None)

    def _update(self, round_: Round, shed: Shed, step: float | None) -> None:
        model, d = self._model, round_.demand
        self._tangents = Tangents(round_)
        model.set_rhs(self._demand, d, equal=True)
        model.set_rhs(self._free, round_.free * d, equal=False)
        model.set_rhs(
            self._step,
            np.full(len(d), np.inf) if step is None else step * d,
            equal=False,
        )
        self._over_price = shed.price / 3
        # Above the decided floor only what floating point needs is refused, so that prices stay defined.
        model.set_costs(self._shed, shed.price * (100.0 if shed.decided else 1.0))
        model.set_costs(self._over, self._over_price)
        model.set_bounds(self._shed, np.maximum(d, shed.floor), shed.floor)
        self._prune(round_)
        self._add_flows(STAY, np.argwhere(round_.stay > 0))
        if not self._flows.count(FREE) and not self._flows.count(MOVE):
            first = _least(np.where(round_.usable, round_.layout.cost, np.inf), *FIRST_COLUMNS)
            self._add_flows(FREE, first[round_.free_open[first[:, 0], first[:, 1]]])
            self._add_flows(MOVE, first[round_.move_open[first[:, 0], first[:, 1]]])
        index = self._flows.all()
        model.set_bounds(index.column, _flow_limits(round_, index))
        self._price_pieces(round_, np.arange(len(self.layout.engines), dtype=np.intp))

    def _prune(self, round_: Round) -> None:
        """Delete the flow columns that carried nothing in the last round and were not near to it."""
        index = self._flows.all()
        if self._last is None or not len(index.column):
            return
        keep = np.ones(len(index.column), dtype=bool)
        keep[: len(self._carried)] = self._carried
        for family, reduced in move_costs(round_, self._last):
            near = np.zeros(reduced.shape, dtype=bool)
            near[tuple(_least(reduced, *FIRST_COLUMNS).T)] = True
            mine = index.family == family
            keep[mine] |= near[index.row[mine], index.engine[mine]]
        stay = index.family == STAY
        keep[stay] = round_.stay[index.row[stay], index.engine[stay]] > 0
        if not keep.all():
            self._flows.keep(keep, self._model.remove_columns(index.column[~keep]))

    def _add_flows(self, family: int, pairs: Index) -> int:
        """Add the columns of a family that are missing; returns how many."""
        rows, engines = self._flows.missing(family, pairs)
        if not len(rows):
            return 0
        layout = self.layout
        gamma = layout.gamma[rows] if family == MOVE else 0.0
        kappa = layout.kappa[rows] if family == MOVE else 0.0
        extra = {
            STAY: np.full(len(rows), -1, dtype=np.int32),
            FREE: self._free[rows],
            MOVE: self._step[rows],
        }
        ones = np.ones(len(rows))
        columns = self._model.add_columns(
            layout.cost[rows, engines] + gamma,
            np.zeros(len(rows)),
            [self._demand[rows], self._engine[engines], extra[family]],
            [ones, layout.work[rows, engines] + kappa, ones],
        )
        self._flows.add(family, rows, engines, columns)
        return len(rows)

    def _price_pieces(self, round_: Round, engines: Index) -> None:
        """Bring the pieces of some engines in line with their tangents and the round's numbers."""
        columns, slope, width = self._pieces.prices(round_, self._tangents, engines)
        self._model.set_costs(columns, slope)
        self._model.set_bounds(columns, width)

    def _duals(self, duals: Array) -> Duals:
        return Duals(
            row=duals[self._demand],
            engine=-duals[self._engine],
            free=np.minimum(0.0, duals[self._free]),
            step=np.clip(duals[self._step], -self._over_price, 0.0),
        )

    def _grow(self, round_: Round, x: Array, duals: Duals) -> bool:
        """Add every kind of column that could improve the solution; False when none could."""
        aimed = self._pieces.refine(round_, self._tangents, x)
        self._price_pieces(round_, aimed)
        added = 0
        for family, reduced in move_costs(round_, duals):
            added += self._add_flows(family, _least(reduced, *NEW_COLUMNS, below=-PRICE_TOLERANCE))
        if added:
            index = self._flows.all()
            fresh = index.tail(added)
            self._model.set_bounds(fresh.column, _flow_limits(round_, fresh))
        return bool(len(aimed) or added)

    def _flow(
        self,
        round_: Round,
        found: tuple[FlowIndex, Array, Duals],
        bound: float,
        exact: bool,
        notes: tuple[str, ...],
    ) -> Flow:
        index, x, duals = found
        self._last, self._carried = duals, x[index.column] > 0
        values = np.maximum(0.0, x[index.column])
        total = np.zeros(self.layout.mask.shape)
        np.add.at(total, (index.row, index.engine), values)
        total = np.where(round_.settled[:, None], round_.stay * round_.demand[:, None], total)
        return Flow(round_, total, np.maximum(0.0, x[self._shed]), duals, bound, exact, notes)


@dataclass(frozen=True)
class FlowIndex:
    """Parallel arrays over the flow columns."""

    family: Index
    row: Index
    engine: Index
    column: Ints

    def tail(self, count: int) -> FlowIndex:
        """The last `count` columns."""
        return FlowIndex(
            self.family[-count:],
            self.row[-count:],
            self.engine[-count:],
            self.column[-count:],
        )


class _Flows:
    """Which (family, row, engine) has which column."""

    def __init__(self, layout: Layout) -> None:
        shape = layout.mask.shape
        self._have = np.zeros((3, *shape), dtype=bool)
        empty = np.zeros(0, dtype=np.intp)
        self._index = FlowIndex(empty, empty, empty, np.zeros(0, dtype=np.int32))

    def count(self, family: int) -> int:
        return int((self._index.family == family).sum())

    def missing(self, family: int, pairs: Index) -> tuple[Index, Index]:
        fresh = pairs[~self._have[family, pairs[:, 0], pairs[:, 1]]]
        return fresh[:, 0], fresh[:, 1]

    def add(self, family: int, rows: Index, engines: Index, columns: Ints) -> None:
        self._have[family, rows, engines] = True
        old = self._index
        self._index = FlowIndex(
            np.concatenate([old.family, np.full(len(rows), family)]),
            np.concatenate([old.row, rows]),
            np.concatenate([old.engine, engines]),
            np.concatenate([old.column, columns]),
        )

    def keep(self, kept: npt.NDArray[np.bool_], new_column: Ints) -> None:
        old, gone = self._index, ~kept
        self._have[old.family[gone], old.row[gone], old.engine[gone]] = False
        column = new_column[old.column[kept]]
        self._index = FlowIndex(old.family[kept], old.row[kept], old.engine[kept], column)

    def all(self) -> FlowIndex:
        return self._index


class _Pieces:
    """The tangents in use: a fixed number of y columns per engine, re-aimed around its load.

    `points` [E, S] are grid indices in rising order; equal neighbours make a piece of no width. Only tangents
    that do not bind are given up, so the bound of the program never falls.
    """

    def __init__(self, layout: Layout, columns: Ints) -> None:
        self._slots = len(columns) // len(layout.engines)
        self._near = _near(layout)
        self.columns = columns.reshape(len(layout.engines), self._slots)
        last = np.array([layout.grids[g].points - 1 for g in layout.grid_of])
        self.points = np.round(np.linspace(0, last, self._slots, axis=1)).astype(np.intp)

    def prices(self, round_: Round, tangents: Tangents, engines: Index) -> tuple[Ints, Array, Array]:
        """(columns, slope, width in work/s of the engine), flat, of the pieces of some engines."""
        shape = (len(engines), self._slots)
        flat = tangents.at(np.repeat(engines, self._slots), self.points[engines].ravel())
        slope, intercept, load = (part.reshape(shape) for part in flat)
        rise = np.diff(slope, axis=1)
        middle = (load[:, 1:] + load[:, :-1]) / 2
        steep = rise > 1e-12 * np.maximum(1.0, np.abs(slope[:, 1:]))
        cross = np.divide(-np.diff(intercept, axis=1), rise, out=middle, where=steep)
        start, limit = np.zeros((len(engines), 1)), tangents.limit[engines, None]
        ends = np.concatenate([start, np.clip(cross, load[:, :-1], load[:, 1:]), limit], axis=1)
        ends = np.minimum(ends * round_.scale[engines, None], round_.room[engines, None])
        width = np.diff(ends, axis=1)
        return self.columns[engines].ravel(), slope.ravel(), width.ravel()

    def refine(self, round_: Round, tangents: Tangents, x: Array) -> Index:
        """Re-aim the engines whose load is not on its highest grid tangent; returns those engines."""
        piece = np.maximum(0.0, x[self.columns])
        load = piece.sum(axis=1)
        best = tangents.highest_at(load / np.maximum(round_.scale, 1e-300))
        loose = np.flatnonzero((round_.scale > 0) & ~(self.points == best[:, None]).any(axis=1))
        if not len(loose):
            return loose
        top = self._slots - 1 - np.argmax(piece[loose, ::-1] > 0, axis=1)
        binding = [self.points[loose, np.clip(top + k, 0, self._slots - 1)] for k in (-1, 0, 1)]
        last = tangents.points[loose] - 1
        wanted = [np.clip(best[loose] + step, 0, last) for step in self._near]
        self.points[loose] = np.sort(np.stack([*binding, *wanted, 0 * last, last], axis=1), axis=1)
        return loose


def _near(layout: Layout) -> tuple[int, ...]:
    """Offsets around a load whose tangents are used next; further ones only on a finer grid."""
    steps = [step for step in NEAR if step <= 16 * layout.grids[0].fine]
    return (*(-step for step in reversed(steps)), 0, *steps)


def _flow_limits(round_: Round, index: FlowIndex) -> Array:
    """Upper bounds of flow columns, requests/s."""
    row, engine = index.row, index.engine
    stay = round_.stay[row, engine]
    limit = round_.layout.max_share[engine]
    part = np.where(limit < 1.0, np.maximum(0.0, limit - stay), np.inf)
    part = np.where(index.family == STAY, stay, part)
    open_ = np.where(index.family == FREE, round_.free_open[row, engine], round_.usable[row, engine])
    return np.where(open_, part * round_.demand[row], 0.0)


def _least(cost: Array, per_row: int, per_engine: int, below: float = math.inf) -> Index:
    """(row, engine) pairs: the least entries of each row and of each column that are under `below`."""
    under = cost < below
    if not under.any():
        return np.zeros((0, 2), dtype=np.intp)
    chosen = np.zeros(cost.shape, dtype=bool)
    _mark(cost, per_row, chosen)
    _mark(cost.T, per_engine, chosen.T)
    return np.argwhere(chosen & under)


def _mark(cost: Array, count: int, chosen: npt.NDArray[np.bool_]) -> None:
    """Set `chosen` at the `count` least entries of each row of `cost`."""
    count = min(count, cost.shape[1])
    if count == 1:
        best = np.argmin(cost, axis=1)[:, None]
    else:
        best = np.argpartition(np.ascontiguousarray(cost), count - 1, axis=1)[:, :count]
    chosen[np.arange(len(cost))[:, None], best] = True
