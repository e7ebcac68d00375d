"""Numbers from evidence: what users saw, how fast the fleet reacted, and when it was well again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

from headrace.demo.load_records import Record, latencies
from headrace.drill.drill import Figures
from headrace.drill.evidence import Counters, Evidence, Sample, arrived

_SLOW_FACTOR = 2.0
"""A second is bad when half of its answers took longer than this many times the calm median."""
_DEAD_BAND = 0.08
"""Shares that move by less do not turn: at the drills' rates the noise of demand alone moves them by 0.05."""


def usual(evidence: Evidence, reacted: Callable[[Sample, Sample], bool] | None) -> Figures:
    """The figures of every drill.

    Counts are of requests that ended since the fault began, so those that it caught under way are among
    them; latencies (whole answers, end to end) compare what arrived during the fault with what came before.
    """
    records = evidence.all_records()
    calm = arrived(records, evidence.calm_from, evidence.fault_from)
    hurt = arrived(records, evidence.fault_from, evidence.fault_to)
    since = [record for record in records if record.arrived_at + record.e2e_s >= evidence.fault_from]
    figures: Figures = {
        "requests": len(since),
        "failed": sum(record.failure is not None for record in since),
        "without_headers": sum(without_headers(record) for record in since),
        "cut": sum(cut(record) for record in since),
        "engine_errors": sum(engine_error(record) for record in since),
        "shed": sum(record.shed for record in since),
        "refused_unhelpfully": sum(record.shed and not record.retry_after for record in since),
        **retried(evidence, len(since)),
        **added(calm, hurt),
        "react_s": reaction_s(evidence, reacted) if reacted else None,
        "recover_s": recovery_s(evidence, calm),
        "reversals": reversals(evidence.between(evidence.fault_from, evidence.end)),
    }
    return figures


def without_headers(record: Record) -> bool:
    """It failed and no engine had sent response headers: what Envoy could have saved."""
    return record.failure is not None and record.engine is None


def cut(record: Record) -> bool:
    """It ended early after an engine's headers, which nothing can retry."""
    return record.failure is not None and record.engine is not None and record.status == 200


def engine_error(record: Record) -> bool:
    """An engine's own error answer was passed on."""
    return record.failure is not None and record.engine is not None and record.status != 200


def added(calm: Sequence[Record], hurt: Sequence[Record]) -> Figures:
    """Calm latencies and what was added to them, ms."""
    before = latencies([record.e2e_s for record in calm if record.ok])
    during = latencies([record.e2e_s for record in hurt if record.ok])
    figures: Figures = {"calm_p50_ms": before["p50"], "calm_p99_ms": before["p99"]}
    for name in ("p50", "p99"):
        low, high = before[name], during[name]
        figures[f"added_{name}_ms"] = None if low is None or high is None else high - low
    return figures


def mean_e2e_ms(records: Iterable[Record]) -> float | None:
    """Mean time of whole answers."""
    times = [record.e2e_s for record in records if record.ok]
    return fmean(times) * 1000 if times else None


def retried(evidence: Evidence, requests: int) -> Figures:
    """Retries since the fault began, all Envoys together, those that a limit refused, and attempts per
    request."""
    first, last = _at(evidence, evidence.fault_from), _at(evidence, evidence.end)
    if first is None or last is None:
        return {"retried": None, "retries_refused": None, "attempts": None}
    retries = last.retries - first.retries
    return {
        "retried": retries,
        "retries_refused": last.overflowed - first.overflowed,
        "attempts": (requests + retries) / requests if requests else None,
    }


def _at(evidence: Evidence, moment: float) -> Counters | None:
    """The latest look at the counters by then."""
    return next((c for c in reversed(evidence.counters) if c.at <= moment), None)


def reaction_s(evidence: Evidence, reacted: Callable[[Sample, Sample], bool]) -> float | None:
    """Seconds from the fault to the first look that shows the reaction; None when it never came."""
    before = evidence.before()
    if before is None:
        return None
    looks = evidence.between(evidence.fault_from, evidence.end)
    return next((look.at - evidence.fault_from for look in looks if reacted(before, look)), None)


def recovery_s(evidence: Evidence, calm: Sequence[Record]) -> float | None:
    """Seconds from the end of the fault to the end of the last bad second, 0 without one; None when it was
    still bad at the end.

    Bad: anything failed or was refused, or half of the answers were `_SLOW_FACTOR` times slower than calm.
    """
    times = [record.e2e_s for record in calm if record.ok]
    if not times:
        return None
    limit_s = _SLOW_FACTOR * median(times)
    seconds = int(evidence.end - evidence.fault_to)
    after = arrived(evidence.all_records(), evidence.fault_to, evidence.fault_to + seconds)
    bad = 0
    for second in range(seconds):
        start = evidence.fault_to + second
        if _bad(arrived(after, start, start + 1), limit_s):
            bad = second + 1
    return None if seconds and bad == seconds else float(bad)


def _bad(records: Sequence[Record], limit_s: float) -> bool:
    if any(not record.ok for record in records):
        return True
    return bool(records) and median(record.e2e_s for record in records) > limit_s


def reversals(samples: Sequence[Sample]) -> int:
    """Turns of a share from rising to falling or back, at the worst destination; small moves do not count."""
    names = {name for sample in samples for name in sample.shares}
    return max((turns([s.shares.get(name, 0.0) for s in samples]) for name in names), default=0)


def turns(values: Sequence[float]) -> int:
    """Turning points of a series, moves below the dead band left out."""
    if not values:
        return 0
    low = high = values[0]
    rising: bool | None = None
    count = 0
    for value in values[1:]:
        low, high = min(low, value), max(high, value)
        if rising is not False and value < high - _DEAD_BAND:
            count += rising is True
            rising, low = False, value
        elif rising is not True and value > low + _DEAD_BAND:
            count += rising is False
            rising, high = True, value
    return count


def largest_move(before: Sample, after: Iterable[Sample]) -> float:
    """The largest difference of any share to what it was."""
    return max(
        (
            abs(sample.shares.get(name, 0.0) - before.shares.get(name, 0.0))
            for sample in after
            for name in {*sample.shares, *before.shares}
        ),
        default=0.0,
    )
