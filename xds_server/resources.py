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
from typing import Protocol, Self

from envoy_data_plane.message_pool import default_message_pool

from xds_server.inspection import Reference, inspect
from xds_server.resource_types import BY_URL, EDS

__all__ = ["Reference", "Resource", "ResourceError"]


class ResourceError(ValueError):
    """A message that cannot be a resource: unknown type, no name, or bytes that are not the message."""


class Message(Protocol):
    """A betterproto2 message, as far as it is needed here."""

    def __bytes__(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Resource:
    """One encoded, named and versioned resource."""

    type_url: str
    name: str
    body: bytes = field(compare=False, repr=False)
    """The encoded message (what stands in `Any.value`)."""
    version: str = ""
    """16 hex digits: a hash of type, name and body, equal on every replica of the control plane."""
    references: frozenset[Reference] = field(init=False, compare=False, repr=False)
    """(type URL, name) of the resources it needs: an EDS cluster its load assignment (by service name), a
    composite its members, a listener its route configurations and the clusters of inline routes, a route
    configuration its clusters (plain, weighted, mirrored, behind matchers), a runtime layer the clusters
    whose breakers it sets. Names made at request time (`cluster_header`) are not seen."""
    problems: tuple[str, ...] = field(init=False, compare=False, repr=False)
    """What a client would refuse, each naming the place; empty when valid. A snapshot with problems is not
    published."""

    def __post_init__(self) -> None:
        if self.type_url not in BY_URL:
            known = ", ".join(sorted(BY_URL))
            raise ResourceError(f"{self.type_url!r} is not a type that is served; served are {known}")
        if not self.name:
            raise ResourceError(f"a resource of type {BY_URL[self.type_url].name} has no name")
        findings = inspect(self.type_url, self.name, self.body)
        object.__setattr__(self, "references", findings.references)
        object.__setattr__(self, "problems", findings.problems)
        if not self.version:
            object.__setattr__(self, "version", content_version(self.type_url, self.name, self.body))

    @classmethod
    def of(cls, message: Message, name: str | None = None) -> Self:
        """Encode a betterproto2 message; its name is taken from the message unless given.

        Raises ResourceError for a message type that is not served or a message without a name.
        """
        type_url = default_message_pool.type_to_url.get(type(message), type(message).__name__)
        if name is None:
            name = getattr(message, "cluster_name" if type_url == EDS.url else "name", "")
        return cls(type_url, name, bytes(message))


def content_version(type_url: str, name: str, body: bytes) -> str:
    """16 hex digits that depend on type, name and content only."""
    digest = blake2b(f"{type_url}\0{name}\0".encode(), digest_size=8)
    digest.update(body)
    return digest.hexdigest()
