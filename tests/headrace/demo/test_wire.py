"""What comes over HTTP, read off a real vLLM 0.32."""

import asyncio
import hashlib

import openai
import pytest

from tests.headrace.demo.conftest import ENDLESS, FAST, MODEL, chat, events, eventually, first_content


def sdk(client):
    return openai.AsyncOpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0)


async def test_the_sdk_lists_the_served_models(start):
    _, client = await start(models=(MODEL, "chat-latest"))
    async with sdk(client) as api:
        assert [model.id async for model in api.models.list()] == [MODEL, "chat-latest"]


async def test_the_sdk_reads_a_whole_answer(start):
    _, client = await start()
    async with sdk(client) as api:
        answer = await api.chat.completions.create(**chat(max_tokens=4))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 4
    assert len(answer.choices[0].message.content.split()) == 4


async def test_the_sdk_reads_the_same_text_from_a_stream(start):
    _, client = await start()
    async with sdk(client) as api:
        whole = await api.chat.completions.create(**chat())
        stream = await api.chat.completions.create(**chat(), stream=True)
        text = "".join([chunk.choices[0].delta.content async for chunk in stream])
    assert text == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"


async def test_the_sdk_reads_plain_completions_streamed_and_not(start):
    _, client = await start()
    async with sdk(client) as api:
        whole = await api.completions.create(model=MODEL, prompt="once")
        stream = await api.completions.create(model=MODEL, prompt="once", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert text == whole.choices[0].text


async def test_chat_chunks_come_in_vllms_order(start):
    _, client = await start()
    async with client.post(
        chat(stream=True, max_tokens=3, stream_options={"include_usage": True}),
        headers={"x-request-id": "abc"},
    ) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["transfer-encoding"] == "chunked"
        chunks = await events(response)
    role, *contents, usage, done = chunks
    assert role["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in contents] == [None, None, "length"]
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in contents)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert done == "[DONE]"
    assert {chunk["id"] for chunk in chunks[:-1]} == {"chatcmpl-abc"}
    assert {chunk["object"] for chunk in chunks[:-1]} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks[:-1]} == {MODEL}


async def test_without_include_usage_no_chunk_has_usage(start):
    _, client = await start()
    async with client.post(chat(stream=True)) as response:
        assert not [chunk for chunk in (await events(response))[:-1] if "usage" in chunk]


async def test_continuous_usage_counts_in_every_chunk(start):
    _, client = await start()
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with client.post(chat(stream=True, max_tokens=3, stream_options=options)) as response:
        chunks = (await events(response))[:-1]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("fields", "tokens", "reason"),
    [
        ({}, 6, "stop"),
        ({"max_tokens": 2}, 2, "length"),
        ({"max_completion_tokens": 3, "max_tokens": 9}, 3, "length"),
        ({"max_tokens": 50}, 6, "stop"),
        ({"max_tokens": 50, "ignore_eos": True}, 50, "length"),
        ({"some_field_of_tomorrow": {"a": 1}}, 6, "stop"),
    ],
)
async def test_length_follows_the_limits_given(start, fields, tokens, reason):
    _, client = await start()
    async with client.post(chat(**fields)) as response:
        document = await response.json()
    assert document["usage"]["completion_tokens"] == tokens
    assert document["choices"][0]["finish_reason"] == reason


async def test_content_may_be_a_list_of_parts(start):
    _, client = await start()
    parts = [
        {"type": "text", "text": "hel"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "lo"},
    ]
    prompts = []
    for content in ("hello", parts):
        document = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        async with client.post(document) as response:
            assert response.status == 200
            prompts.append((await response.json())["usage"]["prompt_tokens"])
    assert prompts[0] == prompts[1]


async def test_the_sdk_raises_not_found_for_an_unknown_model(start):
    _, client = await start()
    async with sdk(client) as api:
        with pytest.raises(openai.NotFoundError):
            await api.chat.completions.create(**chat() | {"model": "acme/none.such"})


async def test_every_answer_names_engine_and_replica(start):
    _, client = await start(engine="eu-west", replica="r7")
    async with (
        client.post(chat()) as whole,
        client.post(chat(stream=True)) as stream,
        client.get("/health") as ok,
    ):
        for response in (whole, stream, ok):
            assert (response.headers["x-engine"], response.headers["x-engine-replica"]) == ("eu-west", "r7")


async def test_headers_come_before_the_first_token_by_default(start):
    _, client = await start()
    await client.faults(hang=True)
    async with client.post(chat(stream=True)) as response:
        assert response.status == 200


async def test_with_early_headers_off_they_come_with_the_first_token(start):
    _, client = await start(early_headers=False)
    await client.faults(hang=True)
    with pytest.raises(TimeoutError):
        async with client.post(chat(stream=True), timeout=0.2):
            pass
    await client.faults(hang=False)
    async with client.post(chat(stream=True)) as response:
        assert (await events(response))[-1] == "[DONE]"


async def test_a_client_that_leaves_a_stream_frees_its_slot(start):
    _, client = await start()
    async with client.post(chat(stream=True, **ENDLESS)) as response:
        await first_content(response)
        assert await client.running() == 1
        response.close()

        async def free():
            return await client.running() == 0

        await eventually(free)


async def test_a_client_that_does_not_wait_for_a_whole_answer_frees_its_slot(start):
    _, client = await start()
    with pytest.raises(TimeoutError):
        async with client.post(chat(**ENDLESS), timeout=0.2):
            pass

    async def free():
        return await client.running() == 0

    await eventually(free)
    assert (await client.json("/stats"))["outcomes"] == {"aborted": 1}


async def test_received_bytes_and_headers_can_be_asked_for(start):
    _, client = await start()
    body = (
        b'{"model": "'
        + MODEL.encode()
        + b'",  "messages":[{"role":"user","content":"\xc3\xa9"}], "seed":12345678901234567}'
    )
    async with client.session.post(
        client.url + "/v1/chat/completions", data=body, headers={"X-Trace": "t"}
    ) as response:
        assert response.status == 200
    (received,) = await client.json("/admin/requests")
    assert received["sha256"] == hashlib.sha256(body).hexdigest()
    assert received["length"] == len(body)
    assert ["X-Trace", "t"] in received["headers"]


async def test_a_returning_conversation_has_a_shorter_prefill(start):
    _, client = await start()
    usages = []
    for _ in range(2):
        async with client.post(chat("word " * 200), headers={"x-session-id": "s1"}) as response:
            usages.append((await response.json())["usage"])
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[0] == 0
    assert cached[1] > 200
    assert (
        FAST.prefill_s(usages[1]["prompt_tokens"] - cached[1])
        < FAST.prefill_s(usages[0]["prompt_tokens"]) / 2
    )


@pytest.mark.parametrize("field", ["prompt_cache_key", "user"])
async def test_a_session_may_be_named_in_the_body(start, field):
    _, client = await start()
    for cached in (False, True):
        async with client.post(chat("word " * 200, **{field: "s1"})) as response:
            details = (await response.json())["usage"]["prompt_tokens_details"]
        assert bool(details["cached_tokens"]) is cached


async def test_a_round_trip_to_the_calling_front_end_delays_the_answer_once(start):
    """The lower bound is exact: tokens may not arrive before they have travelled."""
    _, client = await start(rtt_ms={"eu-west": 200.0})
    clock = asyncio.get_running_loop().time
    sent_at = clock()
    async with client.post(chat(stream=True), headers={"x-headrace-frontend": "eu-west"}) as response:
        assert clock() - sent_at >= 0.2
        await events(response)
    assert (await client.json("/stats"))["frontends"] == {"eu-west": 1}
