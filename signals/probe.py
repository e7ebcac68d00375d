"""Connection probes: does a replica's address accept, and is it refused once its report stream is lost?

Only a refusal (RST) says that the process is gone, and only where a connection had succeeded before; a
time-out says nothing. So a firewall between control plane and engines never costs a member.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from signals.membership import Membership
from signals.replicas import Replica, ReplicaKey

_TIMEOUT_S = 1.0
_PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Before each probe of a lost replica; the last one repeats."""
_CONCURRENT = 64


class Prober:
    """Runs probes in tasks of its own and tells `Membership` what came out."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._tasks: dict[ReplicaKey, asyncio.Task[None]] = {}

    def ready(self, replica: Replica) -> None:
        """See once whether the replica can be connected to from here."""
        self._start(replica.key, self._see(replica))

    def lost(self, replica: Replica) -> None:
        """Probe until the replica is refused, reports again, or is gone."""
        self._start(replica.key, self._confirm(replica))

    async def close(self) -> None:
        """End all probes."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, key: ReplicaKey, probe: Coroutine[Any, Any, None]) -> None:
        if running := self._tasks.pop(key, None):
            running.cancel()
        task = self._tasks[key] = asyncio.create_task(probe)
        task.add_done_callback(
            lambda done: self._tasks.pop(key, None) if self._tasks.get(key) is done else None
        )

    async def _see(self, replica: Replica) -> None:
        """Until one succeeds: without it, a refusal later would mean nothing."""
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(OSError):
                await self._connect(replica)
                self._membership.connected(replica.key)
                return

    async def _confirm(self, replica: Replica) -> None:
        attempt = 0
        while self._membership.is_lost(replica.key):
            await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            attempt += 1
            try:
                await self._connect(replica)
                self._membership.connected(replica.key)
            except ConnectionRefusedError:
                self._membership.refused(replica.key)
            except OSError:
                continue

    async def _connect(self, replica: Replica) -> None:
        async with self._slots, asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(replica.address, replica.port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
