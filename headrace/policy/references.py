"""Names in a policy that point at other parts of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headrace.policy.errors import did_you_mean, one_of
from headrace.policy.expand import expand
from headrace.policy.problems import Path
from headrace.policy.schema import Document
from headrace.policy.source import Source


def check_references(document: Document, source: Source, engines: Collection[str]) -> None:
    """Note every name that points at nothing. `engines`: all names after expansion."""
    known = {
        "region": set(document.regions),
        "jurisdiction": {r.jurisdiction for r in document.regions.values() if r.jurisdiction},
        "class": set(document.classes),
        "model": set(document.models),
        "profile": set(document.profiles),
        "front-end": set(document.frontends),
        "engine": set(engines),
        "front-end or region": set(document.frontends) | set(document.regions),
        "engine or region": set(engines) | set(document.regions),
    }
    for path, kind, name in _references(document):
        if name not in known[kind]:
            hint = did_you_mean(name, known[kind])
            source.complain(
                path,
                f"`{name}` is not a {kind} of this policy{hint}".replace("a engine", "an engine"),
                one_of(known[kind]),
            )


def _references(document: Document) -> Iterator[tuple[Path, str, str]]:
    """Every use of a name: where, of what kind, which."""
    for name, frontend in document.frontends.items():
        yield ("frontends", name, "region"), "region", frontend.region
    for name, listener in document.listeners.items():
        yield ("listeners", name, "default_class"), "class", listener.default_class
    for i, name in enumerate(document.match_order):
        yield ("match_order", i), "class", name
    for name, model in document.models.items():
        for class_name in model.classes:
            yield ("models", name, "classes", class_name), "class", class_name
    for key, engine in document.engines.items():
        path: Path = ("engines", key)
        yield (*path, "model"), "model", engine.model
        yield (*path, "region"), "region", engine.region
        yield (*path, "profile"), "profile", engine.profile
        for class_name in engine.classes or ():
            yield (*path, "classes"), "class", class_name
    for class_name in document.defaults.engine.classes or ():
        yield ("defaults", "engine", "classes"), "class", class_name
    for start, row in document.network.rtt_ms.items():
        yield ("network", "rtt_ms", start), "front-end or region", start
        for end in row:
            yield ("network", "rtt_ms", start, end), "engine or region", end
    yield from _denied_names(document)
    reports = document.security.reports
    for pattern in reports.tokens if reports else ():
        for name in _expanded_or_same(pattern):
            yield ("security", "reports", "tokens", pattern), "engine", name
    for path, names in _residency_rules(document):
        for name in names:
            yield path, "jurisdiction", name


def _denied_names(document: Document) -> Iterator[tuple[Path, str, str]]:
    for i, rule in enumerate(document.deny):
        for field, kind, name in (
            ("frontend", "front-end", rule.frontend),
            ("model", "model", rule.model),
            ("class", "class", rule.traffic_class),
            ("region", "region", rule.region),
        ):
            if name is not None:
                yield ("deny", i, field), kind, name
        for name in _expanded_or_same(rule.engine) if rule.engine else ():
            yield ("deny", i, "engine"), "engine", name


def _expanded_or_same(pattern: str) -> tuple[str, ...]:
    try:
        return expand(pattern)
    except ValueError:
        return (pattern,)


def _residency_rules(document: Document) -> Iterator[tuple[Path, tuple[str, ...]]]:
    for name, frontend in document.frontends.items():
        yield ("frontends", name, "residency"), frontend.residency or ()
    yield ("defaults", "model", "residency"), document.defaults.model.residency or ()
    for name, item in document.classes.items():
        yield ("classes", name, "residency"), item.residency or ()
    for name, model in document.models.items():
        yield ("models", name, "residency"), model.residency or ()
        for class_name, override in model.classes.items():
            yield ("models", name, "classes", class_name, "residency"), override.residency or ()
