"""One component of the fleet as a living linear program (DESIGN plan page).

Rows: demand Σx + shed = d; engines Σ(a·x) + κ·m − Σy = 0; free moves Σf ≤ free·d.
Columns: stay s ≤ d·stay, free move f, paid move m, per (row, engine); pieces y of each engine's load, priced
by the tangents of the fixed grid; shed. Pieces and moves are generated until none is missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.bound import FREE, MOVE, STAY, Duals, Shed, Tangents, lagrange_bound, move_costs
from optimizer.columns import FlowIndex, Flows, Pieces, near
from optimizer.grid import Index
from optimizer.layout import Layout, Round
from optimizer.lp import Model, Status

Array = npt.NDArray[np.float64]

FIRST_COLUMNS = (12, 5)
"""Flow columns to begin with: the nearest engines of each row, the nearest rows of each engine."""
NEW_COLUMNS = (4, 1)
"""Flow columns added at a time: the cheapest engines of each row, the cheapest rows of each engine."""
REACH = 0.1
"""Part of an engine's room that a paid move may take before its column is opened, in rows that could stay as
they are. Most moves are small; the dual simplex starts with every favourable column at its bound, and has the
less to take back. Where something must move nothing is held back: a program stopped early would refuse it."""
PRICE_TOLERANCE = 1e-9
BEYOND = 1.01
"""Bound of a move over the room of its engine: never reached, so that no price hides in it, but finite. With
infinite ones the dual simplex begins every program with a phase of its own."""
HELD_WHOLE = 1e-6
"""Part of a row that may be new and the row still counts as held."""
AT_BOUND = 1e-6
"""Relative distance from its bound at which a move is taken to be held back by it."""
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
        ones = np.ones(rows)
        self._shed = model.add_columns(zeros, np.full(rows, np.inf), [self._demand], [ones])
        self._flows = Flows(layout)
        self._last: Duals | None = None
        self._carried = np.zeros(0, dtype=bool)
        slots = len(near(layout)) + 5  # and three that may bind, and both ends of the grid
        count = engines * slots
        of_piece = np.repeat(self._engine, slots)
        pieces = model.add_columns(np.zeros(count), np.zeros(count), [of_piece], [-np.ones(count)])
        self._pieces = Pieces(layout, pieces)

    def solve(self, round_: Round, shed: Shed, deadline: float = math.inf) -> Flow | None:
        """The optimal flow of a round, or the best found before `deadline`; None when nothing was found."""
        self._update(round_, shed)
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
        bound = lagrange_bound(round_, self._tangents, found[2], shed)
        return self._flow(round_, found, bound, complete, tuple(notes))

    def value(self, round_: Round, shed: Shed, engine: int, extra: float) -> float:
        """The optimum in ms·requests/s with `extra` work/s that one engine must carry besides."""
        self._update(round_, shed)
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
        return lagrange_bound(round_, Tangents(round_), self._last, shed)

    def _update(self, round_: Round, shed: Shed) -> None:
        model, d = self._model, round_.demand
        self._tangents = Tangents(round_)
        model.set_rhs(self._demand, d, equal=True)
        model.set_rhs(self._free, round_.free * d, equal=False)
        # Above the decided floor only what floating point needs is refused, so that prices stay defined.
        model.set_costs(self._shed, shed.price * (100.0 if shed.decided else 1.0))
        model.set_bounds(self._shed, np.maximum(d, shed.floor), shed.floor)
        self._prune(round_)
        self._add_flows(STAY, np.argwhere(round_.stay > 0))
        if not self._flows.count(FREE) and not self._flows.count(MOVE):
            first = _least(np.where(round_.usable, round_.layout.cost, np.inf), *FIRST_COLUMNS)
            self._add_flows(FREE, first[round_.free_open[first[:, 0], first[:, 1]]])
            self._add_flows(MOVE, first[round_.move_open[first[:, 0], first[:, 1]]])
        index = self._flows.all()
        self._reach = _reach(round_, shed)
        model.set_bounds(index.column, self._first_limits(round_, index))
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
        allowance = self._free[rows] if family == FREE else np.full(len(rows), -1, dtype=np.int32)
        ones = np.ones(len(rows))
        columns = self._model.add_columns(
            layout.cost[rows, engines] + gamma,
            np.zeros(len(rows)),
            [self._demand[rows], self._engine[engines], allowance],
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
        )

    def _grow(self, round_: Round, x: Array, duals: Duals) -> bool:
        """Add every kind of column that could improve the solution; False when none could."""
        aimed = self._pieces.refine(round_, self._tangents, x)
        self._price_pieces(round_, aimed)
        opened = self._open(round_, x)
        added = 0
        for family, reduced in move_costs(round_, duals):
            added += self._add_flows(family, _least(reduced, *NEW_COLUMNS, below=-PRICE_TOLERANCE))
        if added:
            index = self._flows.all()
            fresh = index.tail(added)
            self._model.set_bounds(fresh.column, self._first_limits(round_, fresh))
        return bool(len(aimed) or opened or added)

    def _first_limits(self, round_: Round, index: FlowIndex) -> Array:
        """Upper bounds of flow columns to begin with, requests/s."""
        limit = _flow_limits(round_, index)
        near = np.minimum(limit, self._reach[index.row] * _room(round_, index))
        return np.where(index.family == MOVE, near, limit)

    def _open(self, round_: Round, x: Array) -> bool:
        """Give the moves that go as far as they may all the room there is; whether there were any."""
        index = self._flows.all()
        limit, bound = _flow_limits(round_, index), self._model.upper(index.column)
        held = (bound < limit) & (x[index.column] >= bound * (1.0 - AT_BOUND))
        self._model.set_bounds(index.column[held], limit[held])
        return bool(held.any())

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


def _flow_limits(round_: Round, index: FlowIndex) -> Array:
    """Upper bounds of flow columns, requests/s."""
    row, engine = index.row, index.engine
    stay = round_.stay[row, engine]
    limit = round_.layout.max_share[engine]
    part = np.where(limit < 1.0, np.maximum(0.0, limit - stay), np.inf)
    most = np.minimum(part * round_.demand[row], BEYOND * _room(round_, index))
    most = np.where(index.family == STAY, stay * round_.demand[row], most)
    open_ = np.where(index.family == FREE, round_.free_open[row, engine], round_.usable[row, engine])
    return np.where(open_, most, 0.0)


def _reach(round_: Round, shed: Shed) -> Array:
    """[R] part of an engine's room that a paid move of a row may take at first."""
    if shed.decided or np.any(round_.free > HELD_WHOLE):
        return np.full(len(round_.demand), BEYOND)
    stays = round_.stay * round_.demand[:, None]
    full = (stays * round_.layout.work).sum(axis=0) > round_.room
    return np.where((stays[:, full] > 0).any(axis=1), BEYOND, REACH)


def _room(round_: Round, index: FlowIndex) -> Array:
    """Requests/s of a column's row with which its engine would be full."""
    return round_.room[index.engine] / round_.layout.work[index.row, index.engine]


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
