"""What happens to clients, as values: the server tells them to whoever logs, counts and decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Who a client is."""

    id: str
    """`node.id`: one Envoy."""
    frontend: str
    """`node.cluster`."""
    stream: str
    """The stream, unique in this server."""
    peer: str
    """Network address, as grpc gives it."""
    protocol: str
    """`sotw` or `delta`."""
    build: str = ""
    """Version of the Envoy, when it tells."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The first request of a stream was accepted. `warning` is set for an untested Envoy version."""

    client: ClientInfo
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A stream ended, for whatever reason."""

    client: ClientInfo
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A response was handed to the transport."""

    client: ClientInfo
    type: str
    version: str
    resources: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Acked:
    """The client confirmed a response; `names` are the resources it changed."""

    client: ClientInfo
    type: str
    version: str
    names: tuple[str, ...]
    after_s: float
    recovered: bool
    """This ends a time of refusals (log it once)."""


@dataclass(frozen=True, slots=True)
class Nacked:
    """The client refused a response. Nothing is sent again until it changes."""

    client: ClientInfo
    type: str
    version: str
    names: tuple[str, ...]
    code: int
    message: str
    stale: bool
    """It refers to a response that is not the latest: count it, blame nothing."""
    repeated: bool
    """Same type, client and message as the refusal before: count it, do not log it again."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A stream was ended by the server. `reason` is one of a fixed set (see `identity.Reason`)."""

    reason: str
    message: str
    node: str
    frontend: str
    peer: str


@dataclass(frozen=True, slots=True)
class Lagging:
    """A response has been out for long: a warming cluster, or a client that does not read."""

    client: ClientInfo
    type: str
    version: str
    for_s: float


@dataclass(frozen=True, slots=True)
class InSync:
    """The client has confirmed all of the newest snapshot: for the first time on its stream, or again after
    it was told as lagging."""

    client: ClientInfo
    sequence: int


Event = Connected | Disconnected | Sent | Acked | Nacked | Refused | Lagging | InSync
