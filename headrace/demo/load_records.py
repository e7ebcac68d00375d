"""What a load run saw: one record a request, and their summary by front-end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SHED_STATUS = 429


@dataclass(frozen=True, slots=True)
class Record:
    """One finished request. Times in seconds."""

    frontend: str
    session: str
    arrived_at: float
    """On the generator's clock."""
    streamed: bool
    status: int | None
    """HTTP status, None if no response headers came."""
    engine: str | None
    """The engine's own answer header, None on answers that no engine gave."""
    replica: str | None
    ttft_s: float | None
    """To the first content of a stream."""
    e2e_s: float
    failure: str | None
    """None for a whole answer and for a refusal with 429; else connect, reset, cut, truncated, timeout,
    inband_error or http_<status>."""
    retry_after: str | None = None
    """The answer's Retry-After."""

    @property
    def shed(self) -> bool:
        """Whether the fleet refused it on purpose."""
        return self.status == SHED_STATUS

    @property
    def ok(self) -> bool:
        """Whether the whole answer came."""
        return self.failure is None and not self.shed


def summarise(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return front-end -> requests, ok, failed, shed, failures, by_engine, by_replica, ttft_ms, e2e_ms.

    Latencies are of whole answers, `ttft_ms` of streamed ones; `by_*` count every answer that an engine gave.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.frontend, []).append(record)
    return {frontend: _summary(group) for frontend, group in sorted(groups.items())}


def _summary(records: Sequence[Record]) -> dict[str, Any]:
    answered = [record for record in records if record.engine is not None]
    whole = [record for record in records if record.ok]
    failures = Counter(record.failure for record in records if record.failure is not None)
    return {
        "requests": len(records),
        "ok": len(whole),
        "failed": failures.total(),
        "shed": sum(record.shed for record in records),
        "failures": dict(sorted(failures.items())),
        "by_engine": dict(sorted(Counter(record.engine for record in answered).items())),
        "by_replica": dict(sorted(Counter(f"{r.engine}/{r.replica}" for r in answered).items())),
        "ttft_ms": latencies([record.ttft_s for record in whole if record.ttft_s is not None]),
        "e2e_ms": latencies([record.e2e_s for record in whole]),
    }


def latencies(values_s: Sequence[float]) -> dict[str, float | None]:
    """Return mean, p50 and p99 in milliseconds (nearest rank), None each without values."""
    if not values_s:
        return {"mean": None, "p50": None, "p99": None}
    ordered = sorted(values_s)
    mean = sum(ordered) / len(ordered)
    return {
        "mean": mean * 1000,
        "p50": ordered[math.ceil(0.50 * len(ordered)) - 1] * 1000,
        "p99": ordered[math.ceil(0.99 * len(ordered)) - 1] * 1000,
    }
