"""The shape of a policy file: one frozen model a section, every field with its unit and default.

What a single value may be is decided here; what must agree between places is decided in `checks`. The
page for operators is docs/policy.md. Models are validated from the plain values of `source.read`, where
lists are tuples and no value is null, so a field that is not written is a field that is not set.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from headrace.policy.problems import shown
from headrace.policy.types import (
    AdapterNames,
    Addresses,
    Cidrs,
    Count,
    Fraction,
    HeaderName,
    HostPort,
    IpAddress,
    MaxUtilization,
    ModelId,
    Name,
    Names,
    NonNegative,
    OrderedNames,
    Port,
    Positive,
    PositiveCount,
    PositiveFraction,
    ServedNames,
    SessionKeys,
    SomeNames,
    fault,
    number_or,
)

MAX_FRONTENDS = 100
MAX_ENGINES = 1_000
MAX_MODELS = 50
MAX_CLASSES = 10
MAX_ADAPTERS = 10_000
"""Adapter names over all models."""

PolicyName = Literal[
    "global", "round_robin", "nearest", "local", "capacity_weighted", "waterfall", "feedback", "dgd"
]


class Shape(BaseModel):
    """Base of all sections: frozen, no unknown keys, no conversions, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Region(Shape):
    """A place with engines, front-ends or both."""

    jurisdiction: Name | None = None
    """The law that holds there. Engines in a region without one never serve a key with a residency rule."""
    replica_cidrs: Cidrs = ()
    """Networks in which replicas of this region's engines have their addresses; none = any address."""
    gateway: HostPort | None = None
    """`host:port` that front-ends of other regions dial; none = flat network."""


class Frontend(Shape):
    """A CPU cluster of one or more Envoys that share weights."""

    region: Name
    """The region it stands in."""
    residency: SomeNames | None = None
    """Jurisdictions in which requests that came in here may be served; none = no rule."""


class Listener(Shape):
    """A port of every Envoy."""

    port: Port
    """TCP port; 0 binds a free one."""
    default_class: Name
    """Class of requests that no class header puts elsewhere."""
    trust_headers: bool = False
    """Whether class headers count here. Only for listeners that no outsider reaches."""
    address: IpAddress = "0.0.0.0"
    """Address to bind."""


def _slo(value: Any) -> Any:
    return {"p95": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class Slo(Shape):
    """Service levels at the engine, milliseconds. A bare number means p95."""

    p50: Positive | None = None
    """Median, ms."""
    p95: Positive | None = None
    """95th percentile, ms."""
    p99: Positive | None = None
    """99th percentile, ms."""

    @model_validator(mode="after")
    def _some(self) -> Slo:
        if not self.model_fields_set:
            raise fault("is an empty map", "p50, p95 or p99 in milliseconds")
        return self


SloMs = Annotated[Slo, BeforeValidator(_slo)]


class Match(Shape):
    """How a request says that it is of a class, on listeners that trust headers."""

    header: HeaderName
    """Header name, lower case."""
    value: Annotated[str, Field(min_length=1, max_length=256)]
    """Its exact value."""


class ClassFields(Shape):
    """What a class says, and what a model may say otherwise for it."""

    priority: Annotated[int, Field(ge=0, le=1_000)] = 100
    """Higher is kept longer when demand exceeds capacity."""
    ttft_slo_ms: SloMs | None = None
    """Time to first token at the engine, ms."""
    tbot_slo_ms: SloMs | None = None
    """Time between output tokens at the engine, ms."""
    input_tokens: Positive | None = None
    """Mean prompt length, tokens. With `output_tokens` it gives the work of a request."""
    output_tokens: Positive | None = None
    """Mean answer length, tokens; none = the profile's reference, else 200."""
    prefix_hit: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of the prompt found in the prefix cache; none = the profile's reference."""
    work: Positive | None = None
    """Load of one request in units of the profile's reference request, instead of the token counts."""
    churn_price_ms: NonNegative | None = None
    """Price of moving one request's session, ms; none = `planning.churn.price_ms`."""
    churn_work: Fraction | None = None
    """Extra work of a moved request, in reference requests; none = `planning.churn.work`."""
    residency: SomeNames | None = None
    """Jurisdictions in which requests of this class may be served; none = no rule."""


class TrafficClass(ClassFields):
    """A named part of the traffic, for every model."""

    match: Match | None = None
    """How requests say that they are of this class; none = only as a listener's default."""


class ModelDefaults(Shape):
    """Settings of a model that `defaults.model` may give for all."""

    session_keys: SessionKeys = ("header:x-session-id", "body:prompt_cache_key", "body:user")
    """Where the session key comes from, the first that is present: `header:<name>` or `body:<field>`."""
    requires: Names = ()
    """Capabilities that an engine must have to serve this model's requests."""
    residency: SomeNames | None = None
    """Jurisdictions in which requests for this model may be served; none = no rule."""
    max_request_mib: Annotated[float, Field(gt=0, le=1024)] = 8
    """Largest request body, MiB; larger ones are answered 413."""
    stream_idle_s: Positive = 300
    """Longest silence within an answer, seconds."""
    longest_generation_s: Positive = 900
    """Longest answer, seconds; also how long a draining Envoy waits for running streams."""
    first_byte_timeout_s: Positive | None = None
    """Seconds to response headers before an attempt is given up; none = no limit. Must exceed the p99.9 of
    the time to first token, or it multiplies the load."""


class Model(ModelDefaults):
    """What clients ask for in the `model` field of a request."""

    served_as: Annotated[ServedNames, Field(min_length=1)]
    """Exact names in the `model` field; bodies are never rewritten."""
    aliases: ServedNames = ()
    """Further exact names. The engine must answer to them too."""
    adapters: AdapterNames = ()
    """LoRA names, exact or a prefix ending in `*`: same demand key and engines as the base."""
    classes: Mapping[Name, ClassFields] = {}
    """Class fields that differ for this model."""


class Reference(Shape):
    """The request that a profile was measured with."""

    input_tokens: Positive
    """Prompt length, tokens."""
    output_tokens: Positive
    """Answer length, tokens."""
    prefix_hit: Annotated[float, Field(ge=0, lt=1)] = 0
    """Fraction of the prompt found in the prefix cache."""


class ProfileFields(Shape):
    """What every profile says, for one replica and the reference request."""

    capacity_rps: Positive
    """Reference requests per second that a replica serves within the service levels."""
    reference: Reference | None = None
    """The request it was measured with; needed to turn token counts into work."""
    prefill_share: Fraction = 0.5
    """Part of a reference request's work that is prefill."""
    source: str = ""
    """Where the numbers come from; free text."""
    fit: Mapping[str, Any] = {}
    """Quality of the fit, written by `headrace fit`; shown, not used."""


class Ttft(Shape):
    """TTFT in ms = base + slope · max(0, load - knee)."""

    base: NonNegative
    """Idle time to first token, ms."""
    knee_rps: NonNegative = 0
    """Load at which it begins to rise, requests/s of one replica."""
    slope: NonNegative = 0
    """Rise above the knee, ms per request/s."""


class ParametricProfile(ProfileFields):
    """TBOT in ms = t0 / (1 - load/lambda_max), as continuous batching gives."""

    t0_ms: NonNegative
    """Time between output tokens of an idle replica, ms."""
    lambda_max_rps: Positive
    """Load at which time between tokens has no bound, requests/s of one replica."""
    ttft_ms: Ttft
    """Time to first token."""


class TablePoint(Shape):
    """One measured load of a replica."""

    load_rps: NonNegative
    """Load, requests/s."""
    ttft_ms: NonNegative
    """Mean time to first token, ms."""
    tbot_ms: NonNegative
    """Mean time between output tokens, ms."""


class TableProfile(ProfileFields):
    """A profile as measured; made monotone and convex by the planner."""

    table: Annotated[tuple[TablePoint, ...], Field(min_length=2, max_length=10_000)]
    """Measured loads, rising."""

    @model_validator(mode="after")
    def _rising(self) -> TableProfile:
        loads = [point.load_rps for point in self.table]
        for low, high in pairwise(loads):
            if high <= low:
                raise fault(f"the table has load_rps {high:g} after {low:g}", "loads that rise")
        return self


def _profile_kind(value: Any) -> str:
    """The kind of a profile, written (validation) or read in (serialisation)."""
    table = "table" in value if isinstance(value, dict) else hasattr(value, "table")
    return "~table" if table else "~parametric"


Profile = Annotated[
    Annotated[ParametricProfile, Tag("~parametric")] | Annotated[TableProfile, Tag("~table")],
    Discriminator(_profile_kind),
]
"""`{file: path}` is replaced by the file's content before validation."""


class Members(Shape):
    """Where an engine's replicas come from: exactly one of the four."""

    reported: bool = False
    """Replicas report themselves (written as `members: reported`)."""
    static: Addresses | None = None
    """Fixed replicas, `ip:port`, all counted as ready."""
    dns: HostPort | None = None
    """A name that Envoy resolves to the replicas; `replicas` says how many to plan with."""
    gateway: HostPort | None = None
    """A pool behind its own picker; `replicas` says how many to plan with."""
    replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Replicas behind `dns` or `gateway`."""

    @model_validator(mode="after")
    def _one_kind(self) -> Members:
        kinds = [bool(self.reported), self.static is not None, self.dns is not None, self.gateway is not None]
        if sum(kinds) != 1:
            raise fault("does not say one kind of member", "reported, or one of static, dns, gateway")
        counted = self.dns is not None or self.gateway is not None
        if counted != (self.replicas is not None):
            raise fault(
                "`replicas` is missing" if counted else "`replicas` does not go with this kind of member",
                "`replicas` with `dns` and `gateway`, and only there",
            )
        return self


def _members(value: Any) -> Any:
    if value == "reported":
        return {"reported": True}
    if isinstance(value, dict) and "reported" not in value:
        return value
    raise fault(
        f"is {shown(value)}",
        "reported, {static: [ip:port, ...]}, {dns: host:port, replicas: n} or "
        "{gateway: host:port, replicas: n}",
    )


class OutlierDetection(Shape):
    """Envoy's own ejection of failing replicas."""

    enabled: bool = True
    """Whether Envoys eject at all."""
    consecutive_local_origin_failure: PositiveCount = 3
    """Connect failures and resets in a row."""
    consecutive_gateway_failure: PositiveCount = 3
    """502, 503, 504 in a row."""
    consecutive_5xx: PositiveCount = 5
    """Any 5xx in a row."""
    interval_s: Positive = 1
    """Seconds between sweeps that return ejected replicas."""
    base_ejection_time_s: Positive = 5
    """Seconds of a first ejection; grows with each further one."""
    max_ejection_time_s: Positive = 60
    """Longest ejection, seconds."""
    max_ejection_percent: Annotated[int, Field(ge=1, le=100)] = 100
    """Largest part of an engine's replicas that may be ejected, percent."""


class HealthCheck(Shape):
    """Active health checks by Envoy."""

    enabled: bool = True
    """Whether Envoys check at all."""
    scope: Literal["home", "all"] = "home"
    """`home`: only front-ends in the engine's region check it; `all`: every front-end."""
    path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=256)] = "/health"
    """Path that answers 200 when healthy."""
    interval_s: Positive = 5
    """Seconds between checks of a replica."""
    timeout_s: Positive = 1
    """Seconds until a check has failed."""
    unhealthy_threshold: PositiveCount = 2
    """Failed checks until a replica is out."""
    healthy_threshold: PositiveCount = 1
    """Good checks until it is back."""


class Hash(Shape):
    """How sessions are spread over the replicas of an engine."""

    lb: Literal["ring_hash", "maglev"] = "ring_hash"
    """Consistent hashing by ring or Maglev. Maglev moves fewer sessions when replicas come and go."""
    ring_size: Annotated[int, Field(ge=1, le=8_388_608)] = 1_024
    """Entries of a ring; 1,024 serves up to 64 replicas."""
    maglev_table_size: Annotated[int, Field(ge=3, le=5_000_011)] = 65_537
    """Entries of a Maglev table; a prime."""
    balance_factor: Annotated[int | Literal["none"], number_or("none", 100, 1_000, whole=True)] = "none"
    """Bounded load in percent of the mean (125 = no replica above 1.25 times the mean), or none."""

    @model_validator(mode="after")
    def _prime(self) -> Hash:
        n = self.maglev_table_size
        if any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
            raise fault(f"maglev_table_size {n} is not a prime", "a prime such as 65537")
        return self


class Breakers(Shape):
    """Last guards above the plan, per Envoy and engine. A tripped one answers 429."""

    max_requests: Annotated[int | Literal["auto"], number_or("auto", 1, 4_294_967_295, whole=True)] = "auto"
    """Requests in flight, or auto: from planned load and latency."""
    headroom: Annotated[float, Field(ge=1, le=100)] = 3
    """With auto: how many times the planned requests in flight."""
    floor: PositiveCount = 128
    """With auto: never fewer than this."""


class Timeouts(Shape):
    """Connections from Envoy to replicas."""

    connect_s: Positive = 1
    """Seconds to connect before the next attempt."""
    idle_s: Positive = 4
    """Seconds until an idle connection is closed; below the engine's keep-alive (uvicorn: 5 s)."""


class EngineProtection(Shape):
    """Protection that an engine may set for itself."""

    outlier_detection: OutlierDetection = OutlierDetection()
    """Ejection of failing replicas by Envoy."""
    health_check: HealthCheck = HealthCheck()
    """Active health checks by Envoy."""
    hash: Hash = Hash()
    """Sessions over replicas."""
    breakers: Breakers = Breakers()
    """Last guards."""
    timeouts: Timeouts = Timeouts()
    """Connections."""
    panic_threshold_percent: Annotated[float, Field(ge=0, le=100)] = 0
    """Below this part of healthy replicas Envoy ignores health; 0 = never."""


class Retries(Shape):
    """Attempts after the first: again on the engine, then on the fallback."""

    enabled: bool = True
    """Whether Envoys retry at all."""
    same_engine: Annotated[int, Field(ge=0, le=3)] = 1
    """Retries on another replica of the engine before the fallback."""
    fallback: bool = True
    """Whether the last attempt may go to another eligible engine."""
    limit: Annotated[int | Literal["auto"], number_or("auto", 0, 100_000, whole=True)] = "auto"
    """Retries in flight per Envoy, key and engine; auto: from the fallback's spare capacity."""
    floor: Count = 3
    """With auto: never fewer while the fallback has room; 0 applies when the fleet is saturated."""


class Shedding(Shape):
    """Refusing what cannot be served."""

    enabled: bool = True
    """Whether the plan may shed. Without it, overload queues in the engines."""
    rotate_s: Positive = 600
    """Seconds in which the refused sessions change places with served ones."""
    correct_s: NonNegative = 1
    """Seconds after which real load above the plan is corrected inside a round; 0 = never."""
    retry_after_shed_s: Count = 2
    """`Retry-After` of a shed request (429), seconds."""
    retry_after_overflow_s: Count = 1
    """`Retry-After` when a breaker tripped (429), seconds."""
    retry_after_unavailable_s: Count = 5
    """`Retry-After` when no replica exists (503), seconds."""


class Penalties(Shape):
    """Outliers found by the control plane: observed latency against what the load explains."""

    enabled: bool = True
    """Whether residuals lower weights and effective capacity."""
    enter_ratio: Annotated[float, Field(gt=1, le=100)] = 1.5
    """Observed over predicted latency at which a replica or engine becomes an outlier."""
    leave_ratio: Annotated[float, Field(ge=1, le=100)] = 1.2
    """Ratio below which it stops being one."""
    dwell_s: NonNegative = 10
    """Seconds that either must last."""
    floor: PositiveFraction = 0.1
    """Smallest factor on weight and capacity."""
    return_s: Positive = 60
    """Seconds of the gradual return from floor to 1."""
    max_penalized: Fraction = 0.5
    """Largest part of an engine's replicas, and of a model's engines, penalised at once."""

    @model_validator(mode="after")
    def _hysteresis(self) -> Penalties:
        if self.leave_ratio >= self.enter_ratio:
            raise fault(
                f"leave_ratio {self.leave_ratio:g} is not below enter_ratio {self.enter_ratio:g}",
                "leave_ratio < enter_ratio",
            )
        return self


class Overload(Shape):
    """Limits of an Envoy itself (bootstrap; an Envoy takes them up when it starts)."""

    max_heap_mib: Annotated[int, Field(ge=64, le=1_048_576)] = 2_048
    """Heap at which Envoy stops taking requests, MiB."""
    max_connections: PositiveCount = 50_000
    """Connections from clients."""


class Protection(EngineProtection):
    """Everything that guards traffic when parts fail; per engine where `EngineProtection` has it."""

    retries: Retries = Retries()
    """Attempts after the first."""
    shedding: Shedding = Shedding()
    """Refusals."""
    penalties: Penalties = Penalties()
    """Outliers by residual."""
    overload: Overload = Overload()
    """Envoy's own limits."""


class EngineDefaults(Shape):
    """Settings of an engine that `defaults.engine` may give for all."""

    capabilities: Names = ()
    """What its replicas can do (`tools`, `vision`), against a model's `requires`."""
    classes: SomeNames | None = None
    """Classes it serves; none = all."""
    max_share: PositiveFraction = 1
    """Largest share of any one (front-end, model, class) demand."""
    members: Annotated[Members, BeforeValidator(_members)] = Members(reported=True)
    """Where its replicas come from."""
    state: Literal["active", "drain", "off"] = "active"
    """`drain`: no new requests, running ones end; `off`: as if it were not there."""
    max_utilization: MaxUtilization | None = None
    """Part of capacity that is planned with; none = `planning.max_utilization`."""
    clusters: Names = ()
    """Clusters whose replicas may report under this name; none = the first that reports."""
    protection: EngineProtection = EngineProtection()
    """Protection where it differs from the fleet's."""


class Engine(EngineDefaults):
    """A pool of replicas of one model, in one region, with one hardware profile."""

    model: ModelId
    """The model it serves."""
    region: Name
    """Where it stands."""
    profile: Name
    """How its replicas behave under load."""


class Defaults(Shape):
    """Values for every engine and model that says nothing else."""

    engine: EngineDefaults = EngineDefaults()
    """For every engine."""
    model: ModelDefaults = ModelDefaults()
    """For every model."""


class Network(Shape):
    """Round trips between places, ms."""

    same_region_rtt_ms: NonNegative = 1
    """Within a region."""
    rtt_ms: Mapping[Name, Mapping[Name, NonNegative]] = {}
    """Most specific wins: front-end/engine, front-end/region, region/region (symmetric)."""


class Churn(Shape):
    """The price of moving sessions."""

    price_ms: NonNegative = 5
    """Latency price of one moved request, ms."""
    work: Fraction = 0.05
    """Extra work of one moved request (its prefix is cold there), in reference requests."""


class Guards(Shape):
    """Brakes on plans and on edits."""

    max_step: PositiveFraction = 0.2
    """Largest part of a key's demand that moves in one round (soft: capacity comes first)."""
    hold_if_moves_over: Fraction = 0.3
    """An edit that would move a larger part of all demand is held until accepted."""
    hold_if_capacity_drops_over: Fraction = 0.25
    """An edit that takes away a larger part of capacity is held until accepted."""


class Planning(Shape):
    """How shares are computed."""

    policy: PolicyName = "global"
    """`global`, or a baseline to compare with."""
    interval_s: Annotated[float, Field(ge=0.1, le=3_600)] = 5
    """Seconds between rounds."""
    demand_window_s: Annotated[float, Field(ge=0.1, le=86_400)] = 30
    """Time constant of the smoothed demand, seconds."""
    max_utilization: MaxUtilization = 0.90
    """Part of capacity that is planned with, or auto: from demand and its noise."""
    max_gap: Annotated[float, Field(gt=0, le=0.5)] = 0.001
    """Largest certified gap to the optimum, as a fraction; gains below it move nothing."""
    time_limit_s: Positive = 2
    """Longest solving time of a round, seconds; then the best plan so far, with its gap."""
    churn: Churn = Churn()
    """Price of movement."""
    guards: Guards = Guards()
    """Brakes."""


class SecretFile(Shape):
    """A path to a secret, never the secret."""

    file: Annotated[str, Field(min_length=1, max_length=4_096)]
    """Relative to the policy file."""


def _secret(value: Any) -> Any:
    if isinstance(value, str):
        raise fault("is written out here", "{file: <path>}: paths, never secrets")
    return value


Secret = Annotated[SecretFile, BeforeValidator(_secret)]


class Tls(Shape):
    """Mutual TLS of one port."""

    cert: Secret
    """Certificate of the control plane, PEM."""
    key: Secret
    """Its key, PEM."""
    client_ca: Secret
    """Authority of the clients' certificates, PEM."""
    identity: Annotated[str, Field(min_length=1, max_length=1_024)]
    """URI (or DNS name) that a client's certificate must carry; `{engine}` or `{frontend}` is filled in."""


class ReportsSecurity(Tls):
    """The reports port; `{engine}` in the identity."""

    @model_validator(mode="after")
    def _bound(self) -> ReportsSecurity:
        if self.identity.count("{engine}") != 1:
            raise fault("the identity does not name the engine", "{engine} once in `identity`")
        return self


class XdsSecurity(Tls):
    """The xDS port; `{frontend}` in the identity."""

    @model_validator(mode="after")
    def _bound(self) -> XdsSecurity:
        if self.identity.count("{frontend}") != 1:
            raise fault("the identity does not name the front-end", "{frontend} once in `identity`")
        return self


class Security(Shape):
    """Who may speak to the control plane. Without it, only loopback and only with `--insecure-dev`."""

    reports: ReportsSecurity | None = None
    """Load reports of engines."""
    xds: XdsSecurity | None = None
    """Envoys."""


class Deny(Shape):
    """An explicit rule: what matches all of its fields is never served there."""

    frontend: Name | None = None
    """Front-end; none = all."""
    model: ModelId | None = None
    """Model; none = all."""
    traffic_class: Name | None = Field(default=None, alias="class")
    """Class; none = all."""
    engine: Annotated[str, Field(max_length=128)] | None = None
    """Engine, `{01..04}` allowed; none = all."""
    region: Name | None = None
    """Region of the engine; none = all."""
    reason: Annotated[str, Field(max_length=200)] = ""
    """Shown where the rule bites."""

    @model_validator(mode="after")
    def _selective(self) -> Deny:
        if not self.model_fields_set - {"reason"}:
            raise fault("matches everything", "at least one of frontend, model, class, engine, region")
        return self


class Document(Shape):
    """A whole policy file (or folder, merged)."""

    version: Literal[1]
    """Version of this format."""
    fleet: Name
    """An Envoy or a reporter of another fleet is refused."""
    revision: Annotated[str, Field(max_length=200)] = ""
    """Free text, set by CI; shown in logs, metrics and pages."""
    regions: Annotated[Mapping[Name, Region], Field(min_length=1)]
    """Where things are, what law holds, how others reach it."""
    frontends: Annotated[Mapping[Name, Frontend], Field(min_length=1, max_length=MAX_FRONTENDS)]
    """Where requests come in."""
    listeners: Annotated[Mapping[Name, Listener], Field(min_length=1)]
    """Rendered into every Envoy."""
    classes: Annotated[Mapping[Name, TrafficClass], Field(min_length=1, max_length=MAX_CLASSES)]
    """Parts of the traffic."""
    match_order: OrderedNames = ()
    """Classes in the order in which their matches are tried."""
    models: Annotated[Mapping[ModelId, Model], Field(min_length=1, max_length=MAX_MODELS)]
    """What clients ask for."""
    profiles: Annotated[Mapping[Name, Profile], Field(min_length=1)]
    """How one replica behaves under load."""
    defaults: Defaults = Defaults()
    """Values for every engine and model."""
    engines: Annotated[Mapping[str, Engine], Field(min_length=1, max_length=MAX_ENGINES)]
    """Pools; `{01..04}` in a name expands."""
    network: Network = Network()
    """Round trips."""
    planning: Planning = Planning()
    """Shares."""
    security: Security = Security()
    """Identities."""
    protection: Protection = Protection()
    """When parts fail."""
    deny: Annotated[tuple[Deny, ...], Field(max_length=10_000)] = ()
    """Explicit rules."""
