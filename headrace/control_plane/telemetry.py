"""What can be seen of the control plane: log lines, counters and histograms, by the names of
design/observability.md. Gauges of the present state are collected at scrape time in `gauges`."""

from __future__ import annotations

import math
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.control_plane.rounds import Result, Round
from headrace.control_plane.served import Served
from headrace.log import Logger
from signals.refusals import RefusedReporter
from signals.replicas import MemberEvent, ReplicaKey
from xds_server.events import Acked, Connected, Disconnected, Event, InSync, Lagging, Nacked, Refused, Sent

_MEMBER_EVENTS = {
    "joined": "replica_joined",
    "rejoined": "replica_joined",
    "ready": "replica_ready",
    "draining": "replica_draining",
    "down": "replica_left",
    "left": "replica_left",
    "silent": "replica_silent",
    "reporting": "replica_reporting",
    "quarantined": "replica_quarantined",
    "released": "replica_released",
    "conflict": "address_conflict",
}
_ALARMING = ("conflict", "quarantined", "held")
_SAVES_EVERY_S = 60.0


class Stopwatch:
    """Times the stages of one round, one after the other."""

    def __init__(self, stages: Histogram, clock: Callable[[], float]) -> None:
        self._stages = stages
        self._clock = clock
        self._stage = ""
        self._since = 0.0

    def enter(self, stage: str) -> None:
        """End the stage before and begin another."""
        now = self._clock()
        if self._stage:
            self._stages.labels(self._stage).observe(now - self._since)
        self._stage, self._since = stage, now


class Telemetry:
    """Counts and logs. Every method is called from the event loop."""

    def __init__(self, log: Logger) -> None:
        self.log = log
        self.registry = CollectorRegistry()
        counter, registry = Counter, self.registry
        self.reloads = counter("headrace_policy_reloads", "policy edits seen", ["result"], registry=registry)
        self.rounds = counter(
            "headrace_plan_rounds", "planning rounds", ["trigger", "result"], registry=registry
        )
        self.reports = counter("headrace_reports", "load report messages", ["result"], registry=registry)
        self.responses = counter("headrace_xds_responses", "xDS responses sent", ["type"], registry=registry)
        self.nacks = counter("headrace_xds_nacks", "responses refused by Envoys", ["type"], registry=registry)
        self.refused = counter("headrace_xds_refused", "xDS streams refused", ["reason"], registry=registry)
        self.moved = counter(
            "headrace_moved_share",
            "fractions of a demand gained by a destination, shed included",
            ["frontend", "model", "class", "engine"],
            registry=registry,
        )
        self.ack_s = Histogram(
            "headrace_xds_ack_seconds",
            "from response to acknowledgement",
            ["type"],
            registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15),
        )
        self.stage_s = Histogram(
            "headrace_plan_duration_seconds",
            "time of a planning round",
            ["stage"],
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
        )
        self.loop_lag_s = Histogram(
            "headrace_event_loop_lag_seconds",
            "how late the event loop runs a timer",
            registry=registry,
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
        )
        self._saved_at: Gauge | None = None
        self._save_told = -math.inf
        self._guarded = self._skipped = False
        self._infeasible = ""

    def bind(self, **context: object) -> None:
        """Put something on every line from now on."""
        self.log = self.log.bind(**context)

    def snapshot_problems(self, frontend: str, problems: tuple[str, ...]) -> None:
        """Log why a front-end keeps its last good snapshot, or that it does so no more."""
        if problems:
            self.log.error("snapshot_refused", frontend=frontend, problems=problems[:5], count=len(problems))
        else:
            self.log.info("snapshot_recovered", frontend=frontend)

    def state_saved(self, at: float) -> None:
        """Note the wall clock of a save, and log one a minute. There is no series before the first."""
        if at - self._save_told >= _SAVES_EVERY_S:
            self._save_told = at
            self.log.info("state_saved")
        if self._saved_at is None:
            self._saved_at = Gauge(
                "headrace_state_save_timestamp_seconds", "last save of the state", registry=self.registry
            )
        self._saved_at.set(at)

    def state_not_saved(self, error: OSError) -> None:
        """Log why a save failed; the next one that succeeds is logged too."""
        self._save_told = -math.inf
        self.log.error("state_save_failed", error=str(error))

    def moved_shares(self, old: Served, new: Served) -> None:
        """Count what every destination gains."""
        for (frontend, key), partition in new.partitions.items():
            before = old.partitions.get((frontend, key))
            if before is None or before is partition:
                continue
            model, _, traffic_class = key.rpartition("/")
            for engine, share in partition.shares.items():
                gained = share - before.shares.get(engine, 0.0)
                if gained > 0:
                    self.moved.labels(frontend, model, traffic_class, engine).inc(gained)

    def reporter_refused(self, refused: RefusedReporter) -> None:
        """Log a reporter that is not taken; called once a minute each."""
        self.log.warning(
            "report_refused",
            engine=refused.engine,
            peer=refused.peer,
            result=refused.code,
            reason=refused.reason,
            count=refused.times,
        )

    def skipped(self, trigger: str) -> None:
        """Log the first of the rounds that are not planned since every reporter is silent."""
        if not self._skipped:
            self.log.info("plan_skipped", trigger=trigger, reason="every reporter is silent")
        self._skipped = True

    def planned(self, found: Round, trigger: str) -> None:
        """Count a round; log why it cannot be planned, and that a guard bounds it, once each."""
        self.rounds.labels(trigger, found.result).inc()
        self._skipped = False
        if found.error and found.error != self._infeasible:
            self.log.error("plan_infeasible", reason=found.error)
        guarded = found.result is Result.GUARDED
        if guarded and not self._guarded:
            self.log.info("guard_applied", guard="max_step", moved=round(found.moved, 4))
        self._infeasible, self._guarded = found.error, guarded

    def published(self, found: Round, trigger: str) -> None:
        """Log a publication with its gap, movement and reason."""
        self.log.info(
            "plan_published",
            snapshot=found.served.sequence,
            trigger=trigger,
            result=str(found.result),
            gap=found.plan.gap if found.plan else None,
            moved=round(found.moved, 4),
            changes=_largest_changes(found),
            reason=found.decision.reason if found.decision else found.error,
        )

    def member(self, event: MemberEvent) -> None:
        """Log what happened to a replica."""
        key, replica = event.replica.key, event.replica
        tell = self.log.warning if event.kind in _ALARMING else self.log.info
        tell(
            _MEMBER_EVENTS.get(event.kind, f"replica_{event.kind}"),
            engine=key.engine,
            cluster=key.cluster,
            replica=key.replica_id,
            address=f"{replica.address}:{replica.port}",
            reason=event.reason,
        )

    def drain_acked(self, key: ReplicaKey, acked: bool) -> None:
        """Log that a replica was told that nothing new comes."""
        self.log.info(
            "replica_drain_acked",
            engine=key.engine,
            cluster=key.cluster,
            replica=key.replica_id,
            reason="every Envoy acknowledged" if acked else "an Envoy did not acknowledge in time",
        )

    def xds(self, event: Event) -> None:
        """Count and log what happened to an Envoy."""
        match event:
            case Sent():
                self.responses.labels(event.type).inc()
            case Acked():
                self.ack_s.labels(event.type).observe(event.after_s)
                if event.recovered:
                    self.log.info("resource_recovered", type=event.type, **_who(event))
            case Nacked():
                self.nacks.labels(event.type).inc()
                if not event.repeated:
                    self.log.error(
                        "resource_nacked",
                        type=event.type,
                        reason=event.message,
                        names=event.names,
                        **_who(event),
                    )
            case Connected():
                self.log.info(
                    "envoy_connected", warning=event.warning, build=event.client.build, **_who(event)
                )
            case Disconnected():
                self.log.info("envoy_disconnected", reason=event.reason, **_who(event))
            case Lagging():
                self.log.warning("envoy_lagging", type=event.type, for_s=round(event.for_s, 1), **_who(event))
            case InSync():
                self.log.info("envoy_in_sync", sequence=event.sequence, **_who(event))
            case Refused():
                self.refused.labels(event.reason).inc()
                # Envoys dial until the first snapshot is there: that is a start, not a fault.
                if event.reason != "not_ready":
                    self.log.error(
                        "envoy_refused", reason=event.message, node=event.node, frontend=event.frontend
                    )


def _largest_changes(found: Round) -> list[str]:
    """The three largest gains of a destination."""
    gains = [
        (share - before.shares.get(engine, 0.0), f"{frontend} {key} → {engine}")
        for (frontend, key), partition in found.served.partitions.items()
        if (before := found.base.partitions.get((frontend, key))) is not None
        for engine, share in partition.shares.items()
    ]
    return [f"{text} +{gain:.1%}" for gain, text in sorted(gains, reverse=True)[:3] if gain >= 0.0005]


def _who(event: Acked | Nacked | Connected | Disconnected | Lagging | InSync) -> dict[str, str]:
    return {"node": event.client.id, "frontend": event.client.frontend}
