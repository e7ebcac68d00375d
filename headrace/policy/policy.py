"""A loaded policy: normalised, order-independent, with the views that planning and serving need."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Literal

from headrace.policy.archive import Archive
from headrace.policy.expand import expand
from headrace.policy.problems import Path, Place, Problem
from headrace.policy.schema import (
    Churn,
    Deny,
    Document,
    EngineProtection,
    Frontend,
    LearningMode,
    Listener,
    Members,
    Model,
    ParametricProfile,
    Planning,
    Protection,
    Region,
    Security,
    Slo,
    TableProfile,
    TrafficClass,
)

Profile = ParametricProfile | TableProfile


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine after expansion, defaults and fleet-wide protection."""

    name: str
    model: str
    region: str
    jurisdiction: str | None
    profile_name: str
    profile: Profile
    """Of one replica, for the reference request; capacity in reference requests/s."""
    capabilities: frozenset[str]
    classes: frozenset[str] | None
    """Classes it serves; None = all."""
    max_share: float
    """Largest share of any one (front-end, model, class) demand, 0..1."""
    members: Members
    state: Literal["active", "drain", "off"]
    max_utilization: float | Literal["auto"]
    clusters: tuple[str, ...]
    learning: LearningMode
    """Whether its profile is corrected by what its replicas report."""
    protection: EngineProtection


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One (model, class) pair with the model's overrides applied."""

    model: str
    traffic_class: str
    priority: int
    ttft_slo_ms: Slo | None
    tbot_slo_ms: Slo | None
    input_tokens: float | None
    output_tokens: float | None
    prefix_hit: float | None
    work: float | None
    churn_price_ms: float
    churn_work: float
    residency: frozenset[str] | None
    """Jurisdictions allowed by model and class together; None = no rule; empty = none is allowed."""
    requires: frozenset[str]
    has_sessions: bool
    """Whether requests carry a session key; without one, moving them costs nothing."""

    @property
    def key(self) -> str:
        """`<model>/<class>`."""
        return f"{self.model}/{self.traffic_class}"


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Who may serve a key for a front-end, and why the model's other engines may not."""

    engines: tuple[str, ...]
    """Sorted names."""
    reasons: Mapping[str, str]
    """Each other engine of the model -> the first rule against it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A valid policy. Two policies that mean the same are equal, whatever the order of their keys."""

    document: Document
    """The whole document: maps sorted, engines expanded, defaults filled in."""
    engines: Mapping[str, EngineSpec]
    key_specs: Mapping[str, KeySpec]
    """`<model>/<class>` -> what holds for it."""
    content_hash: str
    """SHA-256 of everything except `revision`."""
    warnings: tuple[Problem, ...] = field(default=(), compare=False)
    places: Mapping[Path, Place] = field(default_factory=dict, compare=False, repr=False)
    """Where each written value stands."""
    files: tuple[str, ...] = field(default=(), compare=False)
    """Every file that was read."""
    archive: Archive = field(default=Archive(False, (), {}), compare=False, repr=False)
    """The text of those files."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Engine -> the name it was written under (`a-{01..04}`)."""
    _by_model: Mapping[str, tuple[EngineSpec, ...]] = field(default_factory=dict, compare=False, repr=False)
    _denied: Mapping[str, tuple[Deny, ...]] = field(default_factory=dict, compare=False, repr=False)
    _alike: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Front-end -> the first one that eligibility treats alike."""
    _answered: dict[tuple[str, str], Eligibility] = field(default_factory=dict, compare=False, repr=False)
    """What `eligible` found already; one answer is shared by front-ends that are alike."""

    @property
    def fleet(self) -> str:
        """Name of the fleet."""
        return self.document.fleet

    @property
    def revision(self) -> str:
        """Free text set by CI."""
        return self.document.revision

    @property
    def regions(self) -> Mapping[str, Region]:
        """Region name -> region."""
        return self.document.regions

    @property
    def frontends(self) -> Mapping[str, Frontend]:
        """Front-end name -> front-end."""
        return self.document.frontends

    @property
    def listeners(self) -> Mapping[str, Listener]:
        """Listener name -> listener."""
        return self.document.listeners

    @property
    def classes(self) -> Mapping[str, TrafficClass]:
        """Class name -> class, before any model's override (see `key_specs`)."""
        return self.document.classes

    @property
    def match_order(self) -> tuple[str, ...]:
        """Every class that has a match, in the order in which matches are tried."""
        rest = (
            name
            for name, item in self.classes.items()
            if item.match and name not in self.document.match_order
        )
        return (*self.document.match_order, *rest)

    @property
    def models(self) -> Mapping[str, Model]:
        """Model id -> model, defaults filled in."""
        return self.document.models

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Profile name -> profile, files read in."""
        return self.document.profiles

    @property
    def planning(self) -> Planning:
        """How shares are computed."""
        return self.document.planning

    @property
    def churn(self) -> Churn:
        """Price of movement where a key says nothing else."""
        return self.document.planning.churn

    @property
    def protection(self) -> Protection:
        """Fleet-wide protection; per engine see `EngineSpec.protection`."""
        return self.document.protection

    @property
    def security(self) -> Security:
        """Identities; paths are relative to the policy file."""
        return self.document.security

    def secret_path(
        self, port: Literal["reports", "xds"], name: Literal["cert", "key", "client_ca"]
    ) -> FilePath:
        """Where a file of `security` is; KeyError when the policy does not name it."""
        secret = getattr(getattr(self.security, port), name, None)
        if secret is None:
            raise KeyError(f"security.{port}.{name}")
        return FilePath(self.places["security", port, name, "file"].file).parent / str(secret.file)

    def report_tokens(self) -> Mapping[str, frozenset[str]]:
        """Engine -> SHA-256 digests of the tokens that may report for it."""
        found: dict[str, frozenset[str]] = {}
        for pattern, digests in (self.security.reports.tokens if self.security.reports else {}).items():
            for name in expand(pattern):
                found[name] = found.get(name, frozenset()) | set(digests)
        return found

    def keys(self) -> tuple[tuple[str, str], ...]:
        """All (model, class) pairs, sorted."""
        return tuple((spec.model, spec.traffic_class) for spec in self.key_specs.values())

    def jurisdiction(self, engine: str) -> str | None:
        """The law that holds where an engine stands."""
        return self.engines[engine].jurisdiction

    def network_ms(self, frontend: str, engine: str) -> float:
        """Round trip between a front-end and an engine, ms: the most specific value."""
        spec = self.engines[engine]
        value = round_trip(self.document, frontend, engine, spec.region)
        assert value is not None, "checked on loading"
        return value

    def eligible(self, frontend: str, key: str) -> Eligibility:
        """Engines that may serve `key` (`<model>/<class>`) for `frontend`, and the reasons of the others.

        Residency is the intersection of front-end, model and class. An engine without a jurisdiction is
        ineligible as soon as there is a rule. KeyError for a front-end or key that the policy lacks.
        """
        asked = self._alike[frontend], key
        if asked not in self._answered:
            self._answered[asked] = self._eligible(*asked)
        return self._answered[asked]

    def _eligible(self, frontend: str, key: str) -> Eligibility:
        spec = self.key_specs[key]
        allowed = meet(spec.residency, self.frontends[frontend].residency)
        engines, reasons = [], {}
        for engine in self._by_model.get(spec.model, ()):
            reason = _against(engine, spec, allowed) or self._deny_reason(frontend, spec, engine.name)
            if reason:
                reasons[engine.name] = reason
            else:
                engines.append(engine.name)
        return Eligibility(tuple(engines), reasons)

    def _deny_reason(self, frontend: str, spec: KeySpec, engine: str) -> str:
        for rule in self._denied.get(engine, ()):
            frontend_fits = rule.frontend in (None, frontend)
            if (
                frontend_fits
                and rule.model in (None, spec.model)
                and rule.traffic_class in (None, spec.traffic_class)
            ):
                return f"denied: {rule.reason}" if rule.reason else "denied by a rule"
        return ""


def meet(*rules: frozenset[str] | tuple[str, ...] | None) -> frozenset[str] | None:
    """The intersection of residency rules; None where there is none."""
    sets = [frozenset(rule) for rule in rules if rule is not None]
    return frozenset.intersection(*sets) if sets else None


def _against(engine: EngineSpec, key: KeySpec, allowed: frozenset[str] | None) -> str:
    """The first rule against an engine serving a key; empty when there is none."""
    if engine.state != "active":
        return f"state: {engine.state}"
    if allowed is not None and engine.jurisdiction not in allowed:
        place = (
            f"in jurisdiction {engine.jurisdiction}"
            if engine.jurisdiction
            else "in a region without jurisdiction"
        )
        return f"residency: {place}, allowed: {', '.join(sorted(allowed)) or 'none'}"
    if missing := key.requires - engine.capabilities:
        return f"capability: lacks {', '.join(sorted(missing))}"
    if engine.classes is not None and key.traffic_class not in engine.classes:
        return f"classes: serves only {', '.join(sorted(engine.classes))}"
    return ""


def round_trip(document: Document, frontend: str, engine: str, engine_region: str) -> float | None:
    """The most specific round trip in ms that the policy gives, or None."""
    table, region = document.network.rtt_ms, document.frontends[frontend].region
    for start, end in (
        (frontend, engine),
        (frontend, engine_region),
        (region, engine_region),
        (engine_region, region),
    ):
        value = table.get(start, {}).get(end)
        if value is not None:
            return value
    return document.network.same_region_rtt_ms if region == engine_region else None


def content_hash(document: Document) -> str:
    """SHA-256 over the normalised document without `revision`; equal numbers hash equally."""
    plain = document.model_dump(exclude={"revision"}, by_alias=True)
    return hashlib.sha256(json.dumps(_canonical(plain), sort_keys=True).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value
