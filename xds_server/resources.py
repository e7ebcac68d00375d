"""Resources: encoded once, identified by content.

A `Resource` is the encoded message plus what the server must know about it, all read from the bytes at
construction and never again: its version (a hash of the content), what it refers to, and what Envoy or
gRPC would refuse in it. Nothing has to be stated by whoever builds the message.

    resource = Resource.of(cluster)          # a betterproto2 message; encodes it once
    resource = Resource(CDS.url, name, body) # already encoded bytes of the same message

Two resources are equal when type, name and version are: keep and reuse the object (or let
`Snapshot.with_resources` compare) and nothing is encoded, inspected or sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Self

import betterproto2
from envoy_data_plane.message_pool import default_message_pool

from xds_server.inspection import Reference, inspect
from xds_server.resource_types import BY_URL, EDS, RTDS

__all__ = ["Reference", "Resource", "ResourceError"]


class ResourceError(ValueError):
    """A message that cannot be a resource: unknown type, no name, or bytes that are not the message."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One encoded, named and versioned resource."""

    type_url: str
    name: str
    body: bytes = field(compare=False, repr=False)
    """The encoded message (what stands in `Any.value`)."""
    version: str = field(init=False)
    """16 hex digits: a hash of type, name and body, equal on every replica of the control plane."""
    references: frozenset[Reference] = field(init=False, compare=False, repr=False)
    """(type URL, name) of the resources it needs: an EDS cluster its load assignment (by service name), a
    composite its members, a listener its route configurations and the clusters of inline routes, a route
    configuration its clusters (plain, weighted, mirrored, behind matchers), a runtime layer the clusters
    whose breakers it sets. Names made at request time (`cluster_header`) are not seen."""
    problems: tuple[str, ...] = field(init=False, compare=False, repr=False)
    """What a client would refuse, each naming the place; empty when valid. A snapshot with problems is not
    published."""
    sotw_head: bytes = field(init=False, compare=False, repr=False)
    """Everything that precedes `body` when the resource stands in a DiscoveryResponse."""
    delta_head: bytes = field(init=False, compare=False, repr=False)
    """Everything that precedes `body` when the resource stands in a DeltaDiscoveryResponse."""

    def __post_init__(self) -> None:
        if self.type_url not in BY_URL:
            known = ", ".join(sorted(BY_URL))
            raise ResourceError(f"{self.type_url!r} is not a type that is served; served are {known}")
        if not self.name:
            raise ResourceError(f"a resource of type {BY_URL[self.type_url].name} has no name")
        findings = inspect(self.type_url, self.name, self.body)
        object.__setattr__(self, "references", findings.references)
        object.__setattr__(self, "problems", findings.problems)
        object.__setattr__(self, "version", content_version(self.type_url, self.name, self.body))
        any_head = length_delimited(1, self.type_url.encode()) + prefix(2, len(self.body))
        any_size = len(any_head) + len(self.body)
        object.__setattr__(self, "sotw_head", prefix(2, any_size) + any_head)
        object.__setattr__(self, "delta_head", self._delta_head(any_head, any_size))

    @classmethod
    def of(cls, message: betterproto2.Message, name: str | None = None) -> Self:
        """Encode a betterproto2 message; its name is taken from the message unless given.

        Raises ResourceError for a message type that is not served or a message without a name.
        """
        type_url = default_message_pool.type_to_url.get(type(message), type(message).__name__)
        if name is None:
            name = getattr(message, "cluster_name" if type_url == EDS.url else "name", "")
        return cls(type_url, name, bytes(message))

    def _delta_head(self, any_head: bytes, any_size: int) -> bytes:
        # envoy.service.discovery.v3.Resource: 1 version, 3 name, 2 resource (last, so that the body ends it).
        head = length_delimited(1, self.version.encode()) + length_delimited(3, self.name.encode())
        head += prefix(2, any_size) + any_head
        return prefix(2, len(head) + len(self.body)) + head


def empty_runtime_layer(name: str) -> Resource:
    """The runtime layer `name` with no keys: every layer that an Envoy asks for must be answered."""
    return Resource(RTDS.url, name, length_delimited(1, name.encode()))


def prefix(number: int, size: int) -> bytes:
    """Tag and length of a length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(size)


def length_delimited(number: int, value: bytes) -> bytes:
    """A whole length-delimited protobuf field."""
    return prefix(number, len(value)) + value


def varint(value: int) -> bytes:
    """A non-negative integer in protobuf's base-128 encoding."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def content_version(type_url: str, name: str, body: bytes) -> str:
    """16 hex digits that depend on type, name and content only."""
    digest = blake2b(f"{type_url}\0{name}\0".encode(), digest_size=8)
    digest.update(body)
    return digest.hexdigest()
