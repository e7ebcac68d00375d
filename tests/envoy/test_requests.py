"""What a client may send, and what of it reaches the engine."""

from __future__ import annotations

import json

import pytest

from tests.envoy.harness import MODEL, SMALL, Answer, ControlPlane, Front, Pool, engine
from tests.envoy.replica import Replica
from xds_server.routing import SHED, TOTAL_WEIGHT, Endpoint

pytestmark = pytest.mark.asyncio(loop_scope="session")

JSON = {"content-type": "application/json"}
MULTIPART = f'--cut\r\ncontent-disposition: form-data; name="model"\r\n\r\n{MODEL}\r\n--cut--\r\n'.encode()


def error(answer: Answer) -> dict[str, object]:
    """Return the error of an answer that is one as OpenAI writes it."""
    assert answer.headers["content-type"] == "application/json"
    document = json.loads(answer.body)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return document["error"]


async def test_a_request_reaches_the_engine_of_its_model(front: Front, replica: Replica) -> None:
    answer = await front.chat()
    assert answer.status == 200
    assert answer.headers["x-headrace-engine"] == "home"
    assert answer.served_by == "home-0"
    assert len(answer.headers["x-headrace-snapshot"]) == 16


@pytest.mark.parametrize("name", [MODEL, MODEL.lower(), "chat-latest", "légal/v3.1", "acme-42"])
async def test_aliases_and_adapters_are_served_as_their_model(
    front: Front, replica: Replica, name: str
) -> None:
    before = await front.demand()
    assert (await front.chat(model=name)).status == 200
    assert await front.demand() == before + 1


@pytest.mark.parametrize("name", ["nope", "acme", "meta-llama/Llama-3.3", 'a"b\\c\n', "x" * 100_000])
async def test_an_unknown_model_is_refused_as_openai_does(front: Front, replica: Replica, name: str) -> None:
    answer = await front.chat(model=name)
    assert answer.status == 404
    assert answer.reason == "unknown_model"
    assert error(answer)["code"] == "model_not_found"
    assert not replica.received


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"messages": []}', JSON),
        (b'{"model": null}', JSON),
        (b"[]", JSON),
        (b"", JSON),
        (b'{"model": "' + MODEL.encode() + b'"', JSON),
        (b'{"model": "' + MODEL.encode() + b'"} trailing', JSON),
        (b'{"model": "nope", "model": "' + MODEL.encode() + b'"}', JSON),
        (b'{"model": "' + MODEL.encode() + b'"}', {"content-type": "text/plain"}),
        (b'{"model": "' + MODEL.encode() + b'"}', {"content-type": "application/x-www-form-urlencoded"}),
        (MULTIPART, {"content-type": "multipart/form-data; boundary=cut"}),
    ],
    ids=["missing", "null", "array", "empty", "broken", "trailing", "duplicate", "text", "form", "multipart"],
)
async def test_a_body_that_names_no_model_is_refused(
    front: Front, replica: Replica, body: bytes, headers: dict[str, str]
) -> None:
    answer = await front.send(data=body, headers=headers)
    assert answer.status == 400
    assert answer.reason == "missing_model"
    assert error(answer)["param"] == "model"
    assert not replica.received


@pytest.mark.parametrize("model", [42, True, [MODEL], {"name": MODEL}], ids=str)
async def test_a_model_that_is_no_string_is_nobodys_name(
    front: Front, replica: Replica, model: object
) -> None:
    answer = await front.chat(model=model)
    assert (answer.status, answer.reason) == (404, "unknown_model")
    assert not replica.received


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "APPLICATION/json;charset=UTF-8"]
)
async def test_json_is_read_however_its_content_type_is_spelled(
    front: Front, replica: Replica, content_type: str
) -> None:
    body = json.dumps({"model": MODEL}).encode()
    assert (await front.send(data=body, headers={"content-type": content_type})).status == 200
    assert replica.received[0].body == body


ODD_BODY = (
    b'{ "seed":12345678901234567,\n"temperature": 0.10,"model":"'
    + MODEL.encode()
    + rb'","messages":[{"role":"user","content":[{"type":"text","text":"\u00e9\ud83d\ude00 z\u0000"}]}],'
    + b'"b":1,"a":{"d":1e2,"c":[ ]}}  '
)


@pytest.mark.parametrize("chunked", [False, True])
async def test_the_body_arrives_byte_for_byte(front: Front, replica: Replica, chunked: bool) -> None:
    async def pieces() -> object:
        for at in range(0, len(ODD_BODY), 7):
            yield ODD_BODY[at : at + 7]

    answer = await front.send(data=pieces() if chunked else ODD_BODY, headers=JSON)
    assert answer.status == 200
    assert replica.received[0].body == ODD_BODY


async def test_a_prompt_of_six_megabytes_arrives_whole(front: Front, replica: Replica) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x" * (6 << 20)}]}).encode()
    assert (await front.send(data=body, headers=JSON)).status == 200
    assert replica.received[0].body == body


async def test_the_model_is_found_after_a_large_tools_block(front: Front, replica: Replica) -> None:
    functions = [{"name": f"f{i}", "description": "y" * 1000} for i in range(1500)]
    tools = [{"type": "function", "function": each} for each in functions]
    body = json.dumps({"tools": tools, "model": MODEL}).encode()
    assert len(body) > 1 << 20
    assert (await front.send(data=body, headers=JSON)).status == 200
    assert replica.received[0].body == body


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("model", "limit"), [(MODEL, 8 << 20), (SMALL, 1 << 20)])
async def test_a_body_over_its_models_limit_is_refused(
    control_plane: ControlPlane, front: Front, model: str, limit: int, chunked: bool
) -> None:
    async with Replica("big") as replica:
        pool = Pool({"home": [replica]})
        small = pool.split(model="chat.small")
        await control_plane.publish(pool.table(pool.split(), small))

        def sized(size: int) -> bytes:
            empty = len(json.dumps({"model": model, "user": ""}))
            return json.dumps({"model": model, "user": "x" * (size - empty)}).encode()

        async def pieces(body: bytes) -> object:
            for at in range(0, len(body), 1 << 16):
                yield body[at : at + (1 << 16)]

        for size, status in ((limit, 200), (limit + 1, 413)):
            body = sized(size)
            answer = await front.send(data=pieces(body) if chunked else body, headers=JSON)
            assert (size, answer.status) == (size, status)
        assert error(answer)["code"] == "request_too_large"
        assert len(replica.received) == 1


async def test_a_header_of_48_kb_reaches_the_engine(front: Front, replica: Replica) -> None:
    answer = await front.chat(headers={"x-large": "h" * (48 << 10)})
    assert answer.status == 200
    assert replica.received[0].header("x-large") == "h" * (48 << 10)


async def test_a_hundred_and_fifty_headers_reach_the_engine(front: Front, replica: Replica) -> None:
    answer = await front.chat(headers={f"x-header-{i}": "y" for i in range(150)})
    assert answer.status == 200
    assert replica.received[0].header("x-header-149") == "y"


async def test_the_clients_request_id_and_authorization_reach_the_engine(
    front: Front, replica: Replica
) -> None:
    sent = {"x-request-id": "bench-1", "authorization": "Bearer secret", "x-session-id": "me"}
    assert (await front.chat(headers=sent)).status == 200
    assert {name: replica.received[0].header(name) for name in sent} == sent


async def test_headers_over_the_limit_are_refused(front: Front, replica: Replica) -> None:
    for headers in ({"x-large": "h" * (97 << 10)}, {f"x-header-{i}": "y" for i in range(201)}):
        answer = await front.chat(headers=headers)
        assert answer.status == 431
        assert answer.reason == "headers_too_large"
        assert error(answer)["code"] == "headers_too_large"
    assert not replica.received


@pytest.mark.parametrize(
    "key",
    ["a\r\nx-evil: 1", "\r\n\r\nGET / HTTP/1.1\r\n", "k" * (1 << 20), "é\u2028\0"],
    ids=["crlf", "request", "megabyte", "unicode"],
)
async def test_a_session_key_from_the_body_never_reaches_the_engine_as_a_header(
    front: Front, replica: Replica, key: str
) -> None:
    answer = await front.chat(prompt_cache_key=key)
    assert answer.status == 200
    assert len(replica.received) == 1
    assert not [name for name, _ in replica.received[0].headers if "evil" in name or "body" in name]
    assert json.loads(replica.received[0].body)["prompt_cache_key"] == key


async def test_content_as_a_list_of_parts_is_served(front: Front, replica: Replica) -> None:
    parts = [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert (await front.chat(messages=[{"role": "user", "content": parts}])).status == 200


SPOOFED = {
    "x-headrace-model": MODEL,
    "x-headrace-default-class": "batch",
    "x-headrace-trusted": "1",
    "x-traffic-class": "batch",
    "x-headrace-stream": "true",
    "x-headrace-body-user": "me",
    "X-Headrace-Reason": "missing_model",
    "x-headrace-frontend": "elsewhere",
    "x-headrace-engine": "elsewhere",
}


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (json.dumps({"model": MODEL}), "text/plain", 400),
        (json.dumps({"user": "me"}), "application/json", 400),
        ('{"model": "' + MODEL, "application/json", 400),
        (f'{{"model": "nope", "model": "{MODEL}"}}', "application/json", 400),
        (json.dumps({"model": "nope"}), "Application/Json", 404),
        (json.dumps({"model": MODEL}), "application/json", 200),
    ],
    ids=["text", "no_model", "broken", "duplicate", "odd_content_type", "valid"],
)
async def test_internal_headers_of_a_client_count_for_nothing(
    front: Front, replica: Replica, body: str, content_type: str, status: int
) -> None:
    interactive = await front.demand()
    answer = await front.send(data=body, headers={**SPOOFED, "content-type": content_type})
    assert answer.status == status
    assert await front.demand() == interactive + (status == 200)
    seen = [name for request in replica.received for name, _ in request.headers if "headrace" in name]
    assert seen == (["x-headrace-frontend"] if status == 200 else [])
    assert all(request.header("x-headrace-frontend") == "us-east" for request in replica.received)


async def test_class_headers_count_only_where_the_listener_trusts_them(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("i") as interactive, Replica("b") as batch:
        pool = Pool({"fast": [interactive], "slow": [batch]})
        splits = [
            pool.split(entries=(("fast", TOTAL_WEIGHT),)),
            pool.split(traffic_class="batch", entries=(("slow", TOTAL_WEIGHT),)),
        ]
        await control_plane.publish(pool.table(*splits))
        header = {"x-traffic-class": "interactive"}
        assert (await front.chat(listener="public")).served_by == "i"
        assert (await front.chat(listener="public", headers={"x-traffic-class": "batch"})).served_by == "i"
        assert (await front.chat(listener="internal")).served_by == "b"
        assert (await front.chat(listener="internal", headers=header)).served_by == "i"


async def test_a_key_without_engines_says_why(control_plane: ControlPlane, front: Front) -> None:
    async with Replica("home-0") as replica:
        pool = Pool({"home": [replica]})
        other = pool.split(model="chat.small", entries=(), reason="residency: eu only")
        await control_plane.publish(pool.table(pool.split(), other))
        demand = await front.demand("chat.small")
        answer = await front.chat(model=SMALL)
        assert answer.status == 503
        assert answer.reason == "no_eligible_engine"
        assert "residency: eu only" in str(error(answer)["message"])
        assert await front.demand("chat.small") == demand + 1
        assert (await front.chat()).status == 200


async def test_what_the_plan_sheds_is_refused_with_retry_after(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("home-0") as replica:
        pool = Pool({"home": [replica]})
        half = TOTAL_WEIGHT // 2
        await control_plane.publish(pool.table(pool.split(entries=(("home", half), (SHED, half)))))
        demand = await front.demand()
        by_session = [
            [(await front.chat(headers={"x-session-id": f"s{i}"})).status for _ in range(2)]
            for i in range(40)
        ]
        assert all(first == second for first, second in by_session)
        assert {status for status, _ in by_session} == {200, 429}
        refused = next(i for i, (status, _) in enumerate(by_session) if status == 429)
        answer = await front.chat(headers={"x-session-id": f"s{refused}"})
        assert answer.headers["retry-after"] == "2"
        assert answer.reason == "shed"
        assert error(answer)["code"] == "overloaded"
        assert await front.demand() == demand + 81


async def test_a_gateway_is_told_for_every_attempt_which_engine_is_meant(
    control_plane: ControlPlane, front: Front
) -> None:
    async with Replica("region") as region, Replica("pool") as pool:
        region.answer = region.answer_503
        engines = {
            "home": engine("home", gateway=True, outlier_detection=None),
            "away": engine("away", dns=True),
        }
        # `localhost` is resolved by Envoy.
        both = Pool({"home": [region], "away": [Endpoint("pool", "localhost", pool.port)]}, engines)
        split = both.split(entries=(("home", TOTAL_WEIGHT),), fallback={"home": "away"})
        await control_plane.publish(both.table(split))
        answer = await front.chat()
        assert answer.status == 200
        assert answer.headers["x-headrace-engine"] == "away"
        assert [each.header("x-headrace-engine") for each in region.received] == ["home", "home"]
        assert [each.header("x-headrace-engine") for each in pool.received] == ["away"]
        assert [each.header("x-envoy-attempt-count") for each in region.received] == ["1", "2"]
        assert [each.header("x-envoy-attempt-count") for each in pool.received] == ["3"]
        assert pool.received[0].header("host") == "localhost"
