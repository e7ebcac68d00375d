"""Replicas of every engine: who is a member, in which state, and when a silent one is gone.

`Membership` is the only owner of that state. Pure: no I/O and no clock; times are monotonic seconds of the
receiver. **Silence is not failure.** A replica whose stream is lost, or whose samples are stale, stays a
member in its last state, marked silent, until one of these holds (DESIGN, "What fails, who sees what").
The reports' way is *sound* while at least half of the engine's replicas report.

- goodbye: it had reported DRAINING or DOWN before its stream ended.
- refused: its stream is lost, and a connection to it is refused where one had succeeded before.
- failing: its stream is lost, Envoys saw `FAILURES` connect failures to its engine since, the way is sound.
- unreachable: its stream is lost, Envoys saw `FAILURES` connect failures to its engine since, and sent
  nothing to the engine between two looks `look_s` apart (longer than an Envoy's flush interval).
- replaced: its stream is lost and another replica of its engine reports from its address.
- long hold: it is silent for `hold_s`, or unheard for `restore_s` after a restart, and the way is sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from signals.identity import Refused
from signals.readings import Reading, Signal
from signals.replicas import (
    Announcement,
    MemberEvent,
    MembershipView,
    Presence,
    Replica,
    ReplicaKey,
    ReplicaState,
    Report,
    StaticMember,
)
from signals.wave import WaveGuard

FAILURES = 3
VALID_FOR_RANGE_S = (1.0, 60.0)
_LEAVING = (ReplicaState.DRAINING, ReplicaState.DOWN)


@dataclass(slots=True)
class _Record:
    replica: Replica
    order: int
    """Order of arrival: of two replicas with one address the later is quarantined."""
    stream: int | None = None
    """The stream it reports on, None when lost."""
    sequence: int = 0
    fresh_until: float = 0.0
    failures_at_loss: float = 0.0
    looked_at: float | None = None
    """Time of the latest look at the engine's traffic since the loss, and what had been sent by then."""
    sent_by_then: float = 0.0
    failures_at_hold: float = 0.0
    suspicion: str = ""
    """Why it is quarantined although it says READY and its address is its own."""


def _ignore(event: MemberEvent) -> None:
    pass


class Membership:
    """Replicas by key. `on_change` is called once after every change of membership, address or state."""

    def __init__(
        self,
        *,
        hold_s: float = 1800.0,
        restore_s: float = 60.0,
        look_s: float = 6.0,
        wave: WaveGuard | None = None,
        on_change: Callable[[], None] = lambda: None,
        on_event: Callable[[MemberEvent], None] = _ignore,
    ) -> None:
        self._hold_s = hold_s
        self._restore_s = restore_s
        self._look_s = look_s
        self._wave = wave or WaveGuard()
        self._on_change = on_change
        self._on_event = on_event
        self._records: dict[ReplicaKey, _Record] = {}
        self._failures: dict[str, float] = {}
        self._order = count()
        self._streams = count(1)
        self._now = 0.0
        """Time of the latest tick."""
        self._version = 0
        self._dirty = False
        self._view: MembershipView | None = None

    def view(self) -> MembershipView:
        """The replicas now; the same object while nothing was reported."""
        if self._view is None:
            engines: dict[str, list[Replica]] = {}
            for key in sorted(self._records):
                engines.setdefault(key.engine, []).append(self._records[key].replica)
            self._view = MembershipView(
                self._version, {name: tuple(found) for name, found in engines.items()}
            )
        return self._view

    def join(
        self,
        announcement: Announcement,
        report: Report | None,
        now: float,
        *,
        clusters: frozenset[str] = frozenset(),
        max_replicas: int = 1000,
    ) -> int:
        """A replica's stream began, as a rule with its state. Returns the stream's number for `apply` and
        `leave`; a replica's earlier stream counts no more.

        Raises Refused: `stale` for an older incarnation, `conflict` for a second cluster (unless `clusters`
        lists it) or for more than `max_replicas`.
        """
        self._check_join(announcement, clusters, max_replicas)
        record = self._records.get(announcement.key)
        if record is None or not _continues(record.replica, announcement):
            record = self._begin(announcement, known=record is not None)
        record.stream = next(self._streams)
        if report is not None:
            self._take(record, report, now)
        self._settle_addresses()
        self._publish()
        return record.stream

    def apply(self, key: ReplicaKey, stream: int, report: Report, now: float) -> str:
        """A sample came. Returns its result: `accepted`, `invalid` (taken without its invalid values),
        `replayed` (sequence not above the latest) or `stale` (a newer stream took over)."""
        record = self._records.get(key)
        if record is None or record.stream != stream:
            return "stale"
        result = self._take(record, report, now)
        if self._dirty:
            self._settle_addresses()
        self._publish()
        return result

    def leave(self, key: ReplicaKey, stream: int, now: float) -> bool:
        """A stream ended. True when the replica is held as silent, until a rule above confirms."""
        record = self._records.get(key)
        if record is None or record.stream != stream:
            return False
        record.stream = None
        record.failures_at_loss, record.looked_at = self._failures.get(key.engine, 0.0), None
        if record.replica.state in _LEAVING:
            self._remove(record, f"stream ended after {record.replica.state.value}")
        else:
            self._silence(record, now, "stream lost")
        self._publish()
        return key in self._records

    def expel(self, key: ReplicaKey, stream: int, reason: str) -> None:
        """The replica that reports on a stream may not be a member any more."""
        record = self._records.get(key)
        if record is not None and record.stream == stream:
            self._remove(record, reason)
            self._publish()

    def sequence(self, key: ReplicaKey) -> int:
        """Highest sequence accepted of a replica, 0 for none."""
        record = self._records.get(key)
        return record.sequence if record else 0

    def replica(self, key: ReplicaKey) -> Replica:
        """The replica now. Raises KeyError when it is not known."""
        return self._records[key].replica

    def is_lost(self, key: ReplicaKey) -> bool:
        """It is held although its stream is lost."""
        record = self._records.get(key)
        return record is not None and record.stream is None

    def connected(self, key: ReplicaKey) -> None:
        """A connection from here to the replica's address succeeded."""
        record = self._records.get(key)
        if record and not record.replica.reachable:
            record.replica, self._view = replace(record.replica, reachable=True), None

    def refused(self, key: ReplicaKey) -> None:
        """A connection from here to the replica's address was refused (not: timed out)."""
        record = self._records.get(key)
        if record and record.stream is None and record.replica.reachable:
            self._remove(record, "stream lost and connection refused")
            self._publish()

    def evidence(self, engine: str, connect_failures: float, sent: float) -> None:
        """What all Envoys together have seen of an engine so far (absolute, growing)."""
        self._failures[engine] = connect_failures
        sound = self._mostly_reporting(engine)
        for record in self._of(engine):
            if record.replica.held and connect_failures - record.failures_at_hold >= FAILURES:
                self._let_go(record)
            if record.stream is not None or record.replica.presence is Presence.CONFIGURED:
                continue
            unreachable = self._nothing_sent(record, sent)
            failing = connect_failures - record.failures_at_loss >= FAILURES
            if failing and (sound or unreachable):
                self._remove(record, "stream lost and connections fail" if sound else "engine unreachable")
        self._publish()

    def _nothing_sent(self, record: _Record, sent: float) -> bool:
        """Whether nothing was sent to the engine since a look long enough ago; then looks anew."""
        if record.looked_at is None:
            record.looked_at, record.sent_by_then = self._now, sent
        if self._now - record.looked_at < self._look_s:
            return False
        nothing = sent <= record.sent_by_then
        record.looked_at, record.sent_by_then = self._now, sent
        return nothing

    def accept_wave(self) -> None:
        """An operator means it: every held replica leaves as it said."""
        for record in self._records.values():
            self._let_go(record)
        self._publish()

    def penalise(self, penalties: Mapping[ReplicaKey, float], suspicions: Mapping[ReplicaKey, str]) -> None:
        """Take the fraction of a healthy replica's traffic, (0, 1], and the reasons for quarantine, of every
        replica that is named; all others have none."""
        for key, record in self._records.items():
            penalty = round(penalties.get(key, 1.0), 2)
            record.suspicion = suspicions.get(key, "")
            if record.replica.penalty != penalty:
                record.replica = replace(record.replica, penalty=penalty)
                self._dirty = True
        self._settle_addresses()
        self._publish()

    def tick(self, now: float) -> None:
        """Let time pass: samples go stale, long silence ends."""
        self._now = now
        for record in list(self._records.values()):
            replica = record.replica
            if replica.presence is Presence.REPORTING and now > record.fresh_until:
                self._silence(record, now, "no sample while its stream is open")
            limit_s = self._restore_s if replica.presence is Presence.RESTORED else self._hold_s
            silent_s = 0.0 if replica.silent_since is None else now - replica.silent_since
            if silent_s > limit_s and self._mostly_reporting(replica.key.engine):
                self._remove(record, f"silent for {silent_s:.0f} s while the engine's others report")
        self._publish()

    def configure(self, members: Iterable[StaticMember], engines: Iterable[str]) -> None:
        """Take the policy's static and gateway members, and forget every engine that is not in `engines`."""
        wanted = {_static_key(member): member for member in members}
        kept = set(engines)
        for key, record in list(self._records.items()):
            configured = record.replica.presence is Presence.CONFIGURED
            if key.engine not in kept or (configured and key not in wanted):
                self._remove(record, "left the policy")
        for key, member in wanted.items():
            self._configure_one(key, member)
        self._settle_addresses()
        self._publish()

    def restore(self, saved: Iterable[Replica], now: float) -> None:
        """Members of an earlier run: they count until they report, or a rule above says they are gone."""
        for replica in saved:
            if replica.key not in self._records:
                held = replace(replica, presence=Presence.RESTORED, silent_since=now)
                self._records[replica.key] = _Record(held, next(self._order))
                self._dirty = True
        self._settle_addresses()
        self._publish()

    # One record

    def _begin(self, announcement: Announcement, *, known: bool) -> _Record:
        """A new replica, or a new process or address of a known one: nothing of the old carries over."""
        replica = Replica(
            key=announcement.key,
            address=announcement.address,
            port=announcement.port,
            state=ReplicaState.STARTING,
            presence=Presence.REPORTING,
            incarnation=announcement.incarnation,
        )
        record = self._records[announcement.key] = _Record(replica, next(self._order))
        self._dirty = True
        self._on_event(MemberEvent("rejoined" if known else "joined", replica))
        return record

    def _take(self, record: _Record, report: Report, now: float) -> str:
        if report.sequence <= record.sequence:
            return "replayed"
        record.sequence = report.sequence
        low, high = VALID_FOR_RANGE_S
        record.fresh_until = now + min(max(report.valid_for_s, low), high)
        before = record.replica
        believed = self._believes(record, report.state, now)
        state = report.state if believed else ReplicaState.READY
        record.replica = replace(
            before,
            state=state,
            held=None if believed else report.state,
            reason=report.reason,
            presence=Presence.REPORTING,
            silent_since=None,
            reported_at=now,
            readings=_read(before, report, record.fresh_until),
            clock_skew_s=report.clock_skew_s,
        )
        self._view = None
        if before.presence in (Presence.SILENT, Presence.RESTORED):
            self._on_event(MemberEvent("reporting", record.replica))
        if before.state is not state:
            self._dirty = True
            self._on_event(MemberEvent(state.value, record.replica, report.reason))
        if before.held is None and not believed:
            record.failures_at_hold = self._failures.get(before.key.engine, 0.0)
            self._on_event(MemberEvent("held", record.replica, report.reason))
        return "invalid" if report.invalid else "accepted"

    def _believes(self, record: _Record, state: ReplicaState, now: float) -> bool:
        replica = record.replica
        if state not in _LEAVING or replica.state is not ReplicaState.READY:
            return True
        if replica.held is not None:
            return False
        ready = sum(other.replica.state is ReplicaState.READY for other in self._records.values())
        return self._wave.believes(replica.key, ready, now)

    def _silence(self, record: _Record, now: float, reason: str) -> None:
        if record.replica.presence is Presence.REPORTING:
            record.replica = replace(record.replica, presence=Presence.SILENT, silent_since=now)
            self._view = None
            self._on_event(MemberEvent("silent", record.replica, reason))

    def _remove(self, record: _Record, reason: str) -> None:
        if self._records.get(record.replica.key) is not record:
            return  # another's removal took it along
        del self._records[record.replica.key]
        self._dirty = True
        self._on_event(MemberEvent("left", record.replica, reason))
        self._settle_addresses()

    def _configure_one(self, key: ReplicaKey, member: StaticMember) -> None:
        replica = Replica(
            key, member.address, member.port, ReplicaState.READY, Presence.CONFIGURED, count=member.count
        )
        record = self._records.get(key)
        if record is None:
            self._records[key] = _Record(replica, next(self._order))
            self._dirty = True
            self._on_event(MemberEvent("joined", replica))
        elif record.replica.count != member.count:
            record.replica = replace(record.replica, count=member.count)
            self._dirty = True

    # All records

    def _check_join(self, announcement: Announcement, clusters: frozenset[str], max_replicas: int) -> None:
        key = announcement.key
        known = self._records.get(key)
        if known is not None and announcement.incarnation < known.replica.incarnation:
            raise Refused(
                "stale", f"incarnation {announcement.incarnation} is older than the one that reports"
            )
        others = [record.replica for record in self._of(key.engine) if record is not known]
        for other in others:
            if other.presence is not Presence.CONFIGURED and key.cluster not in {
                other.key.cluster,
                *clusters,
            }:
                raise Refused("conflict", f"{key.engine} reports from cluster {other.key.cluster!r} already")
        if known is None and len(others) >= max_replicas:
            raise Refused("conflict", f"{key.engine} has {max_replicas} replicas, the limit, already")

    def _settle_addresses(self) -> None:
        """Of replicas with one address the first keeps it, the others are quarantined until it is gone. A
        lost replica gives way to another of its own engine."""
        holders: dict[tuple[str, int], _Record] = {}
        for record in sorted(self._records.values(), key=lambda record: record.order):
            if record.replica.state is ReplicaState.DOWN:
                continue
            place = (record.replica.address, record.replica.port)
            holder = holders.setdefault(place, record)
            if holder is not record and self._gives_way(holder, record):
                self._remove(holder, f"{record.replica.key.replica_id} reports from its address")
                return
            self._quarantine(record, holder)

    @staticmethod
    def _gives_way(holder: _Record, newer: _Record) -> bool:
        lost = holder.stream is None and holder.replica.presence is not Presence.CONFIGURED
        return lost and newer.stream is not None and holder.replica.key.engine == newer.replica.key.engine

    def _quarantine(self, record: _Record, holder: _Record) -> None:
        owner = holder.replica.key
        conflict = f"address held by {owner.engine} {owner.replica_id}" if holder is not record else ""
        reason = conflict or record.suspicion
        if record.replica.quarantined != reason:
            record.replica = replace(record.replica, quarantined=reason)
            self._dirty = True
            self._on_event(MemberEvent("quarantined" if reason else "released", record.replica, reason))

    def _let_go(self, record: _Record) -> None:
        if state := record.replica.held:
            record.replica = replace(record.replica, state=state, held=None)
            self._dirty = True
            self._on_event(MemberEvent(state.value, record.replica, record.replica.reason))

    def _of(self, engine: str) -> list[_Record]:
        return [record for record in self._records.values() if record.replica.key.engine == engine]

    def _mostly_reporting(self, engine: str) -> bool:
        presences = [record.replica.presence for record in self._of(engine)]
        return 2 * presences.count(Presence.REPORTING) >= len(presences)

    def _publish(self) -> None:
        if self._dirty:
            self._dirty, self._view = False, None
            self._version += 1
            self._on_change()


def _continues(known: Replica, announcement: Announcement) -> bool:
    """The same process at the same address reports again, perhaps on a new stream."""
    return (known.incarnation, known.address, known.port) == (
        announcement.incarnation,
        announcement.address,
        announcement.port,
    )


def _static_key(member: StaticMember) -> ReplicaKey:
    return ReplicaKey(member.engine, "", f"{member.address}:{member.port}")


def _read(replica: Replica, report: Report, valid_until: float) -> dict[Signal, Reading]:
    """The readings after a report: a signal it does not tell stays until it is stale."""
    readings = {
        signal: replace(reading, invalid=False) if reading.invalid else reading
        for signal, reading in replica.readings.items()
    }
    for signal, value in report.values.items():
        readings[signal] = Reading(value, valid_until)
    for signal in report.invalid:
        readings[signal] = replace(readings.get(signal, Reading(None, 0.0)), invalid=True)
    return readings
