"""Tells when the counters of a front-end stop, so that its demand is held, and when they come again."""

from __future__ import annotations

from headrace.control_plane.telemetry import Telemetry
from headrace.policy import Policy
from signals.demand import DemandState, DemandView

_LATE_S = 15.0
"""After a restart demand is held from the start; that is told once Envoys had the time to come back."""


class DemandWatch:
    """Remembers which front-ends are held, so that each change is told once."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._held: frozenset[str] = frozenset()

    def update(self, policy: Policy, view: DemandView) -> None:
        """Look at the demand of every front-end; call it about once a second."""
        log = self._telemetry.log
        ages = {
            frontend: point.age_s
            for (frontend, _), point in view.demand.items()
            if frontend in policy.frontends and point.state is not DemandState.LIVE and point.age_s > _LATE_S
        }
        for frontend in sorted(ages.keys() - self._held):
            log.warning("demand_held", frontend=frontend, silent_s=round(ages[frontend], 1))
        for frontend in sorted(self._held - ages.keys()):
            log.info("demand_resumed", frontend=frontend)
        self._held = frozenset(ages)
