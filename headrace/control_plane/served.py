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
        partitions: dict[str, dict[str, Any]] = {}
        fallback: dict[str, dict[str, Any]] = {}
        for (frontend, key), partition in sorted(self.partitions.items()):
            partitions.setdefault(frontend, {})[key] = partition.to_json()
        for (frontend, key), engines in sorted(self.fallback.items()):
            fallback.setdefault(frontend, {})[key] = dict(sorted(engines.items()))
        return {"sequence": self.sequence, "partitions": partitions, "fallback": fallback}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Served:
        """Return what `to_json` wrote. Raises ValueError, KeyError or TypeError when it did not."""
        return cls(
            sequence=int(document["sequence"]),
            partitions={row: Partition.from_json(value) for row, value in _rows(document["partitions"])},
            fallback={row: dict(value) for row, value in _rows(document["fallback"])},
        )


def _rows(nested: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[Row, Any]]:
    return (((frontend, key), value) for frontend, row in nested.items() for key, value in row.items())
