"""Tells operators when a source of signals changes its health: signals that stop, clocks that are off,
reports that do not fit what Envoys sent. For people; nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.control_plane.telemetry import Telemetry
from signals.health import SignalWatch, skewed
from signals.readings import SignalState
from signals.replicas import MembershipView, ReplicaKey

_AGREES = (0.5, 2.0)
"""Requests reported / requests sent between which the two agree."""
_COUNTS_AGREE = (0.8, 1.25)
"""The same for two counts of one Envoy."""


class SourceHealth:
    """Remembers what was told, so that each change is told once."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._signals = SignalWatch()
        self._skewed: frozenset[ReplicaKey] = frozenset()
        self._mismatched: frozenset[str] = frozenset()
        self._penalised: frozenset[str] = frozenset()
        self._miscounted: frozenset[str] = frozenset()

    def update(self, members: MembershipView, mismatch: Mapping[str, float], now: float) -> None:
        """Look at everything that reports; call it about once a second."""
        log = self._telemetry.log
        for change in self._signals.update(members, now):
            kind = "signal_told" if change.after is SignalState.VALID else f"signal_{change.after.value}"
            log.info(kind, engine=change.engine, signal=str(change.signal))
        self._tell_skew(members)
        low, high = _AGREES
        mismatched = frozenset(engine for engine, ratio in mismatch.items() if not low <= ratio <= high)
        for engine in sorted(mismatched - self._mismatched):
            log.warning("load_mismatch", engine=engine, reported_over_sent=round(mismatch[engine], 3))
        self._mismatched = mismatched

    def miscounted(self, ratios: Mapping[str, float]) -> None:
        """Tell which front-ends' counters and load reports differ: one of the two ways loses something."""
        low, high = _COUNTS_AGREE
        found = frozenset(frontend for frontend, ratio in ratios.items() if not low <= ratio <= high)
        for frontend in sorted(found - self._miscounted):
            self._telemetry.log.warning(
                "attempts_mismatch", frontend=frontend, load_reports_over_counters=round(ratios[frontend], 3)
            )
        self._miscounted = found

    def penalised(self, units: Mapping[str, str]) -> None:
        """Tell which engines and replicas came under a penalty, and which are free of it again."""
        for unit in sorted(units.keys() - self._penalised):
            self._telemetry.log.warning("penalty_raised", unit=unit, reason=units[unit])
        for unit in sorted(self._penalised - units.keys()):
            self._telemetry.log.info("penalty_released", unit=unit)
        self._penalised = frozenset(units)

    def _tell_skew(self, members: MembershipView) -> None:
        off = {replica.key: replica.clock_skew_s for replica in skewed(members)}
        for key in sorted(off.keys() - self._skewed):
            self._telemetry.log.warning(
                "clock_skewed", engine=key.engine, replica=key.replica_id, skew_s=off[key]
            )
        self._skewed = frozenset(off)
