"""Health of the sources themselves: who is silent and since when, and which engine stopped telling what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from signals.engine_signals import engine_signal
from signals.readings import Signal, SignalState
from signals.replicas import MembershipView, Presence, Replica

SKEW_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class SilentSource:
    """A replica that is a member and not heard."""

    replica: Replica
    silent_s: float


@dataclass(frozen=True, slots=True)
class SignalChange:
    """An engine's signal went from one state to another."""

    engine: str
    signal: Signal
    before: SignalState
    after: SignalState


def silent_sources(members: MembershipView, now: float) -> tuple[SilentSource, ...]:
    """Members that should report and do not, the longest silent first."""
    found = [
        SilentSource(replica, now - replica.silent_since)
        for replica in _reporters(members)
        if replica.silent_since is not None
    ]
    return tuple(sorted(found, key=lambda source: -source.silent_s))


def skewed(members: MembershipView) -> tuple[Replica, ...]:
    """Replicas whose clock is more than `SKEW_LIMIT_S` off ours. For people: nothing depends on it."""
    return tuple(
        replica
        for replica in _reporters(members)
        if replica.clock_skew_s is not None and abs(replica.clock_skew_s) > SKEW_LIMIT_S
    )


def signal_states(
    members: MembershipView, now: float
) -> Iterator[tuple[str, Signal, Mapping[SignalState, int]]]:
    """Per engine and signal: how many of the ready, reporting replicas are in which state."""
    for engine, replicas in members.engines.items():
        for signal in Signal:
            yield engine, signal, engine_signal(replicas, signal, now).states


class SignalWatch:
    """Notices when an engine's signal changes its state: it was told and is not any more, or is again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Signal], SignalState] = {}

    def update(self, members: MembershipView, now: float) -> list[SignalChange]:
        """What changed since the last call. Zero and valid are the same here: it is told. An engine without
        ready replicas tells nothing and is not watched; one that leaves is forgotten."""
        changes, known = [], {}
        for engine, replicas in members.engines.items():
            for signal in Signal:
                found = engine_signal(replicas, signal, now)
                state = SignalState.VALID if found.value is not None else found.state
                if not found.states:
                    continue
                before = self._known.get((engine, signal))
                known[engine, signal] = state
                if before is not None and before is not state:
                    changes.append(SignalChange(engine, signal, before, state))
        self._known = known
        return changes


def _reporters(members: MembershipView) -> Iterator[Replica]:
    return (
        replica
        for found in members.engines.values()
        for replica in found
        if replica.presence is not Presence.CONFIGURED
    )
