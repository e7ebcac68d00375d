"""Seeded random fleets for the optimizer's benchmarks."""

from __future__ import annotations

import numpy as np

from optimizer import Engine, Key, Problem, Profile


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
    **changes: object,
) -> Problem:
    """A fleet on a 200 ms wide map; `load` is demanded work over effective capacity."""
    rng = np.random.default_rng(seed)
    kinds = profiles(rng)
    where = rng.uniform(0, 1, (frontends + engines, 2))
    names = [f"e{j:04d}" for j in range(engines)]
    fronts = [f"f{i:03d}" for i in range(frontends)]
    pool = {
        name: Engine(kinds[int(rng.integers(len(kinds)))], ready_replicas=int(rng.integers(2, 20)))
        for name in names
    }
    distance = np.linalg.norm(where[:frontends, None] - where[None, frontends:], axis=2) * 200 + 1
    network = {f: dict(zip(names, distance[i].tolist(), strict=True)) for i, f in enumerate(fronts)}
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
    fields: dict[str, object] = {
        "demand_rps": {f: {k: r * scale for k, r in row.items()} for f, row in rates.items()},
        "network_ms": network,
        "engines": pool,
        "keys": keys,
        "eligible": allowed,
    }
    return Problem(**{**fields, **changes})  # type: ignore[arg-type]  # fields by name


def noisy(problem: Problem, rng: np.random.Generator, noise: float, **changes: object) -> Problem:
    """The same fleet with every demand times a lognormal factor."""
    import dataclasses

    demand = {
        f: {k: r * float(np.exp(rng.normal(0, noise))) for k, r in row.items()}
        for f, row in problem.demand_rps.items()
    }
    return dataclasses.replace(problem, demand_rps=demand, **changes)  # type: ignore[arg-type]  # by name
