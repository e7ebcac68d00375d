"""Remembering what was built from what, one generation long."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Memo:
    """What one translation built, by place; reads what earlier ones built.

    A place that a whole translation does not ask for is forgotten with the memo that held it.
    """

    def __init__(self, *earlier: Memo) -> None:
        """`earlier` are asked in order: the last translation of the same front-end, then of another one."""
        self._earlier: tuple[Mapping[Hashable, tuple[tuple[Any, ...], Any]], ...] = tuple(
            memo._built for memo in earlier
        )
        self._built: dict[Hashable, tuple[tuple[Any, ...], Any]] = {}

    def get(self, place: Hashable, build: Callable[..., T], *inputs: Any) -> T:
        """Return `build(*inputs)`, or what it gave at this place earlier if the inputs were equal.

        Comparing is cheap for inputs that are the same objects, which unchanged parts of a table are.
        """
        for known in self._earlier:
            if (entry := known.get(place)) is not None and entry[0] == inputs:
                break
        else:
            entry = (inputs, build(*inputs))
        self._built[place] = entry
        value: T = entry[1]
        return value

    def close(self) -> None:
        """Let go of the earlier memos once the translation is complete."""
        self._earlier = ()
