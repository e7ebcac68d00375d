"""What a resource refers to and what a client would refuse in it, read from its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Reference(NamedTuple):
    """A resource that another one needs."""

    type_url: str
    name: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of an inspection."""

    references: frozenset[Reference] = frozenset()
    problems: tuple[str, ...] = ()


def inspect(type_url: str, name: str, body: bytes) -> Findings:
    """Read references and problems of a resource."""
    return Findings()
