"""A small fleet of real processes for the tests: two regions, two replicas each, and ways to watch it."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable
from typing import Any

import yaml

from headrace.demo.conversations import RequestShape
from headrace.demo.fleet import Fleet
from headrace.demo.load import LoadGenerator
from headrace.demo.load_records import Record
from headrace.demo.scenario import Scenario

MODEL = "acme/chat-3.1"
KEY = "chat/interactive"
POLICY = """
version: 1
fleet: test
regions:
  west: {jurisdiction: us, replica_cidrs: [127.0.0.0/8]}
  east: {jurisdiction: us, replica_cidrs: [127.0.0.0/8]}
frontends:
  west: {region: west}
  east: {region: east}
listeners:
  public: {port: 0, address: 127.0.0.1, default_class: interactive}
classes:
  interactive: {output_tokens: 8}
models:
  chat: {served_as: [acme/chat-3.1]}
profiles:
  gpu: {t0_ms: 20, lambda_max_rps: 60, capacity_rps: 50, ttft_ms: {base: 30}}
engines:
  west-gpu: {model: chat, region: west, profile: gpu}
  east-gpu: {model: chat, region: east, profile: gpu}
network: {rtt_ms: {west: {east: 40}}}
planning: {interval_s: 1, demand_window_s: 4}
"""


def small(**changes: Any) -> Scenario:
    """The scenario of `POLICY`, with top-level sections replaced."""
    document = yaml.safe_load(POLICY) | changes
    return Scenario(
        document, demand_rps={"west": 30.0, "east": 30.0}, replicas={"west-gpu": 2, "east-gpu": 2}
    )


def edited(scenario: Scenario, edit: Callable[[dict[str, Any]], None]) -> str:
    """The scenario's policy after an edit, as text."""
    document = copy.deepcopy(dict(scenario.document))
    edit(document)
    return yaml.safe_dump(document)


def load_for(fleet: Fleet, *, stream_share: float = 0.5, seed: int = 1) -> LoadGenerator:
    """Requests of many short conversations at both front-ends."""
    shape = RequestShape(
        model=MODEL, turn_tokens=20, output_tokens=8, stream_share=stream_share, open_conversations=200
    )
    targets = {frontend: fleet.url(frontend) for frontend in fleet.envoys}
    return LoadGenerator(targets, fleet.scenario.demand_rps, shape, random.Random(seed))


async def until(
    fleet: Fleet, holds: Callable[[dict[str, Any]], bool], timeout_s: float = 30.0
) -> dict[str, Any]:
    """Ask the control plane for its status until `holds(status)`; returns that status."""
    return await answered(lambda: fleet.api("/api/status"), holds, timeout_s)


async def answered(
    ask: Callable[[], Awaitable[dict[str, Any]]],
    holds: Callable[[dict[str, Any]], bool],
    timeout_s: float = 30.0,
) -> dict[str, Any]:
    """Ask another process until its answer holds; returns that answer."""
    answer: dict[str, Any] = {}
    try:
        async with asyncio.timeout(timeout_s):
            while not answer or not holds(answer):
                answer = await ask()
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"did not come true in {timeout_s:g} s; last answer: {answer}") from None
    return answer


def ready(status: dict[str, Any], engine: str) -> int:
    return int(status["engines"][engine]["ready_replicas"])


def share(status: dict[str, Any], frontend: str, engine: str) -> float:
    return float(status["shares"][frontend][KEY].get(engine, 0.0))


def demand(status: dict[str, Any]) -> float:
    """Whole measured demand, req/s."""
    return float(sum(sum(row.values()) for row in status["demand_rps"].values()))


def failures(generator: LoadGenerator) -> list[Record]:
    """What failed although the engine had sent no response headers (a stream's come with its first token)."""
    return [r for r in generator.records if r.failure and not (r.streamed and r.status == 200)]


def cut(generator: LoadGenerator) -> list[Record]:
    """Streams that ended before they were whole."""
    return [r for r in generator.records if r.failure and r.streamed and r.status == 200]
