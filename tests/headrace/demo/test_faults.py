import asyncio

import aiohttp
import pytest

from tests.headrace.demo.conftest import ENDLESS, chat, events, first_content


async def test_an_error_rate_of_one_refuses_every_request_with_the_status_given(start):
    _, client = await start()
    await client.faults(error_rate=1.0, error_status=503)
    async with client.post(chat()) as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == 503


async def test_an_in_band_error_ends_a_200_stream_with_an_error_event_and_done(start):
    _, client = await start()
    await client.faults(inband_error_rate=1.0)
    async with client.post(chat(stream=True, max_tokens=50, ignore_eos=True)) as response:
        assert response.status == 200
        *_, error, done = await events(response)
    assert error["error"]["code"] == 500
    assert done == "[DONE]"


async def test_a_hung_engine_is_healthy_and_idle_by_its_own_account(start):
    _, client = await start()
    async with client.post(chat(stream=True, **ENDLESS)) as response:
        await first_content(response)
        await client.faults(hang=True)
        async with client.get("/health") as health:
            assert health.status == 200
        stats = await client.json("/stats")
        assert (stats["running"], stats["waiting"], stats["in_flight"]) == (0, 0, 1)


async def test_a_hung_engine_goes_on_when_the_fault_is_lifted(start):
    _, client = await start()
    await client.faults(hang=True)
    async with client.post(chat(stream=True)) as response:
        await client.faults(hang=False)
        assert (await events(response))[-1] == "[DONE]"


async def test_a_refusing_engine_takes_no_connection_until_it_is_lifted_on_the_admin_port(start):
    server, client = await start(admin_port=0)
    admin = f"http://127.0.0.1:{server.admin_port}/admin/faults"
    async with aiohttp.ClientSession() as session:
        async with session.post(admin, json={"refuse": True}) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/health")
        async with session.post(admin, json={"refuse": False}) as response:
            assert response.status == 200
    async with client.get("/health") as response:
        assert response.status == 200


async def test_connections_that_were_open_end_when_the_engine_refuses(start):
    server, client = await start(admin_port=0)
    async with client.get("/health"):
        pass
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    async with aiohttp.ClientSession() as session:
        await session.post(f"http://127.0.0.1:{server.admin_port}/admin/faults", json={"refuse": True})
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_draining_engine_finishes_streams_and_refuses_new_requests_with_health_still_200(start):
    _, client = await start()
    async with client.post(chat(stream=True, max_tokens=200, ignore_eos=True)) as running:
        await first_content(running)
        await client.faults(drain=True)
        async with client.post(chat()) as late, client.get("/health") as health:
            assert (late.status, health.status) == (500, 200)
        assert (await events(running))[-1] == "[DONE]"
    await client.faults(drain=False)
    async with client.post(chat()) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"slow": 2}, "unknown fault 'slow'"),
        ({"error_rate": 1.5}, "fault error_rate is 1.5, expected a number from 0 to 1"),
        ({"error_status": 200}, "expected an integer from 400 to 599"),
        ({"hang": 1}, "fault hang is 1, expected true or false"),
        ({"slow_factor": 0}, "expected a number from 0.01 to 1000"),
        ({"extra_delay_ms": -1}, "expected a number from 0 to 60000"),
        ({"clock_offset_s": "1h"}, "expected a number from -86400 to 86400"),
        ([], "expected a JSON object"),
    ],
)
async def test_a_wrong_fault_is_refused_and_changes_nothing(start, faults, message):
    _, client = await start()
    before = await client.json("/admin/faults")
    async with client.post(faults, "/admin/faults") as response:
        assert response.status == 400
        assert message in (await response.json())["error"]
    assert await client.json("/admin/faults") == before
