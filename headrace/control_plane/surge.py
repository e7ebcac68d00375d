"""In-round correction: demand that runs away from the plan, seen fast and judged with hysteresis.

The plan follows demand smoothed over tens of seconds, which is what keeps sessions in place. A surge that
would overload an engine must not wait for it. Rows whose fast estimate exceeds the smoothed one by `ENTER`,
and by more than noise explains, are surging until it is below `LEAVE`; so are all that grow when the rows of
a model do so together, which tells a rise of many small rows long before each of them could.

While any surge would put an engine over its capacity, surging rows are planned with the fast estimate, at
once, and their smoothing begins anew from it: the old level says nothing any more, and would let too much in
until it is forgotten. Below capacity a surge changes nothing, so that the correction never fights the plan.
When a row of which a part is refused falls as clearly, its smoothing begins anew as well, so that nothing is
refused for what is over.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from optimizer import SHED, Plan, Problem

ENTER = 1.25
LEAVE = 1.10
SIGMAS = 4.0
FAST_WINDOW_S = 4.0
"""Window of the fast estimate: of `rps` Poisson arrivals/s its standard deviation is √(rps / window)."""
SETTLE_S = 2 * FAST_WINDOW_S
"""Smoothing that begins anew when a surge is just seen begins too low: so long the fast estimate counts."""

Demand = Mapping[str, Mapping[str, float]]
"""front-end -> key -> req/s."""
Row = tuple[str, str]
"""(front-end, key)"""


class Surges:
    """Which rows surge. The only owner of that state."""

    def __init__(self) -> None:
        self._rows: frozenset[Row] = frozenset()
        self._anew: dict[Row, float] = {}
        """row -> when its smoothing began anew."""

    def update(self, smoothed: Demand, fast: Demand, now: float) -> None:
        """Take both estimates."""
        self._anew = {row: at for row, at in self._anew.items() if now - at < SETTLE_S}
        growing = _growing_models(smoothed, fast)
        self._rows = frozenset(
            (frontend, key)
            for frontend, keys in fast.items()
            for key, rps in keys.items()
            if rps > self._threshold((frontend, key), smoothed.get(frontend, {}).get(key, 0.0), growing)
        ) | frozenset(self._anew)

    def _threshold(self, row: Row, slow: float, growing: Collection[str]) -> float:
        surges = row in self._rows or _model_of(row[1]) in growing
        return LEAVE * slow if surges else _clearly_above(slow)

    def demand(self, smoothed: Demand, fast: Demand) -> dict[str, dict[str, float]]:
        """What to plan for: the larger estimate where a row surges, the smoothed one elsewhere."""
        return {
            frontend: {
                key: max(rps, fast.get(frontend, {}).get(key, 0.0)) if (frontend, key) in self._rows else rps
                for key, rps in keys.items()
            }
            for frontend, keys in smoothed.items()
        }

    def begin_anew(self, now: float) -> frozenset[Row]:
        """The surging rows whose smoothing is to begin anew: each once a surge."""
        rows = self._rows - self._anew.keys()
        self._anew |= dict.fromkeys(rows, now)
        return rows

    @property
    def any(self) -> bool:
        """Whether a row surges."""
        return bool(self._rows)


def fallen(smoothed: Demand, fast: Demand) -> frozenset[Row]:
    """Rows whose demand is clearly below what it was."""
    return frozenset(
        (frontend, key)
        for frontend, keys in smoothed.items()
        for key, slow in keys.items()
        if slow > _clearly_above(fast.get(frontend, {}).get(key, 0.0))
    )


def _model_of(key: str) -> str:
    """The model of a key."""
    return key.rpartition("/")[0]


def _growing_models(smoothed: Demand, fast: Demand) -> frozenset[str]:
    slow_of, fast_of = _by_model(smoothed), _by_model(fast)
    return frozenset(m for m, rps in fast_of.items() if rps > _clearly_above(slow_of.get(m, 0.0)))


def _by_model(demand: Demand) -> dict[str, float]:
    total: dict[str, float] = {}
    for keys in demand.values():
        for key, rps in keys.items():
            total[_model_of(key)] = total.get(_model_of(key), 0.0) + rps
    return total


def _clearly_above(rps: float) -> float:
    """What noise about a rate does not explain."""
    return max(ENTER * rps, rps + SIGMAS * math.sqrt(max(rps, 1.0) / FAST_WINDOW_S))


def overloads(plan: Plan, problem: Problem, demand: Demand) -> list[str]:
    """Engines that `demand`, divided by a plan's shares, would put over their effective capacity."""
    load: dict[str, float] = {}
    for frontend, rows in plan.shares.items():
        for key, shares in rows.items():
            rate = demand.get(frontend, {}).get(key, 0.0)
            for engine, share in shares.items():
                if engine != SHED:
                    work = problem.keys[key].work.get(engine, 1.0)
                    load[engine] = load.get(engine, 0.0) + rate * share * work
    capacity = {name: planned.capacity_rps for name, planned in plan.engines.items()}
    return sorted(name for name, rps in load.items() if rps > capacity.get(name, 0.0) * (1 + 1e-6))
