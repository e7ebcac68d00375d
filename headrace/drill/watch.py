"""Looks at a running fleet a few times a second: the control plane's status, the Envoys' counters."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from headrace.demo.fleet import Fleet
from headrace.drill.evidence import Counters, Sample

_LOOK_EVERY_S = 0.1
_COUNT_EVERY_S = 1.0
_RETRIES = r"^cluster\.[^.]+\.upstream_rq_retry(_overflow)?$"
_LIMIT = ".default.retry_budget.min_retry_concurrency"
_UNREACHABLE = (aiohttp.ClientError, ConnectionError, TimeoutError)


class Watch:
    """Collects what it sees until cancelled; the control plane and Envoys may be away."""

    def __init__(self, fleet: Fleet, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self.samples: list[Sample] = []
        self.counters: list[Counters] = []

    async def run(self) -> None:
        """Look until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look())
            group.create_task(self._count())

    async def count(self) -> None:
        """Read the counters once."""
        envoys = [envoy for envoys in self._fleet.envoys.values() for envoy in envoys]
        try:
            stats = await asyncio.gather(*(envoy.counters(_RETRIES) for envoy in envoys))
            runtimes = await asyncio.gather(*(envoy.get("/runtime?format=json") for envoy in envoys))
        except _UNREACHABLE:
            return
        limits = [limit for text in runtimes for limit in retry_limits(json.loads(text))]
        self.counters.append(
            Counters(
                at=self._clock(),
                retries=_total(stats, ".upstream_rq_retry"),
                overflowed=_total(stats, ".upstream_rq_retry_overflow"),
                largest_limit=max(limits, default=None),
                smallest_limit=min(limits, default=None),
            )
        )

    async def _look(self) -> None:
        while True:
            with contextlib.suppress(*_UNREACHABLE):
                self.samples.append(sample(await self._fleet.api("/api/status"), self._clock()))
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _count(self) -> None:
        while True:
            await self.count()
            await asyncio.sleep(_COUNT_EVERY_S)


def sample(status: Mapping[str, Any], at: float) -> Sample:
    """What a drill keeps of `/api/status`."""
    return Sample(
        at=at,
        mode=status["mode"],
        snapshot=status["snapshot"],
        shares={
            (frontend, key, engine): share
            for frontend, rows in status["shares"].items()
            for key, row in rows.items()
            for engine, share in row.items()
        },
        ready={name: int(engine["ready_replicas"]) for name, engine in status["engines"].items()},
        policy_error=status.get("policy_error") or "",
    )


def retry_limits(runtime: Mapping[str, Any]) -> list[int]:
    """The retry limits in force, from Envoy's `/runtime`."""
    return [
        int(float(entry["final_value"]))
        for name, entry in runtime.get("entries", {}).items()
        if name.endswith(_LIMIT)
    ]


def _total(stats: list[dict[str, int]], suffix: str) -> int:
    return sum(value for found in stats for name, value in found.items() if name.endswith(suffix))
