"""The fixed tangent grid of a profile: where the planner may linearise its cost.

One grid per (curve, largest load of a replica): 256 points spaced so that every gap has the same error for
the reference mix of TTFT and TBOT. It depends on the policy only, never on demand or on an earlier plan, so
plans from different starts end on the same pieces (DESIGN plan page, "Convexity made linear").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.profile import Harmonic, Table

Array = npt.NDArray[np.float64]

POINTS = 256
REFERENCE_TOKENS = 200.0
"""Weight of TBOT against TTFT in the spacing (not in the cost)."""


@dataclass(frozen=True)
class Grid:
    """Tangent points of one replica and the congestion terms there; all arrays are [P]."""

    curve: Harmonic | Table
    limit: float
    """Largest planned load of a replica, work/s."""
    load: Array
    a: Array
    da: Array
    b: Array
    db: Array
    idle_ms: tuple[float, float]
    """TTFT(0), TBOT(0)."""

    def slopes(self, rho: float, omega: float) -> tuple[Array, Array]:
        """Slope and intercept of every tangent of h₁ = rho·A + omega·B."""
        slope = rho * self.da + omega * self.db
        return slope, rho * self.a + omega * self.b - slope * self.load


def make_grid(curve: Harmonic | Table, limit: float) -> Grid:
    """The grid of `curve` on [0, limit]."""
    load = _points(curve, limit)
    a, da, b, db = curve.congestion(load)
    ttft, tbot = curve.latency(np.zeros(1))
    return Grid(curve, limit, load, a, da, b, db, (float(ttft[0]), float(tbot[0])))


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


def kinks(slope: Array, intercept: Array, load: Array) -> Array:
    """Loads where consecutive tangents cross, [P−1]; between their points, halfway for equal tangents."""
    rise = np.diff(slope)
    middle = (load[1:] + load[:-1]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        cross = -np.diff(intercept) / rise
    return np.clip(
        np.where(rise > 1e-12 * np.maximum(1.0, np.abs(slope[1:])), cross, middle), load[:-1], load[1:]
    )
