"""Seeded random fleets, to measure planning at any size."""

from __future__ import annotations

import dataclasses

import numpy as np

from optimizer.problem import Engine, Key, Problem, Shares
from optimizer.profile import Profile

MAP_MS = 200.0
"""Round trip along one side of the square on which front-ends and engines lie."""


def profiles(rng: np.random.Generator, count: int = 4) -> list[Profile]:
    """Replica profiles in the range of published engines: t0 8-35 ms, λmax 3-25 requests/s."""
    out = []
    for _ in range(count):
        lambda_max = float(rng.uniform(3, 25))
        capacity = lambda_max * float(rng.uniform(0.8, 0.92))
        out.append(
            Profile.parametric(
                capacity_rps=capacity,
                lambda_max_rps=lambda_max,
                t0_ms=float(rng.uniform(8, 35)),
                ttft_base_ms=float(rng.uniform(40, 200)),
                ttft_knee_rps=capacity * float(rng.uniform(0.5, 0.9)),
                ttft_slope=float(rng.uniform(10, 200)),
            )
        )
    return out


def fleet(
    seed: int,
    frontends: int,
    engines: int,
    classes: int = 1,
    load: float = 0.7,
    eligible: float = 1.0,
    gamma_ms: float = 5.0,
    kappa: float = 0.05,
    work_spread: bool = True,
) -> Problem:
    """A fleet on a square map; the same arguments give the same fleet.

    Args:
        seed: of all draws.
        frontends, engines, classes: how many; a key a class.
        load: demanded work over effective capacity.
        eligible: part of the engines that a front-end and key may use.
        gamma_ms, kappa: price and extra work of a moved request.
        work_spread: requests of different classes cost different work.
    """
    rng = np.random.default_rng(seed)
    kinds = profiles(rng)
    where = rng.uniform(0, 1, (frontends + engines, 2))
    names = [f"e{j:04d}" for j in range(engines)]
    fronts = [f"f{i:03d}" for i in range(frontends)]
    pool = {
        name: Engine(kinds[int(rng.integers(len(kinds)))], ready_replicas=int(rng.integers(2, 20)))
        for name in names
    }
    distance = np.linalg.norm(where[:frontends, None] - where[None, frontends:], axis=2) * MAP_MS + 1
    keys = {}
    for c in range(classes):
        work = float(rng.uniform(0.5, 2.0)) if work_spread and classes > 1 else 1.0
        keys[f"meta-llama/Llama-3.{c}/c{c}"] = Key(
            priority=c,
            output_tokens=float(rng.choice([28, 100, 211, 400])) if classes > 1 else 211.0,
            work={} if work == 1.0 else dict.fromkeys(names, work),
            gamma_ms=gamma_ms,
            kappa=kappa,
        )
    rates = {f: {k: float(rng.lognormal(0, 0.8)) for k in keys} for f in fronts}
    capacity = sum(e.capacity_rps for e in pool.values())
    wanted = sum(r * keys[k].work.get(names[0], 1.0) for row in rates.values() for k, r in row.items())
    scale = load * capacity / wanted
    everyone = frozenset(names)
    allowed = {}
    for f in fronts:
        for k in keys:
            some = frozenset(n for n in names if rng.random() < eligible)
            allowed[f, k] = everyone if eligible >= 1.0 else some or everyone
    return Problem(
        demand_rps={f: {k: r * scale for k, r in row.items()} for f, row in rates.items()},
        network_ms={f: dict(zip(names, distance[i].tolist(), strict=True)) for i, f in enumerate(fronts)},
        engines=pool,
        keys=keys,
        eligible=allowed,
    )


def noisy(
    problem: Problem, rng: np.random.Generator, noise: float, previous_shares: Shares | None = None
) -> Problem:
    """The same fleet with every demand times a lognormal factor of that deviation.

    `previous_shares`, when given, replace those of the problem.
    """
    demand = {
        f: {k: r * float(np.exp(rng.normal(0, noise))) for k, r in row.items()}
        for f, row in problem.demand_rps.items()
    }
    return dataclasses.replace(
        problem, demand_rps=demand, previous_shares=previous_shares or problem.previous_shares
    )
