"""Replicas of every engine: who is a member, in which state, and when a silent one is gone.

`Membership` is the only owner of that state. Pure: no I/O and no clock; times are monotonic seconds of the
receiver. **Silence is not failure.** A replica whose stream is lost, or whose samples are stale, stays a
member in its last state, marked silent, until one of these holds (DESIGN, "What fails, who sees what").
The reports' way is *sound* while at least half of the engine's replicas report.

- goodbye: it had reported DRAINING or DOWN before its stream ended.
- refused: its stream is lost, and a connection to it is refused where one had succeeded before.
- failing: its stream is lost, Envoys saw connections to its engine fail since (`records.FAILURES` times),
  and the way is sound.
- unreachable: its stream is lost, Envoys saw connections to its engine fail since, and sent nothing to the
  engine between two looks `look_s` apart (longer than an Envoy's flush interval).
- replaced: its stream is lost and another replica of its engine reports from its address.
- long hold: it is silent for `hold_s`, or unheard for `restore_s` after a restart, and the way is sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from signals.identity import Refused
from signals.records import Record, continues, fails, newcomer, nothing_sent, sound, take, yields
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

_LEAVING = (ReplicaState.DRAINING, ReplicaState.DOWN)


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
        self._engines: dict[str, dict[ReplicaKey, Record]] = {}
        self._policy: frozenset[str] | None = None
        """Engines of the policy, None before it is known."""
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
            engines = {
                engine: tuple(records[key].replica for key in sorted(records))
                for engine, records in sorted(self._engines.items())
                if records
            }
            self._view = MembershipView(self._version, engines)
        return self._view

    # What reporters do

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
        record = self._find(announcement.key)
        if record is None or not continues(record.replica, announcement):
            kind = "joined" if record is None else "rejoined"
            record = self._add(newcomer(announcement), kind)
        record.stream = next(self._streams)
        if report is not None:
            self._take(record, report, now)
        self._settle_addresses()
        self._publish()
        return record.stream

    def apply(self, key: ReplicaKey, stream: int, report: Report, now: float) -> str:
        """A sample came. Returns its result: `accepted`, `invalid` (taken without its invalid values),
        `replayed` (sequence not above the latest) or `stale` (a newer stream took over)."""
        record = self._find(key)
        if record is None or record.stream != stream:
            return "stale"
        result = self._take(record, report, now)
        if self._dirty:
            self._settle_addresses()
        self._publish()
        return result

    def leave(self, key: ReplicaKey, stream: int, now: float) -> bool:
        """A stream ended. True when the replica is held as silent, until a rule above confirms."""
        record = self._find(key)
        if record is None or record.stream != stream:
            return False
        record.stream, record.looked_at = None, None
        record.failures_before = self._failures.get(key.engine, 0.0)
        if record.replica.state in _LEAVING:
            self._remove(record, f"stream ended after {record.replica.state.value}")
        else:
            self._silence(record, now, "stream lost")
        self._publish()
        return self._find(key) is not None

    def expel(self, key: ReplicaKey, stream: int, reason: str) -> None:
        """The replica that reports on a stream may not be a member any more."""
        record = self._find(key)
        if record is not None and record.stream == stream:
            self._remove(record, reason)
            self._publish()

    def keep(self, misfit: Callable[[Replica], str]) -> None:
        """Remove every member by report for which `misfit` gives a reason: the rules have changed."""
        for record in list(self._all()):
            if record.replica.presence is not Presence.CONFIGURED and (reason := misfit(record.replica)):
                self._remove(record, reason)
        self._settle_addresses()
        self._publish()

    def sequence(self, key: ReplicaKey) -> int:
        """Highest sequence accepted of a replica, 0 for none."""
        record = self._find(key)
        return record.sequence if record else 0

    def replica(self, key: ReplicaKey) -> Replica:
        """The replica now. Raises KeyError when it is not known."""
        return self._engines[key.engine][key].replica

    # What shows whether a silent replica lives

    def is_lost(self, key: ReplicaKey) -> bool:
        """It is held although its stream is lost."""
        record = self._find(key)
        return record is not None and record.lost

    def connected(self, key: ReplicaKey) -> None:
        """A connection from here to the replica's address succeeded."""
        record = self._find(key)
        if record and not record.replica.reachable:
            self._change(record, reachable=True)

    def refused(self, key: ReplicaKey) -> None:
        """A connection from here to the replica's address was refused (not: timed out)."""
        record = self._find(key)
        if record and record.lost and record.replica.reachable:
            self._remove(record, "stream lost and connection refused")
            self._publish()

    def evidence(self, engine: str, connect_failures: float, sent: float) -> None:
        """What all Envoys together have seen of an engine so far (absolute). To be told about every second,
        also while all is well: failures are counted from the latest word before a loss."""
        self._failures[engine] = connect_failures
        records = list(self._engines.get(engine, {}).values())
        way_is_sound = sound(records)
        for record in records:
            if record.replica.held and fails(record, connect_failures):
                self._let_go(record)
            if not record.lost:
                continue
            unreachable = nothing_sent(record, sent, self._now, self._look_s)
            if fails(record, connect_failures) and (way_is_sound or unreachable):
                self._remove(record, "connections fail" if way_is_sound else "engine unreachable")
        self._publish()

    def tick(self, now: float) -> None:
        """Let time pass: samples go stale, long silence ends."""
        self._now = now
        for record in list(self._all()):
            replica = record.replica
            if replica.presence is Presence.REPORTING and now > record.fresh_until:
                self._silence(record, now, "no sample while its stream is open")
            limit_s = self._restore_s if replica.presence is Presence.RESTORED else self._hold_s
            silent_s = 0.0 if replica.silent_since is None else now - replica.silent_since
            if silent_s > limit_s and sound(self._engines[replica.key.engine].values()):
                self._remove(record, f"silent for {silent_s:.0f} s while the engine's others report")
        self._publish()

    # What the policy, the operator and the planner decide

    def configure(self, members: Iterable[StaticMember], engines: Iterable[str]) -> None:
        """Take the policy's static and gateway members, and forget every engine that is not in `engines`."""
        wanted = {_static_key(member): member for member in members}
        self._policy = frozenset(engines)
        for record in list(self._all()):
            key, configured = record.replica.key, record.replica.presence is Presence.CONFIGURED
            if key.engine not in self._policy or (configured and key not in wanted):
                self._remove(record, "left the policy")
        for key, member in wanted.items():
            self._configure_one(key, member)
        self._settle_addresses()
        self._publish()

    def restore(self, saved: Iterable[Replica], now: float) -> None:
        """Members of an earlier run: they count until they report, or a rule above says they are gone. Those
        of engines that left the policy meanwhile are not taken."""
        for replica in saved:
            in_policy = self._policy is None or replica.key.engine in self._policy
            if in_policy and self._find(replica.key) is None:
                self._add(replace(replica, presence=Presence.RESTORED, silent_since=now), "")
        self._settle_addresses()
        self._publish()

    def penalise(self, penalties: Mapping[ReplicaKey, float], suspicions: Mapping[ReplicaKey, str]) -> None:
        """Take the fraction of a healthy replica's traffic, (0, 1], and the reasons for quarantine, of every
        replica that is named; all others have none."""
        for record in self._all():
            key, penalty = record.replica.key, round(penalties.get(record.replica.key, 1.0), 2)
            record.suspicion = suspicions.get(key, "")
            if record.replica.penalty != penalty:
                self._change(record, penalty=penalty)
                self._dirty = True
        self._settle_addresses()
        self._publish()

    def ramp(self, parts: Mapping[ReplicaKey, float]) -> None:
        """Take what the replicas that are new count for, (0, 1]; all others count in full."""
        for record in self._all():
            part = parts.get(record.replica.key, 1.0)
            if record.replica.ramp != part:
                self._change(record, ramp=part)
                self._dirty = True
        self._publish()

    def accept_wave(self) -> None:
        """An operator means it: every held replica leaves as it said."""
        for record in self._all():
            self._let_go(record)
        self._publish()

    # Inside

    def _find(self, key: ReplicaKey) -> Record | None:
        return self._engines.get(key.engine, {}).get(key)

    def _all(self) -> Iterator[Record]:
        return (record for records in self._engines.values() for record in records.values())

    def _add(self, replica: Replica, kind: str) -> Record:
        """A new replica, or a new process or address of a known one: nothing of the old carries over. An
        event of that kind is told, unless it is empty."""
        record = Record(replica, next(self._order))
        self._engines.setdefault(replica.key.engine, {})[replica.key] = record
        self._dirty = True
        if kind:
            self._on_event(MemberEvent(kind, replica))
        return record

    def _change(self, record: Record, **changes: object) -> None:
        record.replica = replace(record.replica, **changes)  # type: ignore[arg-type]  # names are checked at run time
        self._view = None

    def _take(self, record: Record, report: Report, now: float) -> str:
        if report.sequence <= record.sequence:
            return "replayed"
        before = record.replica
        take(record, report, now, believed=self._believes(record, report.state, now))
        self._view = None
        after = record.replica
        if before.presence in (Presence.SILENT, Presence.RESTORED):
            self._on_event(MemberEvent("reporting", after))
        if before.state is not after.state:
            self._dirty = True
            self._on_event(MemberEvent(after.state.value, after, report.reason))
        if after.held and not before.held:
            record.failures_before = self._failures.get(after.key.engine, 0.0)
            self._on_event(MemberEvent("held", after, report.reason))
        return "invalid" if report.invalid else "accepted"

    def _believes(self, record: Record, state: ReplicaState, now: float) -> bool:
        replica = record.replica
        if state not in _LEAVING or replica.state is not ReplicaState.READY:
            return True
        if replica.held is not None:
            return False
        ready = sum(other.replica.state is ReplicaState.READY for other in self._all())
        return self._wave.believes(replica.key, ready, now)

    def _silence(self, record: Record, now: float, reason: str) -> None:
        if record.replica.presence is Presence.REPORTING:
            self._change(record, presence=Presence.SILENT, silent_since=now)
            self._on_event(MemberEvent("silent", record.replica, reason))

    def _let_go(self, record: Record) -> None:
        if state := record.replica.held:
            self._change(record, state=state, held=None)
            self._dirty = True
            self._on_event(MemberEvent(state.value, record.replica, record.replica.reason))

    def _remove(self, record: Record, reason: str) -> None:
        key = record.replica.key
        if self._find(key) is not record:
            return  # another's removal took it along
        del self._engines[key.engine][key]
        self._dirty = True
        self._on_event(MemberEvent("left", record.replica, reason))
        self._settle_addresses()

    def _configure_one(self, key: ReplicaKey, member: StaticMember) -> None:
        record = self._find(key)
        if record is None:
            replica = Replica(key, member.address, member.port, ReplicaState.READY, Presence.CONFIGURED)
            self._add(replace(replica, count=member.count), "joined")
        elif record.replica.count != member.count:
            self._change(record, count=member.count)
            self._dirty = True

    def _check_join(self, announcement: Announcement, clusters: frozenset[str], max_replicas: int) -> None:
        key, known = announcement.key, self._find(announcement.key)
        if known is not None and announcement.incarnation < known.replica.incarnation:
            raise Refused("stale", f"incarnation {announcement.incarnation} is older than the one known")
        others = [record.replica for record in self._engines.get(key.engine, {}).values()]
        reporters = [other.key for other in others if other.presence is not Presence.CONFIGURED]
        elsewhere = next((other.cluster for other in reporters if other.cluster != key.cluster), None)
        if elsewhere is not None and key.cluster not in clusters:
            raise Refused("conflict", f"{key.engine} reports from cluster {elsewhere!r} already")
        if known is None and len(reporters) >= max_replicas:
            raise Refused("conflict", f"{key.engine} has {max_replicas} replicas, the limit, already")

    def _settle_addresses(self) -> None:
        """Of replicas with one address the first keeps it, the others are quarantined until it is gone. A
        lost replica gives way to another of its own engine."""
        holders: dict[tuple[str, int], Record] = {}
        for record in sorted(self._all(), key=lambda record: record.order):
            if record.replica.state is ReplicaState.DOWN:
                continue
            place = (record.replica.address, record.replica.port)
            holder = holders.setdefault(place, record)
            if holder is not record and yields(holder, record):
                self._remove(holder, f"{record.replica.key.replica_id} reports from its address")
                return  # the removal settled all
            self._quarantine(record, holder)

    def _quarantine(self, record: Record, holder: Record) -> None:
        owner = holder.replica.key
        conflict = f"address held by {owner.engine} {owner.replica_id}" if holder is not record else ""
        reason = conflict or record.suspicion
        if record.replica.quarantined != reason:
            self._change(record, quarantined=reason)
            self._dirty = True
            kind = "conflict" if conflict else "quarantined" if reason else "released"
            self._on_event(MemberEvent(kind, record.replica, reason))

    def _publish(self) -> None:
        if self._dirty:
            self._dirty, self._view = False, None
            self._version += 1
            self._on_change()


def _static_key(member: StaticMember) -> ReplicaKey:
    return ReplicaKey(member.engine, "", f"{member.address}:{member.port}")
