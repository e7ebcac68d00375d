"""State of the world on one type of one stream: each request lists all names."""

from __future__ import annotations

from xds_server.protocol.watch import Decision, Gate, Verdict, View, Watch
from xds_server.protocol.wire import SotwRequest


class SotwWatch(Watch):
    """State of the world: the request lists all names each time."""

    __slots__ = ()

    def receive(self, request: SotwRequest, now: float) -> Verdict | None:
        """Take a request; returns what it said about a response, if anything."""
        if self._latest_nonce is None or not request.nonce:
            self._restart()
        elif request.nonce != self._latest_nonce:
            # Its names come again with the answer to the newer response.
            return Verdict(request.nonce, error=request.error, stale=True) if request.error else None
        verdict = self._judge(request.nonce, request.error, now)
        added, new_wildcard = self.subscription.replace(request.names)
        for name in [name for name in self.known if not self.subscription.covers(name)]:
            self.forget(name)
        self.pending = set(filter(self.subscription.covers, self.pending))
        self.pending.update(added)
        self._all_pending = self._all_pending or new_wildcard
        return verdict

    def _restart(self) -> None:
        # First request of the stream (whatever nonce an earlier stream left behind), or one without nonce:
        # the client says that it holds nothing from this stream.
        for name in list(self.known):
            self.forget(name)
        self.outstanding = None
        self._owes_answer = self._all_pending = True

    def _may_be_empty(self) -> bool:
        return self.type.answers_nothing and not self.subscription.empty

    def _decide(self, view: View, gate: Gate) -> Decision:
        return self._full(view) if self.type.full_state else self._partial(view, gate)

    def _full(self, view: View) -> Decision:
        names = view if self.subscription.wildcard else [n for n in self.subscription.names if n in view]
        resources = [view[name] for name in names]
        changed = [resource for resource in resources if self.known.get(resource.name) != resource.version]
        gone = [name for name in self.known if name not in view]
        for resource in changed:
            self._tell(resource.name, resource.version)
        for name in gone:
            self._tell(name, None)
        return Decision(resources, changed=[*(resource.name for resource in changed), *gone])

    def _partial(self, view: View, gate: Gate) -> Decision:
        resources, gated = [], set()
        for name in sorted(self.pending):
            resource = view.get(name)
            if resource is None:
                self.forget(name)  # the type cannot tell a deletion; created again, it is sent again
            elif self.known.get(name) != resource.version:
                if self._waits(resource, gate):
                    gated.add(name)
                else:
                    resources.append(resource)
                    self._tell(name, resource.version)
        names = [resource.name for resource in resources]
        return Decision(resources, changed=names, gated=frozenset(gated))
