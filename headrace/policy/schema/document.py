"""The whole file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from headrace.policy.schema.base import Shape
from headrace.policy.schema.engines import Deny, Engine, EngineDefaults
from headrace.policy.schema.places import Frontend, Listener, Network, Region
from headrace.policy.schema.planning import Planning
from headrace.policy.schema.profiles import Profile
from headrace.policy.schema.protection import Protection
from headrace.policy.schema.security import Security
from headrace.policy.schema.traffic import Model, ModelDefaults, TrafficClass
from headrace.policy.types import ModelId, Name, OrderedNames

MAX_FRONTENDS = 100


MAX_ENGINES = 1_000


MAX_MODELS = 50


MAX_CLASSES = 10


MAX_ADAPTERS = 10_000
"""Adapter names over all models."""


class Defaults(Shape):
    """Values for every engine and model that says nothing else."""

    engine: EngineDefaults = EngineDefaults()
    """For every engine."""
    model: ModelDefaults = ModelDefaults()
    """For every model."""


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
