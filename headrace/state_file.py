"""The state file of `headrace plan`, which is also what the admin API returns for the live fleet."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from headrace.policy.source import read
from headrace.problem import EngineState

_ENGINE_FIELDS = tuple(field.name for field in fields(EngineState))
_JSON_ONLY = re.compile(r"-?[0-9]+[eE][-+]?[0-9]+")
"""Numbers of JSON that YAML 1.1 takes for text: demand that dies away is written as 5e-324."""
SECTIONS = ("demand_rps", "network_ms", "engines", "previous_shares")


class StateError(ValueError):
    """An invalid state file: the text names file and path."""


@dataclass(frozen=True, slots=True)
class FleetState:
    """What was observed of a fleet, as written; units as in the field names."""

    document: Mapping[str, Any]
    source: str = "state"

    @classmethod
    def read(cls, path: Path) -> FleetState:
        """Read a YAML or JSON file, as strictly as a policy: no key twice, nothing that YAML reinterprets.

        Raises:
            StateError: unreadable, not a map, unknown or malformed sections.
        """
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"{path}: {error}") from error
        source = read(path, text=text)  # not by path: a large fleet's state exceeds what a policy may have
        if source.problems:
            raise StateError("\n".join(map(str, sorted(source.problems))))
        return cls.parse(source.value, str(path))

    @classmethod
    def parse(cls, document: Any, source: str = "state") -> FleetState:
        """Check the shape of an already decoded document."""
        if not isinstance(document, dict):
            raise StateError(f"{source}: expected a map with {', '.join(SECTIONS)}")
        unknown = sorted(set(map(str, document)) - set(SECTIONS))
        if unknown:
            raise StateError(f"{source}: unknown section {unknown[0]!r}; expected {', '.join(SECTIONS)}")
        state = cls(document, source)
        state._numbers("demand_rps", 2)
        state._numbers("network_ms", 2)
        state._numbers("previous_shares", 3)
        _ = state.engines
        if not document.get("demand_rps"):
            raise StateError(
                f"{source}: demand_rps is missing; expected front-end -> model/class -> requests/s"
            )
        return state

    def _numbers(self, section: str, depth: int) -> Any:
        """The section as nested maps of floats, `depth` levels of names deep."""

        def walk(value: Any, path: str, left: int) -> Any:
            if left == 0:
                if isinstance(value, str) and _JSON_ONLY.fullmatch(value):
                    return float(value)
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise StateError(f"{self.source}: {path}: {value!r}; expected a number")
                return float(value)
            if not isinstance(value, dict):
                raise StateError(f"{self.source}: {path}: {value!r}; expected a map")
            return {str(name): walk(inner, f"{path}.{name}", left - 1) for name, inner in value.items()}

        return walk(self.document.get(section) or {}, section, depth)

    @property
    def demand_rps(self) -> Mapping[str, Mapping[str, float]]:
        """front-end -> model/class -> first attempts per second."""
        return self._numbers("demand_rps", 2)  # type: ignore[no-any-return]  # shape checked there

    @property
    def network_ms(self) -> Mapping[str, Mapping[str, float]]:
        """front-end -> engine -> measured round trip, ms."""
        return self._numbers("network_ms", 2)  # type: ignore[no-any-return]  # shape checked there

    @property
    def previous_shares(self) -> Mapping[str, Mapping[str, Mapping[str, float]]] | None:
        """front-end -> model/class -> destination -> fraction that is published; None when absent."""
        return self._numbers("previous_shares", 3) or None

    @property
    def engines(self) -> Mapping[str, EngineState]:
        """engine -> what is known of it."""
        return {name: EngineState(**row) for name, row in self._engine_rows().items()}

    def _engine_rows(self) -> dict[str, dict[str, float]]:
        rows: dict[str, dict[str, float]] = self._numbers("engines", 2)
        for name, row in rows.items():
            unknown = sorted(set(row) - set(_ENGINE_FIELDS))
            if unknown:
                expected = ", ".join(_ENGINE_FIELDS)
                raise StateError(f"{self.source}: engines.{name}.{unknown[0]}: unknown; expected {expected}")
        return rows

    def changed(self, changes: Sequence[str]) -> FleetState:
        """The state after `PATH=VALUE` changes, the path with dots; a part may itself contain dots.

        Raises:
            StateError: not of that form, or no such place in the document.
        """
        document = copy.deepcopy(dict(self.document))
        for change in changes:
            path, equals, text = change.partition("=")
            if not equals or not path:
                raise StateError(f"--set {change}: expected PATH=VALUE, such as engines.eu.ready_replicas=0")
            _assign(document, path, yaml.safe_load(text), f"--set {change}")
        return FleetState.parse(document, self.source) if changes else self

    def scaled(self, factor: float) -> FleetState:
        """The state with all demand times `factor`."""
        if factor == 1.0:
            return self
        if not 0.0 <= factor < float("inf"):
            raise StateError(f"--demand-scale {factor}: expected a finite number ≥ 0")
        demand = {f: {k: rate * factor for k, rate in row.items()} for f, row in self.demand_rps.items()}
        return FleetState({**self.document, "demand_rps": demand}, self.source)


def _assign(node: dict[str, Any], path: str, value: Any, what: str) -> None:
    """Set the place that `path` names, trying the longest existing name first at each level."""
    for name in sorted((n for n in node if path.startswith(f"{n}.")), key=len, reverse=True):
        if isinstance(node[name], dict):
            _assign(node[name], path[len(name) + 1 :], value, what)
            return
    head, dot, rest = path.partition(".")
    if path in node or not dot or "/" in path:
        node[path] = value
    elif head in SECTIONS or head not in node:
        _assign(node.setdefault(head, {}), rest, value, what)
    else:
        raise StateError(f"{what}: no such place in the state")
