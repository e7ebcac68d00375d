"""What must agree between different places of a policy. Each rule notes its problems in the source."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator

from headrace.policy.errors import did_you_mean, one_of
from headrace.policy.expand import expand
from headrace.policy.policy import round_trip
from headrace.policy.problems import Path, dotted
from headrace.policy.schema import (
    MAX_ADAPTERS,
    MAX_ENGINES,
    Document,
    ParametricProfile,
    TableProfile,
)
from headrace.policy.source import Source
from headrace.policy.types import RESERVED

AUTO_UTILIZATION = 0.95
"""The most that `max_utilization: auto` can give."""
STABLE = 0.98
"""Capacity in use must stay below this part of lambda_max, or latency has no bound."""

_ENGINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check(document: Document, source: Source) -> None:
    """Note every disagreement in `source`."""
    engines = _expand_engines(document, source)
    _dangling(document, source, engines)
    if source.problems:
        return  # the rules below look names up
    _names_of_places(document, source, engines)
    _symmetric(document, source)
    _missing_distances(document, source, engines)
    _served_names(document, source)
    _envoy_spellings(document, source)
    _matches(document, source)
    _header_residency(document, source)
    _listener_ports(document, source)
    _head_room(document, source)
    _static_addresses(document, source)


def _expand_engines(document: Document, source: Source) -> dict[str, str]:
    """Every engine name -> the key it is written under."""
    engines: dict[str, str] = {}
    for key in document.engines:
        path: Path = ("engines", key)
        try:
            names = expand(key)
        except ValueError as error:
            source.complain(path, f"the name {error}", "a name with ranges such as {01..04}")
            continue
        for name in names:
            if not _ENGINE.fullmatch(name) or name in RESERVED:
                source.complain(
                    path,
                    f"`{name}` is not a name for an engine",
                    "1 to 64 letters, digits, - and _; not `shed`",
                )
                break
            if name in engines:
                other = source.place(("engines", engines[name]))
                source.complain(path, f"`{name}` is already named at {other}", "each engine once")
                break
            engines[name] = key
    if len(engines) > MAX_ENGINES:
        source.complain(("engines",), f"has {len(engines)} entries after expansion", f"at most {MAX_ENGINES}")
    return engines


def _dangling(document: Document, source: Source, engines: Collection[str]) -> None:
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


def _names_of_places(document: Document, source: Source, engines: dict[str, str]) -> None:
    """`network.rtt_ms` must be clear: a front-end or engine shares its name only with its own region."""
    places = [(("frontends", name), name, item.region) for name, item in document.frontends.items()]
    places += [(("engines", key), name, document.engines[key].region) for name, key in engines.items()]
    for path, name, region in places:
        if name in document.regions and name != region:
            source.complain(
                path,
                f"`{name}` is also the name of a region other than its own ({region})",
                "another name, so that network.rtt_ms is clear",
            )


def _symmetric(document: Document, source: Source) -> None:
    table = document.network.rtt_ms
    for start, row in table.items():
        for end, value in row.items():
            back = table.get(end, {}).get(start)
            if start < end and start in document.regions and back is not None and back != value:
                source.complain(
                    ("network", "rtt_ms", end, start),
                    f"is {back:g} ms, but {start} to {end} is {value:g} ms "
                    f"({source.place(('network', 'rtt_ms', start, end))})",
                    "one value: a round trip is symmetric",
                )


def _missing_distances(document: Document, source: Source, engines: dict[str, str]) -> None:
    """One problem for each front-end and engine region without a value."""
    told: set[tuple[str, str]] = set()
    for frontend, (name, key) in itertools.product(document.frontends, engines.items()):
        region = document.engines[key].region
        if (frontend, region) in told or round_trip(document, frontend, name, region) is not None:
            continue
        told.add((frontend, region))
        home = document.frontends[frontend].region
        source.complain(
            ("network", "rtt_ms"),
            f"there is no round trip from front-end {frontend} to engine {name}",
            f"{frontend}: {{{name}: <ms>}}, {frontend}: {{{region}: <ms>}} or {home}: {{{region}: <ms>}}",
        )


def _served_names(document: Document, source: Source) -> None:
    """A request's `model` says one model."""
    exact: dict[str, Path] = {}
    prefixes: dict[str, Path] = {}
    count = 0
    for model_id, model in document.models.items():
        count += len(model.adapters)
        for field in ("served_as", "aliases", "adapters"):
            for name in getattr(model, field):
                path: Path = ("models", model_id, field)
                known = prefixes if field == "adapters" and name.endswith("*") else exact
                if name in known:
                    source.complain(
                        path,
                        f"`{name}` is already named at {_at(source, known[name])}",
                        "each name once over all models",
                    )
                known.setdefault(name, path)
    if count > MAX_ADAPTERS:
        source.complain(("models",), f"have {count} adapter names", f"at most {MAX_ADAPTERS}")
    _overlapping_prefixes(source, exact, prefixes)


def _overlapping_prefixes(source: Source, exact: dict[str, Path], prefixes: dict[str, Path]) -> None:
    for name, path in itertools.chain(exact.items(), prefixes.items()):
        stem = name.removesuffix("*") if prefixes.get(name) is path else name
        for end in range(1, len(stem) + 1):
            other = prefixes.get(stem[:end] + "*")
            if other is not None and other[1] != path[1]:
                source.complain(
                    path,
                    f"`{name}` is also matched by `{stem[:end]}*` of another model ({_at(source, other)})",
                    "names that belong to one model",
                )


def _at(source: Source, path: Path) -> str:
    return f"{source.place(path)} ({dotted(path)})"


def envoy_spelling(model: str) -> str:
    """A model id as Envoy's names have it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", model)


def _envoy_spellings(document: Document, source: Source) -> None:
    spelled: dict[str, str] = {}
    for model in document.models:
        other = spelled.setdefault(envoy_spelling(model), model)
        if other != model:
            source.complain(
                ("models", model),
                f"is spelled `{envoy_spelling(model)}` inside Envoy, as is `{other}`",
                "model ids that differ in more than punctuation",
            )


def _matches(document: Document, source: Source) -> None:
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


def _header_residency(document: Document, source: Source) -> None:
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


def _listener_ports(document: Document, source: Source) -> None:
    ports: dict[int, str] = {}
    for name, listener in document.listeners.items():
        if listener.port and listener.port in ports:
            source.complain(
                ("listeners", name, "port"),
                f"{listener.port} is already the port of listener {ports[listener.port]}",
                "another port",
            )
        ports.setdefault(listener.port, name)


def _head_room(document: Document, source: Source) -> None:
    """Capacity in use stays where the profile is finite and measured."""
    for key, engine in document.engines.items():
        for_engine = engine.max_utilization or document.defaults.engine.max_utilization
        limit = for_engine or document.planning.max_utilization
        share = AUTO_UTILIZATION if limit == "auto" else float(limit)
        profile, path = document.profiles[engine.profile], ("profiles", engine.profile, "capacity_rps")
        used = profile.capacity_rps * share
        product = f"{profile.capacity_rps:g} × max_utilization {share:g} (engine {key})"
        if isinstance(profile, ParametricProfile) and used >= STABLE * profile.lambda_max_rps:
            source.complain(
                path,
                f"{product} is too near to lambda_max_rps {profile.lambda_max_rps:g}",
                f"less than {STABLE} × lambda_max_rps = {STABLE * profile.lambda_max_rps:g}",
            )
        if isinstance(profile, TableProfile) and used > profile.table[-1].load_rps:
            source.complain(
                path,
                f"{product} is above the last measured load {profile.table[-1].load_rps:g}",
                "a table that covers the capacity in use",
            )


def _static_addresses(document: Document, source: Source) -> None:
    """One address belongs to one engine, and lies where its region says replicas are."""
    seen: dict[str, str] = {}
    for key, engine in document.engines.items():
        for address in engine.members.static or ():
            path: Path = ("engines", key, "members", "static")
            if address in seen or len(expand(key)) > 1:
                other = seen.get(address, f"every engine of {key}")
                source.complain(
                    path, f"`{address}` is also a replica of {other}", "each address under one engine"
                )
            seen.setdefault(address, key)
