"""Field by field the same as a real vLLM 0.32.0: the answers below were recorded from one.

Not in a chunk's fields: `prompt_tokens_details` of a cached prompt, which vLLM adds when it is told to. Whole
answers leave out fields of vLLM's own that are always null.
"""

import json

import pytest

from tests.headrace.demo.conftest import MODEL, events

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}

ROLE = (
    '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
)
CHAT_CHUNKS = [
    f'{{"id":"","object":"","created":0,"model":"",{ROLE},"prompt_token_ids":null,"prompt_text":null}}',
    '{"id":"","object":"","created":0,"model":"","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,'
    '"finish_reason":null,"token_ids":null}]}',
    '{"id":"","object":"","created":0,"model":"","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,'
    '"finish_reason":"length","stop_reason":null,"token_ids":null}]}',
    '{"id":"","object":"","created":0,"model":"","choices":[],"usage":{"prompt_tokens":14,"total_tokens":17,'
    '"completion_tokens":3},"system_fingerprint":""}',
]
CONTINUOUS_ROLE = (
    f'{{"id":"","object":"","created":0,"model":"",{ROLE},"usage":{{"prompt_tokens":14,"total_tokens":14,'
    '"completion_tokens":0,"completion_tokens_details":null},"prompt_token_ids":null,"prompt_text":null}'
)
TEXT_CHUNKS = [
    '{"id":"","object":"","created":0,"model":"","choices":[{"index":0,"text":"a","logprobs":null,'
    '"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}',
    '{"id":"","object":"","created":0,"model":"","choices":[{"index":0,"text":"a","logprobs":null,'
    '"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}',
    '{"id":"","object":"","created":0,"model":"","choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,'
    '"completion_tokens":2},"system_fingerprint":""}',
]


def shape(value):
    """The document with its leaves replaced by their types, keys in order."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def shapes(texts):
    return [shape(json.loads(text)) for text in texts]


async def chunks(client, path, **fields):
    async with client.post({"model": MODEL, "max_tokens": 2, "ignore_eos": True, **fields}, path) as response:
        *documents, done = await events(response)
    assert done == "[DONE]"
    return [shape(document) for document in documents]


async def test_chat_chunks(start):
    _, client = await start()
    assert await chunks(client, "/v1/chat/completions", **CHAT, **STREAM) == shapes(CHAT_CHUNKS)


async def test_text_chunks(start):
    _, client = await start()
    assert await chunks(client, "/v1/completions", prompt="hello", **STREAM) == shapes(TEXT_CHUNKS)


async def test_chunks_with_continuous_usage(start):
    _, client = await start()
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    first, *_ = await chunks(client, "/v1/chat/completions", **CHAT, **STREAM | options)
    assert [first] == shapes([CONTINUOUS_ROLE])


async def test_a_whole_chat_answer_has_vllms_fields(start):
    _, client = await start()
    async with client.post({"model": MODEL, **CHAT}) as response:
        document = await response.json()
    assert list(document) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage")
    ]
    assert list(document["choices"][0]) == [
        *("index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids")
    ]
    assert list(document["choices"][0]["message"]) == [
        *("role", "content", "refusal", "annotations", "audio", "function_call", "reasoning")
    ]


@pytest.mark.parametrize(
    ("body", "status", "kind", "param"),
    [
        ({"model": "nope", **CHAT}, 404, "NotFoundError", "model"),
        (b'{"messages":[', 400, "Bad Request", "body"),
        ([], 400, "Bad Request", "body"),
        ({"model": MODEL}, 400, "Bad Request", "body.messages"),
        ({"model": MODEL, "messages": []}, 400, "BadRequestError", None),
        ({"model": MODEL, **CHAT, "max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"model": MODEL, **CHAT, "max_tokens": 10**6}, 400, "BadRequestError", "max_tokens"),
        (
            {"model": MODEL, "messages": [{"role": "user", "content": "x" * 10**6}]},
            400,
            "BadRequestError",
            "input_tokens",
        ),
    ],
)
async def test_errors(start, body, status, kind, param):
    _, client = await start()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.session.post(client.url + "/v1/chat/completions", data=data) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)


async def test_a_request_without_a_model_is_served(start):
    """As by vLLM: asking for the model is the router's rule, not the engine's."""
    _, client = await start()
    async with client.post(CHAT) as response:
        assert response.status == 200
        assert (await response.json())["model"] == MODEL


async def test_an_unknown_path_is_404(start):
    _, client = await start()
    async with client.post({}, "/tokenize") as response:
        assert response.status == 404
        assert await response.json() == {"detail": "Not Found"}
