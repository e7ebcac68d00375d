"""Who is refused at the report port, why, since when and how often: kept for operators, bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from signals.identity import Refused

_MAX = 1000


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

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, str], RefusedReporter] = OrderedDict()

    def add(self, peer: str, engine: str, refusal: Refused, now: float) -> RefusedReporter:
        """Note one refusal. A log line is due for the first (`times` 1) and then once a minute."""
        host = peer.rpartition(":")[0]
        name = (host, engine, refusal.code)
        known = self._known.pop(name, None)
        since, times = (known.since, known.times) if known else (now, 0)
        entry = RefusedReporter(host, engine, refusal.code, refusal.reason, since, now, times + 1)
        self._known[name] = entry
        while len(self._known) > _MAX:
            self._known.popitem(last=False)
        return entry

    def accepted(self, peer: str, engine: str) -> None:
        """The reporter got in: what it was refused for is over."""
        host = peer.rpartition(":")[0]
        for name in [name for name in self._known if name[:2] == (host, engine)]:
            del self._known[name]

    def list(self) -> tuple[RefusedReporter, ...]:
        """All, the latest last."""
        return tuple(self._known.values())
