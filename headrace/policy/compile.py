"""From a checked document to a `Policy`: expansion, defaults, overrides."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from headrace.policy import warn
from headrace.policy.archive import Archive
from headrace.policy.expand import expand
from headrace.policy.policy import EngineSpec, KeySpec, Policy, content_hash, meet
from headrace.policy.schema import (
    ClassFields,
    Deny,
    Document,
    Engine,
    EngineDefaults,
    EngineProtection,
    Model,
    ModelDefaults,
    Shape,
    TrafficClass,
)
from headrace.policy.source import Source

S = TypeVar("S", bound=Shape)


def compile_policy(document: Document, source: Source, files: tuple[str, ...], archive: Archive) -> Policy:
    """The `Policy` of a document that passed all checks. Warnings are found here."""
    origins = {name: key for key in document.engines for name in expand(key)}
    whole = _normalised(document, origins)
    engines = {name: _engine(whole, name, engine) for name, engine in whole.engines.items()}
    keys = [_key(model_id, model, name) for model_id, model in whole.models.items() for name in model.classes]
    policy = Policy(
        document=whole,
        engines=engines,
        key_specs={spec.key: spec for spec in sorted(keys, key=lambda spec: spec.key)},
        content_hash=content_hash(whole),
        places=source.places,
        files=files,
        archive=archive,
        origins=origins,
        _by_model=_by_model(engines),
        _denied=_denied(whole.deny, engines),
        _alike=_alike(whole),
    )
    return replace(policy, warnings=tuple(sorted(warn.warnings(policy))))


def overlay(base: S, over: Shape) -> S:
    """`base` with each of its fields that `over` sets; sections of protection are overlaid field by field."""
    update = {}
    for name in over.model_fields_set & type(base).model_fields.keys():
        old, new = getattr(base, name), getattr(over, name)
        nested = isinstance(base, EngineProtection) and isinstance(new, Shape)
        update[name] = overlay(old, new) if nested or name == "protection" else new
    return base.model_copy(update=update) if update else base


def _normalised(document: Document, origins: dict[str, str]) -> Document:
    defaults = overlay(_fleet_wide(document), document.defaults.engine)
    written = {key: _whole_engine(defaults, engine) for key, engine in document.engines.items()}
    engines = {name: written[key] for name, key in sorted(origins.items())}
    models = {name: _whole_model(document, model) for name, model in document.models.items()}
    deny = tuple(sorted(document.deny, key=lambda rule: rule.model_dump_json()))
    return document.model_copy(update={"engines": engines, "models": models, "deny": deny})


def _fleet_wide(document: Document) -> EngineDefaults:
    """What planning and protection say for every engine."""
    protection = {name: getattr(document.protection, name) for name in EngineProtection.model_fields}
    return EngineDefaults(
        max_utilization=document.planning.max_utilization,
        learning=document.planning.learning.mode,
        protection=EngineProtection(**protection),
    )


def _whole_engine(defaults: EngineDefaults, engine: Engine) -> Engine:
    settings = overlay(defaults, engine)
    return engine.model_copy(update={name: getattr(settings, name) for name in EngineDefaults.model_fields})


def _whole_model(document: Document, model: Model) -> Model:
    """The model over `defaults.model`, with every class as it holds for this model."""
    names = model.model_fields_set & set(ModelDefaults.model_fields)
    default = document.defaults.model
    update = {name: getattr(default, name) for name in set(ModelDefaults.model_fields) - names}
    residency = update.get("residency", model.residency)
    update["classes"] = {
        name: _whole_class(document, base, model.classes.get(name), residency)
        for name, base in document.classes.items()
    }
    return model.model_copy(update=update)


def _whole_class(
    document: Document, base: TrafficClass, override: ClassFields | None, residency: tuple[str, ...] | None
) -> ClassFields:
    """The class over planning's prices, under the model's override and residency.

    Residency rules meet: an override narrows them and can never lift them.
    """
    own = ClassFields.model_construct(**{name: getattr(base, name) for name in ClassFields.model_fields})
    item = overlay(own, override) if override else own
    churn = document.planning.churn
    allowed = meet(residency, base.residency, override.residency if override else None)
    return item.model_copy(
        update={
            "churn_price_ms": churn.price_ms if item.churn_price_ms is None else item.churn_price_ms,
            "churn_work": churn.work if item.churn_work is None else item.churn_work,
            "residency": None if allowed is None else tuple(sorted(allowed)),
        }
    )


def _engine(document: Document, name: str, engine: Engine) -> EngineSpec:
    assert engine.max_utilization is not None, "filled in from planning.max_utilization"
    assert engine.learning is not None, "filled in from planning.learning.mode"
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
        learning=engine.learning,
        protection=engine.protection,
    )


def _key(model_id: str, model: Model, class_name: str) -> KeySpec:
    item = model.classes[class_name]
    assert item.churn_price_ms is not None, "filled in from planning.churn"
    assert item.churn_work is not None, "filled in from planning.churn"
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
        churn_price_ms=item.churn_price_ms,
        churn_work=item.churn_work,
        residency=None if item.residency is None else frozenset(item.residency),
        requires=frozenset(model.requires),
        has_sessions=bool(model.session_keys),
    )


def _alike(document: Document) -> dict[str, str]:
    """Front-end -> the first one with the same residency rule and the same rules against it."""
    first: dict[object, str] = {}
    result = {}
    for name, frontend in document.frontends.items():
        rules = tuple(i for i, rule in enumerate(document.deny) if rule.frontend == name)
        result[name] = first.setdefault((frontend.residency, rules), name)
    return result


def _by_model(engines: dict[str, EngineSpec]) -> dict[str, tuple[EngineSpec, ...]]:
    result: dict[str, list[EngineSpec]] = {}
    for engine in engines.values():
        result.setdefault(engine.model, []).append(engine)
    return {model: tuple(found) for model, found in result.items()}


def _denied(rules: tuple[Deny, ...], engines: dict[str, EngineSpec]) -> dict[str, tuple[Deny, ...]]:
    """Engine -> the rules that name it."""
    result: dict[str, list[Deny]] = {}
    for rule in rules:
        names = expand(rule.engine) if rule.engine is not None else engines
        for name in names:
            if rule.region in (None, engines[name].region):
                result.setdefault(name, []).append(rule)
    return {name: tuple(found) for name, found in result.items()}
