"""What Envoy answers by itself, on routes: the model list, and refusals once the body is read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import quote

from envoy_data_plane.envoy.config.core.v3 import DataSource, SubstitutionFormatString
from envoy_data_plane.envoy.config.route.v3 import DirectResponseAction, HeaderMatcher, Route, RouteMatch
from envoy_data_plane.envoy.type.v3 import Int64Range
from envoy_data_plane.google.protobuf import Struct, Value

from xds_server.routing import Model
from xds_server.translate import names
from xds_server.translate.errors import JSON, error_body
from xds_server.translate.packing import exactly, overwrite

_INVALID = "invalid_request_error"
_GET = HeaderMatcher(name=":method", string_match=exactly("GET"))


def model_list(models: Iterable[Model]) -> Route:
    """Answer `GET /v1/models` in OpenAI's list format with every name a client may ask for.

    LoRA names with a `*` stand for names nobody has listed and are left out.
    """
    known = sorted({name for model in models for name in (*model.served_as, *model.adapters)})
    listed = [_entry(name) for name in known if not name.endswith("*")]
    body = json.dumps({"object": "list", "data": listed}, sort_keys=True, separators=(",", ":"))
    return _answer(RouteMatch(path="/v1/models", headers=[_GET]), 200, body)


def single_models(models: Iterable[Model]) -> list[Route]:
    """Answer `GET /v1/models/<name>`, with the name as it is or escaped; not for adapters."""
    routes = []
    for name in sorted({name for model in models for name in model.served_as}):
        body = json.dumps(_entry(name), sort_keys=True, separators=(",", ":"))
        for spelling in sorted({name, name.replace("/", "%2F"), quote(name, safe="")}):
            routes.append(_answer(RouteMatch(path=f"/v1/models/{spelling}", headers=[_GET]), 200, body))
    return routes


def missing_model(match: RouteMatch) -> Route:
    """Refuse a request whose body names no model: none there, no JSON object, or not said to be JSON."""
    message = "The request body must be a JSON object with a string `model`, sent as application/json."
    return _answer(match, 400, error_body(message, _INVALID, "missing_model", "model"), "missing_model")


def nothing_here(match: RouteMatch) -> Route:
    """Refuse a request that is no API call at all."""
    return _answer(match, 404, error_body("There is nothing here.", _INVALID, "not_found"), "no_route")


def unknown_model(match: RouteMatch) -> Route:
    """Refuse a model that the policy does not know, naming it as OpenAI does."""
    error = {
        "message": _text(f"The model `%REQ({names.MODEL_HEADER}):256%` does not exist."),
        "type": _text(_INVALID),
        "param": _text("model"),
        "code": _text("model_not_found"),
    }
    body = Struct(fields={"error": Value(struct_value=Struct(fields=error))})
    route = _answer(match, 404, "", "unknown_model")
    assert route.direct_response is not None
    route.direct_response.body = None
    route.direct_response.body_format = SubstitutionFormatString(json_format=body, content_type=JSON)
    return route


def too_large(model: Model) -> Route:
    """Refuse a body over the model's limit; the buffer filter has given every body a length."""
    beyond = Int64Range(start=model.max_request_bytes + 1, end=2**63 - 1)
    match = RouteMatch(prefix="/", headers=[HeaderMatcher(name="content-length", range_match=beyond)])
    message = f"The request body is larger than the {model.max_request_bytes} bytes that this model takes."
    return _answer(match, 413, error_body(message, _INVALID, "request_too_large"), "too_large")


def no_engine(reason: str) -> Route:
    """Refuse a key that no engine may serve from this front-end; the match is added by the caller."""
    message = f"No engine may serve this model here: {reason or 'no eligible engine'}."
    body = error_body(message, "service_unavailable", "no_eligible_engine")
    return _answer(None, 503, body, "no_eligible_engine")


def _answer(match: RouteMatch | None, status: int, body: str, reason: str | None = None) -> Route:
    headers = [overwrite("content-type", JSON)]
    if reason:
        headers.append(overwrite(names.REASON_HEADER, reason))
    return Route(
        match=match,
        direct_response=DirectResponseAction(status=status, body=DataSource(inline_string=body)),
        response_headers_to_add=headers,
    )


def _entry(name: str) -> dict[str, str | int]:
    """Describe one model; `created` is a constant, since nothing here knows when a model was made."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "headrace"}


def _text(value: str) -> Value:
    return Value(string_value=value)
