"""Measured values of a sample, checked one by one, and the four states a signal can be in.

Missing (never told), stale (told, but longer ago than it is valid), zero and invalid (NaN, infinite,
negative, out of range) are different things. An invalid value is left out and the last valid one stands until
it is stale; it never spoils the rest of its sample. Rules: DESIGN, "Signals", states of a signal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum

from signals.messages import Distribution, Sample


class Signal(StrEnum):
    """Every measured value of a replica; the unit is in the name."""

    RUNNING = "running"
    WAITING = "waiting"
    KV_USAGE_RATIO = "kv_usage_ratio"
    TTFT_MEAN_MS = "ttft_mean_ms"
    TTFT_P50_MS = "ttft_p50_ms"
    TTFT_P99_MS = "ttft_p99_ms"
    TTFT_COUNT = "ttft_count"
    TBOT_MEAN_MS = "tbot_mean_ms"
    TBOT_P50_MS = "tbot_p50_ms"
    TBOT_P99_MS = "tbot_p99_ms"
    TBOT_COUNT = "tbot_count"
    PROMPT_TOKENS_PER_S = "prompt_tokens_per_s"
    OUTPUT_TOKENS_PER_S = "output_tokens_per_s"
    REQUESTS_PER_S = "requests_per_s"
    ERRORS_OVERLOAD_PER_S = "errors_overload_per_s"
    ERRORS_CLIENT_PER_S = "errors_client_per_s"
    ERRORS_INTERNAL_PER_S = "errors_internal_per_s"
    ERRORS_OTHER_PER_S = "errors_other_per_s"
    MAX_CONCURRENCY = "max_concurrency"
    PREFIX_HIT_RATIO = "prefix_hit_ratio"


class SignalState(Enum):
    """What is known of one signal of one replica at one moment."""

    VALID = "valid"
    ZERO = "zero"
    MISSING = "missing"
    STALE = "stale"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Reading:
    """The last valid value of a signal (None: there was none) and whether a worse one came since."""

    value: float | None
    valid_until: float
    """Receiver's monotonic seconds."""
    invalid: bool = False
    """The latest sample held an invalid value."""

    def state(self, now: float) -> SignalState:
        """The signal's state at `now`."""
        if self.invalid:
            return SignalState.INVALID
        if self.value is None:
            return SignalState.MISSING
        if now > self.valid_until:
            return SignalState.STALE
        return SignalState.ZERO if self.value == 0 else SignalState.VALID


def estimate(reading: Reading | None, prior: float, now: float, half_life_s: float = 30.0) -> float:
    """What to reckon with: the value while it is valid, then halfway back to `prior` (what the profile says)
    every `half_life_s`; `prior` when there never was a value."""
    if reading is None or reading.value is None:
        return prior
    stale_s = max(0.0, now - reading.valid_until)
    return prior + (reading.value - prior) * float(0.5 ** (stale_s / half_life_s))


_RATIO, _HOUR_MS, _COUNT, _TOKENS = 1.0, 3_600_000.0, 1e6, 1e8


def _upper_bound(signal: Signal) -> float:
    if signal.endswith("_ratio"):
        return _RATIO
    if signal.endswith("_ms"):
        return _HOUR_MS
    return _TOKENS if "_tokens_" in signal else _COUNT


_BOUNDS = {signal: _upper_bound(signal) for signal in Signal}
_ERROR_KINDS = {
    "overload": Signal.ERRORS_OVERLOAD_PER_S,
    "client": Signal.ERRORS_CLIENT_PER_S,
    "internal": Signal.ERRORS_INTERNAL_PER_S,
}


def measured(sample: Sample) -> tuple[dict[Signal, float], tuple[Signal, ...]]:
    """The valid values of a sample, and the signals whose value is invalid."""
    values: dict[Signal, float] = {}
    invalid: list[Signal] = []
    for signal, value in _told(sample):
        if not (math.isfinite(value) and 0.0 <= value <= _BOUNDS[signal]):
            invalid.append(signal)
        else:
            values[signal] = values.get(signal, 0.0) + value
    return values, tuple(invalid)


def _told(sample: Sample) -> Iterator[tuple[Signal, float]]:
    """Every value that is present. Kinds of errors that are not listed add up under "other"."""
    scalars = (
        (Signal.RUNNING, sample.running),
        (Signal.WAITING, sample.waiting),
        (Signal.KV_USAGE_RATIO, sample.kv_usage_ratio),
        (Signal.PROMPT_TOKENS_PER_S, sample.prompt_tokens_per_s),
        (Signal.OUTPUT_TOKENS_PER_S, sample.output_tokens_per_s),
        (Signal.REQUESTS_PER_S, sample.requests_per_s),
        (Signal.MAX_CONCURRENCY, sample.max_concurrency),
        (Signal.PREFIX_HIT_RATIO, sample.prefix_hit_ratio),
    )
    yield from ((signal, value) for signal, value in scalars if value is not None)
    yield from _distribution(
        sample.ttft_ms, Signal.TTFT_MEAN_MS, Signal.TTFT_P50_MS, Signal.TTFT_P99_MS, Signal.TTFT_COUNT
    )
    yield from _distribution(
        sample.tbot_ms, Signal.TBOT_MEAN_MS, Signal.TBOT_P50_MS, Signal.TBOT_P99_MS, Signal.TBOT_COUNT
    )
    for error in sample.errors:
        yield _ERROR_KINDS.get(error.kind, Signal.ERRORS_OTHER_PER_S), error.per_s


def _distribution(told: Distribution | None, *signals: Signal) -> Iterator[tuple[Signal, float]]:
    if told is not None:
        values = (told.mean, told.p50, told.p99, told.count)
        yield from (
            (signal, value) for signal, value in zip(signals, values, strict=True) if value is not None
        )
