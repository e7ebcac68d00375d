"""Pools of replicas, and rules against them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from headrace.policy.problems import shown
from headrace.policy.schema.base import Shape
from headrace.policy.schema.planning import LearningMode
from headrace.policy.schema.protection import EngineProtection
from headrace.policy.types import (
    Addresses,
    HostPort,
    MaxUtilization,
    ModelId,
    Name,
    Names,
    PositiveFraction,
    SomeNames,
    fault,
)


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

    @model_serializer
    def _as_written(self) -> str | dict[str, Any]:
        return (
            "reported"
            if self.reported
            else {name: getattr(self, name) for name in sorted(self.model_fields_set)}
        )

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
    learning: LearningMode | None = None
    """Whether its profile is corrected; none = `planning.learning.mode`."""
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
