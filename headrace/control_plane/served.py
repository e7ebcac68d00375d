"""What is served: partitions and fallbacks of the last published plan. Frozen; saved and restored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from optimizer import Partition

Row = tuple[str, str]
"""(front-end, key)."""


@dataclass(frozen=True, slots=True)
class Served:
    """One version of the shares."""

    sequence: int = 0
    """Grows by one with every published change, over restarts too."""
    partitions: Mapping[Row, Partition] = field(default_factory=dict)
    fallback: Mapping[Row, Mapping[str, str]] = field(default_factory=dict)
    """(front-end, key) -> engine -> engine to try when it fails."""
    reasons: Mapping[Row, str] = field(default_factory=dict)
    """Why a row is served by nothing."""

    def shares(self) -> dict[str, dict[str, dict[str, float]]]:
        """front-end -> key -> destination -> fraction."""
        shares: dict[str, dict[str, dict[str, float]]] = {}
        for (frontend, key), partition in sorted(self.partitions.items()):
            if partition.entries:
                shares.setdefault(frontend, {})[key] = partition.shares
        return shares

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the saved state."""
        partitions = {row: partition.to_json() for row, partition in self.partitions.items()}
        return {
            "sequence": self.sequence,
            "partitions": nested(partitions),
            "fallback": nested({row: dict(engines) for row, engines in self.fallback.items()}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Served:
        """Return what `to_json` wrote. Raises ValueError, KeyError or TypeError when it did not."""
        return cls(
            sequence=int(document["sequence"]),
            partitions={row: Partition.from_json(value) for row, value in rows(document["partitions"])},
            fallback={row: dict(value) for row, value in rows(document["fallback"])},
        )


def nested(values: Mapping[Row, Any]) -> dict[str, dict[str, Any]]:
    """Front-end -> key -> value, as JSON has it."""
    found: dict[str, dict[str, Any]] = {}
    for (frontend, key), value in sorted(values.items()):
        found.setdefault(frontend, {})[key] = value
    return found


def rows(document: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[Row, Any]]:
    """The pairs of which `nested` made a document."""
    return (((frontend, key), value) for frontend, row in document.items() for key, value in row.items())
