"""A plan saved by `headrace plan --json` or the admin API, and how another differs from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer import Plan, Shares

ENGINE_FIELDS = ("load_rps", "price_ms")
"""What is compared of an engine."""
TOTALS = ("objective_ms", "e2e_ms", "shed_rps")
"""What is compared of the whole."""


class SavedPlanError(ValueError):
    """Not a saved plan: the text names file and place."""


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What is compared of a saved plan; units as in the field names."""

    shares: Shares
    engines: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]

    @classmethod
    def read(cls, path: Path) -> SavedPlan:
        """Read and check.

        Raises:
            SavedPlanError: unreadable, or not of that shape.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _error(path, str(error)) from None
        if not isinstance(document, dict) or "shares" not in document:
            raise _error(path, "no `shares`")
        shares = _map(path, "shares", document["shares"], 3)
        engines = _map(path, "engines", document.get("engines", {}), 2)
        totals = {name: document[name] for name in TOTALS if document.get(name) is not None}
        return cls(shares, engines, _map(path, "", totals, 1))

    def difference(self, plan: Plan) -> dict[str, Any]:
        """The plan's values minus these, of all that is not equal; what is absent counts as 0."""
        now = plan.to_json()
        engines = {
            name: {field: row[field] for field in ENGINE_FIELDS if row[field] is not None}
            for name, row in now["engines"].items()
        }
        before = {
            name: {field: row[field] for field in ENGINE_FIELDS if field in row}
            for name, row in self.engines.items()
        }
        totals = {name: now[name] for name in self.totals if now[name] is not None}
        return {
            **_minus(totals, self.totals),
            "shares": _minus(now["shares"], self.shares),
            "engines": _minus(engines, before),
        }


def _minus(now: Any, before: Any) -> Any:
    """Nested maps of numbers, one minus the other; without what is equal."""
    if not isinstance(now, Mapping) and not isinstance(before, Mapping):
        return (now or 0.0) - (before or 0.0)
    left, right = now or {}, before or {}
    changes = {name: _minus(left.get(name), right.get(name)) for name in sorted({*left, *right})}
    return {name: change for name, change in changes.items() if change}


def _map(path: Path, place: str, value: Any, depth: int) -> Any:
    """A value as maps of numbers, `depth` levels of names deep; undefined numbers (null) left out."""
    if depth == 0:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _error(path, f"{place}: {value!r}; expected a number")
        return float(value)
    if not isinstance(value, dict):
        raise _error(path, f"{place}: {value!r}; expected a map")
    items = ((name, inner) for name, inner in value.items() if inner is not None)
    return {name: _map(path, f"{place}.{name}".lstrip("."), inner, depth - 1) for name, inner in items}


def _error(path: Path, wrong: str) -> SavedPlanError:
    return SavedPlanError(f"{path}: {wrong}; not a plan saved by `headrace plan --json`")
