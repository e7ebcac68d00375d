"""Where things are: regions, front-ends, listeners, and how far they are apart."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.policy.schema.base import Shape
from headrace.policy.types import Cidrs, HostPort, IpAddress, Name, NonNegative, Port, SomeNames


class Region(Shape):
    """A place with engines, front-ends or both."""

    jurisdiction: Name | None = None
    """The law that holds there. Engines in a region without one never serve a key with a residency rule."""
    replica_cidrs: Cidrs = ()
    """Networks in which replicas of this region's engines have their addresses; none = any address."""
    gateway: HostPort | None = None
    """`host:port` that front-ends of other regions dial; none = flat network."""


class Frontend(Shape):
    """A CPU cluster of one or more Envoys that share weights."""

    region: Name
    """The region it stands in."""
    residency: SomeNames | None = None
    """Jurisdictions in which requests that came in here may be served; none = no rule."""


class Listener(Shape):
    """A port of every Envoy."""

    port: Port
    """TCP port; 0 binds a free one."""
    default_class: Name
    """Class of requests that no class header puts elsewhere."""
    trust_headers: bool = False
    """Whether class headers count here. Only for listeners that no outsider reaches."""
    address: IpAddress = "0.0.0.0"
    """Address to bind."""


class Network(Shape):
    """Round trips between places, ms."""

    same_region_rtt_ms: NonNegative = 1
    """Within a region."""
    rtt_ms: Mapping[Name, Mapping[Name, NonNegative]] = {}
    """Most specific wins: front-end/engine, front-end/region, region/region (symmetric)."""
