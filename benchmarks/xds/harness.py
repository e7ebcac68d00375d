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

from xds_server.events import Acked, Connected, Event, Nacked, Sent
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
        self.connected = 0

    def note(self, event: Event) -> None:
        """Count an event."""
        match event:
            case Sent():
                self.sent += 1
            case Acked():
                self.acked.add()
            case Nacked():
                self.nacked += 1
            case Connected():
                self.connected += 1


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
        options = ("--clients", str(count), "--frontends", str(frontends), "--watch", watch)
        return await self.start("benchmarks.xds.clients", *options)

    async def start(self, module: str, *options: str) -> dict[str, Any]:
        """Start clients of another kind, told where the server is; returns their first line."""
        self._clients = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", "-m", module),
            *("--address", f"127.0.0.1:{self._port}", *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return await self.line()

    def go_on(self) -> None:
        """Tell the clients to do so."""
        assert self._clients
        assert self._clients.stdin
        self._clients.stdin.write(b"\n")

    async def line(self) -> dict[str, Any]:
        """The next line of the clients."""
        assert self._clients
        assert self._clients.stdout
        text = await asyncio.wait_for(self._clients.stdout.readline(), 180)
        found: dict[str, Any] = json.loads(text)
        return found


class Bounds:
    """Figures beside their bounds, and whether all of them hold."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def at_most(self, what: str, value: float, bound: float, form: str = ".0f") -> str:
        """`value (bound ≤ x: met)`; a figure above its bound is noted by its name."""
        return self._text(what, value, bound, form, value <= bound, "≤")

    def at_least(self, what: str, value: float, bound: float, form: str = ".0f") -> str:
        """`value (bound ≥ x: met)`; a figure below its bound is noted by its name."""
        return self._text(what, value, bound, form, value >= bound, "≥")

    def _text(self, what: str, value: float, bound: float, form: str, met: bool, sign: str) -> str:
        if not met:
            self.missed.append(what)
        return f"{value:{form}} (bound {sign} {bound:g}: {'met' if met else 'MISSED'})"

    def conclude(self) -> None:
        """The verdict, last. Exits with 1 when a bound is missed."""
        print("missed: " + ", ".join(self.missed) if self.missed else "all bounds met", flush=True)
        sys.exit(1 if self.missed else 0)


def rss_mb() -> float:
    """Resident memory of this process, now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


def report(what: str, **figures: object) -> None:
    """One line a figure, with the load of the machine beside it."""
    load = os.getloadavg()[0]
    text = ", ".join(f"{name} {value}" for name, value in figures.items())
    print(f"{what} (load {load:.1f}): {text}", flush=True)


def quantile(values: list[float], part: float) -> float:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
