"""Which column of a component's program stands for what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.bound import Tangents
from optimizer.grid import Index
from optimizer.layout import Layout, Round
from optimizer.lp import Ints

Array = npt.NDArray[np.float64]

NEAR = (1, 4, 16, 64, 256, 1024, 4096)
"""Distances, in grid points, of the tangents used next on both sides of an engine's load."""


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


class Flows:
    """Which (family, row, engine) has which column."""

    def __init__(self, layout: Layout) -> None:
        shape = layout.mask.shape
        self._have = np.zeros((3, *shape), dtype=bool)
        empty = np.zeros(0, dtype=np.intp)
        self._index = FlowIndex(empty, empty, empty, np.zeros(0, dtype=np.int32))

    def count(self, family: int) -> int:
        """Columns of a family."""
        return int((self._index.family == family).sum())

    def missing(self, family: int, pairs: Index) -> tuple[Index, Index]:
        """Rows and engines of the (row, engine) pairs that have no column of a family yet."""
        fresh = pairs[~self._have[family, pairs[:, 0], pairs[:, 1]]]
        return fresh[:, 0], fresh[:, 1]

    def add(self, family: int, rows: Index, engines: Index, columns: Ints) -> None:
        """Note the columns of new pairs."""
        self._have[family, rows, engines] = True
        old = self._index
        self._index = FlowIndex(
            np.concatenate([old.family, np.full(len(rows), family)]),
            np.concatenate([old.row, rows]),
            np.concatenate([old.engine, engines]),
            np.concatenate([old.column, columns]),
        )

    def keep(self, kept: npt.NDArray[np.bool_], new_column: Ints) -> None:
        """Drop the columns that are not `kept` and renumber the rest by `new_column`."""
        old, gone = self._index, ~kept
        self._have[old.family[gone], old.row[gone], old.engine[gone]] = False
        column = new_column[old.column[kept]]
        self._index = FlowIndex(old.family[kept], old.row[kept], old.engine[kept], column)

    def all(self) -> FlowIndex:
        """Every flow column, oldest first."""
        return self._index


class Pieces:
    """The tangents in use: a fixed number of y columns per engine, re-aimed around its load.

    `points` [E, S] are grid indices in rising order; equal neighbours make a piece of no width. Only tangents
    that do not bind are given up, so the bound of the program never falls.
    """

    def __init__(self, layout: Layout, columns: Ints) -> None:
        self._slots = len(columns) // len(layout.engines)
        self._near = near(layout)
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


def near(layout: Layout) -> tuple[int, ...]:
    """Offsets around a load whose tangents are used next; further ones only on a finer grid."""
    steps = [step for step in NEAR if step <= 16 * layout.grids[0].fine]
    return (*(-step for step in reversed(steps)), 0, *steps)
