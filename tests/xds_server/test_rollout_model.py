"""Make before break under every interleaving: a model of Envoy against the pure core.

Random publications, and messages delivered late and one by one in each direction. At no moment may the
client's routes name a cluster that it does not hold, or one whose endpoints it does not hold; in the end it
holds the last snapshot and nothing else.
"""

from collections import deque
from functools import cache
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.resources import assignment, composite_cluster, eds_cluster, http_listener, routes
from xds_server.protocol.client import Client, Stream
from xds_server.protocol.wire import DeltaRequest, Error, SotwRequest
from xds_server.resource_types import BY_URL, CDS, EDS, LDS, RDS
from xds_server.snapshot import EMPTY, Snapshot

ENGINES = "xyz"


@cache
def snapshot(engines: frozenset[str], revision: int) -> Snapshot:
    """Routes to a composite per engine; `revision` changes all the endpoints and clusters."""
    found = [
        http_listener("l", "r"),
        routes("r", *(f"to-{e}" for e in sorted(engines)), content=str(revision)),
    ]
    for engine in engines:
        found += [
            composite_cluster(f"to-{engine}", engine),
            eds_cluster(engine, content=str(revision % 2)),
            assignment(engine, 80 + revision),
        ]
    made = Snapshot.of(found)
    assert not made.check()
    return made


class Model:
    """Envoy, and the two directions of its stream."""

    def __init__(self, delta: bool) -> None:
        self.delta = delta
        self.server = Client()
        numbers = count(1)
        self.stream = Stream(self.server, "1", lambda: str(next(numbers)), delta)
        self.sequence = 0
        self.to_server, self.to_client = deque(), deque()
        self.held = {url: {} for url in BY_URL}
        self.asked = {CDS.url: ["*"], LDS.url: ["*"], RDS.url: ["r"], EDS.url: []}
        self.nonces = {}

    def publish(self, new: Snapshot) -> None:
        self.sequence += 1
        old = self.server.snapshot
        self.server.publish(new, self.sequence, new.changes_from(old) if old is not EMPTY else {})

    def start(self) -> None:
        """As Envoy does: the next type once it has what it asked for."""
        for type_ in (CDS, LDS, RDS):
            self.ask(type_.url, subscribe=self.asked[type_.url])
            self.drain()

    def ask(self, url, subscribe=(), unsubscribe=(), nonce="", error=None) -> None:
        if self.delta:
            request = DeltaRequest(url, tuple(subscribe), tuple(unsubscribe), {}, nonce, error)
        else:
            nonce = nonce or self.nonces.get(url, "")
            request = SotwRequest(url, "", tuple(self.asked[url]), nonce, error)
        self.to_server.append(request)

    def server_receives(self) -> None:
        if self.to_server:
            self.stream.receive(self.to_server.popleft(), 0.0)

    def server_sends(self) -> None:
        response = next(self.stream.responses(0.0), None)
        if response:
            self.to_client.append(response)

    def client_receives(self, accept: bool = True) -> None:
        if not self.to_client:
            return
        response = self.to_client.popleft()
        url = response.type_url
        self.nonces[url] = response.nonce
        if not accept:
            self.ask(url, nonce=response.nonce, error=Error(3, "no"))
            return
        if not self.delta and BY_URL[url].full_state:
            self.held[url] = {}
        self.held[url].update((resource.name, resource) for resource in response.resources)
        for name in response.removed:
            self.held[url].pop(name, None)
        if url == CDS.url:
            self.follow_clusters()
        self.ask(url, nonce=response.nonce)
        self.never_broken()

    def follow_clusters(self) -> None:
        """Envoy asks for the endpoints of the clusters it has, before it confirms them."""
        wanted = sorted(n for n in self.held[CDS.url] if n in ENGINES)
        new = [name for name in wanted if name not in self.asked[EDS.url]]
        gone = [name for name in self.asked[EDS.url] if name not in wanted]
        self.asked[EDS.url] = wanted
        for name in gone:
            self.held[EDS.url].pop(name, None)
        if new or gone:
            self.ask(EDS.url, new, gone)

    def never_broken(self) -> None:
        for used in self.held[RDS.url].get("r", ()) and self.held[RDS.url]["r"].references:
            assert used.name in self.held[CDS.url], "a route names a missing cluster"
            member = used.name.removeprefix("to-")
            assert member in self.held[CDS.url], "a composite's member is missing"
            assert member in self.held[EDS.url], "a routed cluster has no endpoints"

    def drain(self) -> None:
        """Let both sides talk until neither has anything to say (a response that waits for what was refused
        stays due and is not said)."""
        for _ in range(300):
            self.round_trip()
            if not self.to_server and not self.to_client:
                self.server_sends()
                if not self.to_client:
                    return
        raise AssertionError("the dialogue does not end")

    def round_trip(self) -> None:
        self.server_receives()
        self.server_sends()
        self.client_receives()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.frozensets(st.sampled_from(ENGINES), min_size=1), st.integers(0, 3)),
        st.sampled_from([("receive",), ("send",), ("deliver",), ("round trip",), ("settle",)]),
    ),
    max_size=60,
)


def run(delta, script, refuse=frozenset()):
    model = Model(delta)
    model.publish(snapshot(frozenset("x"), 0))
    model.start()
    for number, step in enumerate(script):
        match step:
            case ("publish", engines, revision):
                model.publish(snapshot(engines, revision))
            case ("receive",):
                model.server_receives()
            case ("send",):
                model.server_sends()
            case ("deliver",):
                model.client_receives(accept=number not in refuse)
            case ("round trip",):
                model.round_trip()
            case ("settle",):
                model.drain()
    return model


def exactly(model):
    current = model.server.snapshot
    for type_ in (CDS, EDS, LDS, RDS):
        held = {name: resource.version for name, resource in model.held[type_.url].items()}
        assert held == {name: resource.version for name, resource in current.of_type(type_.url).items()}


@settings(max_examples=150, deadline=None)
@given(st.booleans(), steps)
def test_routes_never_point_nowhere_and_the_end_is_the_last_snapshot(delta, script):
    model = run(delta, script)
    model.drain()
    exactly(model)
    assert model.server.confirmed() == model.sequence
    assert not model.server.leaving


@settings(max_examples=100, deadline=None)
@given(st.booleans(), steps, st.frozensets(st.integers(0, 80)))
def test_refusals_never_loop_and_the_next_good_snapshot_heals(delta, script, refuse):
    """The model refuses whole responses; afterwards everything changes once and is accepted."""
    model = run(delta, script, refuse)
    model.drain()
    model.publish(snapshot(frozenset("xyz"), 4))
    model.drain()
    model.publish(snapshot(frozenset("yz"), 5))
    model.drain()
    exactly(model)
