"""The ASGI helper, in a real ASGI server."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from aiohttp import ClientSession

from signals.asgi.hold_headers import HoldHeaders

uvicorn = pytest.importorskip("uvicorn", reason="needs the ASGI server uvicorn")

TOKEN = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-request-id", b"r1")]


def error_event(code: object, **more: object) -> bytes:
    return (
        b"data: "
        + json.dumps({"error": {"message": "EngineCore died", "code": code} | more}).encode()
        + b"\n\n"
    )


class Script:
    """An application that sends what it is told, waiting where a step is an event."""

    def __init__(self, *steps, headers=SSE, status=200, ends=True) -> None:
        self.steps, self.headers, self.status, self.ends = steps, headers, status, ends
        self.started = asyncio.Event()

    async def __call__(self, scope, receive, send) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        self.started.set()
        for step in self.steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                await send({"type": "http.response.body", "body": step, "more_body": True})
        if self.ends:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture
async def serve():
    """Serves an application behind the middleware; yields its base URL."""
    servers = []

    async def start(app) -> str:
        config = uvicorn.Config(HoldHeaders(app), port=0, log_level=logging.CRITICAL, lifespan="off")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve())  # serve() would take over the signal handlers
        servers.append((server, task))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield start
    for server, task in servers:
        server.should_exit = True
        await task


@pytest.fixture
async def get(serve):
    """Asks an application once; returns status, headers and body."""

    async def ask(app):
        async with ClientSession(await serve(app)) as session, session.get("/") as response:
            return response.status, response.headers, await response.read()

    return ask


async def test_headers_wait_for_the_first_body_bytes(serve):
    first, second = asyncio.Event(), asyncio.Event()
    app = Script(first, TOKEN, second, TOKEN, DONE)
    async with ClientSession(await serve(app)) as session:
        asking = asyncio.create_task(session.get("/"))
        await app.started.wait()
        await asyncio.wait([asking], timeout=0.05)
        assert not asking.done(), "the application's headers are out, the client must not see them"
        first.set()
        async with await asking as response:
            assert response.status == 200
            assert await response.content.readuntil(b"\n\n") == TOKEN, "the first token is not held back"
            second.set()
            assert await response.read() == TOKEN + DONE


async def test_a_stream_passes_byte_for_byte(get):
    chunks = (
        TOKEN,
        b": ping\n\n",
        b'data: {"error": {"code": 500}}\n\n',
        b"data: half ",
        b"of an event\n\n",
        DONE,
    )
    status, headers, body = await get(Script(*chunks))
    assert (status, body) == (200, b"".join(chunks))
    assert headers["x-request-id"] == "r1"


@pytest.mark.parametrize(
    ("code", "status"),
    [(500, 503), (503, 503), (None, 503), ("oops", 503), (400, 400), (404, 404), (429, 429)],
)
async def test_an_error_in_place_of_the_first_token_is_an_error_response(get, code, status):
    seen, headers, body = await get(Script(error_event(code), DONE))
    assert seen == status
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["error"]["message"] == "EngineCore died"


@pytest.mark.parametrize(
    "steps",
    [
        (error_event(500) + DONE,),
        (error_event(500)[:20], error_event(500)[20:], DONE),
        (b"", error_event(500), DONE),
        (error_event(500).replace(b"\n\n", b"\r\n\r\n"), DONE),
        (b'data: {"object": "error", "message": "old form", "code": 500}\n\n', DONE),
        (error_event(500).rstrip(),),
    ],
    ids=["one chunk", "split", "empty first", "CRLF", "older form", "unfinished"],
)
async def test_however_the_error_event_is_cut_it_is_seen(get, steps):
    assert (await get(Script(*steps)))[0] == 503


async def test_an_application_that_fails_before_the_first_token_answers_503(get):
    status, _, body = await get(Script(RuntimeError("EngineDead")))
    assert status == 503
    assert json.loads(body)["error"]["type"] == "engine_error"


async def test_a_plain_answer_is_untouched(get):
    answer = b'{"error": {"code": 500}}'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    assert (await get(Script(answer, headers=headers)))[2] == answer
    status, _, body = await get(Script(b"slow down", headers=[], status=429))
    assert (status, body) == (429, b"slow down")
    status, _, body = await get(Script(headers=[(b"content-length", b"0")], status=204))
    assert (status, body) == (204, b"")


async def test_an_endless_first_event_is_not_held_for_ever(get):
    chunk = b"data: " + b"x" * 40_000
    status, _, body = await get(Script(chunk, chunk, b"\n\n"))
    assert (status, len(body)) == (200, 2 * len(chunk) + 2)


async def test_a_client_that_leaves_while_its_headers_are_held_frees_the_application(serve):
    left = asyncio.Event()

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with ClientSession(await serve(app)) as session:
        asking = asyncio.create_task(session.get("/"))
        await asyncio.wait([asking], timeout=0.05)
        asking.cancel()
        async with asyncio.timeout(5):
            await left.wait()


async def test_other_scopes_pass():
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append((scope["type"], receive, send))

    await HoldHeaders(app)({"type": "lifespan"}, "receive", "send")
    assert seen == [("lifespan", "receive", "send")]
