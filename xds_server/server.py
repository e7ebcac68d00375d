"""The hub: which front-end has which snapshot, and which clients serve from it. No I/O.

    server = XdsServer(clock=time.monotonic, fleet="prod", on_event=log_and_count)
    server.declare({"us-east", "eu-west"})          # known names; before their first snapshot: UNAVAILABLE
    sequence = server.publish("us-east", snapshot)  # raises SnapshotError, the last good one stays
    server.confirmed("us-east") >= sequence         # every connected Envoy has acknowledged everything

The transport (`services`) opens a connection per stream and is woken when there may be something to send.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from xds_server.events import (
    Acked,
    ClientInfo,
    Connected,
    Disconnected,
    Event,
    InSync,
    Lagging,
    Nacked,
    Refused,
    Sent,
)
from xds_server.identity import Admission, Reason, Rejection
from xds_server.protocol.client import Client, Stream
from xds_server.protocol.watch import Verdict
from xds_server.protocol.wire import Node, Request, Response
from xds_server.resource_types import BY_URL, TYPES, ResourceType
from xds_server.resources import Resource
from xds_server.snapshot import EMPTY, Snapshot, SnapshotError
from xds_server.status import ClientStatus, client_status

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Connection:
    """One accepted stream. Made by `XdsServer.connect`; closed by its transport."""

    info: ClientInfo
    stream: Stream
    node: Node
    certificate_names: frozenset[str] | None
    wake: Callable[[], None]
    """Tells the transport that there may be something to send."""
    end: Callable[[Rejection], None]
    """Tells the transport to end the stream."""


@dataclass(slots=True)
class _Frontend:
    snapshot: Snapshot = EMPTY
    sequence: int = 0
    """0 until the first snapshot."""


class XdsServer:
    """Snapshots per front-end and the streams that follow them. Single-threaded: call it from one loop."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        fleet: str = "",
        on_event: Callable[[Event], None] = lambda event: None,
        admission: Admission | None = None,
        runtime_layers: Iterable[str] = (),
        lag_s: float = 15.0,
        max_streams: int = 20_000,
    ) -> None:
        """`clock` is monotonic, in seconds. `runtime_layers`: names in the bootstrap, which every snapshot
        must hold. A response unconfirmed for `lag_s` is told as `Lagging` by `watch_lag`. Streams beyond
        `max_streams` are refused with RESOURCE_EXHAUSTED."""
        self._clock = clock
        self._on_event = on_event
        self._admission = admission or Admission(fleet)
        self._runtime_layers = tuple(runtime_layers)
        self._lag_s = lag_s
        self._max_streams = max_streams
        self._frontends: dict[str, _Frontend] = {}
        self._connections: dict[str, Connection] = {}
        self._by_frontend: dict[str, dict[str, Connection]] = defaultdict(dict)
        self._shared: dict[tuple[str, str], Client] = {}
        """(front-end, node id) -> client of its single-type streams."""
        self._stream_ids = count(1)
        self._sequences = count(1)
        self._lagging: set[tuple[str, str]] = set()
        """(stream, type) that were told of."""
        self._behind: set[str] = set()
        """Streams that are new or were told as lagging, until they have confirmed everything."""

    # ---- what is true -------------------------------------------------------------------------------

    def declare(self, frontends: Iterable[str]) -> None:
        """Set the names of all front-ends. Streams of front-ends that are no longer named are ended."""
        names = set(frontends)
        for name in names - self._frontends.keys():
            self._frontends[name] = _Frontend()
        for name in self._frontends.keys() - names:
            del self._frontends[name]
            rejection = self._admission.unknown_frontend(name, names)
            for connection in self._of(name):
                connection.end(rejection)

    def publish(self, frontend: str, snapshot: Snapshot) -> int:
        """Serve `snapshot` to the Envoys of a front-end; returns its sequence.

        Raises SnapshotError when it is inconsistent or empty; the last good one stays. Unchanged content
        is not sent again. Declares the front-end when it is new.
        """
        if problems := self.problems(snapshot):
            raise SnapshotError(f"front-end {frontend!r}: {problem}" for problem in problems)
        return self._publish(frontend, snapshot)

    def publish_all(self, snapshots: Mapping[str, Snapshot]) -> dict[str, list[str]]:
        """Publish one snapshot per front-end. A front-end whose snapshot has problems keeps its last good
        one; the others go on. Returns the problems by front-end, empty when all were published."""
        refused = {}
        for frontend, snapshot in snapshots.items():
            if problems := self.problems(snapshot):
                refused[frontend] = problems
            else:
                self._publish(frontend, snapshot)
        return refused

    def problems(self, snapshot: Snapshot) -> list[str]:
        """Why a snapshot would not be published; empty when it would."""
        if not any(snapshot.types.values()):
            return ["the snapshot is empty: it would take every listener and cluster from the Envoys"]
        return snapshot.check(self._runtime_layers)

    def snapshot(self, frontend: str) -> Snapshot | None:
        """What a front-end is served from; None before its first snapshot."""
        known = self._frontends.get(frontend)
        return known.snapshot if known and known.sequence else None

    def sequence(self, frontend: str) -> int:
        """Sequence of the snapshot a front-end is served from; 0 before its first."""
        known = self._frontends.get(frontend)
        return known.sequence if known else 0

    def _publish(self, frontend: str, snapshot: Snapshot) -> int:
        state = self._frontends.setdefault(frontend, _Frontend())
        changes = snapshot.changes_from(state.snapshot)
        if not changes and state.sequence:
            return state.sequence
        state.snapshot, state.sequence = snapshot, next(self._sequences)
        clients = {id(c.stream.client): c.stream.client for c in self._of(frontend)}
        for client in clients.values():
            client.publish(snapshot, state.sequence, changes)
            self._wake(client)
        return state.sequence

    @property
    def admission(self) -> Admission:
        """Who may connect. Setting it ends the streams that it does not admit."""
        return self._admission

    @admission.setter
    def admission(self, admission: Admission) -> None:
        self._admission = admission
        for connection in self.connections():
            try:
                self._admit(connection.node, connection.certificate_names)
            except Rejection as rejection:
                connection.end(rejection)

    # ---- streams ------------------------------------------------------------------------------------

    def connect(
        self,
        node: Node | None,
        peer: str,
        *,
        delta: bool,
        only: ResourceType | None,
        wake: Callable[[], None],
        end: Callable[[Rejection], None],
        certificate_names: frozenset[str] | None = None,
    ) -> Connection:
        """Accept the stream whose first request came from `node`. Raises Rejection."""
        try:
            if len(self._connections) >= self._max_streams:
                text = f"this server has {self._max_streams} streams already"
                raise Rejection(Reason.TOO_MANY, "RESOURCE_EXHAUSTED", text)
            admitted, warning = self._admit(node, certificate_names)
        except Rejection as rejection:
            frontend = node.cluster if node else ""
            self._emit(Refused(rejection.reason, str(rejection), node.id if node else "", frontend, peer))
            raise
        number = str(next(self._stream_ids))
        nonces = count(1)
        client = self._client(admitted, shared=only is not None)
        stream = Stream(client, number, lambda: f"{number}.{next(nonces)}", delta, only)
        info = _client_info(admitted, number, peer, delta)
        connection = Connection(info, stream, admitted, certificate_names, wake, end)
        self._connections[number] = self._by_frontend[info.frontend][number] = connection
        self._behind.add(number)
        self._emit(Connected(info, warning))
        return connection

    def check(self, node: Node | None, certificate_names: frozenset[str] | None) -> Node:
        """Return a node that may use another service of this port. Raises Rejection."""
        return self._admit(node, certificate_names)[0]

    def _admit(self, node: Node | None, certificate_names: frozenset[str] | None) -> tuple[Node, str]:
        ready = {name for name, state in self._frontends.items() if state.sequence}
        return self._admission.admit(node, self._frontends.keys(), ready, certificate_names)

    def _client(self, node: Node, shared: bool) -> Client:
        if shared and (client := self._shared.get((node.cluster, node.id))):
            return client
        state = self._frontends[node.cluster]
        client = Client()
        client.publish(state.snapshot, state.sequence, {})
        if shared:
            self._shared[node.cluster, node.id] = client
        return client

    def receive(self, connection: Connection, request: Request) -> None:
        """Take a request of an accepted stream. Raises BadRequest."""
        type_, verdict = connection.stream.receive(request, self._clock())
        if type_ and verdict:
            self._emit(_verdict_event(connection.info, type_, verdict))
            self._lagging.discard((connection.info.stream, type_.name))
            self._look_whether_in_sync(connection)
        self._wake(connection.stream.client)

    def _look_whether_in_sync(self, connection: Connection) -> None:
        stream, client = connection.info.stream, connection.stream.client
        if stream not in self._behind:
            return
        # Of a type that it has not asked for yet there is nothing unconfirmed.
        asked = all(client.watches(BY_URL[url]) for url, found in client.snapshot.types.items() if found)
        if asked and client.confirmed() >= client.sequence:
            self._behind.discard(stream)
            self._emit(InSync(connection.info, client.sequence))

    def responses(self, connection: Connection) -> Iterator[Response]:
        """What to send on a stream now; take the next one only when the last has been handed over."""
        client = connection.stream.client
        yield from connection.stream.responses(self._clock())
        if client.stirred:
            client.stirred = False
            self._wake(client)

    def sent(self, connection: Connection, response: Response, size: int) -> None:
        """Note that a response of `size` bytes was handed to the transport."""
        name = BY_URL[response.type_url].name
        self._emit(Sent(connection.info, name, response.version, len(response.resources), size))

    def disconnect(self, connection: Connection, reason: str) -> None:
        """Forget a stream that has ended. May be called once."""
        info = connection.info
        del self._connections[info.stream], self._by_frontend[info.frontend][info.stream]
        self._lagging -= {(info.stream, type_.name) for type_ in TYPES}
        self._behind.discard(info.stream)
        client = connection.stream.client
        connection.stream.close()
        if not client.streams and self._shared.get((info.frontend, info.id)) is client:
            del self._shared[info.frontend, info.id]
        self._wake(client)
        self._emit(Disconnected(info, reason))

    # ---- what clients have --------------------------------------------------------------------------

    def connections(self, frontend: str | None = None) -> list[Connection]:
        """All open streams, or those of one front-end."""
        return list(self._connections.values() if frontend is None else self._of(frontend))

    def confirmed(self, frontend: str) -> int | None:
        """Sequence of the newest snapshot that every connected Envoy of a front-end has acknowledged in
        full; None when none is connected. A drain is over once this reaches the sequence of its snapshot."""
        return min((c.stream.client.confirmed() for c in self._of(frontend)), default=None)

    def acked_versions(self, frontend: str, type_: ResourceType, name: str) -> dict[str, str | None]:
        """Stream -> version of one resource that it acknowledged last (None: never; "": its absence), of
        the streams that asked for it."""
        return {
            connection.info.stream: watch.acked(name)
            for connection in self._of(frontend)
            if (watch := connection.stream.watches.get(type_.url)) and watch.subscription.covers(name)
        }

    def all_acked(self, frontend: str, resource: Resource) -> bool:
        """Whether every stream of a front-end that asked for a resource has acknowledged this version."""
        acked = self.acked_versions(frontend, BY_URL[resource.type_url], resource.name)
        return all(version == resource.version for version in acked.values())

    def status(self, frontend: str | None = None) -> list[ClientStatus]:
        """What each stream was sent, confirmed and refused."""
        now = self._clock()
        return [
            client_status(connection.info, connection.stream.watches.values(), now)
            for connection in self.connections(frontend)
        ]

    def watch_lag(self) -> None:
        """Tell, once each time, the streams whose response has been out for `lag_s`. Call it now and then."""
        now = self._clock()
        for connection in self.connections():
            for watch in connection.stream.watches.values():
                sent, key = watch.outstanding, (connection.info.stream, watch.type.name)
                if sent and now - sent.at >= self._lag_s and key not in self._lagging:
                    self._lagging.add(key)
                    self._behind.add(connection.info.stream)
                    self._emit(Lagging(connection.info, watch.type.name, sent.version, now - sent.at))

    def _wake(self, client: Client) -> None:
        for stream in client.streams:
            if stream.due:
                self._connections[stream.id].wake()

    def _of(self, frontend: str) -> Iterator[Connection]:
        return iter(list(self._by_frontend.get(frontend, {}).values()))

    def _emit(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:  # whoever logs and counts must not be able to end streams
            _log.exception("event_handler_failed")


def _client_info(node: Node, stream: str, peer: str, delta: bool) -> ClientInfo:
    build = ".".join(map(str, node.build)) if node.build else ""
    return ClientInfo(node.id, node.cluster, stream, peer, "delta" if delta else "sotw", build)


def _verdict_event(info: ClientInfo, type_: ResourceType, verdict: Verdict) -> Event:
    if verdict.error is None:
        return Acked(info, type_.name, verdict.version, verdict.names, verdict.after_s, verdict.recovered)
    return Nacked(
        info,
        type_.name,
        verdict.version,
        verdict.names,
        verdict.error.code,
        verdict.error.message,
        verdict.stale,
        verdict.repeated,
    )
