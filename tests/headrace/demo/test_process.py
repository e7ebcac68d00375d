"""How a replica's process ends."""

import asyncio
import json
import signal

import aiohttp
import pytest

from tests.headrace.demo.conftest import ENDLESS, chat, eventually, first_content


async def test_sigterm_without_a_drain_ends_streams_as_200_with_an_error_event(spawn):
    process, client = await spawn()
    async with client.post(chat(stream=True, **ENDLESS)) as response:
        await first_content(response)
        process.send_signal(signal.SIGTERM)
        *_, error, done = await events_after_first(response)
    assert error["error"]["type"] == "InternalServerError"
    assert done == "[DONE]"
    assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_sigterm_with_a_drain_lets_streams_end_and_answers_500_to_the_rest(spawn):
    process, client = await spawn("--shutdown-timeout", "20")
    async with client.post(chat(stream=True, max_tokens=150, ignore_eos=True)) as response:
        await first_content(response)
        process.send_signal(signal.SIGTERM)

        async def refused():
            async with client.post(chat(max_tokens=1)) as late:
                return late.status == 500

        await eventually(refused)
        async with client.get("/health") as health:
            assert health.status == 200
        *_, last, done = await events_after_first(response)
    assert last["choices"][0]["finish_reason"] == "length"
    assert done == "[DONE]"
    assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_drain_that_takes_too_long_ends_as_without_one(spawn):
    process, client = await spawn("--shutdown-timeout", "0.3")
    async with client.post(chat(stream=True, **ENDLESS)) as response:
        await first_content(response)
        process.send_signal(signal.SIGTERM)
        *_, error, _ = await events_after_first(response)
    assert "error" in error
    assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_crash_ends_streams_in_band_makes_health_503_and_ends_the_process(spawn):
    process, client = await spawn()
    async with client.post(chat(stream=True, **ENDLESS)) as response:
        await first_content(response)
        await client.faults(crash=True)
        async with client.get("/health") as health:
            assert health.status == 503
        async with client.post(chat()) as late:
            assert late.status == 500
        *_, error, done = await events_after_first(response)
    assert (error["error"]["code"], done) == (500, "[DONE]")
    assert await asyncio.wait_for(process.wait(), 10) == 1


async def test_with_headers_held_back_a_crash_before_the_first_token_is_a_plain_503(spawn):
    process, client = await spawn("--no-early-headers", "--ttft-base-ms", "60000")

    async def crash_once_running():
        await eventually(running)
        await client.faults(crash=True)

    async def running():
        return await client.running() == 1

    crash = asyncio.create_task(crash_once_running())
    async with client.post(chat("word " * 1000, stream=True)) as response:
        assert response.status == 503
    await crash
    assert await asyncio.wait_for(process.wait(), 10) == 1


async def test_a_killed_process_leaves_a_cut_stream(spawn):
    process, client = await spawn()
    async with client.post(chat(stream=True, **ENDLESS)) as response:
        await first_content(response)
        process.kill()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def events_after_first(response):
    """Like `events`, for a stream of which some was read: its first piece may be torn."""
    text = (await response.read()).decode()
    payloads = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]
