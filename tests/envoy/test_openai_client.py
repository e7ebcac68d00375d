"""The OpenAI SDK, unchanged, against a front-end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from tests.envoy.harness import MODEL, SMALL, Front
from tests.envoy.replica import Received, Replica, chunk, head

pytestmark = pytest.mark.asyncio(loop_scope="session")


def completion(**changes: object) -> dict[str, object]:
    return {"id": "chatcmpl-1", "created": 1, "model": MODEL, **changes}


async def answer_chat(request: Received, out: object) -> None:
    """Answer as an engine does, streamed when asked."""
    if not json.loads(request.body).get("stream"):
        message = {"role": "assistant", "content": "Hello there"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps(completion(object="chat.completion", choices=[choice])).encode()
        out.write(head(200, ("content-type", "application/json"), ("content-length", str(len(body)))) + body)
        return
    out.write(head(200, ("content-type", "text/event-stream"), ("transfer-encoding", "chunked")))
    for text in ("Hello", " there"):
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        event = completion(object="chat.completion.chunk", choices=[choice])
        out.write(chunk(f"data: {json.dumps(event)}\n\n".encode()))
    out.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


@pytest_asyncio.fixture(loop_scope="session")
async def client(front: Front, replica: Replica) -> AsyncIterator[openai.AsyncOpenAI]:
    replica.answer = answer_chat
    async with openai.AsyncOpenAI(base_url=front.url("/v1"), api_key="none", max_retries=0) as client:
        yield client


async def test_models_are_listed_by_every_name_of_the_policy(client: openai.AsyncOpenAI) -> None:
    listed = [model.id async for model in client.models.list()]
    assert listed == sorted(["chat-latest", "légal/v3.1", MODEL, SMALL])


async def test_one_model_is_retrieved_by_its_name(client: openai.AsyncOpenAI) -> None:
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nope/nope")


async def test_a_completion_is_answered_whole(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "Hello there"


async def test_a_completion_is_streamed(client: openai.AsyncOpenAI) -> None:
    parts = [{"type": "text", "text": "hi"}]
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], stream=True
    )
    assert [event.choices[0].delta.content async for event in stream] == ["Hello", " there"]


async def test_refusals_are_the_exceptions_that_users_expect(client: openai.AsyncOpenAI) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="gpt.5/none", messages=messages)
    assert unknown.value.code == "model_not_found"
    assert "gpt.5/none" in unknown.value.message
    with pytest.raises(openai.BadRequestError) as missing:
        await client.chat.completions.create(model=None, messages=messages)
    assert missing.value.param == "model"
    prompt = {"role": "user", "content": "x" * (8 << 20)}
    with pytest.raises(openai.APIStatusError) as large:
        await client.chat.completions.create(model=MODEL, messages=[prompt])
    assert large.value.status_code == 413
