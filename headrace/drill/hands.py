"""What a drill can do to a running fleet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import yaml

from headrace.demo.fleet import Fleet


class Hands:
    """The fleet, and shorthand for hurting it. `notes` are figures that the drill takes itself."""

    def __init__(
        self, fleet: Fleet, group: asyncio.TaskGroup, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.fleet = fleet
        self.clock = clock
        self.notes: dict[str, float | None] = {}
        self._group = group

    def replicas(self, engine: str) -> list[str]:
        """The replicas of an engine that were started."""
        return sorted({replica for name, replica in self.fleet.engines if name == engine})

    async def fault(self, *engines: str, **faults: Any) -> None:
        """Switch faults of all replicas of engines, all at once."""
        await asyncio.gather(
            *(
                self.fleet.fault(engine, replica, **faults)
                for engine in engines
                for replica in self.replicas(engine)
            )
        )

    def signal(self, engine: str, signum: int, *replicas: str) -> None:
        """Send a signal to replicas of an engine (all of them when none is named)."""
        for replica in replicas or self.replicas(engine):
            self.fleet.engines[engine, replica].kill(signum)

    async def restart(self, engine: str, *replicas: str) -> None:
        """Start replicas again after they were killed (all of them when none is named)."""
        wanted = replicas or self.replicas(engine)
        await asyncio.gather(*(self.fleet.start_engine(engine, replica) for replica in wanted))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the drill's own steps; it has to end by itself."""
        return self._group.create_task(work)

    def edit_policy(self, edit: Callable[[dict[str, Any]], None]) -> None:
        """Edit the policy file in place, as an operator does."""
        document = yaml.safe_load(self.fleet.policy_path.read_text())
        edit(document)
        self.fleet.policy_path.write_text(yaml.safe_dump(document, sort_keys=False))
