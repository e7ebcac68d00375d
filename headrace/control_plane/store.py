"""Saved state: what a restarted control plane must know so that nothing moves (design/failures.md).

One JSON file, written to a temporary name, fsynced and renamed, so that a crash leaves the old or the
new one, never a torn one. A file that cannot be trusted is set aside under another name, with its reason.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

FORMAT = 2
FILE_NAME = "headrace-state.json"


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a restart needs, as plain JSON values."""

    fleet: str
    policy_hash: str = ""
    """Of the policy that was in force."""
    served: Mapping[str, Any] = field(default_factory=dict)
    """As `Served.to_json` writes it."""
    demand_rps: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """front-end -> key -> req/s."""
    members: list[Any] = field(default_factory=list)
    """As `signals.replicas.dump` writes them."""
    penalties: Mapping[str, Any] = field(default_factory=dict)
    """As `Protection.save` writes them."""
    learned: Mapping[str, Any] = field(default_factory=dict)
    """As `Learner.save` writes it; a file without it holds what was known before there was any."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """The text of the policy that was in force, as `Archive.to_json` writes it."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """As `Limits.to_json` writes them."""
    unfinished: list[list[str]] | None = None
    """As `Planner.save` writes it; left out when there is nothing to go on with."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A state file that was not used: why, and where it lies now."""

    reason: str
    moved_to: Path


class StateStore:
    """The one owner of the state file in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def peek(self) -> SavedState | None:
        """Return the saved state of whichever fleet; None when there is none that can be trusted."""
        try:
            return _decode(self._path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def load(self, fleet: str) -> SavedState | SetAside | None:
        """Return the saved state, None when there is none, or what was wrong with the one found."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            return SetAside(str(error), self._path)
        try:
            return _of_fleet(fleet, _decode(raw))
        except (ValueError, KeyError, TypeError) as error:
            return self.set_aside(str(error))

    def set_aside(self, reason: str) -> SetAside:
        """Keep a file that cannot be used under another name, for people to look at."""
        digest = hashlib.sha256(self._path.read_bytes()).hexdigest()[:8]
        aside = self._path.with_suffix(f".set-aside-{digest}.json")
        os.replace(self._path, aside)
        return SetAside(reason, aside)

    def save(self, state: SavedState) -> None:
        """Write `state` atomically. Raises OSError (disk full, no permission): the old file stays."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(_encode(state))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)


def _body(state: SavedState) -> dict[str, Any]:
    values = {item.name: getattr(state, item.name) for item in fields(state)}
    return {name: value for name, value in values.items() if value is not None}


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _encode(state: SavedState) -> bytes:
    body = _body(state)
    return json.dumps({"format": FORMAT, "sha256": _digest(body), "state": body}, sort_keys=True).encode()


def _of_fleet(fleet: str, state: SavedState) -> SavedState:
    if state.fleet != fleet:
        raise ValueError(f"state of fleet {state.fleet!r}, this control plane serves {fleet!r}")
    return state


def _decode(raw: bytes) -> SavedState:
    document = json.loads(raw)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"not a state file of format {FORMAT}")
    body = document["state"]
    if document.get("sha256") != _digest(body):
        raise ValueError("checksum differs: the file is torn or was edited")
    known = {item.name for item in fields(SavedState)}  # a later version may have saved more
    return SavedState(**{name: value for name, value in body.items() if name in known})
