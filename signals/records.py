"""What membership keeps of one replica, and what may be concluded from it. Values and pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from signals.readings import Reading, Signal
from signals.replicas import Announcement, Presence, Replica, ReplicaState, Report

FAILURES = 3
"""Connect failures seen by Envoys that make a lost replica's failure believed."""
VALID_FOR_RANGE_S = (1.0, 60.0)


@dataclass(slots=True)
class Record:
    """One replica. Only touched by `Membership`."""

    replica: Replica
    order: int
    """Order of arrival: of two replicas with one address the later is quarantined."""
    stream: int | None = None
    """The stream it reports on, None when lost."""
    sequence: int = 0
    fresh_until: float = 0.0
    suspicion: str = ""
    """Why it is quarantined although it says READY and its address is its own."""
    failures_before: float = 0.0
    """Connect failures to its engine by the time its stream was lost, or its leaving was held."""
    looked_at: float | None = None
    """Time of the latest look at what was sent to its engine since the loss, and the outcome."""
    sent_by_then: float = 0.0

    @property
    def lost(self) -> bool:
        """It should report and has no stream."""
        return self.stream is None and self.replica.presence is not Presence.CONFIGURED


def newcomer(announcement: Announcement) -> Replica:
    """A replica of which only the hello is known."""
    return Replica(
        key=announcement.key,
        address=announcement.address,
        port=announcement.port,
        state=ReplicaState.STARTING,
        presence=Presence.REPORTING,
        incarnation=announcement.incarnation,
    )


def continues(known: Replica, announcement: Announcement) -> bool:
    """The same process at the same address reports again, perhaps on a new stream."""
    told = (announcement.incarnation, announcement.address, announcement.port)
    return (known.incarnation, known.address, known.port) == told


def take(record: Record, report: Report, now: float, *, believed: bool) -> None:
    """Bring a record up to a report that is in order. A leaving that is not believed is held at READY."""
    low, high = VALID_FOR_RANGE_S
    record.sequence = report.sequence
    record.fresh_until = now + min(max(report.valid_for_s, low), high)
    record.replica = replace(
        record.replica,
        state=report.state if believed else ReplicaState.READY,
        held=None if believed else report.state,
        reason=report.reason,
        presence=Presence.REPORTING,
        silent_since=None,
        reported_at=now,
        readings=_readings(record.replica.readings, report, record.fresh_until),
        clock_skew_s=report.clock_skew_s,
    )


def _readings(known: Mapping[Signal, Reading], report: Report, valid_until: float) -> dict[Signal, Reading]:
    """The readings after a report: a signal that it does not tell stays until it is stale."""
    readings = {
        signal: replace(reading, invalid=False) if reading.invalid else reading
        for signal, reading in known.items()
    }
    for signal, value in report.values.items():
        readings[signal] = Reading(value, valid_until)
    for signal in report.invalid:
        readings[signal] = replace(readings.get(signal, Reading(None, 0.0)), invalid=True)
    return readings


def sound(records: Iterable[Record]) -> bool:
    """At least half of an engine's reporters report: it is not the way of the reports that is broken."""
    presences = [record.replica.presence for record in records]
    reporters = len(presences) - presences.count(Presence.CONFIGURED)
    return 2 * presences.count(Presence.REPORTING) >= reporters


def fails(record: Record, connect_failures: float) -> bool:
    """Envoys saw connections to its engine fail since it was lost, or its leaving held."""
    return connect_failures - record.failures_before >= FAILURES


def nothing_sent(record: Record, sent: float, now: float, look_s: float) -> bool:
    """Whether nothing was sent to its engine between two looks at least `look_s` apart; notes this look."""
    if record.looked_at is None:
        record.looked_at, record.sent_by_then = now, sent
    if now - record.looked_at < look_s:
        return False
    nothing = sent <= record.sent_by_then
    record.looked_at, record.sent_by_then = now, sent
    return nothing


def yields(holder: Record, newer: Record) -> bool:
    """Of two replicas with one address, whether the first was replaced by the newer."""
    same_engine = holder.replica.key.engine == newer.replica.key.engine
    return holder.lost and newer.stream is not None and same_engine
