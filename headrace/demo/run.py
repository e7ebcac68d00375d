"""One run of the demo: start the fleet, warm it up, measure, summarise, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from headrace.demo import view
from headrace.demo.conversations import RequestShape
from headrace.demo.fleet import Fleet
from headrace.demo.load import LoadGenerator
from headrace.demo.load_records import Record, summarise
from headrace.demo.scenario import Scenario

_RECENT_S = 5.0
_SESSION_PAUSE_S = 15.0
"""Mean time between two turns of a conversation: with the request rate it gives the open conversations."""


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What a run is told."""

    duration_s: float = 40.0
    warmup_s: float = 20.0
    planning_policy: str | None = None
    rate_divisor: float = 1.0
    seed: int = 1
    early_headers: bool = True


async def run_demo(config: DemoConfig, console: Console) -> dict[str, Any]:
    """Run and return the result in the shape of DESIGN §8 (`headrace demo --json`).

    Raises ChildFailedError with the tail of its log when a part does not come up.
    """
    scenario = Scenario.talk(rate_divisor=config.rate_divisor)
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as directory:
        console.print(_opening(scenario, config))
        fleet = Fleet(
            scenario,
            Path(directory),
            planning_policy=config.planning_policy,
            early_headers=config.early_headers,
        )
        async with fleet:
            return await _measure(fleet, config, console)


def _opening(scenario: Scenario, config: DemoConfig) -> str:
    demand = ", ".join(f"{name} {rps:g}" for name, rps in scenario.demand_rps.items())
    replicas = ", ".join(f"{name} × {count}" for name, count in scenario.replicas.items())
    text = f"Starting a control plane, three Envoys and the engines {replicas}; demand/s: {demand}."
    if scenario.rate_divisor != 1:
        text += f"\nAll rates and capacities are divided by {scenario.rate_divisor:g} to fit this machine."
    return text + f" Warm-up {config.warmup_s:g} s, then {config.duration_s:g} s are measured."


def load_for(fleet: Fleet, config: DemoConfig) -> LoadGenerator:
    """The demo's clients: Poisson arrivals of turns of many conversations at every front-end."""
    scenario = fleet.scenario
    rate = max(scenario.demand_rps.values())
    shape = RequestShape(
        model=scenario.served_as(next(iter(scenario.replicas))),
        output_tokens=scenario.output_tokens(),
        open_conversations=max(50, round(rate * _SESSION_PAUSE_S)),
    )
    targets = {frontend: fleet.url(frontend) for frontend in fleet.envoys}
    return LoadGenerator(targets, scenario.demand_rps, shape, random.Random(config.seed))


async def _measure(fleet: Fleet, config: DemoConfig, console: Console) -> dict[str, Any]:
    generator = load_for(fleet, config)
    async with asyncio.TaskGroup() as group:
        load = group.create_task(generator.run(config.warmup_s + config.duration_s))
        shares = group.create_task(_watch(fleet, generator, config, console))
        try:
            await load
        finally:
            shares.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await shares
    status = await fleet.api("/api/status")
    return result(status, list(generator.records), config)


async def _watch(fleet: Fleet, generator: LoadGenerator, config: DemoConfig, console: Console) -> None:
    """Show the fleet twice a second on a terminal, every five seconds elsewhere, until cancelled."""
    started = time.monotonic()
    measuring = False
    every_s = 0.5 if console.is_terminal else 5.0
    with Live(console=console, auto_refresh=False) if console.is_terminal else _lines(console) as show:
        while True:
            elapsed = time.monotonic() - started
            if not measuring and elapsed >= config.warmup_s:
                measuring = True
                generator.start_measuring()
            status = await fleet.api("/api/status")
            since = time.monotonic() - _RECENT_S
            recent = [r for r in generator.records if r.arrived_at + r.e2e_s >= since]
            show.update(view.live(status, recent, _headline(elapsed, config, status)), refresh=True)
            left = config.warmup_s - elapsed
            await asyncio.sleep(min(every_s, left) if left > 0 else every_s)


class _Lines:
    """Stands in for `Live` where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def update(self, renderable: Any, *, refresh: bool) -> None:
        """Print it."""
        self._console.print(renderable)


@contextlib.contextmanager
def _lines(console: Console) -> Any:
    yield _Lines(console)


def _headline(elapsed: float, config: DemoConfig, status: Mapping[str, Any]) -> str:
    total = config.warmup_s + config.duration_s
    phase = "warm-up" if elapsed < config.warmup_s else "measuring"
    round_ = status["last_round"] or {}
    reason = round_.get("reason", "")
    return f"{phase} {min(elapsed, total):.0f} / {total:.0f} s · snapshot {status['snapshot']} · {reason}"


def result(status: Mapping[str, Any], records: list[Record], config: DemoConfig) -> dict[str, Any]:
    """The run in the shape of `headrace demo --json`."""
    return {
        "policy": config.planning_policy or "global",
        "rate_divisor": config.rate_divisor,
        "duration_s": config.duration_s,
        "snapshot_version": status["snapshot"],
        "shares": status["shares"],
        "frontends": summarise(records),
        "all": _all(records),
    }


def _all(records: list[Record]) -> Mapping[str, Any]:
    summaries = summarise(replace(record, frontend="all") for record in records)
    return summaries.get("all", _EMPTY)


_EMPTY: Mapping[str, Any] = {
    "requests": 0,
    "ok": 0,
    "failed": 0,
    "shed": 0,
    "by_engine": {},
    "ttft_ms": {"mean": None, "p50": None, "p99": None},
    "e2e_ms": {"mean": None, "p50": None, "p99": None},
}
