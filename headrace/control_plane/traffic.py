"""Demand as Envoys count it: the smoothed estimate that is planned with, and the fast one for surges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from headrace.control_plane import observations, rules
from headrace.control_plane.failing import failing, serving
from headrace.control_plane.served import Served
from headrace.control_plane.surge import (
    BEYOND_SIGMAS,
    FAST_WINDOW_S,
    SETTLE_S,
    Row,
    Surges,
    fallen,
    model_of,
    overloads,
)
from headrace.policy import Policy
from optimizer import SHED, Problem
from signals.attempts import AttemptsCheck
from signals.demand import Demand, DemandState, DemandView
from signals.metrics_codec import Flush
from xds_server.lrs import LoadReport


class Traffic:
    """Owns both estimates. A `FlushSink` for the metrics service."""

    def __init__(self, policy: Policy, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._policy = policy
        self._smoothed = Demand(rules.envoy_names(policy), window_s=policy.planning.demand_window_s)
        self._fast = Demand(self._smoothed.names, window_s=FAST_WINDOW_S)
        self._attempts = AttemptsCheck()
        self._surges = Surges()
        self._corrected_at = -math.inf
        self._beyond_until = -math.inf
        self._heard = False

    def adopt(self, policy: Policy) -> None:
        """Read counters by another policy's names from now on."""
        self._policy = policy
        self._smoothed.names = self._fast.names = rules.envoy_names(policy)
        self._smoothed.window_s = policy.planning.demand_window_s

    def observe(self, frontend: str, node_id: str, flush: Flush, now: float) -> None:
        """Take one flush of an Envoy."""
        self._smoothed.observe(frontend, node_id, flush, now)
        self._fast.observe(frontend, node_id, flush, now)
        self._heard = True

    def take_load_report(self, report: LoadReport) -> None:
        """Compare a load report with the counters of the same Envoy."""
        members = self._smoothed.names.members
        self._attempts.observe(
            report.frontend,
            report.node,
            reported=sum(load.issued for name, load in report.clusters.items() if name in members),
            counted=self._smoothed.attempts(report.frontend, report.node),
            interval_s=report.interval_s,
            now=self._clock(),
        )

    def attempts_mismatch(self) -> dict[str, float]:
        """front-end -> attempts at engines by load reports over those by counters."""
        ratios = self._attempts.ratios()
        return {name: ratio for name, ratio in ratios.items() if name in self._policy.frontends}

    def heard(self) -> bool:
        """Whether there was a flush since the last call."""
        heard, self._heard = self._heard, False
        return heard

    def restore(self, saved: Mapping[str, Mapping[str, float]]) -> None:
        """Start from the demand of an earlier run: front-end -> key -> req/s."""
        pairs = {(frontend, key): rps for frontend, row in saved.items() for key, rps in row.items()}
        self._smoothed.restore(pairs, self._clock())

    def view(self) -> DemandView:
        """All that is known now, smoothed."""
        return self._smoothed.view(self._clock())

    def smoothed(self) -> dict[str, dict[str, float]]:
        """front-end -> key -> req/s, every row of the policy."""
        return observations.demand_rps(self._policy, self.view())

    def planned(self) -> dict[str, dict[str, float]]:
        """What to plan for: the smoothed estimate; the fast one where a row surges while that is too much."""
        if not self._policy.protection.shedding.correct_s or self._clock() >= self._beyond_until:
            return self.smoothed()
        return self._surges.demand(self.smoothed(), self._fast_rps())

    def overloaded(self, served: Served, problem: Problem | None) -> tuple[list[str], bool]:
        """Engines that a surge would put over capacity under the shares served, and whether rows surge that
        did not before; at most every `correct_s`. `problem` is the last that was planned."""
        pause_s = self._policy.protection.shedding.correct_s
        smoothed, fast, now = self.smoothed(), self._fast_rps(), self._clock()
        if not pause_s or problem is None:
            return [], False
        shares = served.shares()
        # By the fast estimate itself: the larger of two would be above the truth by noise alone.
        beyond = overloads(shares, problem, fast, BEYOND_SIGMAS)
        self._surges.update(smoothed, fast, now, beyond=bool(beyond))
        if not self._surges.any or now - self._corrected_at < pause_s:
            return [], False
        engines = overloads(shares, problem, self._surges.demand(smoothed, fast))
        if not engines:
            return [], False
        self._corrected_at, self._beyond_until = now, now + SETTLE_S
        rows = self._surges.begin_anew(now)
        for frontend, key in rows:
            # Any average of a step that has just come lets too much in.
            rps = max(smoothed[frontend][key], fast[frontend][key], self._fast.latest(frontend, key, now)[0])
            self._smoothed.begin_anew(frontend, key, rps, now)
            self._fast.begin_anew(frontend, key, rps, now)
        return engines, bool(rows)

    def relieved(self, served: Served) -> list[str]:
        """Rows of models that refuse a part, whose demand has clearly fallen by what Envoys tell now."""
        if not self._policy.protection.shedding.correct_s:
            return []
        refusing = {model_of(row) for row, partition in served.partitions.items() if SHED in partition.shares}
        if not refusing:
            return []
        known = self._policy.frontends
        rows = {row for row in served.partitions if row[0] in known and model_of(row) in refusing}
        now, fast = self._clock(), self._fast_rps()
        heard = _live(self._smoothed.view(now)) & _live(self._fast.view(now))
        latest = {row: self._fast.latest(*row, now)[1] for row in rows & heard}
        found = fallen(self.smoothed(), fast, latest)
        for (frontend, key), rps in found.items():
            self._smoothed.begin_anew(frontend, key, rps, now)
        return sorted("/".join(row) for row in found)

    def answering(self) -> tuple[frozenset[str], frozenset[str]]:
        """Engines at which requests fail just now, and engines that answer them."""
        view = self._fast.view(self._clock())
        return failing(view, self._policy), serving(view, self._policy)

    def _fast_rps(self) -> dict[str, dict[str, float]]:
        return observations.demand_rps(self._policy, self._fast.view(self._clock()))


def _live(view: DemandView) -> set[Row]:
    return {row for row, point in view.demand.items() if point.state is DemandState.LIVE}
