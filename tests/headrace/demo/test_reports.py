"""What an engine reports, read by a control plane that does nothing else (design/signals.md)."""

import asyncio
import signal

import grpc.aio
import pytest

from headrace.demo.fake_engine.config import EngineConfig
from headrace.demo.fake_engine.reporting import advertised_address
from signals.messages import METHOD, Directive, ReportMessage, State
from tests.headrace.demo.conftest import ENDLESS, FAST, MODEL, chat, eventually, first_content


class Listener:
    """Accepts every report; acknowledges drains when told to."""

    def __init__(self):
        self.hellos = []
        self.samples = []
        self.ended = asyncio.Event()
        self.acknowledge = asyncio.Event()
        self._arrived = asyncio.Condition()

    async def report(self, messages, context):
        try:
            async for raw in messages:
                message = ReportMessage.parse(raw)
                if message.hello is not None:
                    self.hellos.append(message.hello)
                async with self._arrived:
                    self.samples.append(message.sample)
                    self._arrived.notify_all()
                if message.sample.state == State.DRAINING:
                    await self.acknowledge.wait()
                    yield bytes(Directive(ack=message.sample.sequence, drain_acked=True))
                else:
                    yield bytes(Directive(ack=message.sample.sequence, interval_ms=50))
        finally:
            self.ended.set()

    async def sample(self, holds):
        async with asyncio.timeout(10), self._arrived:
            await self._arrived.wait_for(lambda: self.samples and holds(self.samples[-1]))
            return self.samples[-1]


@pytest.fixture
async def listener():
    listener, server = Listener(), grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(listener.report)
    service, method = METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    listener.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield listener
    await server.stop(0)


async def test_the_hello_says_who_and_where(start, listener):
    server, _ = await start(report_to=(listener.address,), fleet="prod", region="us-east", cluster="k1")
    await listener.sample(lambda sample: True)
    (hello,) = listener.hellos
    assert (hello.fleet, hello.engine, hello.region, hello.cluster) == ("prod", "us-east", "us-east", "k1")
    assert (hello.replica_id, hello.address, hello.port) == ("r1", "127.0.0.1", server.port)
    assert hello.served_models == [MODEL]
    assert hello.incarnation > 1_600_000_000_000


async def test_an_idle_engine_measures_zero_load_and_no_latency(start, listener):
    await start(report_to=(listener.address,))
    sample = await listener.sample(lambda sample: True)
    assert sample.state == State.READY
    assert (sample.running, sample.waiting, sample.requests_per_s, sample.kv_usage_ratio) == (0, 0, 0, 0)
    assert (sample.ttft_ms, sample.tbot_ms, sample.prefix_hit_ratio) == (None, None, None)


async def test_requests_show_in_the_next_report(start, listener):
    _, client = await start(report_to=(listener.address,))
    for _ in range(2):
        async with client.post(chat("word " * 100, user="u1")) as response:
            assert response.status == 200
    async with client.post(chat(model="acme/no.such")) as response:
        assert response.status == 404
    sample = await listener.sample(lambda sample: sample.ttft_ms is not None and sample.errors)
    assert sample.ttft_ms.count == 2
    assert sample.tbot_ms.count == 2 * (FAST.output_tokens - 1)
    assert sample.tbot_ms.p50 == pytest.approx(FAST.t0_ms)
    assert 0.3 < sample.prefix_hit_ratio < 0.5
    assert [error.kind for error in sample.errors] == ["client"]


async def test_a_running_stream_shows_as_running(start, listener):
    _, client = await start(report_to=(listener.address,))
    async with client.post(chat(stream=True, **ENDLESS)) as response:
        await first_content(response)
        sample = await listener.sample(lambda sample: sample.running == 1)
        assert sample.kv_usage_ratio > 0


async def test_sigterm_reports_draining_and_serves_until_the_control_plane_acknowledges(spawn, listener):
    process, client = await spawn("--report", listener.address, "--shutdown-timeout", "30")
    await listener.sample(lambda sample: True)
    process.send_signal(signal.SIGTERM)
    await listener.sample(lambda sample: sample.state == State.DRAINING)
    async with client.post(chat(), headers={"connection": "close"}) as response:
        assert response.status == 200
    listener.acknowledge.set()
    assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_streams_end_whole_in_a_drain_and_the_last_report_says_down(spawn, listener):
    process, client = await spawn("--report", listener.address, "--shutdown-timeout", "30")
    listener.acknowledge.set()
    async with client.post(chat(stream=True, max_tokens=150, ignore_eos=True)) as response:
        await first_content(response)
        process.send_signal(signal.SIGTERM)
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    assert await asyncio.wait_for(process.wait(), 10) == 0
    await asyncio.wait_for(listener.ended.wait(), 10)
    assert listener.samples[-1].state == State.DOWN


async def test_a_drain_fault_is_reported_and_taken_back(start, listener):
    _, client = await start(report_to=(listener.address,))
    listener.acknowledge.set()
    await client.faults(drain=True)
    await listener.sample(lambda sample: sample.state == State.DRAINING)

    async def refused():
        async with client.post(chat()) as response:
            return response.status == 500

    await eventually(refused)
    await client.faults(drain=False)
    await listener.sample(lambda sample: sample.state == State.READY)


async def test_a_drain_taken_back_before_its_acknowledgement_refuses_nothing_later(start, listener):
    _, client = await start(report_to=(listener.address,))
    await client.faults(drain=True)
    await listener.sample(lambda sample: sample.state == State.DRAINING)
    await client.faults(drain=False)
    listener.acknowledge.set()
    await listener.sample(lambda sample: sample.state == State.READY)
    async with client.post(chat()) as response:
        assert response.status == 200


async def test_a_mute_engine_serves_and_reports_again_when_the_fault_is_lifted(start, listener):
    server, client = await start(report_to=(listener.address,))
    await listener.sample(lambda sample: True)
    await client.faults(mute=True)
    await asyncio.wait_for(listener.ended.wait(), 10)
    async with client.post(chat()) as response:
        assert response.status == 200
    await client.faults(mute=False)
    await listener.sample(lambda sample: sample.requests_per_s > 0)
    first, again = listener.hellos
    assert (again.incarnation, again.port) == (first.incarnation, server.port)


async def test_a_clock_that_jumps_shows_in_when_reports_say_they_were_sent(start, listener):
    _, client = await start(report_to=(listener.address,))
    before = await listener.sample(lambda sample: True)
    await client.faults(clock_offset_s=-3600)
    after = await listener.sample(lambda sample: sample.sent_at_ms < before.sent_at_ms)
    assert after.sent_at_ms == pytest.approx(before.sent_at_ms - 3_600_000, abs=60_000)
    assert after.sequence > before.sequence


@pytest.mark.parametrize(
    ("host", "advertise", "address"),
    [("127.0.0.1", None, "127.0.0.1"), ("0.0.0.0", "10.1.2.3", "10.1.2.3"), ("0.0.0.0", None, "127.0.0.1")],
)
def test_the_advertised_address_is_one_that_can_be_dialled(host, advertise, address):
    config = EngineConfig(
        "e", "r", (MODEL,), FAST, host=host, advertise=advertise, report_to=("127.0.0.1:7401",)
    )
    assert advertised_address(config) == address


async def test_a_request_that_was_on_its_way_when_the_drain_was_acknowledged_is_served(start, listener):
    _, client = await start(report_to=(listener.address,), rtt_ms={"far": 300.0})
    late = asyncio.create_task(status_of(client, {"x-headrace-frontend": "far"}))
    await eventually(lambda: in_flight(client))
    listener.acknowledge.set()
    await client.faults(drain=True)
    assert await late == 200


async def status_of(client, headers):
    async with client.post(chat(), headers=headers) as response:
        return response.status


async def in_flight(client):
    return (await client.json("/stats"))["in_flight"] == 1
