"""The fleet under test: engines x classes, through the real translator."""

from __future__ import annotations

from xds_server.resource_types import EDS
from xds_server.resources import Resource
from xds_server.routing import (
    TOTAL_WEIGHT,
    Endpoint,
    Engine,
    FrontendRouting,
    Listener,
    Model,
    RoutingTable,
    Split,
    TrafficClass,
)
from xds_server.translate import endpoints, names

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
REPLICAS = 4


def table(frontends: int, engines: int, classes: int, turn: int = 0) -> RoutingTable:
    """`turn` moves a little share between two engines, as a planning round would."""
    engine_names = [f"engine-{number}" for number in range(engines)]
    width = TOTAL_WEIGHT // engines
    widths = [width] * (engines - 1)
    widths.append(TOTAL_WEIGHT - sum(widths))
    widths[0], widths[1] = widths[0] - turn % width, widths[1] + turn % width
    entries = tuple(zip(engine_names, widths, strict=True))
    fallback = {name: engine_names[(index + 1) % engines] for index, name in enumerate(engine_names)}
    labels = [f"class-{number}" for number in range(classes)]
    splits = tuple(Split(MODEL, label, entries, fallback) for label in labels)
    reached = {name: replicas(index) for index, name in enumerate(engine_names)}
    sites = [f"frontend-{number}" for number in range(frontends)]
    return RoutingTable(
        fleet="bench",
        listeners=(Listener("public", 8443, labels[0]),),
        classes=tuple(TrafficClass(label, "x-traffic-class", label) for label in labels),
        match_order=(),
        models=(Model(MODEL, (MODEL,)),),
        engines={name: Engine(name) for name in engine_names},
        frontends={site: FrontendRouting(site, splits, reached) for site in sites},
    )


def replicas(engine: int, weight: int = 100) -> tuple[Endpoint, ...]:
    """Addresses of one engine."""
    high, low = divmod(engine, 200)
    return tuple(
        Endpoint(f"r{number}", f"10.{high}.{low}.{number + 1}", 8000, weight) for number in range(REPLICAS)
    )


def assignments(engine: int, classes: int, weight: int) -> list[Resource]:
    """The load assignments of an engine, one a class, with another penalty."""
    name = f"engine-{engine}"
    encoded = endpoints.replicas(name, replicas(engine, weight))
    return [
        Resource(EDS.url, cluster, endpoints.named(cluster, encoded))
        for cluster in (names.member(f"class-{number}", name) for number in range(classes))
    ]
