"""Requests from bytes, responses to bytes.

Requests are decoded by protobuf's own runtime into frozen values. Responses are spliced together from
resources that were encoded when they were made; nothing of a resource is encoded again here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from sys import intern

from xds_server.resources import Resource, length_delimited
from xds_server.views import DecodeError, View, decode


class BadRequest(ValueError):
    """The client broke the protocol; the stream ends with INVALID_ARGUMENT and this text."""


@dataclass(frozen=True, slots=True)
class Node:
    """Who speaks, as far as it matters."""

    id: str
    cluster: str
    fleet: str = ""
    """Metadata string `fleet`."""
    agent: str = ""
    """`user_agent_name`, `envoy` for Envoy."""
    build: tuple[int, int, int] | None = None
    """major, minor, patch, when the client tells."""


@dataclass(frozen=True, slots=True)
class Error:
    """Why a client refused a response."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class SotwRequest:
    """One DiscoveryRequest."""

    type_url: str = ""
    version: str = ""
    names: tuple[str, ...] = ()
    nonce: str = ""
    error: Error | None = None
    node: Node | None = None


@dataclass(frozen=True, slots=True)
class DeltaRequest:
    """One DeltaDiscoveryRequest."""

    type_url: str = ""
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = field(default_factory=dict)
    nonce: str = ""
    error: Error | None = None
    node: Node | None = None


Request = SotwRequest | DeltaRequest


@dataclass(frozen=True, slots=True)
class Response:
    """One response, decided but not yet encoded."""

    type_url: str
    version: str
    nonce: str
    resources: tuple[Resource, ...]
    removed: tuple[str, ...] = ()
    """Delta only."""


def decode_sotw(body: bytes) -> SotwRequest:
    """Decode a DiscoveryRequest; raises BadRequest."""
    view = _decode("DiscoveryRequest", body)
    return SotwRequest(
        type_url=intern(view.type_url),
        version=view.version_info,
        names=_interned(view.resource_names),
        nonce=view.response_nonce,
        error=_error(view),
        node=decode_node(view),
    )


def decode_delta(body: bytes) -> DeltaRequest:
    """Decode a DeltaDiscoveryRequest; raises BadRequest."""
    view = _decode("DeltaDiscoveryRequest", body)
    return DeltaRequest(
        type_url=intern(view.type_url),
        subscribe=_interned(view.resource_names_subscribe),
        unsubscribe=_interned(view.resource_names_unsubscribe),
        initial_versions={
            intern(name): intern(version) for name, version in view.initial_resource_versions.items()
        },
        nonce=view.response_nonce,
        error=_error(view),
        node=decode_node(view),
    )


def encode_sotw(response: Response) -> bytes:
    """A DiscoveryResponse (1 version_info, 2 resources, 4 type_url, 5 nonce)."""
    return b"".join(
        [
            *_frames((resource.sotw_head, resource.body) for resource in response.resources),
            length_delimited(1, response.version.encode()),
            length_delimited(4, response.type_url.encode()),
            length_delimited(5, response.nonce.encode()),
        ]
    )


def encode_delta(response: Response) -> bytes:
    """A DeltaDiscoveryResponse (1 system_version_info, 2 resources, 4 type_url, 5 nonce, 6 removed)."""
    return b"".join(
        [
            *_frames((resource.delta_head, resource.body) for resource in response.resources),
            length_delimited(1, response.version.encode()),
            length_delimited(4, response.type_url.encode()),
            length_delimited(5, response.nonce.encode()),
            *(length_delimited(6, name.encode()) for name in response.removed),
        ]
    )


def _frames(pairs: Iterable[tuple[bytes, bytes]]) -> Iterable[bytes]:
    return (part for pair in pairs for part in pair)


def _decode(message: str, body: bytes) -> View:
    try:
        return decode(message, body)
    except DecodeError as error:
        raise BadRequest(f"not a {message}: {error}") from error


def _interned(names: Iterable[str]) -> tuple[str, ...]:
    # One string object per name for all streams: 1,000 Envoys ask for the same 600 names.
    return tuple(map(intern, names))


def _error(view: View) -> Error | None:
    if not view.HasField("error_detail"):
        return None
    return Error(view.error_detail.code, view.error_detail.message)


def decode_node(view: View) -> Node | None:
    """The node of a decoded request, or None when it carries none."""
    if not view.HasField("node"):
        return None
    node = view.node
    version = node.user_agent_build_version.version
    told = node.HasField("user_agent_build_version")
    return Node(
        id=node.id,
        cluster=node.cluster,
        fleet=node.metadata.fields["fleet"].string_value if "fleet" in node.metadata.fields else "",
        agent=node.user_agent_name,
        build=(version.major_number, version.minor_number, version.patch) if told else None,
    )
