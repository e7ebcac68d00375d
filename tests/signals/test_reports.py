"""Load reports over real gRPC: what is taken, what is refused, and that refusals hurt nobody else."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from dataclasses import replace

import pytest

from signals.admission import EngineRule
from signals.client import ReportClient
from signals.membership import Membership
from signals.messages import Sample, State
from signals.readings import Signal, SignalState
from signals.replicas import Presence, ReplicaState
from signals.report_service import ReportService

from .conftest import LIMITS, LLAMA, admission, hello, sample


async def test_a_reporting_replica_becomes_ready_with_its_values(fleet, reporter):
    reporter(hello(), lambda: Sample(state=State.READY, running=3.0, waiting=0.0))
    await fleet.until(lambda: "r1" in fleet.replicas(), "joined")
    replica = fleet.replicas()["r1"]
    assert (replica.address, replica.port, replica.ready) == ("127.0.0.1", 8001, True)
    assert replica.value(Signal.RUNNING, replica.reported_at) == 3.0
    assert replica.readings[Signal.WAITING].state(replica.reported_at) is SignalState.ZERO
    assert Signal.KV_USAGE_RATIO not in replica.readings


async def test_a_change_of_state_is_reported_at_once(fleet, reporter):
    state = State.READY
    client = reporter(hello(), lambda: Sample(state=state), interval_s=3600.0)
    await client.connected()
    state = State.DRAINING
    client.notify()
    await fleet.until(lambda: fleet.replicas()["r1"].state is ReplicaState.DRAINING, "draining")


async def test_drain_is_acked_when_every_envoy_has_acked(fleet, reporter):
    state = State.READY
    client = reporter(hello(), lambda: Sample(state=state))
    await client.connected()
    state = State.DRAINING
    client.notify()
    await fleet.until(lambda: fleet.replicas()["r1"].state is ReplicaState.DRAINING, "draining")
    fleet.drained.set()
    async with asyncio.timeout(5):
        await client.drain_acked()
    assert fleet.acked == [("r1", True)]


async def test_drain_is_acked_after_the_limit_although_an_envoy_never_acks(fleet, reporter):
    client = reporter(hello(), lambda: Sample(state=State.DRAINING))
    async with asyncio.timeout(5):
        await client.drain_acked()
    assert fleet.acked == [("r1", False)]


@pytest.mark.parametrize(
    ("result", "change"),
    [
        ("fleet", {"fleet": "other"}),
        ("unknown_engine", {"engine": "nobody"}),
        ("conflict", {"region": "eu"}),
        ("model", {"served_models": ["meta-llama/Llama-3.1-8B-Instruct"]}),
        ("address", {"address": "10.1.2.3"}),
        ("address", {"address": "169.254.169.254"}),
        ("address", {"address": "engine.example.net"}),
        ("invalid", {"port": 0}),
        ("invalid", {"port": 70_000}),
        ("invalid", {"incarnation": 0}),
        ("invalid", {"replica_id": ""}),
        ("too_large", {"replica_id": "r1" * 150}),
        ("too_large", {"capabilities": ["tools"] * 2000}),
        ("too_large", {"agent_version": "v" * 1_000_000}),
    ],
)
async def test_a_hello_that_breaks_a_rule_is_refused_with_its_reason(fleet, raw, result, change):
    stream = raw()
    await stream.send(hello=hello(**change), sample=sample())
    refusal = (await stream.read()).refuse
    assert refusal.code == result
    assert refusal.reason
    assert refusal.retry_after_ms > 0
    assert fleet.results == {result: 1}
    assert fleet.membership.view().engines == {}
    assert [refused.code for refused in fleet.service.refusals.list()] == [result]


@pytest.mark.parametrize(
    ("result", "bad"),
    [
        ("invalid", sample(2, running=math.nan)),
        ("invalid", sample(2, waiting=-1.0)),
        ("invalid", sample(2, kv_usage_ratio=1.5)),
        ("invalid", sample(2, requests_per_s=1e300)),
        ("invalid", sample(2, output_tokens_per_s=math.inf)),
        ("invalid", sample(2, state=State.UNSPECIFIED)),
        ("invalid", sample(2, valid_for_ms=None)),
        ("invalid", sample(0)),
        ("replayed", sample(1)),
        ("too_large", sample(2, reason="x" * 300)),
    ],
)
async def test_a_hostile_sample_is_counted_and_changes_no_value(fleet, raw, result, bad):
    stream = raw()
    await stream.send(hello=hello(), sample=sample(running=4.0))
    await stream.read()
    await stream.send(sample=bad)
    await fleet.until(lambda: fleet.results[result] == 1, result)
    replica = fleet.replicas()["r1"]
    assert replica.ready
    assert replica.readings[Signal.RUNNING].value == 4.0
    assert all(reading.invalid for signal, reading in replica.readings.items() if signal != Signal.RUNNING)


@pytest.mark.parametrize("data", [b"\xff" * 40, b"GET / HTTP/1.1\r\n\r\n", b"\x0a\xff\xff\xff\xff\x7f"])
async def test_garbage_in_a_stream_ends_it_and_the_replica_is_held(fleet, raw, data):
    stream = raw()
    await stream.send(hello=hello(), sample=sample())
    await stream.read()
    await stream.send_bytes(data)
    assert (await stream.read()).refuse.code == "invalid"
    await fleet.until(lambda: fleet.replicas()["r1"].presence is Presence.SILENT, "held")
    assert fleet.replicas()["r1"].ready


async def test_a_megabyte_message_is_too_large(fleet, raw):
    stream = raw()
    await stream.send(hello=hello(), sample=sample())
    await stream.read()
    await stream.send(sample=sample(2, reason="x" * 1_000_000))
    assert (await stream.read()).refuse.code == "too_large"


async def test_garbage_on_the_port_disturbs_no_reporter(fleet, reporter):
    reporter(hello(), lambda: Sample(state=State.READY))
    await fleet.until(lambda: fleet.results["accepted"] >= 1, "accepted")
    for data in (b"\x00" * 4096, b"GET /metrics HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"):
        _, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        writer.write(data)
        await writer.drain()
        writer.close()
    before = fleet.results["accepted"]
    await fleet.until(lambda: fleet.results["accepted"] >= before + 3, "goes on reporting")
    assert set(fleet.results) == {"accepted"}


async def test_a_stream_without_hello_ends_after_the_handshake_limit(fleet, raw):
    stream = raw()
    await stream.send_bytes(b"")
    assert (await stream.read()).refuse.code == "invalid"
    silent = raw()
    assert (await silent.read()).refuse.code == "invalid"


async def test_an_older_incarnation_is_refused_and_the_younger_stays(fleet, raw):
    young, old = raw(), raw()
    await young.send(hello=hello(incarnation=2000), sample=sample())
    await young.read()
    await old.send(hello=hello(incarnation=1000, port=9999), sample=sample(99))
    assert (await old.read()).refuse.code == "stale"
    assert fleet.replicas()["r1"].port == 8001


async def test_a_hostile_reporter_leaves_others_unaffected(fleet, raw, reporter):
    reporter(hello(replica_id="r2"), lambda: Sample(state=State.READY, running=1.0))
    await fleet.until(lambda: "r2" in fleet.replicas(), "joined")
    for bad in (hello(engine="nobody"), hello(fleet="x"), hello(address="0.0.0.0")):
        stream = raw()
        await stream.send(hello=bad, sample=sample(running=math.nan))
        await stream.read()
    await fleet.until(lambda: fleet.results["accepted"] >= 3, "goes on reporting")
    assert set(fleet.replicas()) == {"r2"}
    assert fleet.replicas()["r2"].presence is Presence.REPORTING


async def test_a_reporter_whose_clock_went_back_catches_up(fleet, raw, reporter):
    stream = raw()
    await stream.send(hello=hello(), sample=sample(10**15))
    await stream.read()
    await stream.close()
    reporter(hello(), lambda: Sample(state=State.READY, running=7.0), wall_clock=lambda: 1.0)
    await fleet.until(lambda: fleet.results["accepted"] >= 3, "accepted again")
    assert fleet.replicas()["r1"].readings[Signal.RUNNING].value == 7.0


async def test_reporters_return_when_the_control_plane_does(fleet, reporter):
    client = reporter(hello(), lambda: Sample(state=State.READY))
    await client.connected()
    await fleet.service.stop(0)
    assert fleet.replicas()["r1"].presence is Presence.REPORTING, "its end says nothing of the replicas"
    accepted = asyncio.Event()
    again = ReportService(fleet.membership, admission(), on_result=lambda result: accepted.set())
    await again.start("127.0.0.1", fleet.port)
    try:
        async with asyncio.timeout(10):
            await accepted.wait()
    finally:
        await again.stop()


async def test_plaintext_beyond_loopback_is_not_listened_to(fleet):
    with pytest.raises(ValueError, match="loopback"):
        await ReportService(fleet.membership, admission()).start("0.0.0.0", 0)
    secure = replace(admission(), insecure_dev=False)
    with pytest.raises(ValueError, match="loopback"):
        await ReportService(fleet.membership, secure).start("127.0.0.1", 0)


async def test_rules_may_change_while_running(fleet, raw):
    fleet.service.admission = admission(**{"eu-h100": EngineRule("eu", served_models=frozenset({LLAMA}))})
    stream = raw()
    await stream.send(hello=hello("eu-h100", region="eu"), sample=sample())
    assert (await stream.read()).refuse is None
    assert fleet.replicas("eu-h100")["r1"].ready


async def test_many_reporters_are_told_to_report_less_often(fleet, raw):
    first = raw()
    await first.send(hello=hello(), sample=sample())
    assert (await first.read()).interval_ms == 50
    others = [raw() for _ in range(3)]
    for number, stream in enumerate(others, start=2):
        await stream.send(hello=hello(replica_id=f"r{number}"), sample=sample())
        await stream.read()
    await first.send(sample=sample(2))
    assert (await first.read()).interval_ms == 100
    await others[0].close()
    await fleet.until(lambda: fleet.replicas()["r2"].presence is Presence.SILENT, "closed")
    await first.send(sample=sample(3))
    assert (await first.read()).interval_ms == 50


async def test_a_flooding_reporter_starves_nobody(fleet, raw, reporter):
    flood = raw()
    await flood.send(hello=hello(), sample=sample())
    await flood.read()

    async def pour() -> None:
        while True:
            await flood.send(sample=sample(1))

    pouring = asyncio.create_task(pour())
    reporter(hello(replica_id="r2"), lambda: Sample(state=State.READY))
    await fleet.until(lambda: fleet.results["accepted"] >= 8, "the other goes on reporting")
    assert fleet.results["replayed"] <= fleet.service.limits.stream_burst + 60
    pouring.cancel()


async def test_every_control_plane_gets_every_report(fleet, reporter):
    there = Membership(on_change=fleet.wake)
    second = ReportService(there, admission(), limits=LIMITS)
    port = await second.start("127.0.0.1", 0)
    nobody = "127.0.0.1:1"
    try:
        targets = [nobody, fleet.target, f"127.0.0.1:{port}"]
        client = ReportClient(targets, hello(), lambda: Sample(state=State.READY))
        task = asyncio.create_task(client.run())
        await fleet.until(lambda: "r1" in fleet.replicas(), "here")
        await fleet.until(lambda: there.view().ready_count("us-h100") == 1, "there")
        assert not client.links[nobody].connected
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        await second.stop()


async def test_a_killed_replica_leaves_once_connections_are_refused(fleet, reporter):
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = ReportClient([fleet.target], hello(port=port), lambda: Sample(state=State.READY))
    task = asyncio.create_task(client.run())
    await fleet.until(lambda: "r1" in fleet.replicas(), "joined")
    async with server:
        await fleet.until(lambda: fleet.replicas()["r1"].reachable, "probed")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await fleet.until(lambda: fleet.replicas()["r1"].presence is Presence.SILENT, "held while it accepts")
        assert fleet.replicas()["r1"].ready
    await fleet.until(lambda: fleet.replicas() == {}, "gone")
    assert ("left", "stream lost and connection refused") in [(e.kind, e.reason) for e in fleet.events]


def test_a_reporter_needs_no_solver():
    heavy = {"pulp", "numpy", "scipy", "aiohttp", "envoy"}
    code = f"import sys, signals.client; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
