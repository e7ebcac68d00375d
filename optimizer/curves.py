"""The curves and grids of all engines of a component, evaluated together.

Engines whose profiles were corrected each have a curve of their own; arithmetic on whole arrays makes a
thousand of them cost little more than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from optimizer.grid import Grid, Index
from optimizer.profile import Harmonic, Table, harmonic_congestion, harmonic_latency

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Curves:
    """Per replica. `engine` [N] says whose curve is meant; the other arguments are [N] too."""

    def __init__(self, grids: Sequence[Grid], of: Index) -> None:
        """`of` [E]: the grid of each engine."""
        self._grids, self._of = grids, of
        curves = [grid.curve for grid in grids]
        self._parameters = np.array(
            [curve.parameters if isinstance(curve, Harmonic) else (1.0,) + (0.0,) * 5 for curve in curves]
        ).reshape(len(curves), 6)
        self._tables = [(g, curve) for g, curve in enumerate(curves) if isinstance(curve, Table)]
        self._last = np.array([len(grid.load) - 1 for grid in grids], dtype=np.intp)
        self._fine = np.array([grid.fine for grid in grids], dtype=np.intp)

    def latency(self, engine: Index, load: Array) -> tuple[Array, Array]:
        """(TTFT, TBOT), ms."""
        of = self._of[engine]
        ttft, tbot = harmonic_latency(load, *self._parameters[of].T)
        for mine, table in self._of_tables(of):
            ttft[mine], tbot[mine] = table.latency(load[mine])
        return ttft, tbot

    def congestion(self, engine: Index, load: Array) -> tuple[Array, Array, Array, Array]:
        """(A, A′, B, B′)."""
        of = self._of[engine]
        terms = harmonic_congestion(load, *self._parameters[of].T)
        for mine, table in self._of_tables(of):
            for term, values in zip(terms, table.congestion(load[mine]), strict=True):
                term[mine] = values
        return terms

    def loads(self, engine: Index, point: Index) -> Array:
        """The loads of points, work/s."""
        of = self._of[engine]
        gap, upper, fine = self._gaps(of, point // self._fine[of])
        low, high = self._points[of, gap], self._points[of, upper]
        at: Array = low + (high - low) * ((point - gap * fine) / fine)
        return at

    def below(self, engine: Index, load: Array) -> Index:
        """The last point at or below each load."""
        of = self._of[engine]
        reached = np.sum(self._points[of] <= load[:, None], axis=1) - 1
        gap, upper, fine = self._gaps(of, np.maximum(reached, 0))
        width = self._points[of, upper] - self._points[of, gap]
        part = np.divide(load - self._points[of, gap], width, out=np.zeros(len(load)), where=width > 0)
        point: Index = gap * fine + np.floor(np.clip(part, 0.0, 1.0) * fine).astype(np.intp)
        last: Index = self._last[of] * fine
        return np.minimum(point, last)

    @cached_property
    def _points(self) -> Array:
        """[G, P] the coarse points of every grid, and infinity behind its last."""
        points = np.full((len(self._grids), int(self._last.max(initial=0)) + 1), np.inf)
        for g, grid in enumerate(self._grids):
            points[g, : len(grid.load)] = grid.load
        return points

    def _gaps(self, of: Index, gap: Index) -> tuple[Index, Index, Index]:
        """Gaps that there are, the points at their ends, and their divisions."""
        last = self._last[of]
        inside = np.minimum(gap, np.maximum(0, last - 1))
        return inside, np.minimum(inside + 1, last), self._fine[of]

    def _of_tables(self, of: Index) -> Iterator[tuple[Mask, Table]]:
        for g, table in self._tables:
            mine = of == g
            if mine.any():
                yield mine, table
