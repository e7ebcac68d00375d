"""The load generator against the fake engine, and against servers that misbehave."""

import asyncio
import json
import random

import pytest
from aiohttp import web

from headrace.demo.conversations import Conversations, RequestShape
from headrace.demo.load import LoadGenerator, PoissonArrivals
from headrace.demo.load_records import Record, summarise
from tests.headrace.demo.conftest import MODEL

SHAPE = RequestShape(model=MODEL, turn_tokens=20, output_tokens=4)


@pytest.fixture
async def serve():
    """Serve one handler on a free port: `url = await serve(handler)`."""
    runners = []

    async def one(handler):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{site.port}"

    yield one
    for runner in runners:
        await runner.cleanup()


async def test_whole_answers_count_by_front_end_and_by_the_engines_own_header(start):
    _, client = await start(engine="eu-west", replica="r2")
    generator = LoadGenerator(
        {"a": client.url, "b": client.url}, {"a": 100.0, "b": 50.0}, SHAPE, random.Random(1)
    )
    await generator.run(0.5)
    summary = generator.summary()
    assert set(summary) == {"a", "b"}
    for figures in summary.values():
        assert figures["ok"] == figures["requests"] > 0
        assert figures["failed"] == figures["shed"] == 0
        assert figures["by_engine"] == {"eu-west": figures["requests"]}
        assert figures["by_replica"] == {"eu-west/r2": figures["requests"]}
        assert 0 < figures["ttft_ms"]["mean"] < figures["e2e_ms"]["p99"]


async def test_arrivals_do_not_wait_for_answers(serve):
    release = asyncio.Event()
    arrived = 0

    async def stuck(request):
        nonlocal arrived
        arrived += 1
        if arrived == 50:
            release.set()
        await release.wait()
        return web.Response()

    generator = LoadGenerator({"a": await serve(stuck)}, {"a": 500.0}, SHAPE, random.Random(1))
    async with asyncio.timeout(20):
        await generator.run(0.4)
    assert arrived >= 50


async def test_only_requests_that_arrive_after_the_start_of_measuring_are_recorded(serve):
    entered, release = asyncio.Event(), asyncio.Event()

    async def handler(request):
        entered.set()
        await release.wait()
        return web.Response()

    generator = LoadGenerator({"a": await serve(handler)}, {"a": 200.0}, SHAPE, random.Random(1))
    running = asyncio.create_task(generator.run(0.3))
    await entered.wait()
    await asyncio.sleep(0)
    generator.start_measuring()
    generator.set_rate("a", 0.0)
    release.set()
    await running
    assert not generator.records


@pytest.mark.parametrize(
    ("payload", "failure"),
    [
        (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n', None),
        (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', "truncated"),
        (
            b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: {"error":{}}\n\ndata: [DONE]\n\n',
            "inband_error",
        ),
    ],
)
async def test_a_stream_is_whole_only_with_its_end_and_without_an_error_event(serve, payload, failure):
    async def handler(request):
        return web.Response(body=payload, content_type="text/event-stream")

    generator = LoadGenerator({"a": await serve(handler)}, {"a": 200.0}, SHAPE, random.Random(1))
    await generator.run(0.1)
    assert generator.records[0].failure == failure
    assert generator.records[0].status == 200


@pytest.mark.parametrize(("status", "shed", "failure"), [(429, True, None), (503, False, "http_503")])
async def test_a_refusal_with_429_is_shed_and_any_other_a_failure(serve, status, shed, failure):
    async def handler(request):
        return web.Response(status=status)

    generator = LoadGenerator({"a": await serve(handler)}, {"a": 200.0}, SHAPE, random.Random(1))
    await generator.run(0.1)
    record = generator.records[0]
    assert (record.shed, record.failure, record.ok) == (shed, failure, False)


async def test_a_dead_address_is_a_connect_failure(unused_tcp_port):
    generator = LoadGenerator(
        {"a": f"http://127.0.0.1:{unused_tcp_port}"}, {"a": 200.0}, SHAPE, random.Random(1)
    )
    await generator.run(0.1)
    assert generator.records[0].failure == "connect"
    assert generator.records[0].status is None


async def test_a_connection_lost_before_headers_is_reset_and_after_them_cut(serve):
    async def before(request):
        request.transport.abort()
        return web.Response()

    async def after(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
        request.transport.close()
        return response

    for handler, failure, status in ((before, "reset", None), (after, "cut", 200)):
        generator = LoadGenerator({"a": await serve(handler)}, {"a": 100.0}, SHAPE, random.Random(1))
        await generator.run(0.1)
        assert (generator.records[0].failure, generator.records[0].status) == (failure, status)


async def test_an_answer_that_takes_too_long_is_a_timeout(serve):
    async def handler(request):
        await asyncio.Event().wait()

    generator = LoadGenerator(
        {"a": await serve(handler)}, {"a": 200.0}, SHAPE, random.Random(1), timeout_s=0.1
    )
    await generator.run(0.1)
    assert generator.records[0].failure == "timeout"


class LoopOfTimers:
    """Stands in for the event loop's timers: time jumps from one to the next."""

    def __init__(self):
        self.now = 0.0
        self._timers = []

    def time(self):
        return self.now

    def call_at(self, when, callback, *args):
        timer = Timer(when, callback, args)
        self._timers.append(timer)
        return timer

    def run(self, until):
        while due := [timer for timer in self._timers if timer.when <= until]:
            timer = min(due, key=lambda one: one.when)
            self._timers.remove(timer)
            self.now = timer.when
            if not timer.cancelled:
                timer.callback(*timer.args)
        self.now = until


class Timer:
    def __init__(self, when, callback, args):
        self.when, self.callback, self.args, self.cancelled = when, callback, args, False

    def cancel(self):
        self.cancelled = True


def test_arrivals_are_poisson_at_the_rate_set():
    loop, gaps, last = LoopOfTimers(), [], [0.0]

    def arrive():
        gaps.append(loop.now - last[0])
        last[0] = loop.now

    arrivals = PoissonArrivals(random.Random(3), loop)
    arrivals.set_rate(100.0)
    arrivals.start(arrive)
    loop.run(200.0)
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.01, rel=0.02)
    assert spread == pytest.approx(mean, rel=0.05)


def test_a_rate_of_zero_stops_arrivals_and_a_new_one_resumes_them():
    loop, seen = LoopOfTimers(), []
    arrivals = PoissonArrivals(random.Random(3), loop)
    arrivals.start(lambda: seen.append(loop.now))
    loop.run(100.0)
    assert not seen
    arrivals.set_rate(10.0)
    loop.run(200.0)
    assert len(seen) == pytest.approx(1000, rel=0.1)
    arrivals.stop()
    loop.run(300.0)
    assert seen[-1] <= 200.0


async def test_a_rate_for_an_unknown_front_end_is_refused():
    with pytest.raises(KeyError, match="no front-end 'b', expected one of a"):
        LoadGenerator({"a": "http://127.0.0.1:1"}, {"b": 1.0}, SHAPE, random.Random(1))


def test_every_turn_of_a_conversation_extends_the_turns_before_it():
    conversations = Conversations(
        "a", RequestShape(model=MODEL, turns=4, open_conversations=1), random.Random(1)
    )
    by_key = {}
    for _ in range(40):
        key, streamed, body = conversations.next_request()
        document = json.loads(body)
        assert document["model"] == MODEL
        assert document["stream"] is streamed
        earlier = by_key.get(key, [])
        assert document["messages"][: len(earlier)] == earlier
        by_key[key] = document["messages"]
    assert len(by_key) > 1
    assert max(len(messages) for messages in by_key.values()) > 1


def test_the_same_seed_gives_the_same_requests():
    first, second = (Conversations("a", SHAPE, random.Random(7)) for _ in range(2))
    assert [first.next_request() for _ in range(50)] == [second.next_request() for _ in range(50)]


def test_percentiles_are_by_nearest_rank_over_whole_answers():
    def record(e2e_s, failure=None):
        return Record("a", "s", 0.0, True, 200, "e", "r", e2e_s / 2, e2e_s, failure)

    records = [record(index / 1000) for index in range(1, 101)] + [record(9.0, "cut")]
    figures = summarise(records)["a"]
    assert figures["e2e_ms"] == pytest.approx({"mean": 50.5, "p50": 50.0, "p99": 99.0})
    assert figures["ttft_ms"]["p99"] == pytest.approx(49.5)
    assert (figures["requests"], figures["ok"], figures["failures"]) == (101, 100, {"cut": 1})
