"""What must agree between different places of a policy. Each rule notes its problems in the source."""

from __future__ import annotations

import ipaddress
import itertools
import re

from headrace.policy.class_rules import check_header_residency, check_matches
from headrace.policy.expand import expand
from headrace.policy.load_rules import check_head_room, check_service_levels
from headrace.policy.policy import round_trip
from headrace.policy.problems import Path, dotted
from headrace.policy.references import check_references
from headrace.policy.schema import (
    MAX_ADAPTERS,
    MAX_ENGINES,
    Document,
)
from headrace.policy.source import Source
from headrace.policy.types import is_name, split_address


def check(document: Document, source: Source) -> None:
    """Note every disagreement in `source`."""
    engines = _expand_engines(document, source)
    check_references(document, source, engines)
    if source.problems:
        return  # the rules below look names up
    _names_of_places(document, source, engines)
    _symmetric(document, source)
    _missing_distances(document, source, engines)
    _served_names(document, source)
    _envoy_spellings(document, source)
    check_matches(document, source)
    check_header_residency(document, source)
    _listener_ports(document, source)
    check_head_room(document, source)
    check_service_levels(document, source)
    _static_addresses(document, source)
    _idle_rules(document, source, engines)


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
            if not is_name(name):
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
    by_region: dict[str, list[str]] = {}
    for name, key in engines.items():
        by_region.setdefault(document.engines[key].region, []).append(name)
    for frontend, (region, names) in itertools.product(document.frontends, by_region.items()):
        own = document.network.rtt_ms.get(frontend, {})
        missing = next((name for name in names if name not in own), None)
        if missing is None or round_trip(document, frontend, missing, region) is not None:
            continue
        home = document.frontends[frontend].region
        ways = [f"{frontend}: {{{missing}: <ms>}}", f"{frontend}: {{{region}: <ms>}}"]
        ways += [f"{home}: {{{region}: <ms>}}"] if home != frontend else []
        source.complain(
            ("network", "rtt_ms"),
            f"there is no round trip from front-end {frontend} to engine {missing}",
            " or ".join(ways),
        )


def _served_names(document: Document, source: Source) -> None:
    """A request's `model` says one model."""
    exact: dict[str, Path] = {}
    prefixes: dict[str, Path] = {}
    folded: dict[str, Path] = {}
    count = 0
    for model_id, model in document.models.items():
        count += len(model.adapters)
        for field in ("served_as", "aliases", "adapters"):
            for name in getattr(model, field):
                path: Path = ("models", model_id, field)
                known = prefixes if field == "adapters" and name.endswith("*") else exact
                # Envoy lowers ASCII letters before it looks a name up.
                alike = folded.setdefault(name.encode().lower().decode(), path)
                if name in known:
                    source.complain(
                        path,
                        f"`{name}` is already named at {_at(source, known[name])}",
                        "each name once over all models",
                    )
                elif alike[1] != model_id:
                    source.complain(
                        path,
                        f"`{name}` differs by case only from a name of another model ({_at(source, alike)})",
                        "names that differ by more: Envoy does not tell upper and lower case apart",
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


def _static_addresses(document: Document, source: Source) -> None:
    """One address belongs to one engine, and lies where its region says replicas are."""
    seen: dict[str, str] = {}
    for key, engine in document.engines.items():
        networks = [ipaddress.ip_network(cidr) for cidr in document.regions[engine.region].replica_cidrs]
        path: Path = ("engines", key, "members", "static")
        for address in engine.members.static or ():
            host = ipaddress.ip_address(split_address(address)[0])
            other = seen.get(address) or (f"every engine of {key}" if len(expand(key)) > 1 else None)
            seen.setdefault(address, key)
            if other:
                source.complain(path, f"`{address}` is also a replica of {other}", "one engine an address")
            if networks and not any(host in network for network in networks):
                source.complain(
                    path,
                    f"`{address}` is outside the replica_cidrs of region {engine.region}",
                    f"an address in {', '.join(map(str, networks))}",
                )


def _idle_rules(document: Document, source: Source, engines: dict[str, str]) -> None:
    """A `deny` rule that nothing matches protects from nothing, though its author believes that it does."""
    for i, rule in enumerate(document.deny):
        names = engines if rule.engine is None else expand(rule.engine)
        found = (document.engines[engines[name]] for name in names)
        if not any(rule.region in (None, e.region) and rule.model in (None, e.model) for e in found):
            source.complain(
                ("deny", i), "matches no engine", "model, engine and region of one engine at least"
            )
