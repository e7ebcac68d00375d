"""One component of the fleet as a living linear program (DESIGN plan page).

Rows: demand Σx + shed = d; engines Σ(a·x) + κ·m − Σy = 0; free moves Σf ≤ free·d; step Σm − over ≤ step·d.
Columns: stay s ≤ d·stay, free move f, paid move m, per (row, engine); pieces y of each engine's load, priced
by the tangents of the fixed grid; shed; over. Pieces and moves are generated until none is missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.bound import Duals, Segments, lagrange_bound, reduced_costs
from optimizer.layout import Layout, Round
from optimizer.lp import Ints, Model, Status

Array = npt.NDArray[np.float64]

STAY, FREE, MOVE = 0, 1, 2
FIRST_COLUMNS = 8
"""Columns per row to begin with: the nearest engines."""
NEW_COLUMNS = 4
"""Columns per row and family added at a time."""
FIRST_PIECES = 9
PRICE_TOLERANCE = 1e-9
MAX_ROUNDS = 200


@dataclass(frozen=True)
class Flow:
    """What the planner decided for a component; rates in requests/s."""

    x: Array
    """[R, E]"""
    free: Array
    """[R, E] the part of x that moved free of churn."""
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
        none, ones = np.full(rows, -1, dtype=np.int32), np.ones(rows)
        self._shed = model.add_columns(zeros, np.full(rows, np.inf), [self._demand, none], [ones, ones])
        self._over = model.add_columns(zeros, np.full(rows, np.inf), [self._step, none], [-ones, ones])
        self._flows = _Flows(layout)
        self._pieces = _Pieces(layout)

    def solve(
        self,
        round_: Round,
        shed_floor: Array,
        shed_price: Array,
        step: float | None,
        deadline: float = math.inf,
    ) -> Flow | None:
        """The optimal flow of a round, or the best found before `deadline`; None when nothing was found.

        `shed_floor` [R] requests/s are refused whatever it costs, more at `shed_price` [R] ms.
        """
        self._update(round_, shed_floor, shed_price, step)
        best: Flow | None = None
        notes: dict[str, None] = {}
        for _ in range(MAX_ROUNDS):
            solution = self._model.solve(deadline)
            if solution.solver != "warm":
                notes[f"solved by rung {solution.solver}"] = None
            if solution.status is Status.NONE:
                break
            duals = self._duals(solution.duals, shed_price)
            complete = solution.status is Status.OPTIMAL and not self._grow(round_, solution.x, duals, step)
            bound = lagrange_bound(round_, self._segments, duals, shed_floor, shed_price, step)
            if best is not None:
                bound = max(bound, best.bound)
            best = self._flow(solution.x, duals, bound, complete, tuple(notes))
            if complete or solution.status is Status.FEASIBLE:
                break
        return best

    def _update(self, round_: Round, shed_floor: Array, shed_price: Array, step: float | None) -> None:
        model, d = self._model, round_.demand
        self._segments = Segments.of(round_)
        model.set_rhs(self._demand, d, equal=True)
        model.set_rhs(self._free, round_.free * d, equal=False)
        model.set_rhs(self._step, np.full(len(d), np.inf) if step is None else step * d, equal=False)
        model.set_costs(self._shed, shed_price)
        model.set_costs(self._over, shed_price / 3)
        model.set_bounds(self._shed, np.maximum(d, shed_floor), shed_floor)
        self._add_flows(STAY, np.argwhere(round_.stay > 0))
        if not self._flows.count(FREE) and not self._flows.count(MOVE):
            order = np.argsort(round_.layout.cost, axis=1, kind="stable")[:, :FIRST_COLUMNS]
            first = np.stack([np.repeat(np.arange(len(d)), order.shape[1]), order.ravel()], axis=1)
            first = first[self.layout.mask[first[:, 0], first[:, 1]]]
            self._add_flows(FREE, first[round_.free[first[:, 0]] > 0])
            self._add_flows(MOVE, first[round_.free[first[:, 0]] < 1])
        index = self._flows.all()
        model.set_bounds(index.column, _flow_limits(round_, index))
        for engine in range(0 if self._pieces.size else len(self.layout.engines)):
            points = len(self.layout.grids[self.layout.grid_of[engine]].load)
            self._pieces.want(engine, np.unique(np.linspace(0, points - 1, FIRST_PIECES).astype(int)))
        self._sync_pieces(round_)

    def _add_flows(self, family: int, pairs: npt.NDArray[np.intp]) -> int:
        """Add the columns of a family that are missing; returns how many."""
        rows, engines = self._flows.missing(family, pairs)
        if not len(rows):
            return 0
        layout = self.layout
        gamma = layout.gamma[rows] if family == MOVE else 0.0
        kappa = layout.kappa[rows] if family == MOVE else 0.0
        extra = {STAY: np.full(len(rows), -1, dtype=np.int32), FREE: self._free[rows], MOVE: self._step[rows]}
        ones = np.ones(len(rows))
        columns = self._model.add_columns(
            layout.cost[rows, engines] + gamma,
            np.zeros(len(rows)),
            [self._demand[rows], self._engine[engines], extra[family]],
            [ones, layout.work[rows, engines] + kappa, ones],
        )
        self._flows.add(family, rows, engines, columns)
        return len(rows)

    def _sync_pieces(self, round_: Round) -> None:
        """Bring the y columns in line with the wanted tangents and the round's numbers."""
        new = self._pieces.unmade()
        if len(new):
            none = np.full(len(new), -1, dtype=np.int32)
            zeros, ones = np.zeros(len(new)), np.ones(len(new))
            self._pieces.made(self._model.add_columns(zeros, zeros, [self._engine[new], none], [-ones, ones]))
        columns, slope, width = self._pieces.prices(round_, self._segments)
        self._model.set_costs(columns, slope)
        self._model.set_bounds(columns, width)

    def _duals(self, duals: Array, shed_price: Array) -> Duals:
        return Duals(
            row=duals[self._demand],
            engine=-duals[self._engine],
            free=np.minimum(0.0, duals[self._free]),
            step=np.clip(duals[self._step], -shed_price / 3, 0.0),
        )

    def _grow(self, round_: Round, x: Array, duals: Duals, step: float | None) -> bool:
        """Add every kind of column that could improve the solution; False when none could."""
        load = np.maximum(0.0, self._pieces.loads(x))
        grown = self._pieces.refine(round_, self._segments, load)
        if grown:
            self._sync_pieces(round_)
        _, free, move = reduced_costs(round_, duals)
        added = 0
        for family, reduced, open_ in ((FREE, free, round_.free > 0), (MOVE, move, round_.free < 1)):
            wanted = np.where(open_[:, None], reduced, np.inf)
            pairs = _most_negative(wanted, NEW_COLUMNS)
            added += self._add_flows(family, pairs)
        if added:
            index = self._flows.all()
            fresh = index.tail(added)
            self._model.set_bounds(fresh.column, _flow_limits(round_, fresh))
        return bool(grown or added)

    def _flow(self, x: Array, duals: Duals, bound: float, exact: bool, notes: tuple[str, ...]) -> Flow:
        index = self._flows.all()
        values = np.maximum(0.0, x[index.column])
        shape = self.layout.mask.shape
        total, free = np.zeros(shape), np.zeros(shape)
        np.add.at(total, (index.row, index.engine), values)
        moved = index.family == FREE
        np.add.at(free, (index.row[moved], index.engine[moved]), values[moved])
        return Flow(total, free, np.maximum(0.0, x[self._shed]), duals, bound, exact, notes)


@dataclass(frozen=True)
class FlowIndex:
    """Parallel arrays over the flow columns."""

    family: npt.NDArray[np.intp]
    row: npt.NDArray[np.intp]
    engine: npt.NDArray[np.intp]
    column: Ints

    def tail(self, count: int) -> FlowIndex:
        """The last `count` columns."""
        return FlowIndex(self.family[-count:], self.row[-count:], self.engine[-count:], self.column[-count:])


class _Flows:
    """Which (family, row, engine) has which column."""

    def __init__(self, layout: Layout) -> None:
        shape = layout.mask.shape
        self._have = np.zeros((3, *shape), dtype=bool)
        empty = np.zeros(0, dtype=np.intp)
        self._index = FlowIndex(empty, empty, empty, np.zeros(0, dtype=np.int32))

    def count(self, family: int) -> int:
        return int((self._index.family == family).sum())

    def missing(
        self, family: int, pairs: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        fresh = pairs[~self._have[family, pairs[:, 0], pairs[:, 1]]]
        return fresh[:, 0], fresh[:, 1]

    def add(
        self, family: int, rows: npt.NDArray[np.intp], engines: npt.NDArray[np.intp], columns: Ints
    ) -> None:
        self._have[family, rows, engines] = True
        old = self._index
        self._index = FlowIndex(
            np.concatenate([old.family, np.full(len(rows), family)]),
            np.concatenate([old.row, rows]),
            np.concatenate([old.engine, engines]),
            np.concatenate([old.column, columns]),
        )

    def all(self) -> FlowIndex:
        return self._index


class _Pieces:
    """The tangents in use: which (engine, grid point) has which y column."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._points = [set[int]() for _ in layout.engines]
        self._engine = np.zeros(0, dtype=np.intp)
        self._point = np.zeros(0, dtype=np.intp)
        self._column = np.zeros(0, dtype=np.int32)
        self._new: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        return len(self._column)

    def want(self, engine: int, points: npt.NDArray[np.intp]) -> bool:
        new = set(points.tolist()) - self._points[engine]
        self._points[engine] |= new
        self._new += [(engine, point) for point in sorted(new)]
        return bool(new)

    def unmade(self) -> npt.NDArray[np.intp]:
        return np.array([engine for engine, _ in self._new], dtype=np.intp)

    def made(self, columns: Ints) -> None:
        new = np.array(self._new, dtype=np.intp).reshape(-1, 2)
        engine = np.concatenate([self._engine, new[:, 0]])
        point = np.concatenate([self._point, new[:, 1]])
        order = np.lexsort((point, engine))
        self._engine, self._point = engine[order], point[order]
        self._column = np.concatenate([self._column, columns])[order]
        self._new.clear()

    def prices(self, round_: Round, segments: Segments) -> tuple[Ints, Array, Array]:
        """(columns, slope, width in work/s of the engine) of every piece."""
        slope, intercept, load = segments.at(self._engine, self._point)
        same = self._engine[1:] == self._engine[:-1]
        rise = np.diff(slope)
        with np.errstate(divide="ignore", invalid="ignore"):
            cross = -np.diff(intercept) / rise
        steep = rise > 1e-12 * np.maximum(1.0, np.abs(slope[1:]))
        cross = np.clip(np.where(steep, cross, (load[1:] + load[:-1]) / 2), load[:-1], load[1:])
        limit = segments.limit[self._engine]
        start = np.concatenate([[0.0], np.where(same, cross, 0.0)])
        end = np.concatenate([np.where(same, cross, limit[:-1]), limit[-1:]])
        return self._column, slope, np.maximum(0.0, end - start) * round_.scale[self._engine]

    def loads(self, x: Array) -> Array:
        total: Array = np.bincount(self._engine, x[self._column], minlength=len(self._points)).astype(float)
        return total

    def refine(self, round_: Round, segments: Segments, load: Array) -> bool:
        """Want the grid tangents that are violated at the given loads [E], with neighbours."""
        grown = False
        point = segments.point_at(load / np.maximum(round_.scale, 1e-300))
        for engine in np.flatnonzero(round_.scale > 0).tolist():
            at = int(point[engine])
            if at not in self._points[engine]:
                count = segments.points[engine]
                near = np.array([at - 4, at - 2, at - 1, at, at + 1, at + 2, at + 4])
                grown |= self.want(engine, near[(near >= 0) & (near < count)])
        return grown


def _flow_limits(round_: Round, index: FlowIndex) -> Array:
    """Upper bounds of flow columns, requests/s."""
    row, engine = index.row, index.engine
    stay = round_.stay[row, engine]
    room = np.maximum(0.0, round_.layout.max_share[engine] - stay)
    part = np.where(index.family == STAY, stay, room)
    return np.where(round_.usable[row, engine], part * round_.demand[row], 0.0)


def _most_negative(reduced: Array, count: int) -> npt.NDArray[np.intp]:
    """(row, engine) of the `count` most negative entries of each row."""
    count = min(count, reduced.shape[1])
    best = np.argpartition(reduced, count - 1, axis=1)[:, :count]
    rows = np.repeat(np.arange(len(reduced)), count)
    pairs = np.stack([rows, best.ravel()], axis=1)
    return pairs[reduced[pairs[:, 0], pairs[:, 1]] < -PRICE_TOLERANCE]
