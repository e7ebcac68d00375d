"""The routing table: everything the translator needs to make Envoy configuration, as frozen values.

It is the contract between the control plane (which fills it from policy, membership and plan) and
`xds_server.translate` (which turns it into Envoy resources). Shares are already partitioned into
hash-space intervals; addresses are already chosen for the front-end's point of view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

TOTAL_WEIGHT = 1 << 20
"""Sum of the weights of every weighted route. One constant of the product: another sum with the same
shares moves more than half of all sessions. Coprime to the Maglev table size."""

SHED = "shed"
"""Destination name of the deliberately refused part of a demand."""


class Health(Enum):
    """Health of a replica as told to Envoy by EDS."""

    HEALTHY = "healthy"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica of an engine: where it listens and how much of the engine's traffic it gets."""

    replica: str
    address: str
    """IP literal (or a DNS name for a gateway engine)."""
    port: int
    weight: int = 100
    """1..10_000, relative to the engine's other replicas: the replica's penalty times 100."""
    health: Health = Health.HEALTHY


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """Active health check of an engine's replicas by Envoy."""

    path: str = "/health"
    interval_s: float = 5.0
    timeout_s: float = 1.0
    unhealthy_threshold: int = 2
    healthy_threshold: int = 1


@dataclass(frozen=True, slots=True)
class OutlierDetection:
    """Envoy's own ejection of failing replicas (names as in Envoy's API)."""

    consecutive_local_origin_failure: int = 3
    consecutive_gateway_failure: int = 5
    consecutive_5xx: int = 5
    base_ejection_time_s: float = 5.0
    max_ejection_time_s: float = 60.0
    max_ejection_percent: int = 100
    interval_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Engine:
    """How Envoy talks to the replicas of one engine. Changes here change CDS: never for load."""

    name: str
    lb_policy: str = "ring_hash"
    """`ring_hash` or `maglev`."""
    ring_size: int = 1024
    maglev_table_size: int = 65537
    hash_balance_factor: int | None = None
    """Bounded load in percent (125 = no replica above 1.25 times the mean), or None for pure hashing."""
    connect_timeout_s: float = 1.0
    idle_timeout_s: float = 4.0
    """Below the engine's own keep-alive (uvicorn: 5 s), else requests race with its close."""
    health_check: HealthCheck | None = field(default_factory=HealthCheck)
    outlier_detection: OutlierDetection | None = field(default_factory=OutlierDetection)
    max_requests: int = 100_000
    """Last-guard breaker per Envoy and member cluster: requests, connections and pending alike."""
    panic_threshold_percent: float = 0.0
    """Below this part of healthy replicas Envoy ignores health; 0 = never."""
    dns: bool = False
    """Endpoints are DNS names that Envoy resolves itself (STRICT_DNS) instead of EDS."""
    gateway: bool = False
    """Endpoints stand before several engines and must be told, in a header, which one is meant; engines
    found by DNS always are."""


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """A traffic class; requests are told apart by a header on listeners that trust headers."""

    name: str
    match_header: str | None = None
    match_value: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """How requests for one model are recognised and bounded."""

    name: str
    served_as: tuple[str, ...]
    """Exact values of the request's `model` field, aliases included."""
    adapters: tuple[str, ...] = ()
    """LoRA names: exact, or with one trailing `*`."""
    session_keys: tuple[str, ...] = ("header:x-session-id", "body:prompt_cache_key", "body:user")
    """Where the session key comes from, first present wins: `header:<name>` or `body:<field>`."""
    max_request_bytes: int = 8 << 20
    stream_idle_s: float = 300.0
    longest_generation_s: float = 900.0
    per_try_timeout_s: float | None = None
    same_engine_retries: int = 1
    """Retries on another replica of the engine before the fallback."""
    retry_statuses: tuple[int, ...] = (503,)
    """Answers of an engine that are tried again elsewhere."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener of every Envoy."""

    name: str
    port: int
    """0 binds an ephemeral port (tests, demo)."""
    default_class: str
    trust_headers: bool = False
    address: str = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Split:
    """How one (model, class) demand of a front-end is divided.

    `entries` are consecutive intervals of the hash space: (destination, width), destination an engine
    name or `SHED`, widths positive and summing to `TOTAL_WEIGHT`. The same destination may own several.
    Empty `entries`: no eligible engine, answered 503 with `reason`.
    """

    model: str
    traffic_class: str
    entries: tuple[tuple[str, int], ...]
    fallback: Mapping[str, str] = field(default_factory=dict)
    """engine -> engine to try when it fails; an engine without one retries only within itself. Every
    engine that holds an interval, and every fallback, is eligible for the key. Engines that hold no
    interval now may be named too: their clusters then stay warm for the day they get a share."""
    retry_limit: Mapping[str, int] = field(default_factory=dict)
    """engine -> concurrent retries one Envoy may have in flight for requests first sent there."""
    request_limit: Mapping[str, int] = field(default_factory=dict)
    """engine -> requests of this class that one Envoy may have at it; beyond are refused (429). An engine
    without one has its `max_requests`."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FrontendRouting:
    """What one front-end's Envoys serve from."""

    name: str
    splits: tuple[Split, ...]
    endpoints: Mapping[str, tuple[Endpoint, ...]]
    """engine -> replicas as this front-end reaches them; every engine that a split names is a key,
    possibly with no endpoints."""


@dataclass(frozen=True, slots=True)
class ShedAnswer:
    """Constants of the refusals (`Retry-After` seconds)."""

    retry_after_shed_s: int = 2
    retry_after_overflow_s: int = 1
    retry_after_unavailable_s: int = 5


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """The fleet's whole routing state at one version."""

    fleet: str
    listeners: tuple[Listener, ...]
    classes: tuple[TrafficClass, ...]
    match_order: tuple[str, ...]
    models: tuple[Model, ...]
    engines: Mapping[str, Engine]
    frontends: Mapping[str, FrontendRouting]
    answers: ShedAnswer = ShedAnswer()
