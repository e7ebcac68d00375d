"""A trickle for engines that have never served anybody, so that something can be known of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from optimizer import SHED, Problem, Shares, with_exploration

_PART_OF_ENGINE = 0.1
"""A trickle takes at most this part of an engine's capacity."""
_PART_OF_ROW = 0.1
"""All trickles together take at most this part of a row; further engines wait for their turn."""


def explored_shares(
    problem: Problem, shares: Shares, unknown: Collection[str], part: float
) -> dict[str, dict[str, dict[str, float]]]:
    """front-end -> key -> destination -> fraction, of the rows that change.

    An unknown engine gets `part` of one row: of those that may use it and have demand, the nearest, then the
    largest. It gets nothing while it is sent anything anyway, has no effective capacity, or is penalised.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for engine in sorted(set(unknown) - _loaded(problem, shares)) if part > 0 else ():
        spec = problem.engines.get(engine)
        if spec is None or spec.capacity_rps <= 0 or spec.penalty < 1.0:
            continue
        row = min(_rows(problem, shares, engine), default=None)
        if row is None:
            continue
        *_, frontend, key = row
        work_rps = problem.demand_rps[frontend][key] * problem.keys[key].work.get(engine, 1.0)
        least = min(part, spec.max_share, _PART_OF_ENGINE * spec.capacity_rps / work_rps)
        before = found.get(frontend, {}).get(key) or shares[frontend][key]
        if sum(before.get(name, 0.0) for name in unknown) + least > _PART_OF_ROW:
            continue
        tried = with_exploration({frontend: {key: before}}, [engine], {engine: (frontend, key)}, least)
        found.setdefault(frontend, {})[key] = tried[frontend][key]
    return found


def _loaded(problem: Problem, shares: Shares) -> set[str]:
    """Engines that a row with demand is sent to."""
    return {
        name
        for frontend, rows in shares.items()
        for key, row in rows.items()
        if problem.demand_rps.get(frontend, {}).get(key, 0.0) > 0
        for name, share in row.items()
        if share > 0
    }


def _rows(problem: Problem, shares: Shares, engine: str) -> Iterator[tuple[float, float, str, str]]:
    """(distance, -demand, front-end, key) of the rows that may use an engine and are served by others."""
    for (frontend, key), engines in problem.eligible.items():
        rps = problem.demand_rps.get(frontend, {}).get(key, 0.0)
        served = shares.get(frontend, {}).get(key, {}).keys() - {SHED}
        if engine in engines and rps > 0 and served:
            yield problem.network_ms[frontend][engine], -rps, frontend, key
