"""Every value in force with its source, for `headrace check --effective`.

Whatever is shown of a policy comes from here, with digests of tokens masked: they are in force, and tell an
operator nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.policy.policy import Policy
from headrace.policy.problems import Path, dotted
from headrace.policy.schema import EngineProtection

DEFAULT = "default"
REDACTED = "redacted"
_MASKED: Path = ("security", "reports", "tokens")


@dataclass(frozen=True, slots=True)
class Value:
    """One value in force."""

    path: str
    value: Any
    source: str
    """`default`, or file:line."""


def effective(policy: Policy) -> list[Value]:
    """All values, sorted by path: engines expanded, every class of every model with overrides applied.

    `defaults` is left out: its values are shown where they act.
    """
    values = [
        Value(dotted(path), shown(path, value), _source(policy, path)) for path, value in leaves(policy)
    ]
    return sorted(values, key=lambda item: item.path)


def leaves(policy: Policy) -> Iterator[tuple[Path, Any]]:
    """Every value in force as it is: to be compared, not to be shown."""
    return _leaves(policy.document.model_dump(by_alias=True, exclude={"defaults"}), ())


def shown(path: Path, value: Any) -> Any:
    """A value in force as it may be shown: of the digests of tokens only how many there are."""
    masked = path[: len(_MASKED)] == _MASKED and isinstance(value, tuple)
    return (REDACTED,) * len(value) if masked else value


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield path, value


def _source(policy: Policy, path: Path) -> str:
    for written in _written(policy, path):
        if written in policy.places:
            return str(policy.places[written])
    return DEFAULT


def _written(policy: Policy, path: Path) -> Iterator[Path]:
    """Where a value may have been written, the most specific place first."""
    section, rest = path[0], path[2:]
    if section == "engines":
        engine: Path = ("engines", policy.origins[str(path[1])], *rest)
        yield from (engine, ("defaults", "engine", *rest))
        if rest[:1] == ("protection",) and rest[1] in EngineProtection.model_fields:
            yield rest
        if rest == ("max_utilization",):
            yield ("planning", "max_utilization")
        if rest == ("learning",):
            yield ("planning", "learning", "mode")
    elif section == "models":
        yield from (path, ("defaults", "model", *rest))
        if rest[:1] == ("classes",):
            yield from _written(policy, rest)
            if str(rest[-1]).startswith("churn_"):
                yield ("planning", "churn", str(rest[-1]).removeprefix("churn_"))
    else:
        yield path
    if path[-1] in ("p50", "p95", "p99"):
        yield path[:-1]  # a bare number
