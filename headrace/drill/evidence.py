"""What was seen during a drill: answers, looks at the control plane, counters of the Envoys. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.demo.load_records import Record

Destination = tuple[str, str, str]
"""(front-end, key, engine or `shed`)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The control plane at one moment."""

    at: float
    """Monotonic seconds, as all times here."""
    mode: str
    snapshot: int
    shares: Mapping[Destination, float]
    ready: Mapping[str, int]
    """engine -> replicas that take new requests."""
    policy_error: str = ""

    def share(self, frontend: str, engine: str) -> float:
        """Mean share of an engine over a front-end's keys."""
        found = [share for (f, _, e), share in self.shares.items() if (f, e) == (frontend, engine)]
        keys = {key for f, key, _ in self.shares if f == frontend}
        return sum(found) / len(keys) if keys else 0.0


@dataclass(frozen=True, slots=True)
class Counters:
    """All Envoys together, absolute."""

    at: float
    retries: int
    overflowed: int
    """Retries that a limit refused."""
    largest_limit: int | None = None
    """The largest retry limit in force in any Envoy, None where none was set at run time."""
    smallest_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything about one run of a drill."""

    calm_from: float
    fault_from: float
    fault_to: float
    end: float
    records: Mapping[str, tuple[Record, ...]]
    """stream -> answers to requests that arrived since `calm_from`."""
    samples: tuple[Sample, ...] = ()
    """In order; none while the control plane did not answer."""
    counters: tuple[Counters, ...] = ()
    capacity_rps: float = 0.0
    """What the plan may use of all engines together, unhurt."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """engine -> replicas at the start."""
    notes: Mapping[str, float | None] = field(default_factory=dict)
    """Figures that the drill took itself."""

    def all_records(self) -> list[Record]:
        """The answers of all streams."""
        return [record for records in self.records.values() for record in records]

    def before(self) -> Sample | None:
        """The last look before the fault."""
        return next((s for s in reversed(self.samples) if s.at < self.fault_from), None)

    def between(self, start: float, stop: float) -> list[Sample]:
        """Looks from `start` to `stop`."""
        return [sample for sample in self.samples if start <= sample.at < stop]


def arrived(records: list[Record] | tuple[Record, ...], start: float, stop: float) -> list[Record]:
    """Those that arrived from `start` (inclusive) to `stop`."""
    return [record for record in records if start <= record.arrived_at < stop]
