"""Engines for these tests: in this process where only the wire matters, as a child where signals do."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from headrace.demo.fake_engine.config import EngineConfig
from headrace.demo.fake_engine.profile import EngineProfile
from headrace.demo.fake_engine.server import EngineServer

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
FAST = EngineProfile(t0_ms=2, lambda_max_rps=500, capacity_rps=400, ttft_base_ms=4, output_tokens=6)
"""Milliseconds where an engine takes tens of them: these tests are about order, not about time."""
ENDLESS = {"max_tokens": 100_000, "ignore_eos": True}


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


class Client:
    """An HTTP client bound to one engine."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    def post(self, document: Any, path: str = "/v1/chat/completions", **options: Any) -> Any:
        return self.session.post(self.url + path, json=document, **options)

    def get(self, path: str) -> Any:
        return self.session.get(self.url + path)

    async def faults(self, **faults: Any) -> None:
        async with self.post(faults, "/admin/faults") as response:
            assert response.status == 200, await response.text()

    async def json(self, path: str) -> Any:
        async with self.get(path) as response:
            return await response.json()

    async def running(self) -> int:
        return int((await self.json("/stats"))["running"])


async def events(response: aiohttp.ClientResponse) -> list[Any]:
    """The events of a stream, parsed; the last one is the string [DONE]."""
    lines = (await response.read()).decode().split("\n\n")
    assert lines.pop() == ""
    payloads = [line.removeprefix("data: ") for line in lines]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


async def first_content(response: aiohttp.ClientResponse) -> None:
    """Read a stream up to its first content."""
    seen = b""
    while b'"content":"' not in seen.replace(b'"content":""', b""):
        data = await response.content.readany()
        assert data, seen
        seen += data


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await holds():  # noqa: ASYNC110 - what is asked for sits behind HTTP: no event to wait for
            await asyncio.sleep(0.01)


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[tuple[EngineServer, Client]]]]:
    """Start engines in this process: `server, client = await start(profile=..., ...)`."""
    async with AsyncExitStack() as stack:

        async def one(**options: Any) -> tuple[EngineServer, Client]:
            config = EngineConfig(
                **{"engine": "us-east", "replica": "r1", "models": (MODEL,), "profile": FAST, **options}
            )
            server = await stack.enter_async_context(EngineServer(config))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            return server, Client(session, f"http://127.0.0.1:{server.port}")

        yield one


@pytest.fixture
async def spawn() -> AsyncIterator[Callable[..., Awaitable[tuple[asyncio.subprocess.Process, Client]]]]:
    """Start engines as processes of their own through the command line: `process, client = await spawn()`."""
    async with AsyncExitStack() as stack:

        async def one(*options: str) -> tuple[asyncio.subprocess.Process, Client]:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", "from headrace.cli import main; main()", "fake-engine"),
                *("--engine", "us-east", "--replica", "r1", "--model", MODEL, "--print-port"),
                *("--t0-ms", "2", "--ttft-base-ms", "4", "--lambda-max-rps", "500", "--capacity-rps", "400"),
                *options,
                stdout=asyncio.subprocess.PIPE,
            )
            stack.push_async_callback(_end, process)
            assert process.stdout is not None
            ports = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            return process, Client(session, f"http://127.0.0.1:{ports['http']}")

        yield one


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
