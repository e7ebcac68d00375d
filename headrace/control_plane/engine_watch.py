"""Tells when an engine has no ready replica any more, and when it has one again."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.control_plane import observations
from headrace.control_plane.telemetry import Telemetry
from headrace.policy import Policy
from signals.replicas import MembershipView, ReplicaState


class EngineWatch:
    """Remembers which engines are without, so that each change is told once.

    An engine whose last replicas are draining was emptied; any other was lost.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._without: Mapping[str, bool] = {}
        """Engine without a ready replica -> whether it was lost."""

    def expect(self, policy: Policy, members: MembershipView) -> None:
        """Take what is as known: it is not told."""
        self._without = dict.fromkeys(observations.without_replicas(policy, members), False)

    def update(self, policy: Policy, members: MembershipView) -> bool:
        """Tell what changed; returns whether anything did."""
        log, now = self._telemetry.log, observations.without_replicas(policy, members)
        gone = {engine: not _draining(members, engine) for engine in sorted(now - self._without.keys())}
        for engine, lost in gone.items():
            if lost:
                log.warning("engine_lost", engine=engine)
            else:
                log.info("engine_emptied", engine=engine)
        back = {engine: lost for engine, lost in sorted(self._without.items()) if engine not in now}
        for engine, lost in back.items():
            log.info("engine_recovered" if lost else "engine_ready", engine=engine)
        still = {engine: lost for engine, lost in self._without.items() if engine in now}
        self._without = {**still, **gone}
        return bool(gone or back)


def _draining(members: MembershipView, engine: str) -> bool:
    return any(replica.state is ReplicaState.DRAINING for replica in members.engines.get(engine, ()))
