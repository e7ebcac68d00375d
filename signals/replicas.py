"""Values of membership: what a replica is, what it reports, and the frozen view of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from signals.readings import Reading, Signal, SignalState


class ReplicaState(Enum):
    """What a replica says of itself."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"


class Presence(Enum):
    """How we know of a replica."""

    REPORTING = "reporting"
    SILENT = "silent"
    RESTORED = "restored"
    """From saved state, not heard since the restart."""
    CONFIGURED = "configured"
    """Static or gateway member of the policy; never reports."""


class ReplicaKey(NamedTuple):
    """Identity of a replica; stays over restarts of its process."""

    engine: str
    cluster: str
    replica_id: str


@dataclass(frozen=True, slots=True)
class Announcement:
    """An admitted hello."""

    key: ReplicaKey
    incarnation: int
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Report:
    """A checked sample."""

    sequence: int
    valid_for_s: float
    state: ReplicaState
    reason: str = ""
    values: Mapping[Signal, float] = field(default_factory=dict)
    invalid: tuple[Signal, ...] = ()
    clock_skew_s: float | None = None
    """Sender's clock minus ours."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as it is known at the time of a view."""

    key: ReplicaKey
    address: str
    port: int
    state: ReplicaState
    presence: Presence
    incarnation: int = 0
    reason: str = ""
    """Why draining or down, as reported."""
    quarantined: str = ""
    """Why it gets no traffic although it reports; empty = it may."""
    reported_at: float | None = None
    silent_since: float | None = None
    reachable: bool = False
    """A connection from the control plane to it succeeded, so that a refused one means something."""
    readings: Mapping[Signal, Reading] = field(default_factory=dict)
    clock_skew_s: float | None = None
    """Its clock minus ours at the latest sample, the way of the report included."""
    held: ReplicaState | None = None
    """DRAINING or DOWN when it says so amid a wave that is not believed; `state` stays READY."""
    penalty: float = 1.0
    """Fraction of a healthy replica's traffic, in (0, 1]."""
    ramp: float = 1.0
    """What it counts for while it is new, in (0, 1]."""
    count: int = 1
    """Replicas behind this address (a gateway stands for several)."""

    @property
    def member(self) -> bool:
        """May be an endpoint, whatever its state."""
        return not self.quarantined and self.state is not ReplicaState.DOWN

    @property
    def ready(self) -> bool:
        """Takes new requests."""
        return not self.quarantined and self.state is ReplicaState.READY

    @property
    def part(self) -> float:
        """Its traffic as a fraction of that of a healthy replica that is not new."""
        return self.penalty * self.ramp

    def age_s(self, now: float) -> float | None:
        """Seconds since the latest sample, None without one."""
        return None if self.reported_at is None else now - self.reported_at

    def value(self, signal: Signal, now: float) -> float | None:
        """The signal's value, None when it is missing or stale. After an invalid one the last valid value
        stands until it is stale."""
        reading = self.readings.get(signal)
        return None if reading is None or now > reading.valid_until else reading.value

    def state_of(self, signal: Signal, now: float) -> SignalState:
        """What is known of the signal."""
        reading = self.readings.get(signal)
        return SignalState.MISSING if reading is None else reading.state(now)


@dataclass(frozen=True, slots=True)
class MembershipView:
    """All replicas at one version, by engine, in a stable order."""

    version: int
    """Grows with every change of membership, address or state; measured values do not count."""
    engines: Mapping[str, tuple[Replica, ...]]

    def ready_count(self, engine: str) -> int:
        """Ready replicas of an engine, those behind gateways included."""
        return sum(replica.count for replica in self.engines.get(engine, ()) if replica.ready)


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """Something an operator may want to read. `kind`: joined, rejoined, starting, ready, draining, down,
    held (leaving amid a wave, not believed), silent, reporting, left, conflict (quarantined: its address is
    another's), quarantined, released."""

    kind: str
    replica: Replica
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StaticMember:
    """A member by policy: an address that never reports. `count` > 1: a gateway to a pool."""

    engine: str
    address: str
    port: int
    count: int = 1


def dump(view: MembershipView) -> list[dict[str, Any]]:
    """The members of a view as JSON-able values, for saved state. Configured members come from the policy
    and are left out, and so is what a restart must not believe: measured values, quarantine, penalties."""
    return [
        {
            "engine": replica.key.engine,
            "cluster": replica.key.cluster,
            "replica_id": replica.key.replica_id,
            "incarnation": replica.incarnation,
            "address": replica.address,
            "port": replica.port,
            "state": replica.state.value,
        }
        for replicas in view.engines.values()
        for replica in replicas
        if replica.member and replica.presence is not Presence.CONFIGURED
    ]


def load(saved: Iterable[Mapping[str, Any]]) -> tuple[Replica, ...]:
    """The inverse of `dump`. Raises ValueError naming the entry that is not one of its own."""
    return tuple(_load_one(number, entry) for number, entry in enumerate(saved))


def _load_one(number: int, entry: Mapping[str, Any]) -> Replica:
    try:
        return Replica(
            key=ReplicaKey(str(entry["engine"]), str(entry["cluster"]), str(entry["replica_id"])),
            address=str(entry["address"]),
            port=int(entry["port"]),
            state=ReplicaState(entry["state"]),
            presence=Presence.RESTORED,
            incarnation=int(entry["incarnation"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"saved replica {number}: {error!r}") from error
