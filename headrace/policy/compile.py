"""From a checked document to a `Policy`: expansion, defaults, overrides."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from headrace.policy import warn
from headrace.policy.expand import expand
from headrace.policy.policy import EngineSpec, KeySpec, Policy, content_hash, meet
from headrace.policy.schema import (
    Deny,
    Document,
    Engine,
    EngineDefaults,
    EngineProtection,
    Model,
    ModelDefaults,
    Shape,
)
from headrace.policy.source import Source

S = TypeVar("S", bound=Shape)


def compile_policy(document: Document, source: Source, files: tuple[str, ...]) -> Policy:
    """The `Policy` of a document that passed all checks. Warnings are found here."""
    origins = {name: key for key in document.engines for name in expand(key)}
    whole = _normalised(document, origins)
    engines = {name: _engine(whole, name, engine) for name, engine in whole.engines.items()}
    keys = [_key(whole, model, name) for model in whole.models for name in whole.classes]
    policy = Policy(
        document=whole,
        engines=engines,
        key_specs={spec.key: spec for spec in sorted(keys, key=lambda spec: spec.key)},
        content_hash=content_hash(whole),
        places=source.places,
        files=files,
        origins=origins,
        _denied=_denied(whole.deny, engines),
    )
    return replace(policy, warnings=tuple(sorted(warn.warnings(policy))))


def overlay(base: S, over: Shape) -> S:
    """`base` with every field that `over` sets; sections of protection are overlaid field by field."""
    update = {}
    for name in over.model_fields_set:
        old, new = getattr(base, name), getattr(over, name)
        nested = isinstance(base, EngineProtection) and isinstance(new, Shape)
        update[name] = overlay(old, new) if nested or name == "protection" else new
    return base.model_copy(update=update)


def _normalised(document: Document, origins: dict[str, str]) -> Document:
    engines = {name: _whole_engine(document, document.engines[key]) for name, key in sorted(origins.items())}
    models = {name: _whole_model(document, model) for name, model in document.models.items()}
    deny = tuple(sorted(document.deny, key=lambda rule: rule.model_dump_json()))
    return document.model_copy(update={"engines": engines, "models": models, "deny": deny})


def _whole_engine(document: Document, engine: Engine) -> Engine:
    """The engine over `defaults.engine` over fleet-wide planning and protection."""
    fleet = EngineDefaults(
        max_utilization=document.planning.max_utilization,
        protection=EngineProtection(
            **{name: getattr(document.protection, name) for name in EngineProtection.model_fields}
        ),
    )
    settings = overlay(overlay(fleet, document.defaults.engine), engine_settings(engine))
    return engine.model_copy(update={name: getattr(settings, name) for name in EngineDefaults.model_fields})


def engine_settings(engine: Engine) -> EngineDefaults:
    """The part of an engine for which there may be defaults, with only what it sets."""
    names = engine.model_fields_set & set(EngineDefaults.model_fields)
    return EngineDefaults.model_construct(
        _fields_set=names, **{name: getattr(engine, name) for name in names}
    )


def _whole_model(document: Document, model: Model) -> Model:
    default = document.defaults.model
    unset = [name for name in ModelDefaults.model_fields if name not in model.model_fields_set]
    return model.model_copy(update={name: getattr(default, name) for name in unset})


def _engine(document: Document, name: str, engine: Engine) -> EngineSpec:
    assert engine.max_utilization is not None, "filled in from planning.max_utilization"
    return EngineSpec(
        name=name,
        model=engine.model,
        region=engine.region,
        jurisdiction=document.regions[engine.region].jurisdiction,
        profile_name=engine.profile,
        profile=document.profiles[engine.profile],
        capabilities=frozenset(engine.capabilities),
        classes=None if engine.classes is None else frozenset(engine.classes),
        max_share=engine.max_share,
        members=engine.members,
        state=engine.state,
        max_utilization=engine.max_utilization,
        clusters=engine.clusters,
        protection=engine.protection,
    )


def _key(document: Document, model_id: str, class_name: str) -> KeySpec:
    model, base, churn = document.models[model_id], document.classes[class_name], document.planning.churn
    override = model.classes.get(class_name)
    item = base if override is None else overlay(base, override)
    # A model's override narrows the class's residency; it can never lift it.
    residency = meet(model.residency, base.residency, override.residency if override else None)
    return KeySpec(
        model=model_id,
        traffic_class=class_name,
        priority=item.priority,
        ttft_slo_ms=item.ttft_slo_ms,
        tbot_slo_ms=item.tbot_slo_ms,
        input_tokens=item.input_tokens,
        output_tokens=item.output_tokens,
        prefix_hit=item.prefix_hit,
        work=item.work,
        churn_price_ms=churn.price_ms if item.churn_price_ms is None else item.churn_price_ms,
        churn_work=churn.work if item.churn_work is None else item.churn_work,
        residency=residency,
        requires=frozenset(model.requires),
        has_sessions=bool(model.session_keys),
    )


def _denied(rules: tuple[Deny, ...], engines: dict[str, EngineSpec]) -> dict[str, tuple[Deny, ...]]:
    """Engine -> the rules that name it."""
    result: dict[str, list[Deny]] = {}
    for rule in rules:
        names = expand(rule.engine) if rule.engine is not None else engines
        for name in names:
            if rule.region in (None, engines[name].region):
                result.setdefault(name, []).append(rule)
    return {name: tuple(found) for name, found in result.items()}
