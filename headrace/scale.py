"""How planning time and the size of what Envoys receive grow with the fleet: scenarios with `scale`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import TypeVar

import numpy as np

from optimizer import Partition, Plan, Problem, Warm, plan, replan
from optimizer.simulation.fleets import fleet, noisy
from xds_server import routing
from xds_server.resource_types import RDS
from xds_server.translate import translate

Row = tuple[str, str]
"""(front-end, key)"""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Scale:
    """What is measured: random fleets of some sizes, the same for the same seed."""

    sizes: tuple[tuple[int, int], ...]
    """(front-ends, engines)."""
    classes: int = 1
    load: float = 0.7
    """Demanded work over effective capacity."""
    noise: float = 0.03
    """Deviation of every demand from round to round, relative."""
    rounds: int = 6
    """How many warm rounds, and how many of the planning loop."""
    price_ms: float = 5.0
    churn_work: float = 0.05
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Times:
    """Medians over the rounds of one kind."""

    rounds: int
    wall_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one size of fleet takes."""

    frontends: int
    engines: int
    cold: Times
    """The first plan, with nothing known."""
    warm: Times
    """Whole plans under noise, each from the shares of the one before."""
    quiet: Times | None
    """Rounds of the planning loop that the price check settled; None when there was none."""
    gap: float
    """Largest certified gap of the plans."""
    entries_mean: float
    """Intervals of the hash space, of a front-end and key, after the warm rounds."""
    entries_most: int
    rds_bytes: int
    """Route configuration of the front-end with the most intervals."""
    snapshot_bytes: int
    """All resources of that front-end, addresses of replicas included."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Wall and CPU time, s."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time

    def timed(self, run: Callable[[], Result]) -> tuple[Result, tuple[float, float]]:
        """Return a result and the (wall, CPU) time that it took, ms."""
        wall, cpu = self.wall(), self.cpu()
        result = run()
        return result, (1e3 * (self.wall() - wall), 1e3 * (self.cpu() - cpu))


def measure(scale: Scale, frontends: int, engines: int, clocks: Clocks | None = None) -> Measured:
    """Plan a fleet of one size cold, warm and in the loop, and translate its shares for one front-end."""
    clocks = Clocks() if clocks is None else clocks
    problem = fleet(
        scale.seed,
        frontends,
        engines,
        scale.classes,
        scale.load,
        gamma_ms=scale.price_ms,
        kappa=scale.churn_work,
    )
    state = Warm()
    first, cold = clocks.timed(partial(plan, problem, warm=state))
    plans, warm = _warm_rounds(scale, problem, first, state, clocks)
    quiet = _quiet_rounds(scale, problem, plans[-1], state, clocks)
    partitions = _partitions(plans)
    entries = [len(partition.entries) for partition in partitions.values()]
    sizes = _resource_bytes(problem, plans[-1], partitions)
    return Measured(
        frontends=frontends,
        engines=engines,
        cold=_times([cold]),
        warm=_times(warm),
        quiet=_times(quiet) if quiet else None,
        gap=max(each.gap for each in plans),
        entries_mean=mean(entries),
        entries_most=max(entries),
        rds_bytes=sizes[RDS.url],
        snapshot_bytes=sum(sizes.values()),
    )


def _times(spent: list[tuple[float, float]]) -> Times:
    return Times(len(spent), median(wall for wall, _ in spent), median(cpu for _, cpu in spent))


def _warm_rounds(
    scale: Scale, problem: Problem, first: Plan, state: Warm, clocks: Clocks
) -> tuple[list[Plan], list[tuple[float, float]]]:
    rng, plans, spent = np.random.default_rng(scale.seed), [first], []
    for _ in range(scale.rounds):
        now = noisy(problem, rng, scale.noise, plans[-1].shares)
        result, took = clocks.timed(partial(plan, now, warm=state))
        plans.append(result)
        spent.append(took)
    return plans, spent


def _quiet_rounds(
    scale: Scale, problem: Problem, last: Plan, state: Warm, clocks: Clocks
) -> list[tuple[float, float]]:
    rng, shares, spent = np.random.default_rng(scale.seed + 1), last.shares, []
    for _ in range(scale.rounds):
        now = noisy(problem, rng, scale.noise, shares)
        result, took = clocks.timed(partial(replan, now, warm=state))
        if result.plan is None:
            spent.append(took)
        elif result.decision.publish:
            shares = result.plan.shares
    return spent


def _partitions(plans: list[Plan]) -> dict[Row, Partition]:
    """The hash space of every row after these plans."""
    found: dict[Row, Partition] = {}
    for each in plans:
        for frontend, rows in each.shares.items():
            for key, row in rows.items():
                found[frontend, key] = found.get((frontend, key), Partition(())).relabel(row)
    return found


def _resource_bytes(problem: Problem, last: Plan, partitions: Mapping[Row, Partition]) -> dict[str, int]:
    """Type URL -> bytes of what the Envoys of the front-end with the most intervals are sent."""
    frontend, _ = max(partitions, key=lambda row: (len(partitions[row].entries), row))
    snapshot = translate(_table(problem, last, partitions, frontend), frontend)
    return {
        url: sum(len(resource.body) for resource in named.values()) for url, named in snapshot.types.items()
    }


def _table(
    problem: Problem, last: Plan, partitions: Mapping[Row, Partition], frontend: str
) -> routing.RoutingTable:
    """The routing table of one front-end: the engines in use and their fallbacks, every replica of them."""
    splits = []
    for key in problem.demand_rps[frontend]:
        model, _, cls = key.rpartition("/")
        fallback = last.second_best.get(frontend, {}).get(key, {})
        splits.append(routing.Split(model, cls, partitions[frontend, key].entries, fallback))
    labels = [split.traffic_class for split in splits]
    reached = {
        name: _replicas(at, int(engine.ready_replicas))
        for at, (name, engine) in enumerate(problem.engines.items())
    }
    return routing.RoutingTable(
        fleet="scale",
        listeners=(routing.Listener("public", 8443, labels[0]),),
        classes=tuple(routing.TrafficClass(label, "x-traffic-class", label) for label in labels),
        match_order=(),
        models=tuple(routing.Model(split.model, (split.model,)) for split in splits),
        engines={name: routing.Engine(name) for name in problem.engines},
        frontends={frontend: routing.FrontendRouting(frontend, tuple(splits), reached)},
    )


def _replicas(engine: int, count: int) -> tuple[routing.Endpoint, ...]:
    high, low = divmod(engine, 256)
    return tuple(routing.Endpoint(f"r{n}", f"10.{high}.{low}.{n + 1}", 8000) for n in range(count))
