"""A real report service on loopback, and raw streams to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio
import pytest

from signals.admission import Admission, EngineRule
from signals.client import ReportClient
from signals.membership import Membership
from signals.messages import METHOD, Directive, Hello, ReportMessage, Sample, State
from signals.replicas import MemberEvent, Replica, ReplicaKey
from signals.report_service import ReportService
from signals.report_stream import ReportLimits

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
LIMITS = ReportLimits(handshake_s=0.5, interval_s=0.05, reports_per_s=60, drain_ack_s=0.3, tick_s=0.05)


def hello(engine: str = "us-h100", replica_id: str = "r1", **changes) -> Hello:
    values = {
        "fleet": "prod",
        "engine": engine,
        "region": "us",
        "cluster": "us-1",
        "replica_id": replica_id,
        "incarnation": 1000,
        "address": "127.0.0.1",
        "port": 8000 + int(replica_id[1:2] or 0),
        "served_models": [LLAMA],
    }
    return Hello(**(values | changes))


def sample(sequence: int = 1, state: State = State.READY, **changes) -> Sample:
    return Sample(**({"sequence": sequence, "state": state, "valid_for_ms": 5000} | changes))


@dataclass
class Fleet:
    """A report service with everything it tells, and helpers to await what happens."""

    membership: Membership
    service: ReportService
    port: int = 0
    results: Counter[str] = field(default_factory=Counter)
    events: list[MemberEvent] = field(default_factory=list)
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    acked: list[tuple[str, bool]] = field(default_factory=list)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def replicas(self, engine: str = "us-h100") -> dict[str, Replica]:
        return {found.key.replica_id: found for found in self.membership.view().engines.get(engine, ())}

    async def until(self, condition, reason: str) -> None:
        """Wait until the condition holds; it is looked at after every result and every change."""
        async with asyncio.timeout(10), self.moved:
            try:
                await self.moved.wait_for(condition)
            except asyncio.CancelledError:
                raise AssertionError(f"never: {reason}; results {self.results}, {self.replicas()}") from None

    def wake(self) -> None:
        async def notify() -> None:
            async with self.moved:
                self.moved.notify_all()

        self._notify = asyncio.ensure_future(notify())


class RawStream:
    """A reporter that sends whatever bytes it is given."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
        self._call = self._channel.stream_stream(METHOD, response_deserializer=Directive.parse)()

    async def send(self, *, hello: Hello | None = None, sample: Sample | None = None) -> None:
        await self.send_bytes(bytes(ReportMessage(hello=hello, sample=sample)))

    async def send_bytes(self, data: bytes) -> None:
        await self._call.write(data)

    async def read(self) -> Directive:
        async with asyncio.timeout(5):
            directive = await self._call.read()
        assert isinstance(directive, Directive), "the stream ended"
        return directive

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


def admission(**rules: EngineRule) -> Admission:
    rule = EngineRule(region="us", served_models=frozenset({LLAMA}))
    engines = {"us-h100": rule, "us-a100": replace(rule), **rules}
    return Admission(fleet="prod", engines=engines, insecure_dev=True)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made: Fleet

    def on_result(result: str) -> None:
        made.results[result] += 1
        made.wake()

    def on_event(event: MemberEvent) -> None:
        made.events.append(event)
        made.wake()

    async def drained(key: ReplicaKey) -> None:
        await made.drained.wait()

    membership = Membership(on_event=on_event)
    service = ReportService(
        membership,
        admission(),
        limits=LIMITS,
        on_result=on_result,
        drained=drained,
        on_drain_acked=lambda key, acked: made.acked.append((key.replica_id, acked)),
    )
    made = Fleet(membership, service)
    made.port = await service.start("127.0.0.1", 0)
    yield made
    await service.stop()


@pytest.fixture
async def raw(fleet: Fleet) -> AsyncIterator:
    """Opens raw streams and closes them."""
    async with contextlib.AsyncExitStack() as stack:

        def open_stream() -> RawStream:
            stream = RawStream(fleet.target)
            stack.push_async_callback(stream.close)
            return stream

        yield open_stream


@pytest.fixture
async def reporter(fleet: Fleet) -> AsyncIterator:
    """Runs report clients and stops them."""
    tasks: list[asyncio.Task[None]] = []

    def start(greeting: Hello, measure, **options) -> ReportClient:
        client = ReportClient([fleet.target], greeting, measure, **({"interval_s": 0.05} | options))
        tasks.append(asyncio.create_task(client.run()))
        return client

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
