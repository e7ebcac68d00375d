"""What each client was sent, has confirmed and has refused: values for the operator surface."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from xds_server.events import ClientInfo
from xds_server.protocol.watch import ABSENT, Watch
from xds_server.protocol.wire import Error


class State(StrEnum):
    """What is known of one resource at one client."""

    ACKED = "acked"
    SENT = "sent"
    """Sent and not confirmed yet: on its way, or warming."""
    NACKED = "nacked"
    """Refused; what the client holds instead is unknown (it may have taken part of the response)."""
    ABSENT = "absent"
    """Asked for, told that it does not exist."""
    REQUESTED = "requested"
    """Asked for, not answered."""


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """One resource at one client."""

    name: str
    state: State
    version: str
    """Sent last."""
    acked: str
    """Confirmed last; "" when never."""


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """One type at one client."""

    type: str
    wildcard: bool
    version: str
    """Version label of the last response."""
    waiting_s: float | None
    """For how long the last response has been out; None when it was answered."""
    error: Error | None
    """The refusal that still stands."""
    resources: tuple[ResourceStatus, ...]


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One stream."""

    client: ClientInfo
    types: tuple[TypeStatus, ...]


def type_status(watch: Watch, now: float) -> TypeStatus:
    """Describe a watch."""
    names = sorted({*watch.known, *watch.subscription.names})
    return TypeStatus(
        type=watch.type.name,
        wildcard=watch.subscription.wildcard,
        version=watch.version,
        waiting_s=now - watch.outstanding.at if watch.outstanding else None,
        error=watch.error,
        resources=tuple(_resource_status(watch, name) for name in names),
    )


def client_status(client: ClientInfo, watches: Iterable[Watch], now: float) -> ClientStatus:
    """Describe a stream."""
    return ClientStatus(client, tuple(type_status(watch, now) for watch in watches))


def _resource_status(watch: Watch, name: str) -> ResourceStatus:
    told = watch.known.get(name)
    if told is None:
        state = State.REQUESTED
    elif name in watch.rejected:
        state = State.NACKED
    elif name in watch.behind:
        state = State.SENT
    else:
        state = State.ABSENT if told == ABSENT else State.ACKED
    return ResourceStatus(name, state, told or "", watch.acked(name) or "")
