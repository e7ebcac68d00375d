"""In-round correction: demand that runs away from the plan, seen fast and judged with hysteresis.

The plan follows demand smoothed over tens of seconds, which is what keeps sessions in place. A surge that
would overload an engine must not wait for it. Rows whose fast estimate exceeds the smoothed one by `ENTER`,
and by more than noise explains, are surging until it is below `LEAVE`; so are all that grow while an engine
is beyond its capacity by more than noise explains: many small rows rise long before each of them shows it.

When surges put an engine over its capacity, surging rows are planned with the fast estimate, at once and
until that has settled, and both estimates begin anew with what came last: the old level says nothing any
more, and would let too much in until it is forgotten. Below capacity a surge changes nothing, so that the
correction never fights the plan. When what is asked of a model that refuses a part falls as clearly, its
smoothing begins anew as well, so that nothing is refused for what is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.control_plane.loads import Demand, engine_loads
from headrace.profiles import DISPERSION
from optimizer import Problem, Shares

ENTER = 1.25
LEAVE = 1.05
SIGMAS = 4.0
BEYOND_SIGMAS = 2.5
"""For engines: calm load is below capacity anyway, so that noise has further to go."""
FALLEN_SIGMAS = 3.0
"""For what is asked of a model that refuses a part: a false alarm costs the memory of an average."""
FAST_WINDOW_S = 4.0
"""Window of the fast estimate: of `rps` arrivals/s its standard deviation is √(dispersion · rps / window)."""
SETTLE_S = 2 * FAST_WINDOW_S
"""Smoothing that begins anew when a surge is just seen begins too low: so long the fast estimate counts."""

Row = tuple[str, str]
"""(front-end, key)"""


class Surges:
    """Which rows surge. The only owner of that state."""

    def __init__(self) -> None:
        self._rows: frozenset[Row] = frozenset()
        self._anew: dict[Row, float] = {}
        """row -> when its smoothing began anew."""

    def update(self, smoothed: Demand, fast: Demand, now: float, *, beyond: bool = False) -> None:
        """Take both estimates. `beyond`: an engine is clearly over its capacity by the fast one."""
        self._anew = {row: at for row, at in self._anew.items() if now - at < SETTLE_S}
        self._rows = frozenset(
            (frontend, key)
            for frontend, keys in fast.items()
            for key, rps in keys.items()
            if rps > self._threshold((frontend, key), smoothed.get(frontend, {}).get(key, 0.0), beyond)
        ) | frozenset(self._anew)

    def _threshold(self, row: Row, slow: float, beyond: bool) -> float:
        return LEAVE * slow if beyond or row in self._rows else _clearly_above(slow)

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


def fallen(smoothed: Demand, fast: Demand, latest: Mapping[Row, float]) -> dict[Row, float]:
    """Of the rows in `latest`, those of models whose demand is clearly below what it was; what each asks for
    now, req/s. `latest`: what came at most lately, which is nearer to that than any average.

    It is judged by the sum: many small rows fall long before each of them shows it, and they are all for the
    same engines. What is left of it is divided as the fast estimate is.
    """
    models: dict[str, list[Row]] = {}
    for row in latest:
        models.setdefault(model_of(row), []).append(row)
    found: dict[Row, float] = {}
    for mine in models.values():
        slow, now = _sum(smoothed, mine), _sum(fast, mine)
        if slow > _clearly_above(now, FALLEN_SIGMAS):
            part = min(1.0, sum(latest[row] for row in mine) / now) if now > 0.0 else 0.0
            found |= {row: _sum(fast, [row]) * part for row in mine}
    return found


def model_of(row: Row) -> str:
    """The model whose engines serve a row."""
    return row[1].rpartition("/")[0]


def _sum(demand: Demand, rows: list[Row]) -> float:
    return sum(demand.get(frontend, {}).get(key, 0.0) for frontend, key in rows)


def _clearly_above(rps: float, sigmas: float = SIGMAS) -> float:
    """What noise about a rate does not explain."""
    return max(ENTER * rps, rps + sigmas * math.sqrt(DISPERSION * max(rps, 1.0) / FAST_WINDOW_S))


def overloads(shares: Shares, problem: Problem, demand: Demand, sigmas: float = 0.0) -> list[str]:
    """Engines that `demand`, divided by `shares`, would put over their effective capacity, reserve included.

    By more than `sigmas` standard deviations of a load that is estimated over `FAST_WINDOW_S`."""
    load, variance = (engine_loads(shares, problem, demand, power) for power in (1, 2))
    noise = {name: sigmas * math.sqrt(DISPERSION * each / FAST_WINDOW_S) for name, each in variance.items()}
    engines = {name: problem.engines[name] for name in load}
    capacity = {name: spec.capacity_rps / (1.0 - spec.reserve) * (1 + 1e-6) for name, spec in engines.items()}
    return sorted(name for name, rps in load.items() if rps > capacity[name] + noise[name])
