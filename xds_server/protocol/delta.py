"""Incremental xDS on one type of one stream: requests and responses carry changes."""

from __future__ import annotations

from collections.abc import Mapping

from xds_server.protocol.subscription import WILDCARD
from xds_server.protocol.watch import ABSENT, UNSURE, Decision, Gate, Verdict, View, Watch
from xds_server.protocol.wire import DeltaRequest
from xds_server.resource_types import ResourceType


class DeltaWatch(Watch):
    """Incremental: the request carries changes of the subscription, the response changes of resources."""

    __slots__ = ("_began",)

    def __init__(self, type_: ResourceType) -> None:
        super().__init__(type_)
        self._began = False

    def receive(self, request: DeltaRequest, now: float) -> Verdict | None:
        """Take a request; returns what it said about a response, if anything.

        A change of the subscription counts even when the nonce is stale (envoy#16659).
        """
        verdict = self._judge(request.nonce, request.error, now) if request.nonce else None
        first, self._began = not self._began, True
        new_wildcard = self.subscription.apply(request.subscribe, request.unsubscribe, first)
        claimed = request.initial_versions if first else {}
        self.known.update((name, claimed[name]) for name in claimed if self.subscription.covers(name))
        for name in request.subscribe:
            self._subscribed(name, claimed)
        for name in request.unsubscribe:
            self._unsubscribed(name)
        self._owes_answer = self._owes_answer or (first and self.subscription.wildcard)
        self._all_pending = self._all_pending or first or new_wildcard
        return verdict

    def _subscribed(self, name: str, claimed: Mapping[str, str]) -> None:
        # A client that asks again for what it was given may have dropped it meanwhile.
        if name not in claimed and name != WILDCARD:
            self.resend(name)

    def _unsubscribed(self, name: str) -> None:
        if name == WILDCARD:
            for held in [held for held in self.known if not self.subscription.covers(held)]:
                self._leave(held)
        elif self.subscription.covers(name):  # by the wildcard: the client must hear whether it stays
            self.resend(name)
            self.known[name] = UNSURE
        else:
            self._leave(name)

    def _leave(self, name: str) -> None:
        self.forget(name)
        self.pending.discard(name)

    def _may_be_empty(self) -> bool:
        return True

    def _decide(self, view: View, gate: Gate) -> Decision:
        resources, removed, gated = [], [], set()
        for name in sorted(self.pending):
            resource = view.get(name)
            if resource is None:
                if self._must_remove(name):
                    removed.append(name)
            elif self.known.get(name) != resource.version:
                if self._waits(resource, gate):
                    gated.add(name)
                else:
                    resources.append(resource)
                    self._tell(name, resource.version)
        names = [*(resource.name for resource in resources), *removed]
        return Decision(resources, removed, names, frozenset(gated))

    def _must_remove(self, name: str) -> bool:
        told, named = self.known.get(name), name in self.subscription.names
        if told == ABSENT or (told is None and not named):
            return False
        self._tell(name, ABSENT if named else None)
        return True
