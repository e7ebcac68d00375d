"""What clients ask for: classes and models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from headrace.policy.schema.base import Shape
from headrace.policy.types import (
    AdapterNames,
    Fraction,
    HeaderName,
    Name,
    Names,
    NonNegative,
    Positive,
    ServedNames,
    SessionKeys,
    SomeNames,
    fault,
)


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

    @model_serializer
    def _as_written(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}

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
