"""Signals of a whole engine from those of its replicas, and how many replicas are in which state.

Judged per engine: one replica that does not tell its queue length leaves the engine's sum unknown only if no
other tells it; a sum over some of the replicas is scaled up to all that are ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from signals.readings import Signal, SignalState
from signals.replicas import Presence, Replica

_WEIGHT = {
    Signal.TTFT_MEAN_MS: Signal.TTFT_COUNT,
    Signal.TTFT_P50_MS: Signal.TTFT_COUNT,
    Signal.TTFT_P99_MS: Signal.TTFT_COUNT,
    Signal.TBOT_MEAN_MS: Signal.TBOT_COUNT,
    Signal.TBOT_P50_MS: Signal.TBOT_COUNT,
    Signal.TBOT_P99_MS: Signal.TBOT_COUNT,
    Signal.KV_USAGE_RATIO: None,
    Signal.PREFIX_HIT_RATIO: Signal.REQUESTS_PER_S,
}
"""Signals that are averaged, and the signal that weighs them; all others add up. (The average of quantiles
is not the engine's quantile, but moves with it.)"""


@dataclass(frozen=True, slots=True)
class EngineSignal:
    """One signal of one engine."""

    value: float | None
    """None when no replica tells it."""
    states: Mapping[SignalState, int]
    """Ready replicas that report, by what is known of the signal."""

    @property
    def state(self) -> SignalState:
        """VALID or ZERO as soon as one replica tells it, else the commonest reason why not."""
        if self.value is not None:
            return SignalState.ZERO if self.value == 0 else SignalState.VALID
        return max(self.states, key=lambda state: self.states[state], default=SignalState.MISSING)


def engine_signal(replicas: Iterable[Replica], signal: Signal, now: float) -> EngineSignal:
    """The signal over an engine's ready replicas that report (configured members never do)."""
    ready = [replica for replica in replicas if replica.ready and replica.presence is not Presence.CONFIGURED]
    told = [replica for replica in ready if replica.value(signal, now) is not None]
    states = Counter(replica.state_of(signal, now) for replica in ready)
    return EngineSignal(_combined(told, len(ready), signal, now), states)


def _combined(told: list[Replica], ready: int, signal: Signal, now: float) -> float | None:
    if not told:
        return None
    values = [replica.value(signal, now) or 0.0 for replica in told]
    if signal not in _WEIGHT:
        return sum(values) * ready / len(told)
    weights = [_weight(replica, signal, now) for replica in told]
    if not sum(weights):
        return sum(values) / len(values)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _weight(replica: Replica, signal: Signal, now: float) -> float:
    by = _WEIGHT[signal]
    return 1.0 if by is None else replica.value(by, now) or 0.0
