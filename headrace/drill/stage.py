"""Runs one drill: a fleet of its own, load, calm, the fault, and what comes after; nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.child import ChildFailedError
from headrace.demo.conversations import RequestShape
from headrace.demo.fleet import Fleet
from headrace.demo.load import LoadGenerator
from headrace.demo.scenario import Scenario
from headrace.drill.drill import Drill, Stream
from headrace.drill.evidence import Evidence
from headrace.drill.hands import Hands
from headrace.drill.policy import quicken
from headrace.drill.watch import Watch

_DEMAND_SEEN_S = 10.0
"""Longest wait for the control plane to see the demand, after a drill's own warm-up."""
_CLIENT_TIMEOUT_S = 20.0
_SESSIONS = 3000
"""Open conversations of a stream and front-end: so many that sessions, which are moved and refused whole,
are fine-grained beside the shares."""


@dataclass(frozen=True, slots=True)
class StageConfig:
    """What all drills of a run have in common."""

    rate_divisor: float = 2.0
    seed: int = 1
    scenario: Callable[[float], Scenario] = lambda divisor: Scenario.talk(rate_divisor=divisor)
    """The fleet, from the rate divisor."""


async def run_drill(drill: Drill, config: StageConfig) -> Evidence:
    """Carry out a drill and return what was seen. Raises ChildFailedError when a part does not come up."""
    scenario = prepared(drill, config)
    try:
        return await _with_fleet(drill, scenario, config)
    except* ChildFailedError as failed:
        raise ChildFailedError(f"{drill.name}: {_cause(failed)}") from None


def _cause(group: BaseExceptionGroup[ChildFailedError]) -> ChildFailedError:
    """The first error in a group of groups."""
    first = group.exceptions[0]
    return _cause(first) if isinstance(first, BaseExceptionGroup) else first


async def _with_fleet(drill: Drill, scenario: Scenario, config: StageConfig) -> Evidence:
    with tempfile.TemporaryDirectory(prefix="headrace-drill-") as directory:
        async with Fleet(scenario, Path(directory), early_headers=drill.early_headers) as fleet:
            return await _carry_out(drill, fleet, config)


def prepared(drill: Drill, config: StageConfig) -> Scenario:
    """The scenario of a drill: the run's, quickened and amended; demand as the drill's calm load."""
    plain = config.scenario(config.rate_divisor)
    document: dict[str, Any] = copy.deepcopy(dict(plain.document))
    quicken(document)
    drill.amend(document)
    total = sum(stream.calm for stream in drill.streams) * nominal_rps(plain)
    weight = sum(plain.demand_rps.values())
    demand = {name: total * rps / weight for name, rps in plain.demand_rps.items()}
    return Scenario(document, demand, plain.replicas, plain.rate_divisor)


def nominal_rps(scenario: Scenario) -> float:
    """Capacity of all replicas together, requests/s."""
    return sum(
        count * float(scenario.profile(engine)["capacity_rps"]) for engine, count in scenario.replicas.items()
    )


async def _carry_out(drill: Drill, fleet: Fleet, config: StageConfig) -> Evidence:
    async with asyncio.TaskGroup() as group, _load(drill, fleet, config.seed) as load:
        hands, watch = Hands(fleet, group), Watch(fleet)
        await _warm_up(fleet, drill.warm_s)
        async with _beside(watch.run()):
            for generator in load.values():
                generator.start_measuring()
            calm_from = time.monotonic()
            await asyncio.sleep(drill.calm_s)
            await watch.count()
            fault_from = time.monotonic()
            _set_rates(drill, fleet, load, during_fault=True)
            async with _beside(drill.inflict(hands)):
                await asyncio.sleep(drill.fault_s)
            fault_to = time.monotonic()
            _set_rates(drill, fleet, load, during_fault=False)
            await drill.lift(hands)
            await asyncio.sleep(max(0.0, drill.after_s - (time.monotonic() - fault_to)))
            await watch.count()
            end = time.monotonic()
    return Evidence(
        calm_from=calm_from,
        fault_from=fault_from,
        fault_to=fault_to,
        end=end,
        records={name: tuple(generator.records) for name, generator in load.items()},
        samples=tuple(watch.samples),
        counters=tuple(watch.counters),
        capacity_rps=nominal_rps(fleet.scenario) * float(fleet.policy.planning.max_utilization),
        replicas=dict(fleet.scenario.replicas),
        notes=hands.notes,
    )


@contextlib.asynccontextmanager
async def _beside(work: Any) -> AsyncIterator[None]:
    """Do something meanwhile; at the end it is cancelled. What it raises is raised here."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def _load(drill: Drill, fleet: Fleet, seed: int) -> AsyncIterator[dict[str, LoadGenerator]]:
    """The streams' generators, sending; on leaving, all answers have come."""
    rng = random.Random(seed)
    load = {stream.name: _generator(fleet, stream, random.Random(rng.random())) for stream in drill.streams}
    _set_rates(drill, fleet, load, during_fault=False)
    async with asyncio.TaskGroup() as group:
        for generator in load.values():
            group.create_task(generator.run())
        yield load
        for generator in load.values():
            generator.stop()


def _generator(fleet: Fleet, stream: Stream, rng: random.Random) -> LoadGenerator:
    scenario = fleet.scenario
    shape = RequestShape(
        model=scenario.served_as(next(iter(scenario.replicas))),
        output_tokens=scenario.output_tokens(),
        open_conversations=_SESSIONS,
    )
    targets = {frontend: fleet.url(frontend) for frontend in fleet.envoys}
    return LoadGenerator(targets, {}, shape, rng, timeout_s=_CLIENT_TIMEOUT_S, headers=dict(stream.headers))


def _set_rates(drill: Drill, fleet: Fleet, load: dict[str, LoadGenerator], *, during_fault: bool) -> None:
    nominal, weights = nominal_rps(fleet.scenario), fleet.scenario.demand_rps
    for stream in drill.streams:
        part = stream.fault if during_fault and stream.fault is not None else stream.calm
        for frontend, weight in weights.items():
            load[stream.name].set_rate(frontend, part * nominal * weight / sum(weights.values()))


async def _warm_up(fleet: Fleet, least_s: float) -> None:
    """Until caches are warm and the control plane sees the demand that is sent."""
    started = time.monotonic()
    wanted, seen = 0.9 * sum(fleet.scenario.demand_rps.values()), 0.0
    await asyncio.sleep(least_s)
    while seen < wanted and time.monotonic() - started < least_s + _DEMAND_SEEN_S:
        status = await fleet.api("/api/status")
        seen = sum(rps for row in status["demand_rps"].values() for rps in row.values())
        await asyncio.sleep(0.25)
