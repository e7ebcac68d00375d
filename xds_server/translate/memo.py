"""Remembering what was built from what, one generation long."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Memo:
    """What was built last time, by place. A place that a whole generation does not ask for is forgotten."""

    _last: dict[Hashable, tuple[tuple[Any, ...], Any]] = field(default_factory=dict)
    _built: dict[Hashable, tuple[tuple[Any, ...], Any]] = field(default_factory=dict)

    def get(self, place: Hashable, build: Callable[..., T], *inputs: Any) -> T:
        """Return `build(*inputs)`, or what it gave at this place last time if the inputs were equal.

        Comparing is cheap for inputs that are the same objects, which unchanged parts of a table are.
        """
        known = self._last.get(place)
        if known is None or known[0] != inputs:
            known = (inputs, build(*inputs))
        self._built[place] = known
        value: T = known[1]
        return value

    def next(self) -> Memo:
        """Return the memo of the next generation; this one stays as it is, should that one fail."""
        return Memo(_last=self._built)
