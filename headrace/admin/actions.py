"""What an operator may do through the admin API: accept a held policy, hold or release a penalty."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from signals.outliers import Hold

if TYPE_CHECKING:
    from headrace.control_plane.control_plane import ControlPlane

_LONGEST_HOLD_S = 30 * 86_400


def same_host(bound: str) -> Middleware:
    """Refuse what a page in an operator's browser could send, DNS rebinding included: a `Host` that is not
    this machine's, or any foreign `Origin`."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.host.rpartition(":")[0] or request.host
        known = host.strip("[]") in {"localhost", "127.0.0.1", "::1", bound}
        origin = request.headers.get("origin")
        if not known or (origin is not None and origin.partition("//")[2] != request.host):
            return _answer({"error": f"host {request.host!r}: this API answers to loopback names only"}, 403)
        return await handler(request)

    return check


def action_routes(plane: ControlPlane) -> list[web.RouteDef]:
    """`POST /api/policy/accept {hash}`, `POST /api/penalty {engine, replica?, penalty, reason, for_s}`,
    `POST /api/penalty/release {engine, replica?}`, `POST /api/wave/accept {}` (a wave of draining that was
    held is meant). Bad input: 400 with the reason; unknown names: 404."""

    def accept(body: Mapping[str, Any]) -> dict[str, Any]:
        plane.gate.accept(_text(body, "hash"))
        return {"policy_hash": plane.policy.content_hash}

    def hold(body: Mapping[str, Any]) -> dict[str, Any]:
        seconds = _number(body, "for_s", 1.0, _LONGEST_HOLD_S)
        penalty = _number(body, "penalty", 0.0, 1.0)
        now = plane.clock()
        engine, replica = _text(body, "engine"), body.get("replica")
        placed = Hold(penalty, _text(body, "reason"), now + seconds)
        plane.protection.hold(plane.policy, engine, replica, placed, now)
        plane.log.warning(
            "penalty_held", engine=engine, replica=replica, penalty=penalty, reason=placed.reason
        )
        plane.planner.want("override")
        return {"engine": engine, "replica": replica, "penalty": penalty}

    def release(body: Mapping[str, Any]) -> dict[str, Any]:
        engine, replica = _text(body, "engine"), body.get("replica")
        plane.protection.release(engine, replica)
        plane.log.warning("penalty_released", engine=engine, replica=replica)
        plane.planner.want("override")
        return {"engine": engine, "replica": replica}

    def accept_wave(body: Mapping[str, Any]) -> dict[str, Any]:
        plane.membership.accept_wave()
        plane.log.warning("wave_accepted", by="operator")
        return {"accepted": True}

    return [
        web.post("/api/wave/accept", _handler(accept_wave)),
        web.post("/api/policy/accept", _handler(accept)),
        web.post("/api/penalty", _handler(hold)),
        web.post("/api/penalty/release", _handler(release)),
    ]


def _handler(
    work: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        # A page in an operator's browser must not be able to post here: it cannot set this content type
        # across origins without being asked.
        if request.content_type != "application/json":
            return _answer({"error": "expected content-type application/json"}, 415)
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise ValueError("expected a JSON object")
            return _answer(work(body), 200)
        except KeyError as error:
            return _answer({"error": f"unknown: {error.args[0]}"}, 404)
        except ValueError as error:
            return _answer({"error": str(error)}, 400)

    return handle


def _answer(value: Mapping[str, Any], status: int) -> web.Response:
    return web.Response(status=status, text=json.dumps(value) + "\n", content_type="application/json")


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: expected a text, got {value!r}")
    return value


def _number(body: Mapping[str, Any], name: str, low: float, high: float) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name}: expected a number from {low:g} to {high:g}, got {value!r}")
    return float(value)
