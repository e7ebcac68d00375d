"""The server under test in this process, the clients in another."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from types import TracebackType
from typing import Any, Self

from grpc import aio

from xds_server.events import Acked, Event, Nacked, Sent
from xds_server.server import XdsServer
from xds_server.services import SERVER_OPTIONS, XdsServices


class Counter:
    """A number that only grows, and can be waited for."""

    def __init__(self) -> None:
        self.value = 0
        self._goal = 0
        self._reached = asyncio.Event()

    def add(self) -> None:
        """One more."""
        self.value += 1
        if self.value == self._goal:
            self._reached.set()

    async def until(self, goal: int) -> None:
        """Wait until it is `goal`."""
        self._goal = goal
        self._reached.clear()
        if self.value < goal:
            await self._reached.wait()


class Counts:
    """What the server's events add up to."""

    def __init__(self) -> None:
        self.sent = 0
        self.nacked = 0
        self.acked = Counter()

    def note(self, event: Event) -> None:
        """Count an event."""
        match event:
            case Sent():
                self.sent += 1
            case Acked():
                self.acked.add()
            case Nacked():
                self.nacked += 1


class Bench:
    """A running server and, once asked for, its clients."""

    def __init__(self, server: Any = None, services: Any = None) -> None:
        self.counts = Counts()
        self.server = server or XdsServer(clock=time.monotonic, fleet="bench", on_event=self.counts.note)
        self._services = services or XdsServices(self.server)
        self._clients: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._grpc = aio.server(options=SERVER_OPTIONS)
        self._services.register(self._grpc)
        self._port = self._grpc.add_insecure_port("127.0.0.1:0")
        await self._grpc.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._clients and self._clients.stdin:
            self._clients.stdin.close()
            await self._clients.wait()
        self._services.stop()
        await self._grpc.stop(1.0)

    async def start_clients(self, count: int, frontends: int, watch: str = "eds") -> dict[str, Any]:
        """Start them; returns their first line, when all have everything."""
        self._clients = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", "-m", "benchmarks.xds.clients"),
            *("--address", f"127.0.0.1:{self._port}", "--clients", str(count)),
            *("--frontends", str(frontends), "--watch", watch),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return await self.line()

    async def line(self) -> dict[str, Any]:
        """The next line of the clients."""
        assert self._clients
        assert self._clients.stdout
        text = await asyncio.wait_for(self._clients.stdout.readline(), 180)
        found: dict[str, Any] = json.loads(text)
        return found


def rss_mb() -> float:
    """Resident memory of this process, now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


def report(what: str, **figures: object) -> None:
    """One line a figure, with the load of the machine beside it."""
    load = os.getloadavg()[0]
    print(f"{what} (load {load:.1f}): " + ", ".join(f"{name} {value}" for name, value in figures.items()))


def quantile(values: list[float], part: float) -> float:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
