"""What given shares cost: the planner's objective with the true curves, and the true mean latency."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.layout import Round
from optimizer.profile import times

Array = npt.NDArray[np.float64]

OVER = 1.0 + 1e-6
"""Load above capacity by more than this factor breaks the plan."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost rates of one component in ms·requests/s (divide by the demand for a mean)."""

    network: float
    engine: float
    """Idle latency plus congestion, shared by work: the objective's engine part."""
    churn: float
    shed: float
    true_latency: float
    """Network plus each request's own TTFT + o·TBOT."""
    served_rps: float
    feasible: bool
    """Every load within capacity."""
    overload: float
    """Largest load above capacity and tolerated noise, relative; infinite where there is no capacity."""

    @property
    def latency(self) -> float:
        """The part a gap is measured against."""
        return self.network + self.engine

    @property
    def total(self) -> float:
        """The whole objective."""
        return self.latency + self.churn + self.shed


def loads(round_: Round, x: Array) -> Array:
    """Work/s on each engine [E] of a flow x [R, E] in requests/s."""
    total: Array = np.einsum("ij,ij->j", x, round_.layout.work)
    return total


def paid_moves(round_: Round, x: Array) -> Array:
    """[R, E] requests/s of a flow that arrive somewhere new and have to pay for it.

    What a row may move free of churn is credited in proportion to its arrivals where such a move is open
    (`Round.free_open`); elsewhere every arrival pays, as in the program.
    """
    arrived = np.maximum(0.0, x - round_.stay * round_.demand[:, None])
    creditable = np.where(round_.free_open, arrived, 0.0)
    total = creditable.sum(axis=1)
    paid = np.maximum(0.0, total - round_.free * round_.demand)
    part = np.divide(paid, total, out=np.zeros_like(total), where=total > 0)
    charged: Array = np.where(round_.free_open, arrived * part[:, None], arrived)
    return charged


def evaluate(round_: Round, x: Array, shed: Array, shed_price: Array) -> Cost:
    """The cost of a flow x [R, E] and refused traffic [R], both in requests/s; `shed_price` [R] in ms."""
    layout = round_.layout
    load = loads(round_, x)
    over = np.divide(load, round_.capacity, out=np.zeros_like(load), where=round_.capacity > 0)
    overload = (
        math.inf
        if np.any(x[~round_.usable] > 0)
        else max(0.0, float((over - 1.0 - layout.tolerance).max(initial=0.0)))
    )
    feasible = bool(np.all(load <= round_.capacity * OVER + 1e-12) and not np.any(x[~round_.usable] > 0))
    moved = paid_moves(round_, x)
    h, _ = round_.curves(load)
    h_moved, _ = round_.curves(load + layout.kappa @ moved)
    extra = np.subtract(h_moved, h, out=np.zeros_like(h), where=np.isfinite(h))
    ttft, tbot = round_.latency(load)
    per_engine = x.sum(axis=0)
    tokens = layout.tokens @ x
    network = float((x * layout.network).sum())
    return Cost(
        network=network,
        engine=float((x * layout.idle).sum() + h.sum()),
        churn=float(layout.gamma @ moved.sum(axis=1) + extra.sum()),
        shed=float(shed @ shed_price),
        true_latency=network + float((times(per_engine, ttft) + times(tokens, tbot)).sum()),
        served_rps=float(per_engine.sum()),
        feasible=feasible,
        overload=overload,
    )
