"""From a routing table to the resources of one front-end, encoding only what changed since the last time."""

from __future__ import annotations

from collections.abc import Iterator

from xds_server.resource_types import CDS, EDS, LDS, RDS, RTDS
from xds_server.resources import Resource, content_version
from xds_server.routing import (
    SHED,
    Endpoint,
    Engine,
    FrontendRouting,
    Listener,
    RoutingTable,
    ShedAnswer,
    Split,
)
from xds_server.snapshot import Snapshot
from xds_server.translate import clusters, endpoints, listeners, names, route_bytes, routes, runtime
from xds_server.translate.memo import Memo
from xds_server.translate.session_keys import body_fields


def translate(table: RoutingTable, frontend: str) -> Snapshot:
    """Translate for one front-end, once; see `Translator.translate`."""
    return Translator().translate(table, frontend)


class Translator:
    """Translates routing tables again and again; what did not change is the same `Resource` object.

    One thread at a time. A table that cannot be translated raises and changes nothing.
    """

    def __init__(self) -> None:
        self._memos: dict[str, Memo] = {}
        self._newest = Memo()
        """Of whichever front-end was last: most of what one needs, another has."""

    def translate(self, table: RoutingTable, frontend: str) -> Snapshot:
        """Return everything the front-end's Envoys are to be sent.

        Raises ValueError, naming the place, when the table contradicts itself: an unknown front-end, model
        or engine, widths that do not sum to `TOTAL_WEIGHT`, a name or session key that Envoy cannot carry.
        """
        if frontend not in table.frontends:
            known = ", ".join(sorted(table.frontends))
            raise ValueError(f"front-end {frontend!r} is not in the table; known are {known}")
        memo = Memo(self._memos.get(frontend, self._newest), self._newest)
        snapshot = Snapshot.of(_Translation(table, table.frontends[frontend], memo).resources())
        memo.close()
        self._memos[frontend] = self._newest = memo
        return snapshot

    def forget(self, frontend: str) -> None:
        """Drop what is remembered of a front-end that is gone."""
        self._memos.pop(frontend, None)


class _Translation:
    """One table as one front-end sees it."""

    def __init__(self, table: RoutingTable, frontend: FrontendRouting, memo: Memo) -> None:
        self.table = table
        self.memo = memo
        self.same_engine_retries = {model.name: model.same_engine_retries for model in table.models}
        self.frontend = frontend.name
        self.endpoints = frontend.endpoints
        self.splits = sorted(frontend.splits, key=lambda split: (split.model, split.traffic_class))

    def resources(self) -> Iterator[Resource]:
        """Yield every resource."""
        fields = tuple(body_fields(self.table.models))
        for listener in self.table.listeners:
            yield self.memo.get((LDS, listener.name), _listener, listener, fields, self.table.answers)
        encoded = route_bytes.encode(self.table, self.splits, self.memo)
        yield self.memo.get(RDS, _routes, encoded, self.frontend)
        for split in self.splits:
            yield from self._refusal(split)
            for engine in origins(split):
                yield self._composite(split, engine)
        for traffic_class, settings in self._members():
            yield from self._member(traffic_class, settings)
        yield self.memo.get("runtime", _runtime, runtime.limits(self.splits))

    def _refusal(self, split: Split) -> Iterator[Resource]:
        key = (split.model, split.traffic_class)
        yield self.memo.get((CDS, "shed", key), _shed_cluster, *key)
        yield self.memo.get((EDS, "shed", key), _shed_endpoints, *key)

    def _composite(self, split: Split, engine: str) -> Resource:
        key = (split.model, split.traffic_class, engine)
        fallback = split.fallback.get(engine)
        same_engine = self.same_engine_retries[split.model]
        tell_engine = self._by_gateway(engine) or self._by_gateway(fallback)
        return self.memo.get((CDS, key), _composite, *key, fallback, same_engine, tell_engine)

    def _by_gateway(self, engine: str | None) -> bool:
        settings = self.table.engines.get(engine or "")
        return settings is not None and (settings.gateway or settings.dns)

    def _members(self) -> list[tuple[str, Engine]]:
        """List (class, engine) of every engine that some key may use, in order of name."""
        pairs = set()
        for split in self.splits:
            used = {*origins(split), *split.fallback.values()}
            if unknown := sorted(used - self.table.engines.keys()):
                raise ValueError(f"split of {split.model}/{split.traffic_class}: unknown engines {unknown}")
            pairs |= {(split.traffic_class, engine) for engine in used}
        return [(traffic_class, self.table.engines[engine]) for traffic_class, engine in sorted(pairs)]

    def _member(self, traffic_class: str, engine: Engine) -> Iterator[Resource]:
        name = names.member(traffic_class, engine.name)
        found = self.endpoints.get(engine.name, ())
        if engine.dns:
            yield self.memo.get((CDS, name), _member, traffic_class, engine, found)
            return
        yield self.memo.get((CDS, name), _member, traffic_class, engine)
        encoded = self.memo.get(("replicas", engine.name), endpoints.replicas, engine.name, found)
        yield self.memo.get((EDS, name), _assignment, name, encoded)


def origins(split: Split) -> list[str]:
    """List the engines that get requests of a key first, or may when shares move; sorted."""
    return sorted({destination for destination, _ in split.entries} - {SHED} | split.fallback.keys())


def _listener(settings: Listener, session_fields: tuple[str, ...], answers: ShedAnswer) -> Resource:
    return Resource.of(listeners.listener(settings, session_fields, answers))


def _routes(encoded: bytes, frontend: str) -> Resource:
    """Add the headers that tell engines the front-end, and clients these very routes by their content."""
    encoded += bytes(routes.frontend_header(frontend))
    version = content_version(RDS.url, names.ROUTES, encoded)
    return Resource(RDS.url, names.ROUTES, encoded + bytes(routes.snapshot_header(version)))


def _shed_cluster(model: str, traffic_class: str) -> Resource:
    return Resource(CDS.url, names.shed(model, traffic_class), clusters.shed(model, traffic_class))


def _shed_endpoints(model: str, traffic_class: str) -> Resource:
    name = names.shed(model, traffic_class)
    return Resource(EDS.url, name, endpoints.refusal(name))


def _composite(
    model: str, traffic_class: str, engine: str, fallback: str | None, same_engine: int, tell_engine: bool
) -> Resource:
    body = clusters.composite(model, traffic_class, engine, fallback, same_engine, tell_engine)
    return Resource(CDS.url, names.composite(model, traffic_class, engine), body)


def _member(traffic_class: str, engine: Engine, dns_endpoints: tuple[Endpoint, ...] = ()) -> Resource:
    name = names.member(traffic_class, engine.name)
    return Resource(CDS.url, name, clusters.member(traffic_class, engine, dns_endpoints))


def _assignment(cluster: str, encoded_replicas: bytes) -> Resource:
    return Resource(EDS.url, cluster, endpoints.named(cluster, encoded_replicas))


def _runtime(values: dict[str, int]) -> Resource:
    return Resource(RTDS.url, names.RUNTIME_LAYER, runtime.layer(values))
