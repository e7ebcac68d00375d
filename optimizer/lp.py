"""A growing linear program in PuLP, kept warm in HiGHS.

`Model` is the one writer: every variable and row is a PuLP object (so that any PuLP solver can take over),
and every change goes into a queue of bulk changes that `Bridge` passes to a living HiGHS instance. Stock
PuLP would rebuild the solver's model at every solve. Costs and bounds, which change by the thousand, live in
arrays and are written to the PuLP objects when a solver reads those.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pulp

try:
    import highspy
except ImportError:  # CBC, which PuLP brings along, takes over
    highspy = None  # type: ignore[assignment]  # the absent module

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

DUAL_TOLERANCE = 1e-9

ROW_WISE = 1
"""HiGHS' pricing that looks only at the rows a step touches: a tenth faster here, where columns are many and
short, than its default of switching."""

FEASIBLE = 2
"""HiGHS' `kSolutionStatusFeasible`; its other statuses must not be published from."""

OPEN = 1e15
"""Right-hand side of a row without limit, for PuLP, which knows no infinite one."""


class Status(Enum):
    """What a solve ended with."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    """Stopped by the time limit with a primal feasible point."""
    NONE = "none"
    """Nothing to use."""


@dataclass(frozen=True)
class Solution:
    """Values by column and row index."""

    status: Status
    x: Array
    """[columns]"""
    duals: Array
    """[rows] change of the optimum per unit of right-hand side."""
    solver: str
    """Which rung of the ladder answered: warm, cold or cbc."""


class Bridge(pulp.HiGHS):  # type: ignore[misc]  # PuLP has no types
    """`pulp.HiGHS` that loads a model once and then applies only the queued changes."""

    def __init__(self) -> None:
        super().__init__(
            mip=False,
            msg=False,
            threads=1,
            dual_feasibility_tolerance=DUAL_TOLERANCE,
            solver="simplex",
            simplex_price_strategy=ROW_WISE,
        )
        self.pending: list[Callable[[Any], object]] = []

    def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:
        """Make the HiGHS instance without the banner it prints on standard output, which may carry JSON."""
        with _no_stdout():
            super().createAndConfigureSolver(lp)

    def actualSolve(self, lp: pulp.LpProblem) -> int:
        """Apply the queue and run; the caller reads HiGHS' own arrays and statuses."""
        if lp.solverModel is None:
            self.createAndConfigureSolver(lp)
        for change in self.pending:
            change(lp.solverModel)
        self.pending.clear()
        lp.solverModel.run()
        return pulp.LpStatusNotSolved  # type: ignore[no-any-return]  # read through `Model`, not through PuLP


class Model:
    """Columns and rows by index; rows, which are `sum = rhs` or `sum ≤ rhs`, are never removed."""

    def __init__(self, name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lp = pulp.LpProblem(name, pulp.LpMinimize)
        self._lp.setObjective(pulp.LpAffineExpression())
        self._cost, self._low, self._up = (np.zeros(0) for _ in range(3))
        self._serial = 0
        self._rows_of: list[list[int]] = []
        self._vars: list[pulp.LpVariable] = []
        self._rows: list[pulp.LpConstraint] = []
        self._bridge = Bridge() if highspy is not None else None
        if self._bridge is not None:
            self._lp.solver = self._bridge
            self._lp.solverModel = None

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self._vars)

    def add_rows(self, equal: bool, rhs: Array) -> Ints:
        """Append rows without entries; returns their indices."""
        first = len(self._rows)
        sense = pulp.LpConstraintEQ if equal else pulp.LpConstraintLE
        for i, value in enumerate(rhs.tolist()):
            row = pulp.LpConstraint(sense=sense, name=f"r{first + i}", rhs=min(value, OPEN))
            self._rows.append(row)
            self._lp.addConstraint(row)
        lower = rhs if equal else np.full(len(rhs), -np.inf)
        none = (
            np.zeros(len(rhs), dtype=np.int32),
            np.zeros(0, dtype=np.int32),
            np.zeros(0),
        )
        self._queue(lambda h: h.addRows(len(rhs), lower, rhs, 0, *none))
        return np.arange(first, first + len(rhs), dtype=np.int32)

    def add_columns(
        self,
        cost: Array,
        upper: Array,
        rows: Sequence[Ints],
        values: Sequence[Array],
        lower: Array | None = None,
    ) -> Ints:
        """Append columns; `rows[j]`, `values[j]` [columns] are the j-th entry of every column.

        A row index of −1 leaves the entry out. Returns the new indices.
        """
        first, count = len(self._vars), len(cost)
        low = np.zeros(count) if lower is None else lower
        self._mirror(count, rows, values)
        self._cost = np.concatenate([self._cost, cost])
        self._low, self._up = (
            np.concatenate([self._low, low]),
            np.concatenate([self._up, upper]),
        )
        index = np.stack(rows, axis=1).astype(np.int32)
        value = np.stack(values, axis=1)
        present = index >= 0
        starts = np.concatenate([[0], np.cumsum(present.sum(axis=1))[:-1]]).astype(np.int32)
        flat_index, flat_value = index[present], value[present]
        self._queue(
            lambda h: h.addCols(count, cost, low, upper, len(flat_index), starts, flat_index, flat_value)
        )
        return np.arange(first, first + count, dtype=np.int32)

    def _mirror(self, count: int, rows: Sequence[Ints], values: Sequence[Array]) -> None:
        new = [self._lp.add_variable(f"c{self._serial + j}", 0.0) for j in range(count)]
        self._serial += count
        self._vars += new
        self._rows_of += [[row for row in entry if row >= 0] for entry in np.stack(rows, axis=1).tolist()]
        for entry_rows, entry_values in zip(rows, values, strict=True):
            for var, row, value in zip(new, entry_rows.tolist(), entry_values.tolist(), strict=True):
                if row >= 0:
                    self._rows[row].expr[var] = value

    def _write_numbers(self) -> None:
        """Bring costs and bounds of the PuLP objects up to date."""
        numbers = zip(self._vars, self._cost.tolist(), self._low.tolist(), self._up.tolist(), strict=True)
        for var, cost, low, up in numbers:
            self._lp.objective[var] = cost
            var.lowBound, var.upBound = low, _bounded(up)

    def cost_of(self, x: Array) -> float:
        """The objective at x, which may lack the newest columns."""
        return float(self._cost[: len(x)] @ x)

    def remove_columns(self, columns: Ints) -> Ints:
        """Delete columns; returns the new index of every old one, −1 where deleted."""
        keep = np.ones(len(self._vars), dtype=bool)
        keep[columns] = False
        for j in columns.tolist():
            var = self._vars[j]
            self._lp.objective.pop(var, None)
            for row in self._rows_of[j]:
                del self._rows[row].expr[var]
        kept = np.flatnonzero(keep)
        self._vars = [self._vars[j] for j in kept.tolist()]
        self._rows_of = [self._rows_of[j] for j in kept.tolist()]
        self._cost, self._low, self._up = (
            self._cost[kept],
            self._low[kept],
            self._up[kept],
        )
        gone = np.sort(columns).astype(np.int32)
        self._queue(lambda h: h.deleteCols(len(gone), gone))
        return np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)

    def set_bounds(self, columns: Ints, upper: Array, lower: Array | None = None) -> None:
        """Change the bounds of columns; what is unchanged costs nothing."""
        low = np.zeros(len(columns)) if lower is None else lower
        new = (self._up[columns] != upper) | (self._low[columns] != low)
        columns, low, upper = columns[new], low[new], upper[new]
        if not len(columns):
            return
        self._low[columns], self._up[columns] = low, upper
        self._queue(lambda h: h.changeColsBounds(len(columns), columns, low, upper))

    def upper(self, columns: Ints) -> Array:
        """Upper bounds of columns."""
        return self._up[columns]

    def set_costs(self, columns: Ints, cost: Array) -> None:
        """Change the costs of columns; what is unchanged costs nothing."""
        new = self._cost[columns] != cost
        columns, cost = columns[new], cost[new]
        if not len(columns):
            return
        self._cost[columns] = cost
        self._queue(lambda h: h.changeColsCost(len(columns), columns, cost))

    def set_rhs(self, rows: Ints, rhs: Array, equal: bool) -> None:
        """Change the right-hand sides of rows."""
        for i, value in zip(rows.tolist(), rhs.tolist(), strict=True):
            self._rows[i].constant = -min(value, OPEN)
        lower = rhs if equal else np.full(len(rhs), -np.inf)
        self._queue(lambda h: h.changeRowsBounds(len(rows), rows, lower, rhs))

    def _queue(self, change: Callable[[Any], object]) -> None:
        if self._bridge is not None:
            self._bridge.pending.append(change)

    def solve(self, deadline: float = math.inf) -> Solution:
        """Solve by the ladder warm → cold → CBC, stopping at `deadline` on this model's clock."""
        if self._bridge is not None:
            for rung in ("warm", "cold"):
                left = deadline - self._clock()
                solution = self._highs(rung, max(0.0, left))
                if solution.status is not Status.NONE or left <= 0:
                    return solution
        return self._cbc(deadline - self._clock())

    def _highs(self, rung: str, left: float) -> Solution:
        if rung == "cold" and self._lp.solverModel is not None:
            self._lp.solverModel.clearSolver()
        limit = left if math.isfinite(left) else highspy.kHighsInf
        self._queue(lambda h: h.setOptionValue("time_limit", limit + h.getRunTime()))
        self._lp.solve(self._bridge)
        highs = self._lp.solverModel
        solution = highs.getSolution()
        status, end = Status.NONE, highs.getModelStatus()
        if end == highspy.HighsModelStatus.kOptimal:
            status = Status.OPTIMAL
        elif (
            end == highspy.HighsModelStatus.kTimeLimit and highs.getInfo().primal_solution_status == FEASIBLE
        ):
            status = Status.FEASIBLE
        return Solution(status, np.array(solution.col_value), np.array(solution.row_dual), rung)

    def _cbc(self, left: float) -> Solution:
        limit = max(1.0, left) if math.isfinite(left) else None
        status = Status.NONE
        self._write_numbers()
        try:
            if self._lp.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=limit)) == pulp.LpStatusOptimal:
                on_time = self._lp.sol_status == pulp.LpSolutionOptimal
                status = Status.OPTIMAL if on_time else Status.FEASIBLE
        except pulp.PulpSolverError:
            pass  # no CBC binary here: nothing below this rung
        x = np.array([var.varValue or 0.0 for var in self._vars])
        return Solution(status, x, np.array([row.pi or 0.0 for row in self._rows]), "cbc")


@contextmanager
def _no_stdout() -> Iterator[None]:
    """Point file descriptor 1 at nothing: HiGHS writes below Python's `sys.stdout`."""
    try:
        saved = os.dup(1)
    except OSError:  # no standard output at all
        yield
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(sink)
        os.close(saved)


def _bounded(value: float) -> float | None:
    return value if math.isfinite(value) else None
