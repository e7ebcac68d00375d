"""What a run is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.layout import Round
from optimizer.replan import Replan
from optimizer.simulation.scenario import Scenario
from optimizer.simulation.world import Tick

Array = npt.NDArray[np.float64]

VISIBLE = 0.002
"""A change of an engine's part of all demand below this is not counted as movement."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Results of a run after its warm-up. Latencies over requests served; times in ms unless named."""

    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float
    tbot_mean_ms: float
    e2e_mean_ms: float
    e2e_p50_ms: float
    e2e_p95_ms: float
    e2e_p99_ms: float
    network_mean_ms: float
    slo_attainment: float
    """Requests served with TTFT, network included, within the SLO, of all requests."""
    goodput_rps: float
    """The same as a rate."""
    refused: float
    """Fraction of requests refused on purpose."""
    failed: float
    """Fraction that failed for good."""
    amplification: float
    """Attempts per request not refused."""
    utilization_mean: float
    """Offered work over true capacity of all engines."""
    utilization_max: float
    """Of the busiest engine in the worst tick."""
    moved_per_minute: float
    """Fraction of sessions that change engine."""
    publications: int
    reversals_per_hour: float
    """Sign changes of an engine's part of the demand."""
    settled_s: float
    """From the last event until shares are where they end, but for what is not visible."""
    overshoot: float
    """Largest excursion of an engine's part of the demand beyond where it started and ended."""
    gap_mean: float
    """Certified gap of the plans; NaN for policies without one."""
    quiet: float
    """Fraction of rounds that needed no program."""
    solve_mean_ms: float
    refused_by_priority: dict[int, float]


class Recorder:
    """Collects a run."""

    def __init__(self, scenario: Scenario, round_: Round) -> None:
        self._scenario, self._round = scenario, round_
        self._samples: list[tuple[Array, Array, Array, Array]] = []
        self._totals = np.zeros(5)  # requests, refused, failed, attempts, within the SLO
        self._used: list[tuple[float, float]] = []
        self._by_row = np.zeros((2, len(round_.demand)))
        self._plans: list[Replan] = []
        self._moved: list[float] = []
        self._recent = (0.0, 0.0)
        self._tbot = np.zeros(2)

    def tick(self, now: float, tick: Tick, arrivals: Array) -> None:
        """Record one tick."""
        layout = self._round.layout
        row, engine = np.nonzero(tick.served > 0)
        weight = tick.served[row, engine]
        network = layout.network[row, engine]
        ttft = network + tick.ttft[engine]
        e2e = ttft + layout.tokens[row] * tick.tbot[engine]
        self._recent = self._recent[0] + float(weight @ e2e), self._recent[1] + float(weight.sum())
        if now < self._scenario.warm_up_s:
            return
        self._samples.append((weight, ttft, e2e, network))
        self._tbot += [float(weight @ tick.tbot[engine]), float(weight.sum())]
        within = float(weight[ttft <= self._scenario.ttft_slo_ms].sum())
        self._totals += [arrivals.sum(), tick.refused.sum(), tick.failed.sum(), tick.attempts.sum(), within]
        self._by_row += [arrivals, tick.refused]
        total = float(tick.capacity.sum())
        busy = np.divide(tick.load, tick.capacity, out=np.zeros_like(tick.load), where=tick.capacity > 0)
        self._used.append((float(tick.load.sum()) / total if total > 0 else 0.0, float(busy.max())))

    def planned(self, result: Replan, moved: float) -> None:
        """Record one planning round and the part of demand it moved."""
        self._plans.append(result)
        self._moved.append(moved)

    def recent_e2e_ms(self) -> float:
        """Mean end-to-end latency since the last call."""
        total, count = self._recent
        self._recent = (0.0, 0.0)
        return total / count if count > 0 else float("nan")

    def metrics(self, time: Array, share: Array) -> Metrics:
        """The results."""
        weight, ttft, e2e, network = (np.concatenate([s[k] for s in self._samples]) for k in range(4))
        requests, refused, failed, attempts, within = self._totals.tolist()
        requests = max(requests, 1e-12)
        seconds = self._scenario.duration_s - self._scenario.warm_up_s
        solved = [r.plan for r in self._plans if r.plan is not None]
        gaps = [p.gap for p in solved if p.policy == "global"]
        used = np.array(self._used)
        settled, overshoot, turns = self._motion(time, share)
        q = [0.5, 0.95, 0.99]
        t50, t95, t99 = weighted_quantiles(ttft, weight, q)
        e50, e95, e99 = weighted_quantiles(e2e, weight, q)
        counted = [m for m, t in zip(self._moved, time, strict=True) if t >= self._scenario.warm_up_s]
        return Metrics(
            ttft_mean_ms=float(np.average(ttft, weights=weight)),
            ttft_p50_ms=t50,
            ttft_p95_ms=t95,
            ttft_p99_ms=t99,
            tbot_mean_ms=float(self._tbot[0] / max(self._tbot[1], 1e-12)),
            e2e_mean_ms=float(np.average(e2e, weights=weight)),
            e2e_p50_ms=e50,
            e2e_p95_ms=e95,
            e2e_p99_ms=e99,
            network_mean_ms=float(np.average(network, weights=weight)),
            slo_attainment=within / requests,
            goodput_rps=within / seconds,
            refused=refused / requests,
            failed=failed / requests,
            amplification=attempts / max(requests - refused, 1e-12),
            utilization_mean=float(used[:, 0].mean()),
            utilization_max=float(used[:, 1].max()),
            moved_per_minute=60.0 * sum(counted) / seconds,
            publications=sum(r.decision.publish for r in self._plans),
            reversals_per_hour=turns,
            settled_s=settled,
            overshoot=overshoot,
            gap_mean=float(np.mean(gaps)) if gaps else float("nan"),
            quiet=sum(r.plan is None for r in self._plans) / max(1, len(self._plans)),
            solve_mean_ms=float(np.mean([p.solve_ms for p in solved])) if solved else 0.0,
            refused_by_priority=self._by_priority(),
        )

    def _by_priority(self) -> dict[int, float]:
        priority = np.array(self._round.layout.priority)
        return {
            int(level): float(
                self._by_row[1][priority == level].sum()
                / max(1e-12, self._by_row[0][priority == level].sum())
            )
            for level in np.unique(priority)
        }

    def _motion(self, time: Array, share: Array) -> tuple[float, float, float]:
        """(settled, overshoot, reversals per hour) of the fleet's shares."""
        after = [event.at_s for event in self._scenario.events]
        after += [
            event.until_s for event in self._scenario.events if event.until_s < self._scenario.duration_s
        ]
        last = max([self._scenario.warm_up_s, *after])
        tail = share[time >= last]
        if len(tail) < 2:
            return 0.0, 0.0, 0.0
        settled = settled_at(time[time >= last], tail, last) - last
        band = np.maximum(tail[0], tail[-1]), np.minimum(tail[0], tail[-1])
        overshoot = float(max(0.0, (tail - band[0]).max(), (band[1] - tail).max()))
        counted = share[time >= self._scenario.warm_up_s]
        hours = len(counted) * self._scenario.interval_s / 3600.0
        return settled, overshoot, reversals(counted) / max(hours, 1e-9)


def settled_at(time: Array, share: Array, begin: float) -> float:
    """From when on `share` [P, E] is within `VISIBLE` of where it ends; `begin` if it always is."""
    far = np.flatnonzero(np.abs(share - share[-1]).max(axis=1) > VISIBLE)
    return float(time[far[-1] + 1]) if len(far) else begin


def reversals(share: Array) -> int:
    """Turning points of every column that are further than `VISIBLE` apart."""
    count = 0
    for column in share.T.tolist():
        low = high = column[0]
        direction = 0
        for value in column[1:]:
            low, high = min(low, value), max(high, value)
            if direction >= 0 and value < high - VISIBLE:
                count += direction > 0
                direction, low = -1, value
                high = value
            elif direction <= 0 and value > low + VISIBLE:
                count += direction < 0
                direction, high = 1, value
                low = value
    return count


def weighted_quantiles(values: Array, weight: Array, quantiles: list[float]) -> list[float]:
    """Quantiles of a weighted sample."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    at = np.searchsorted(total, np.array(quantiles) * total[-1])
    return [float(values[order][min(i, len(order) - 1)]) for i in at.tolist()]
