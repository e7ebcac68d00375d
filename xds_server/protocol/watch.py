"""One type on one stream: what the client was told, what it confirmed, what it must still hear.

A watch has at most one response out that is neither confirmed nor refused. Changes meanwhile only mark
names; the next response carries the latest content of all of them, so a slow client costs nothing and is
never told what is already out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xds_server.protocol.subscription import Subscription
from xds_server.protocol.wire import Error, Response
from xds_server.resource_types import ResourceType
from xds_server.resources import Resource

ABSENT = ""
"""Version of a resource of which the client was told that it does not exist."""

View = Mapping[str, Resource]
Gate = Callable[[Resource], bool]
"""Whether a resource must wait (for an acknowledgement elsewhere)."""


class Decision(NamedTuple):
    """What the next response says."""

    resources: Sequence[Resource] = ()
    removed: Sequence[str] = ()
    changed: Sequence[str] = ()
    """Names whose content changes for the client."""
    gated: frozenset[str] = frozenset()
    """Names kept back for now."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The response that is out."""

    nonce: str
    names: tuple[str, ...]
    """Names whose content it changed for the client."""
    version: str
    at: float
    settles: int | None
    """Snapshot sequence up to which the client is current once it confirms this; None when something was
    kept back."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a request said about a response."""

    nonce: str
    version: str = ""
    names: tuple[str, ...] = ()
    after_s: float = 0.0
    error: Error | None = None
    stale: bool = False
    """The refusal names a response that is not the latest: counted, but not blamed on the latest."""
    repeated: bool = False
    """The same refusal as the one before."""
    recovered: bool = False
    """The confirmation ends a time of refusals."""


UNSURE = "?"
"""Version noted for a name that must be told again, whether it exists or not."""


class Watch:
    """State common to SotW and delta. Only touched by its client."""

    __slots__ = (
        "_all_pending",
        "_fellows",
        "_latest_nonce",
        "_owes_answer",
        "_settled",
        "behind",
        "error",
        "known",
        "outstanding",
        "pending",
        "rejected",
        "subscription",
        "type",
        "version",
    )

    def __init__(self, type_: ResourceType) -> None:
        self.type = type_
        self.subscription = Subscription(legacy_wildcard=type_.full_state)
        self.known: dict[str, str] = {}
        """name -> version last sent (or claimed by the client), or ABSENT."""
        self.behind: dict[str, str | None] = {}
        """name -> version last confirmed, for the names where that is not `known`."""
        self.rejected: set[str] = set()
        """Names of refused responses that have not been confirmed since. What the client holds is unknown."""
        self._fellows: dict[str, tuple[str, ...]] = {}
        """Rejected name -> the names of the response that it was refused in."""
        self.pending: set[str] = set()
        self.outstanding: Sent | None = None
        self.error: Error | None = None
        self.version = ""
        """Version label of the last response."""
        self._settled = 0
        self._latest_nonce: str | None = None
        self._owes_answer = False
        self._all_pending = False

    def acked(self, name: str) -> str | None:
        """Version of `name` that the client confirmed last; None for never, ABSENT for its absence."""
        return self.behind[name] if name in self.behind else self.known.get(name)

    def holds(self, name: str) -> bool:
        """Whether the client has confirmed `name` and has not been told since that it goes."""
        return bool(self.known.get(name)) and bool(self.acked(name))

    @property
    def due(self) -> bool:
        """Whether there may be something to say now."""
        return not self.outstanding and bool(self.pending or self._all_pending or self._owes_answer)

    def confirmed(self, sequence: int) -> int:
        """Sequence of the newest snapshot that the client has confirmed completely, `sequence` being the
        newest there is."""
        busy = self.outstanding or self.pending or self._all_pending or self.rejected
        return self._settled if busy else sequence

    def mark(self, names: Iterable[str]) -> None:
        """Note that these names may have changed.

        A refusal is of a whole response, and which of its resources the client took is not known. So once
        one of them changes, those that were refused with it are told again: alone, they would be held back
        until they change themselves, and with them the routes that need them.
        """
        for name in filter(self.subscription.covers, names):
            self.pending.add(name)
            for fellow in self._fellows.get(name, ()):
                if fellow != name and fellow in self.rejected and self.subscription.covers(fellow):
                    self.known[fellow] = UNSURE
                    self.pending.add(fellow)

    def resend(self, name: str) -> None:
        """Send `name` again although its content is the same, if the client wants it."""
        if self.subscription.covers(name):
            self.forget(name)
            self.pending.add(name)

    def forget(self, name: str) -> None:
        """Take nothing for granted about what the client holds of `name`."""
        self.known.pop(name, None)
        self.behind.pop(name, None)
        self._fellows.pop(name, None)
        self.rejected.discard(name)

    def take(
        self, view: View, nonce: Callable[[], str], sequence: int, now: float, gate: Gate
    ) -> Response | None:
        """The next response, or None when there is nothing to say or one is out already."""
        if not self.due:
            return None
        if self._all_pending:
            self._all_pending = False
            self.mark((*view, *self.known, *self.subscription.names))
        decision = self._decide(view, gate) if self.pending else Decision()
        self.pending = set(decision.gated)
        owed, self._owes_answer = self._owes_answer and self._may_be_empty(), False
        if not decision.changed and not owed:
            return None
        response = Response(
            self.type.url,
            combined_version(decision.resources),
            nonce(),
            tuple(decision.resources),
            tuple(decision.removed),
        )
        self.version = response.version
        self._latest_nonce = response.nonce
        settles = None if self.pending else sequence
        self.outstanding = Sent(response.nonce, tuple(decision.changed), response.version, now, settles)
        return response

    def _decide(self, view: View, gate: Gate) -> Decision:
        """What to say about the names in `pending`, noting it as told."""
        raise NotImplementedError

    def _may_be_empty(self) -> bool:
        raise NotImplementedError

    def _waits(self, resource: Resource, gate: Gate) -> bool:
        # Only an update can wait: the client goes on with what it has. A first answer is never withheld.
        return bool(self.known.get(resource.name)) and gate(resource)

    def _tell(self, name: str, version: str | None) -> None:
        """Note that the client is being told `version` of `name` (None: nothing is remembered any more)."""
        self.behind.setdefault(name, self.known.get(name))
        if version is None:
            self.known.pop(name, None)
        else:
            self.known[name] = version

    def _judge(self, nonce: str, error: Error | None, now: float) -> Verdict | None:
        """Take the request's nonce and error as ACK or NACK of the response that is out, if they are one."""
        sent = self.outstanding
        if sent is None or nonce != sent.nonce:
            return Verdict(nonce, error=error, stale=True, repeated=error == self.error) if error else None
        self.outstanding = None
        if error:
            repeated, self.error = error == self.error, error
            self.rejected.update(sent.names)
            self._fellows.update(dict.fromkeys(sent.names, sent.names))
            return Verdict(nonce, sent.version, sent.names, now - sent.at, error, repeated=repeated)
        for name in sent.names:
            self.behind.pop(name, None)
            self._fellows.pop(name, None)
            self.rejected.discard(name)
        recovered = self.error is not None and not self.rejected
        if recovered:
            self.error = None
        if sent.settles is not None and not self.rejected:
            self._settled = max(self._settled, sent.settles)
        return Verdict(nonce, sent.version, sent.names, now - sent.at, recovered=recovered)


def combined_version(resources: Iterable[Resource]) -> str:
    """A version for a set of resources: independent of order, 16 hex digits."""
    return f"{sum(int(resource.version, 16) for resource in resources) % 2**64:016x}"
