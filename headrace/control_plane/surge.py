"""In-round correction: demand that runs away from the plan, seen fast and judged with hysteresis.

The plan follows demand smoothed over tens of seconds, which is what keeps sessions in place. A surge that
would overload an engine must not wait for it. Rows whose fast estimate exceeds the smoothed one by `ENTER`,
and by more than noise explains, are surging until it is below `LEAVE`. While any surge would put an engine
over its capacity, surging rows are planned with the fast estimate, at once. Below capacity a surge changes
nothing, so that the correction never fights the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from optimizer import SHED, Plan, Problem

ENTER = 1.25
LEAVE = 1.10
SIGMAS = 4.0
FAST_WINDOW_S = 4.0
"""Window of the fast estimate: of `rps` Poisson arrivals/s its standard deviation is √(rps / window)."""

Demand = Mapping[str, Mapping[str, float]]
"""front-end -> key -> req/s."""


class Surges:
    """Which rows surge. The only owner of that state."""

    def __init__(self) -> None:
        self._rows: frozenset[tuple[str, str]] = frozenset()

    def update(self, smoothed: Demand, fast: Demand) -> None:
        """Take both estimates."""
        rows = set()
        for frontend, keys in fast.items():
            for key, rps in keys.items():
                slow = smoothed.get(frontend, {}).get(key, 0.0)
                if rps > self._threshold((frontend, key), slow):
                    rows.add((frontend, key))
        self._rows = frozenset(rows)

    def _threshold(self, row: tuple[str, str], slow: float) -> float:
        if row in self._rows:
            return LEAVE * slow
        return max(ENTER * slow, slow + SIGMAS * math.sqrt(max(slow, 1.0) / FAST_WINDOW_S))

    def demand(self, smoothed: Demand, fast: Demand) -> dict[str, dict[str, float]]:
        """What to plan for: the fast estimate where a row surges, the smoothed one elsewhere."""
        return {
            frontend: {
                key: max(rps, fast.get(frontend, {}).get(key, 0.0)) if (frontend, key) in self._rows else rps
                for key, rps in keys.items()
            }
            for frontend, keys in smoothed.items()
        }

    @property
    def any(self) -> bool:
        """Whether a row surges."""
        return bool(self._rows)


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
