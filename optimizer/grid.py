"""The fixed tangent grid of a profile: where the planner may linearise its cost.

One grid per (curve, largest load of a replica): 256 points spaced so that every gap has the same error for
the reference mix of TTFT and TBOT, each gap divided evenly again for small fleets. It depends on the policy
only, never on demand or on an earlier plan, so plans from different starts end on the same pieces (DESIGN
plan page, "Convexity made linear").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.profile import Harmonic, Table

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

POINTS = 256
REFERENCE_TOKENS = 200.0
"""Weight of TBOT against TTFT in the spacing (not in the cost)."""


@dataclass(frozen=True)
class Grid:
    """Tangent points of one replica. A point's index counts the `fine` divisions of each gap."""

    curve: Harmonic | Table
    limit: float
    """Largest planned load of a replica, work/s."""
    load: Array
    """[P] the coarse points, from 0 to `limit`."""
    fine: int
    """Divisions of each gap."""
    idle_ms: tuple[float, float]
    """TTFT(0), TBOT(0)."""

    @property
    def points(self) -> int:
        """Number of points."""
        return (len(self.load) - 1) * self.fine + 1


def make_grid(curve: Harmonic | Table, limit: float, fine: int) -> Grid:
    """The grid of `curve` on [0, limit]."""
    ttft, tbot = curve.latency(np.zeros(1))
    return Grid(curve, limit, _points(curve, limit), fine, (float(ttft[0]), float(tbot[0])))


def _points(curve: Harmonic | Table, limit: float) -> Array:
    """At most `POINTS` loads that share ∫√h″ evenly, with 0, `limit` and both sides of every corner."""
    if limit <= 0:
        return np.zeros(1)
    fine = np.linspace(0.0, limit, 8193)
    _, da, _, db = curve.congestion(fine)
    jump = np.maximum(0.0, np.diff(da + REFERENCE_TOKENS * db))
    effort = np.concatenate([[0.0], np.cumsum(np.sqrt(jump * (fine[1] - fine[0])))])
    if effort[-1] <= 0.0:
        return np.zeros(1)
    corners = [c for c in curve.corners if 0.0 < c < limit]
    spots = np.interp(np.linspace(0.0, effort[-1], POINTS - 2 * len(corners)), effort, fine)
    sides = [side for c in corners for side in (c, np.nextafter(c, np.inf))]
    return np.unique(np.concatenate([spots, sides]))
