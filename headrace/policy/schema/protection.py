"""What guards traffic when parts fail: safe defaults, all settable."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from headrace.policy.schema.base import Shape
from headrace.policy.types import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    PositiveCount,
    PositiveFraction,
    fault,
    number_or,
)

RetryStatus = Annotated[int, Field(ge=500, le=599)]


class OutlierDetection(Shape):
    """Envoy's own ejection of failing replicas."""

    enabled: bool = True
    """Whether Envoys eject at all."""
    consecutive_local_origin_failure: PositiveCount = 3
    """Connect failures and resets in a row."""
    consecutive_gateway_failure: PositiveCount = 5
    """502, 503, 504 in a row. Fewer, and errors that come at random eject what is well."""
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


class Ramp(Shape):
    """A replica that is new beside others takes its part of the traffic little by little."""

    duration_s: Annotated[float, Field(ge=0, le=3_600)] = 30
    """Seconds until it counts in full; 0 = at once."""
    start: PositiveFraction = 0.2
    """What it counts for at first, against the others."""


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
    ramp: Ramp = Ramp()
    """New replicas."""
    panic_threshold_percent: Annotated[float, Field(ge=0, le=100)] = 0
    """Below this part of healthy replicas Envoy ignores health; 0 = never."""


class Retries(Shape):
    """Attempts after the first: again on the engine, then on the fallback."""

    enabled: bool = True
    """Whether Envoys retry at all."""
    same_engine: Annotated[int, Field(ge=0, le=3)] = 1
    """Retries on another replica of the engine before the fallback."""
    statuses: Annotated[tuple[RetryStatus, ...], Field(max_length=16)] = (500, 503)
    """Answers of an engine that are tried again elsewhere. A draining vLLM answers new requests with 500; a
    request that breaks engines does so at most `same_engine` + 2 times."""
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
    reserve: Annotated[float | Literal["auto"], number_or("auto", 0, 0.5)] = "auto"
    """Part of an engine's capacity that is not planned with while any of its model's traffic is refused, so
    that noise does not slow what is admitted; auto: three quarters of what noise may exceed capacity by."""
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
    """Limits of an Envoy itself: `headrace envoy --policy` takes them up when it starts."""

    max_heap_mib: Annotated[int, Field(ge=64, le=1_048_576)] = 2_048
    """Heap at which an Envoy answers new requests with 503, MiB."""
    max_connections: PositiveCount = 50_000
    """Connections from clients; one more is closed."""


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
