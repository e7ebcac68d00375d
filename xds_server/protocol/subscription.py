"""What a client asked for: names, wildcard, and whether it ever named anything.

https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol#how-the-client-specifies-what-resources-to-return
An empty set of names never stands for the wildcard: a client that has once named something and then names
nothing is subscribed to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

WILDCARD = "*"


class Subscription:
    """The subscription of one type on one stream. Only touched by its watch."""

    __slots__ = ("_explicit", "_legacy", "names", "wildcard")

    def __init__(self, legacy_wildcard: bool) -> None:
        """`legacy_wildcard`: an empty first request means everything (LDS and CDS)."""
        self.names: dict[str, None] = {}
        self.wildcard = False
        self._legacy = legacy_wildcard
        self._explicit = False

    def covers(self, name: str) -> bool:
        """Whether the client wants to know about `name`."""
        return self.wildcard or name in self.names

    @property
    def empty(self) -> bool:
        """Whether nothing at all is asked for."""
        return not self.wildcard and not self.names

    def replace(self, names: Iterable[str]) -> tuple[list[str], bool]:
        """SotW: the request's whole list. Returns the names that are new, and whether the wildcard is."""
        asked = dict.fromkeys(names)
        if not asked and not self._explicit:
            return [], self._become_wildcard(self._legacy)
        self._explicit = True
        star = WILDCARD in asked
        asked.pop(WILDCARD, None)
        added = [name for name in asked if name not in self.names]
        self.names = asked
        return added, self._become_wildcard(star)

    def apply(self, subscribe: Iterable[str], unsubscribe: Iterable[str], first: bool) -> bool:
        """Delta: a change. Returns whether the wildcard is new. Unknown names may be unsubscribed."""
        asked = dict.fromkeys(subscribe)
        star = WILDCARD in asked or (first and not asked and self._legacy)
        asked.pop(WILDCARD, None)
        new_wildcard = star and not self.wildcard
        self.wildcard = self.wildcard or star
        for name in unsubscribe:
            if name == WILDCARD:
                self.wildcard = False
            self.names.pop(name, None)
        self.names.update(asked)
        return new_wildcard

    def _become_wildcard(self, on: bool) -> bool:
        new = on and not self.wildcard
        self.wildcard = on
        return new
