"""Who is refused at the report port, why, since when and how often: kept for operators, bounded."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from signals.identity import Refused

_MAX = 1000
_TELL_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class RefusedReporter:
    """One reporter that is not taken."""

    peer: str
    """Host of the connection."""
    engine: str
    """As it claimed, "" when it got no further."""
    code: str
    reason: str
    since: float
    last: float
    """Monotonic seconds."""
    times: int


class Refusals:
    """Refused reporters by (host, engine, code); the longest unseen goes when there are too many."""

    def __init__(self, on_refused: Callable[[RefusedReporter], None] = lambda refused: None) -> None:
        """`on_refused` is called for the first refusal of a reporter and then at most once a minute, with
        the number so far: what a log wants."""
        self._on_refused = on_refused
        self._known: OrderedDict[tuple[str, str, str], RefusedReporter] = OrderedDict()
        self._told_at: dict[tuple[str, str, str], float] = {}

    def add(self, peer: str, engine: str, refusal: Refused, now: float) -> None:
        """Note one refusal."""
        host = peer.rpartition(":")[0]
        name = (host, engine, refusal.code)
        known = self._known.pop(name, None)
        since, times = (known.since, known.times) if known else (now, 0)
        entry = RefusedReporter(host, engine, refusal.code, refusal.reason, since, now, times + 1)
        self._known[name] = entry
        if now - self._told_at.get(name, -math.inf) >= _TELL_EVERY_S:
            self._told_at[name] = now
            self._on_refused(entry)
        while len(self._known) > _MAX:
            self._forget(next(iter(self._known)))

    def _forget(self, name: tuple[str, str, str]) -> None:
        del self._known[name]
        self._told_at.pop(name, None)

    def accepted(self, peer: str, engine: str) -> None:
        """The reporter got in: what it was refused for is over."""
        host = peer.rpartition(":")[0]
        for name in [name for name in self._known if name[:2] == (host, engine)]:
            self._forget(name)

    def list(self) -> tuple[RefusedReporter, ...]:
        """All, the latest last."""
        return tuple(self._known.values())
