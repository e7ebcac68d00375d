"""A control plane in the test and real Envoys that follow it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self

import aiohttp
import grpc
from grpc import aio

from headrace.envoy_bootstrap import Bootstrap
from headrace.envoy_process import EnvoyProcess
from headrace.policy.schema import Overload
from signals.metrics_codec import MetricsDecoder
from tests.envoy.replica import Replica
from xds_server.events import Event, Nacked, Refused
from xds_server.routing import (
    TOTAL_WEIGHT,
    Endpoint,
    Engine,
    FrontendRouting,
    Listener,
    Model,
    RoutingTable,
    Split,
    TrafficClass,
)
from xds_server.server import XdsServer
from xds_server.services import XdsServices
from xds_server.translate import Translator, names

METRICS_SERVICE = "envoy.service.metrics.v3.MetricsService"
MODEL = "meta-llama/Llama-3.3-70B-Instruct"
SMALL = "meta-llama/Llama-3.1-8B-Instruct"
FRONTEND = "us-east"
FLEET = "test"

LISTENERS = (
    Listener("public", 0, "interactive", address="127.0.0.1"),
    Listener("internal", 0, "batch", trust_headers=True, address="127.0.0.1"),
)
CLASSES = (TrafficClass("interactive", "x-traffic-class", "interactive"), TrafficClass("batch"))
MODELS = (
    Model("chat.large", (MODEL, "chat-latest"), adapters=("légal/v3.1", "acme-*")),
    Model("chat.small", (SMALL,), max_request_bytes=1 << 20),
)


def engine(name: str, **settings: Any) -> Engine:
    """Return an engine without active checks, so that tests decide about health."""
    return Engine(name, **{"health_check": None, **settings})


def equal_entries(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Divide the hash space equally."""
    listed = list(names)
    width = TOTAL_WEIGHT // len(listed)
    rest = TOTAL_WEIGHT - width * (len(listed) - 1)
    return tuple((name, rest if i == 0 else width) for i, name in enumerate(listed))


@dataclass(frozen=True)
class Pool:
    """Engines and their replicas, in short."""

    replicas: Mapping[str, Sequence[Replica | Endpoint]]
    engines: Mapping[str, Engine] = field(default_factory=dict)

    def table(self, *splits: Split, **changes: Any) -> RoutingTable:
        """Return a table in which `splits` are served from the pool; without any, all share equally."""
        frontend = FrontendRouting(FRONTEND, splits or (self.split(),), self.endpoints())
        table = RoutingTable(
            fleet=FLEET,
            listeners=LISTENERS,
            classes=CLASSES,
            match_order=(),
            models=MODELS,
            engines={name: self.engines.get(name, engine(name)) for name in self.replicas},
            frontends={FRONTEND: frontend},
        )
        return replace(table, **changes)

    def split(self, **changes: Any) -> Split:
        """Return the split of interactive requests for the large model."""
        return replace(Split("chat.large", "interactive", equal_entries(self.replicas)), **changes)

    def endpoints(self) -> dict[str, tuple[Endpoint, ...]]:
        return {
            name: tuple(
                each if isinstance(each, Endpoint) else Endpoint(each.name, "127.0.0.1", each.port)
                for each in replicas
            )
            for name, replicas in self.replicas.items()
        }


class ControlPlane:
    """The real xDS server on a port of its own; `publish` waits until every Envoy serves the table."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.server = XdsServer(
            clock=time.monotonic, fleet=FLEET, on_event=self._event, runtime_layers=[names.RUNTIME_LAYER]
        )
        self.translator = Translator()
        self.envoys: list[EnvoyProcess] = []
        self.nacks: list[Nacked] = []
        self.refused: list[Refused] = []
        self.reported: dict[tuple[str, str, str], float] = {}
        """(node, metric, cluster) -> value, or number of samples of a histogram, at the latest flush."""
        self._decoder = MetricsDecoder()
        self._flush = asyncio.Event()
        self._changed = asyncio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._grpc = aio.server()
        services = XdsServices(self.server)
        services.register(self._grpc)
        handler = grpc.stream_unary_rpc_method_handler(self._take_flushes)
        metrics = grpc.method_handlers_generic_handler(METRICS_SERVICE, {"StreamMetrics": handler})
        self._grpc.add_generic_rpc_handlers((metrics,))
        self.port = self._grpc.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._grpc.start()
        self._services = services
        self._stack.push_async_callback(self.stop)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def start_envoy(
        self, node_id: str, overload: Overload | None = None, **settings: Any
    ) -> EnvoyProcess:
        """Start an Envoy of the front-end and wait until it serves."""
        bootstrap = Bootstrap(
            FRONTEND,
            FLEET,
            [("127.0.0.1", self.port)],
            node_id,
            flush_interval_s=0.2,
            overload=overload or Overload(),
        )
        envoy = await self._stack.enter_async_context(EnvoyProcess(bootstrap, drain_time_s=1, **settings))
        await envoy.ready()
        self.envoys.append(envoy)
        return envoy

    async def stop(self) -> None:
        """Stop serving; the Envoys go on."""
        self._services.stop()
        await self._grpc.stop(0)

    async def connected(self) -> None:
        """Wait until an Envoy has connected."""
        async with asyncio.timeout(20):
            while not self.server.connections(FRONTEND):
                self._changed.clear()
                await self._changed.wait()

    async def flushed(self, node_id: str, name: str, cluster: str, value: float) -> None:
        """Wait until an Envoy reports that a counter has a value."""
        async with asyncio.timeout(20):
            while self.reported.get((node_id, name, cluster)) != value:
                self._flush.clear()
                await self._flush.wait()

    async def _take_flushes(self, messages: AsyncIterator[bytes], context: object) -> bytes:
        node_id = ""
        async for data in messages:
            flush = self._decoder.decode(data)
            node_id = flush.node[1] if flush.node else node_id
            for point in flush.points:
                value = point.value if point.count is None else point.count
                self.reported[node_id, point.name, point.cluster] = value
            self._flush.set()
        return b""

    def push(self, table: RoutingTable) -> int:
        """Publish a table and return at once."""
        return self.server.publish(FRONTEND, self.translator.translate(table, FRONTEND))

    async def publish(self, table: RoutingTable) -> None:
        """Publish a table and wait until every connected Envoy has taken all of it."""
        self.nacks.clear()
        sequence = self.push(table)
        async with asyncio.timeout(20):
            while (confirmed := self.server.confirmed(FRONTEND)) is not None and confirmed < sequence:
                self._changed.clear()
                await self._changed.wait()
        assert not self.nacks, self.nacks
        for envoy in self.envoys:
            # Worker threads take a configuration a moment after the main thread has acknowledged it;
            # an admin page that collects from all workers returns after they have.
            await envoy.get("/stats?filter=^server.live$")

    def _event(self, event: Event) -> None:
        if isinstance(event, Nacked):
            self.nacks.append(event)
        if isinstance(event, Refused):
            self.refused.append(event)
        self._changed.set()


class Front:
    """A client of one Envoy."""

    def __init__(self, envoy: EnvoyProcess, http: aiohttp.ClientSession) -> None:
        self.envoy = envoy
        self.http = http

    def url(self, path: str = "/v1/chat/completions", listener: str = "public") -> str:
        return f"http://127.0.0.1:{self.envoy.ports[listener]}{path}"

    async def chat(
        self, *, listener: str = "public", headers: Mapping[str, str] | None = None, **body: Any
    ) -> Answer:
        """Send a chat request; `model` is the large one unless given."""
        request = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **body}
        return await self.send(listener=listener, headers=headers, json=request)

    async def send(
        self, path: str = "/v1/chat/completions", *, listener: str = "public", **request: Any
    ) -> Answer:
        """Send a POST and read the whole answer."""
        async with self.http.post(self.url(path, listener), **request) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, headers, await answer.read())

    async def demand(self, model: str = "chat.large", traffic_class: str = "interactive") -> int:
        """Return the demand counter of a key."""
        name = names.demand_prefix(model, traffic_class) + names.DEMAND_SUFFIX
        return (await self.envoy.counters("^demand")).get(name, 0)

    async def where(self, keys: Sequence[str], connections: int = 16) -> list[str]:
        """Return engine/replica by session key, over raw connections: thousands in a few seconds."""
        found: dict[str, str] = {}
        queue = iter(keys)

        async def worker() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.envoy.ports["public"])
            body = f'{{"model": "{MODEL}"}}'.encode()
            for key in queue:
                writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                    + f"x-session-id: {key}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
                await reader.readexactly(int(headers["content-length"]))
                assert head.startswith("HTTP/1.1 200"), head
                found[key] = f"{headers['x-headrace-engine']}/{headers['x-headrace-replica']}"
            writer.close()

        await asyncio.gather(*(worker() for _ in range(connections)))
        return [found[key] for key in keys]


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def served_by(self) -> str | None:
        return self.headers.get("x-headrace-replica")

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-headrace-reason")


@dataclass
class Load:
    """Requests at a steady rate in the background, every outcome counted."""

    front: Front
    rate_rps: float
    outcomes: Counter[str] = field(default_factory=Counter)
    served_by: Counter[str] = field(default_factory=Counter)

    async def __aenter__(self) -> Self:
        self._requests: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._loop = asyncio.create_task(self._generate())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.cancel()
        await asyncio.gather(self._loop, *self._requests, return_exceptions=True)

    async def reach(self, count: int) -> None:
        """Wait until `count` more requests have ended."""
        goal = self.outcomes.total() + count
        async with asyncio.timeout(60):
            while self.outcomes.total() < goal:
                self._ended.clear()
                await self._ended.wait()

    async def _generate(self) -> None:
        start, sent = time.monotonic(), 0
        while True:
            await asyncio.sleep(max(0.0, start + sent / self.rate_rps - time.monotonic()))
            sent += 1
            task = asyncio.create_task(self._one(f"session-{sent}"))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)

    async def _one(self, session: str) -> None:
        try:
            answer = await self.front.chat(headers={"x-session-id": session})
        except (aiohttp.ClientError, TimeoutError) as error:
            self.outcomes[type(error).__name__] += 1
        else:
            self.outcomes[f"{answer.status} {answer.reason}" if answer.status != 200 else "ok"] += 1
            self.served_by[answer.served_by or "nobody"] += 1
        self._ended.set()
