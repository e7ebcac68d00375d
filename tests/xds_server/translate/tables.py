"""Routing tables for tests."""

from __future__ import annotations

from dataclasses import replace

from xds_server.routing import (
    SHED,
    TOTAL_WEIGHT,
    Endpoint,
    Engine,
    FrontendRouting,
    Health,
    Listener,
    Model,
    RoutingTable,
    Split,
    TrafficClass,
)

LARGE = "meta-llama/Llama-3.3-70B-Instruct"
SMALL = "meta-llama/Llama-3.1-8B-Instruct"


def table(**changes: object) -> RoutingTable:
    """Return a table with two front-ends, two models, three engines and some of everything."""
    half = TOTAL_WEIGHT // 2
    splits = (
        Split(
            LARGE,
            "interactive",
            (("home", half), ("away", half // 2), ("home", half // 4), (SHED, half // 4)),
            fallback={"home": "away", "away": "home"},
            retry_limit={"home": 12, "away": 0},
            request_limit={"home": 300},
        ),
        Split(LARGE, "batch", (("away", TOTAL_WEIGHT),), fallback={"home": "away"}),
        Split(SMALL, "interactive", (("pool", TOTAL_WEIGHT),)),
        Split(SMALL, "batch", (), reason="residency: eu only"),
    )
    endpoints = {
        "home": (
            Endpoint("home-0", "10.0.0.1", 8000),
            Endpoint("home-1", "10.0.0.2", 8000, weight=40),
            Endpoint("home-2", "10.0.0.3", 8000, health=Health.DRAINING),
        ),
        "away": (),
        "pool": (Endpoint("pool", "gateway.example.net", 15443),),
    }
    whole = RoutingTable(
        fleet="prod",
        listeners=(
            Listener("public", 8443, "interactive"),
            Listener("internal", 8444, "batch", trust_headers=True),
        ),
        classes=(TrafficClass("interactive"), TrafficClass("batch", "x-traffic-class", "batch")),
        match_order=("batch",),
        models=(
            Model(LARGE, (LARGE, "chat-latest"), adapters=("legal-v3", "acme-*")),
            Model(SMALL, (SMALL,), session_keys=("header:x-session-id", "body:metadata:conversation")),
        ),
        engines={
            "home": Engine("home"),
            "away": Engine("away", lb_policy="maglev", health_check=None, outlier_detection=None),
            "pool": Engine("pool", dns=True, hash_balance_factor=125),
        },
        frontends={
            "us-east": FrontendRouting("us-east", splits, endpoints),
            "eu-west": FrontendRouting("eu-west", splits[:1], endpoints),
        },
    )
    return replace(whole, **changes)


def with_frontend(whole: RoutingTable, name: str, **changes: object) -> RoutingTable:
    """Return the table with a changed front-end."""
    return replace(whole, frontends={**whole.frontends, name: replace(whole.frontends[name], **changes)})
