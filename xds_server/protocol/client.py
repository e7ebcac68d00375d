"""One Envoy: its streams, the snapshot it is to reach, and the order in which it gets there.

Make before break. Responses leave in the order of `resource_types.TYPES`. A route configuration that newly
names a cluster waits until the client has confirmed that cluster and its endpoints. A cluster (or load
assignment) that left the snapshot stays visible to the client until it has confirmed the listeners and
routes of a snapshot without it. The load assignments of changed clusters are sent again with them, in the
same tick: Envoy waits for them, and withholds the confirmation of the clusters while it does.

An aggregated stream has a client of its own; the single-type streams of one node share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from xds_server.protocol.delta import DeltaWatch
from xds_server.protocol.sotw import SotwWatch
from xds_server.protocol.watch import Verdict, View, Watch
from xds_server.protocol.wire import BadRequest, DeltaRequest, Request, Response, SotwRequest
from xds_server.resource_types import BY_URL, CDS, EDS, LDS, RDS, RTDS, TYPES, ResourceType
from xds_server.resources import Reference, Resource, empty_runtime_layer
from xds_server.snapshot import EMPTY, Changes, Snapshot


class Client:
    """All streams that belong together, and the state of their rollout."""

    __slots__ = ("_leaving", "_routed", "_views", "sequence", "snapshot", "stirred", "streams")

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.stirred = False
        """Answering one stream has made something due, perhaps on another one; reset by who wakes them."""
        self.snapshot = EMPTY
        self.sequence = 0
        self._leaving: dict[str, dict[str, tuple[Resource, int]]] = {}
        """type URL -> name -> (resource, sequence of the first snapshot without it)."""
        self._views: dict[str, View] = {}
        self._routed: dict[str, frozenset[Reference]] = {}
        """Route configuration -> what the version last sent refers to."""

    @property
    def leaving(self) -> bool:
        """Whether something that left the snapshot is still kept for the client."""
        return bool(self._leaving)

    def watches(self, type_: ResourceType) -> list[Watch]:
        """The client's watches of a type (several only with several streams)."""
        return [stream.watches[type_.url] for stream in self.streams if type_.url in stream.watches]

    def confirmed(self) -> int:
        """Sequence of the newest snapshot that the client has confirmed in full, removals included."""
        unfinished = (since for leaving in self._leaving.values() for _, since in leaving.values())
        return min(self._confirmed(TYPES), min(unfinished, default=self.sequence + 1) - 1)

    def _confirmed(self, types: Iterable[ResourceType]) -> int:
        watches = (watch for type_ in types for watch in self.watches(type_))
        return min((watch.confirmed(self.sequence) for watch in watches), default=self.sequence)

    def publish(self, snapshot: Snapshot, sequence: int, changes: Changes) -> None:
        """Make `snapshot` the goal. `changes` is its difference from the one before."""
        old, self.snapshot, self.sequence = self.snapshot, snapshot, sequence
        for type_ in (CDS, EDS):
            if type_.url in changes:
                self._keep(type_, old, changes[type_.url])
        for url, names in changes.items():
            self._mark(url, names)

    def release(self) -> bool:
        """Let go of what left the snapshot once the client confirmed that it does not use it.

        Returns whether anything was let go, so that there may be something to send on any stream.
        """
        if not self._leaving:
            return False
        confirmed = self._confirmed((LDS, RDS))
        released = False
        for url, leaving in list(self._leaving.items()):
            if free := [name for name, (_, since) in leaving.items() if since <= confirmed]:
                self._set_leaving(url, {name: leaving[name] for name in leaving if name not in free})
                self._mark(url, free)
                self.stirred = released = True
        return released

    def answer(self, watch: Watch, nonce: Callable[[], str], now: float) -> Response | None:
        """The next response of a watch."""
        response = watch.take(self._view_for(watch), nonce, self.sequence, now, self._must_wait)
        if response and watch.type is CDS and watch.outstanding:
            self._assign_again(watch.outstanding.names)
        if response and watch.type is RDS:
            self._routed.update((routes.name, routes.references) for routes in response.resources)
        return response

    def _keep(self, type_: ResourceType, old: Snapshot, changed: frozenset[str]) -> None:
        before, after = old.of_type(type_.url), self.snapshot.of_type(type_.url)
        leaving = {n: kept for n, kept in self._leaving.get(type_.url, {}).items() if n not in after}
        for name in changed:
            if name in before and name not in after:
                leaving[name] = before[name], self.sequence
        self._set_leaving(type_.url, leaving)

    def _set_leaving(self, url: str, leaving: dict[str, tuple[Resource, int]]) -> None:
        if leaving:
            self._leaving[url] = leaving
        else:
            self._leaving.pop(url, None)
        self._views.pop(url, None)

    def _mark(self, url: str, names: Iterable[str]) -> None:
        for stream in self.streams:
            if watch := stream.watches.get(url):
                watch.mark(names)

    def _view_for(self, watch: Watch) -> View:
        url = watch.type.url
        present = self.snapshot.of_type(url)
        if watch.type is RTDS:
            # Envoy does not start without an answer for each layer of its bootstrap.
            absent = [name for name in watch.subscription.names if name not in present]
            return {**present, **{name: empty_runtime_layer(name) for name in absent}} if absent else present
        if url not in self._leaving:
            return present
        if url not in self._views:
            leaving = {name: resource for name, (resource, _) in self._leaving[url].items()}
            self._views[url] = {**leaving, **present}
        return self._views[url]

    def _assign_again(self, clusters: Iterable[str]) -> None:
        present = self.snapshot.of_type(CDS.url)
        for cluster in filter(None, map(present.get, clusters)):
            for watch in self.watches(EDS):
                for name in _used(cluster, EDS):
                    watch.resend(name)
                    self.stirred = True

    def _must_wait(self, resource: Resource) -> bool:
        """Whether a changed route configuration names a cluster that the client does not have yet."""
        if resource.type_url != RDS.url:
            return False
        new = resource.references - self._routed.get(resource.name, frozenset())
        clusters, assignments = self.watches(CDS), self.watches(EDS)
        return any(self._lacks(watch, assignments, name) for _, name in new for watch in clusters)

    def _lacks(self, clusters: Watch, assignments: Sequence[Watch], name: str) -> bool:
        """Whether the client has not confirmed a cluster, a member of it, or the endpoints of either.

        The endpoints count for themselves: on a stream of its own, clusters are confirmed while they warm.
        """
        if not clusters.subscription.wildcard:
            return False  # such a client (grpc) asks for a cluster once a route names it
        present = self.snapshot.of_type(CDS.url)
        named = present.get(name)
        parts = [name, *(_used(named, CDS) if named else ())]
        if not all(clusters.holds(part) for part in parts):
            return True
        needed = (used for part in parts if part in present for used in _used(present[part], EDS))
        return bool(assignments) and not all(_confirmed_by_all(assignments, used) for used in needed)


class Stream:
    """One stream of a client. `only` is set for single-type services."""

    __slots__ = ("_nonce", "client", "delta", "id", "only", "watches")

    def __init__(
        self,
        client: Client,
        id_: str,
        nonce: Callable[[], str],
        delta: bool = False,
        only: ResourceType | None = None,
    ) -> None:
        self.client = client
        self.id = id_
        self.delta = delta
        self.only = only
        self.watches: dict[str, Watch] = {}
        self._nonce = nonce
        client.streams.append(self)

    def receive(self, request: Request, now: float) -> tuple[ResourceType | None, Verdict | None]:
        """Take a request. Returns its type (None: not served, ignored) and what it said of a response.

        Raises BadRequest when the client breaks the protocol.
        """
        type_ = self._type_of(request)
        if type_ is None:
            return None, None
        watch = self.watches.get(type_.url)
        if watch is None:
            watch = self.watches[type_.url] = DeltaWatch(type_) if self.delta else SotwWatch(type_)
        return type_, _receive(watch, request, now)

    @property
    def due(self) -> bool:
        """Whether `responses` may have something to say."""
        return self.client.leaving or any(watch.due for watch in self.watches.values())

    def responses(self, now: float) -> Iterator[Response]:
        """What to send now, each decided when it is asked for, so that none is out of date."""
        self.client.release()
        while True:
            for type_ in TYPES:
                watch = self.watches.get(type_.url)
                if watch and watch.due and (response := self.client.answer(watch, self._nonce, now)):
                    yield response
            if not self.client.release():
                return

    def close(self) -> None:
        """Leave the client."""
        self.client.streams.remove(self)

    def _type_of(self, request: Request) -> ResourceType | None:
        if self.only:
            if request.type_url not in ("", self.only.url):
                raise BadRequest(f"this stream serves {self.only.url}, not {request.type_url}")
            return self.only
        if not request.type_url:
            raise BadRequest("a request on an aggregated stream must carry a type_url")
        return BY_URL.get(request.type_url)


def _receive(watch: Watch, request: Request, now: float) -> Verdict | None:
    match watch, request:
        case SotwWatch(), SotwRequest():
            return watch.receive(request, now)
        case DeltaWatch(), DeltaRequest():
            return watch.receive(request, now)
        case _:
            raise TypeError("a stream speaks either SotW or delta")


def _used(cluster: Resource, type_: ResourceType) -> list[str]:
    """Names of a type that a cluster refers to."""
    return [name for url, name in cluster.references if url == type_.url]


def _confirmed_by_all(watches: Iterable[Watch], name: str) -> bool:
    """Whether somebody asked for `name`, and everybody who did has confirmed it.

    Without aggregation Envoy opens a stream for each cluster's endpoints.
    """
    asking = [watch for watch in watches if watch.subscription.covers(name)]
    return bool(asking) and all(watch.holds(name) for watch in asking)
