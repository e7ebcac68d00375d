"""What demand, divided by shares, puts on engines. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from optimizer import Problem, Shares

Demand = Mapping[str, Mapping[str, float]]
"""front-end -> key -> req/s."""


def engine_loads(shares: Shares, problem: Problem, demand: Demand, power: int = 1) -> dict[str, float]:
    """engine -> Σ rate × share × work^power: with 1 the load in work/s, with 2 its variance per second of
    Poisson arrivals. What the problem does not know is left out."""
    load: dict[str, float] = {}
    for frontend, rows in shares.items():
        for key, row in rows.items():
            rate = demand.get(frontend, {}).get(key, 0.0)
            for engine, share in row.items():
                if engine in problem.engines and key in problem.keys:
                    work = problem.keys[key].work.get(engine, 1.0)
                    load[engine] = load.get(engine, 0.0) + rate * share * work**power
    return load
