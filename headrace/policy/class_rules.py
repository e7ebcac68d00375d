"""Which class a request is of, and that no header lifts a class's residency."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from headrace.policy.errors import one_of
from headrace.policy.problems import Path
from headrace.policy.schema import Document
from headrace.policy.source import Source


def check_matches(document: Document, source: Source) -> None:
    """Which class wins must not be left open."""
    matches = {name: item.match for name, item in document.classes.items() if item.match}
    for i, name in enumerate(document.match_order):
        if name not in matches:
            source.complain(("match_order", i), f"class {name} has no match", one_of(matches))
    for (one, a), (two, b) in itertools.combinations(matches.items(), 2):
        if a == b:
            source.complain(
                ("classes", two, "match"),
                f"is the same as the match of class {one}",
                "matches that tell classes apart",
            )
        elif a.header != b.header and not {one, two} <= set(document.match_order):
            source.complain(
                ("classes", two, "match"),
                f"can be true together with the match of class {one}",
                f"both classes in match_order, such as match_order: [{one}, {two}]",
            )


def check_header_residency(document: Document, source: Source) -> None:
    """A class's residency must hold however a request is labelled where headers are not trusted.

    On such a listener every request is of the default class: a rule of a class that is reached only by a
    header would not apply there, though the request says that it should.
    """
    for name, model_id, path, rule in _class_rules(document):
        match = document.classes[name].match
        if match is None:
            continue
        for listener_name, listener in document.listeners.items():
            if listener.trust_headers or _as_strict(document, listener.default_class, model_id, rule):
                continue
            source.complain(
                path,
                f"the rule would be lifted by an untrusted header: class {name} is told by the header "
                f"{match.header}, which listener {listener_name} does not trust, and its default class "
                f"{listener.default_class} has no such rule",
                f"the rule on front-ends or models, or on class {listener.default_class} too",
            )


def _class_rules(document: Document) -> Iterator[tuple[str, str | None, Path, tuple[str, ...]]]:
    """Residency rules of classes: class, model (None = all), where, allowed."""
    for name, item in document.classes.items():
        if item.residency:
            yield name, None, ("classes", name, "residency"), item.residency
    for model_id, model in document.models.items():
        for name, override in model.classes.items():
            if override.residency:
                yield name, model_id, ("models", model_id, "classes", name, "residency"), override.residency


def _as_strict(document: Document, class_name: str, model_id: str | None, rule: tuple[str, ...]) -> bool:
    """Whether the class (for the model, or for all) is bound at least as tightly as `rule`."""
    models = document.models if model_id is None else [model_id]
    return all(_bounds(document, class_name, model) <= set(rule) for model in models)


def _bounds(document: Document, class_name: str, model_id: str) -> set[str]:
    """Jurisdictions that model and class together allow; all there are when no rule speaks."""
    model = document.models[model_id]
    override = model.classes.get(class_name)
    rules = [
        model.residency if "residency" in model.model_fields_set else document.defaults.model.residency,
        document.classes[class_name].residency,
        override.residency if override else None,
    ]
    everywhere = {r.jurisdiction or "" for r in document.regions.values()} | {""}
    return everywhere.intersection(*(set(rule) for rule in rules if rule))
