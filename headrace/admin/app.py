"""The two HTTP faces of the control plane: metrics and health on one port, the admin API on another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import generate_latest

from headrace.admin.actions import action_routes, same_host
from headrace.control_plane import observations
from optimizer import Correction
from signals.replicas import Presence
from xds_server.status import ClientStatus

if TYPE_CHECKING:
    from headrace.control_plane.control_plane import ControlPlane


def metrics_app(plane: ControlPlane) -> web.Application:
    """`/metrics`, `/livez` (the event loop answers) and `/readyz` (a snapshot can be served)."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(plane.telemetry.registry), content_type="text/plain")

    async def live(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(request: web.Request) -> web.Response:
        if plane.ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="no snapshot yet: waiting for engines to report\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/livez", live), web.get("/readyz", ready)])
    return app


def admin_app(plane: ControlPlane) -> web.Application:
    """`/api/status` (everything), `/api/state` (the state file of `headrace plan`), `/api/plan`."""

    async def status_(request: web.Request) -> web.Response:
        return _json(status(plane))

    async def state(request: web.Request) -> web.Response:
        view = plane.traffic.view()
        return _json(
            observations.state_file(
                plane.policy,
                observations.demand_rps(plane.policy, view),
                plane.engine_states(),
                plane.served.shares(),
            )
        )

    async def plan(request: web.Request) -> web.Response:
        found = plane.last_round
        if found is None or found.plan is None:
            return _json({"error": "no plan yet"}, status=503)
        return _json(found.plan.to_json())

    app = web.Application(middlewares=[same_host(plane.config.admin.host)])
    app.add_routes(
        [web.get("/api/status", status_), web.get("/api/state", state), web.get("/api/plan", plan)]
    )
    app.add_routes(action_routes(plane))
    return app


def status(plane: ControlPlane) -> dict[str, Any]:
    """The present state in plain values: what `headrace status` and the demo's table show."""
    now = plane.clock()
    view = plane.traffic.view()
    found = plane.last_round
    return {
        "fleet": plane.policy.fleet,
        "revision": plane.policy.revision,
        "policy_hash": plane.policy.content_hash,
        "policy_error": plane.gate.error,
        "policy_pending": _pending(plane),
        "mode": plane.mode,
        "ready": plane.ready,
        "snapshot": plane.served.sequence,
        "published_at": plane.published_at,
        "demand_rps": observations.demand_rps(plane.policy, view),
        "demand_total": {
            frontend: {key: point.total for (f, key), point in view.demand.items() if f == frontend}
            for frontend in plane.policy.frontends
        },
        "shares": plane.served.shares(),
        "last_round": None
        if found is None
        else {
            "result": str(found.result),
            "moved": found.moved,
            "reason": found.decision.reason if found.decision else found.error,
            "gap": found.plan.gap if found.plan else None,
            "solve_ms": found.plan.solve_ms if found.plan else None,
        },
        "engines": _engines(plane, now),
        "limits": plane.publisher.limits.to_json(),
        "refused_reporters": [
            {
                "peer": item.peer,
                "engine": item.engine,
                "code": item.code,
                "reason": item.reason,
                "times": item.times,
            }
            for item in plane.reports.refusals.list()
        ],
        "envoys": [_envoy(client) for client in plane.xds.status()],
    }


def _engines(plane: ControlPlane, now: float) -> dict[str, Any]:
    members = plane.membership.view()
    plan = plane.last_round.plan if plane.last_round else None
    penalties = plane.protection.engine_penalties(now)
    of_replicas = plane.protection.replica_penalties(now)
    return {
        name: {
            "region": spec.region,
            "ready_replicas": members.ready_count(name),
            "penalty": penalties[name].value if name in penalties else 1.0,
            "penalty_reason": penalties[name].explanation if name in penalties else "",
            "learning": _learned(plane, name),
            "load_mismatch": plane.protection.mismatch.get(name),
            "load_rps": plan.engines[name].load_rps if plan and name in plan.engines else None,
            "capacity_rps": plan.engines[name].capacity_rps if plan and name in plan.engines else None,
            "price_ms": plan.engines[name].price_ms if plan and name in plan.engines else None,
            "replicas": [
                {
                    "replica": replica.key.replica_id,
                    "cluster": replica.key.cluster,
                    "address": f"{replica.address}:{replica.port}",
                    "state": replica.state.value,
                    "silent": replica.presence is Presence.SILENT,
                    "quarantined": replica.quarantined,
                    "penalty": replica.penalty,
                    "ramp": replica.ramp,
                    "penalty_reason": of_replicas[replica.key].explanation
                    if replica.key in of_replicas
                    else "",
                    "age_s": replica.age_s(now),
                    "signals": {
                        str(signal): reading.value
                        for signal, reading in replica.readings.items()
                        if reading.value is not None
                    },
                }
                for replica in members.engines.get(name, ())
            ],
        }
        for name, spec in plane.policy.engines.items()
    }


def _learned(plane: ControlPlane, engine: str) -> dict[str, Any] | None:
    """How an engine's profile is corrected, what was learned since, and why nothing more is; None before the
    first round."""
    found = plane.learner.known().get(engine)
    if found is None:
        return None
    mode = plane.policy.engines[engine].learning
    used = Correction() if mode == "ignore" else found.used
    return {
        "mode": mode,
        "paused": found.paused,
        "served_s": found.served_s,
        "used": _factors(used),
        "learned": _factors(found.correction),
        "text": "" if used.neutral else used.text,
    }


def _factors(correction: Correction) -> dict[str, float]:
    return {
        "tbot_factor": correction.tbot_factor,
        "load_factor": correction.load_factor,
        "ttft_offset_ms": correction.ttft_offset_ms,
    }


def _envoy(status: ClientStatus) -> dict[str, Any]:
    """One stream: who it is, and what it was sent, confirmed and refused."""
    info = status.client
    return {
        "node": info.id,
        "frontend": info.frontend,
        "protocol": info.protocol,
        "build": info.build,
        "types": {
            found.type: {
                "version": found.version,
                "waiting_s": found.waiting_s,
                "error": found.error.message if found.error else None,
                "resources": len(found.resources),
            }
            for found in status.types
        },
    }


def _pending(plane: ControlPlane) -> dict[str, Any] | None:
    """The edit that waits for `headrace policy accept`."""
    pending = plane.gate.pending
    if pending is None:
        return None
    return {
        "hash": pending.policy.content_hash,
        "revision": pending.policy.revision,
        "reasons": list(pending.reasons),
        "changes": [{"path": c.path, "old": str(c.old), "new": str(c.new)} for c in pending.changes],
    }


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        status=status, text=json.dumps(value, sort_keys=True) + "\n", content_type="application/json"
    )
