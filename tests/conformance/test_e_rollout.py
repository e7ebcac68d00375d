"""E. Order, and make before break."""

import pytest

from tests.conformance.dialogue import FRONTEND, Envoy
from tests.conformance.resources import (
    assignment,
    composite_cluster,
    eds_cluster,
    http_listener,
    layer,
    routes,
    snapshot,
    static_cluster,
)
from xds_server.resource_types import CDS, EDS, LDS, RDS, RTDS, TYPES
from xds_server.snapshot import Snapshot


@pytest.fixture
def envoy(world, protocol, mode):
    return Envoy(world, protocol, mode)


@pytest.fixture
def publish(world):
    return lambda *resources: world.server.publish(FRONTEND, Snapshot.of(resources))


def routed(*clusters, content=""):
    """A listener, its routes and EDS clusters with assignments of their own."""
    found = [http_listener("l", "r"), routes("r", *clusters, content=content)]
    for name in clusters:
        found += [eds_cluster(name), assignment(name, 80)]
    return found


async def start(envoy, *clusters):
    """What Envoy does at its start."""
    await envoy.want(CDS, "*")
    await envoy.takes(CDS, *clusters)
    await envoy.gets(EDS, *clusters)
    await envoy.want(LDS, "*")
    await envoy.takes(LDS, "l")
    await envoy.gets(RDS, "r")
    await envoy.nothing()


def changed(envoy, everything, change):
    """What a push of clusters holds."""
    return tuple(change if envoy.delta else everything)


@pytest.mark.parametrize("mode", ["ads"])
async def test_e01_responses_leave_in_order(envoy, world, protocol):
    def everything(content):
        return [
            static_cluster("c", content),
            eds_cluster("e"),
            assignment("e", 1 if content == "1" else 2),
            http_listener("l", "r", content=content),
            routes("r", "c", content=content),
            layer("t", content),
        ]

    world.server.publish(FRONTEND, Snapshot.of(everything("1")))
    names = {CDS: ("c", "e"), EDS: ("e",), LDS: ("l",), RDS: ("r",), RTDS: ("t",)}
    for type_ in TYPES:
        await envoy.gets(type_, *names[type_])
    await envoy.nothing()
    world.server.publish(FRONTEND, Snapshot.of(everything("2")))
    for type_ in TYPES:
        await envoy.takes(type_, *(changed(envoy, names[type_], "c") if type_ is CDS else names[type_]))
    await envoy.nothing()


@pytest.mark.parametrize("mode", ["ads"])
async def test_e02_an_endpoint_request_during_a_publication_does_not_overtake_the_clusters(envoy, publish):
    """The race: the client asks for an assignment of the new snapshot in the moment of its publication. The
    server decides each response when it sends it, clusters first, so there is no order to break."""
    publish(*routed("x"))
    await start(envoy, "x")
    await envoy.also(EDS, "y")
    publish(*routed("x", "y"))
    first = await envoy.on(CDS).hear()
    if first.type_url == EDS.url:  # the request was taken first, when there was no y
        assert first.names == set()
        first = await envoy.on(CDS).hear()
    assert first.type_url == CDS.url


@pytest.mark.parametrize("mode", ["ads"])
async def test_e02_endpoints_do_not_wait_for_a_confirmation_of_clusters(envoy, publish):
    """Health and membership must reach Envoy at once, and Envoy itself withholds the confirmation of
    clusters until it has their endpoints: holding back one for the other would be a deadlock."""
    publish(*routed("x"))
    await start(envoy, "x")
    publish(eds_cluster("x", "changed"), assignment("x", 80), *routed("x")[:2])
    await envoy.expect(CDS, "x")
    await envoy.takes(EDS, "x")
    publish(eds_cluster("x", "changed"), assignment("x", 81), *routed("x")[:2])
    await envoy.takes(EDS, "x")


async def test_e03_assignments_of_changed_clusters_are_sent_again(envoy, publish):
    publish(*routed("x", "y"))
    await start(envoy, "x", "y")
    publish(eds_cluster("x", "changed"), eds_cluster("y"), assignment("x", 80), assignment("y", 80),
            *routed("x", "y")[:2])  # fmt: skip
    await envoy.expect(CDS, *changed(envoy, "xy", "x"))
    await envoy.takes(EDS, "x")
    await envoy.ack(CDS)
    await envoy.nothing()


async def test_e03_an_added_cluster_with_a_known_service_name_gets_its_assignment(envoy, publish):
    """Envoy asks for nothing then (it has subscribed already) and would warm for 15 s."""
    one = [eds_cluster("x", service="shared"), assignment("shared", 80)]
    publish(*one, http_listener("l", "r"), routes("r", "x"))
    await envoy.want(CDS, "*")
    await envoy.takes(CDS, "x")
    await envoy.gets(EDS, "shared")
    publish(*one, eds_cluster("y", service="shared"), http_listener("l", "r"), routes("r", "x"))
    await envoy.expect(CDS, *changed(envoy, "xy", "y"))
    await envoy.takes(EDS, "shared")


async def test_e04_endpoints_asked_before_clusters_on_reconnect(envoy, publish):
    publish(*routed("x"))
    await envoy.want(EDS, "x")
    await envoy.takes(EDS, "x")
    await envoy.want(CDS, "*")
    await envoy.expect(CDS, "x")
    await envoy.takes(EDS, "x")


async def test_e05_routes_to_a_new_cluster_wait_for_it_and_its_endpoints(envoy, publish):
    publish(*routed("x"))
    await start(envoy, "x")
    publish(*routed("x", "y"))
    await envoy.expect(CDS, *changed(envoy, "xy", "y"))
    await envoy.nothing()
    await envoy.ack(CDS)
    await envoy.nothing()
    await envoy.also(EDS, "y")
    await envoy.expect(EDS, "y")
    await envoy.nothing()
    await envoy.ack(EDS)
    await envoy.takes(RDS, "r")
    await envoy.nothing()


async def test_e05_routes_that_name_only_confirmed_clusters_do_not_wait(envoy, publish):
    publish(*routed("x", "y"))
    await start(envoy, "x", "y")
    publish(*routed("x", "y", content="other"), eds_cluster("z"), assignment("z", 80))
    await envoy.expect(CDS, *changed(envoy, "xyz", "z"))
    await envoy.takes(RDS, "r")


async def test_e05_a_client_that_asks_for_clusters_by_name_is_not_held_back(envoy, publish):
    """grpc asks for a cluster only once a route names it."""
    publish(*routed("x"))
    await envoy.gets(CDS, "x")
    await envoy.gets(EDS, "x")
    await envoy.gets(RDS, "r")
    publish(*routed("x", "y"))
    await envoy.takes(RDS, "r")
    await envoy.also(CDS, "y")
    await envoy.takes(CDS, *changed(envoy, "xy", "y"))


async def test_e06_a_cluster_leaves_after_the_routes_without_it_are_confirmed(envoy, publish):
    publish(*routed("x", "y"))
    await start(envoy, "x", "y")
    publish(*routed("x"))
    await envoy.expect(RDS, "r")
    await envoy.nothing()
    await envoy.ack(RDS)
    await envoy.takes(CDS, *("" if envoy.delta else "x"), removed=("y",) if envoy.delta else ())
    if envoy.delta:
        await envoy.takes(EDS, removed=("y",))
    await envoy.nothing()


async def test_e06_a_cluster_stays_while_its_last_route_is_refused(envoy, publish):
    publish(*routed("x", "y"))
    await start(envoy, "x", "y")
    publish(*routed("x"))
    await envoy.expect(RDS, "r")
    await envoy.nack(RDS)
    await envoy.nothing()
    publish(*routed("x", content="repaired"))
    await envoy.takes(RDS, "r")
    await envoy.takes(CDS, *("" if envoy.delta else "x"), removed=("y",) if envoy.delta else ())


async def test_e06_a_cluster_without_routes_leaves_at_once(envoy, publish):
    publish(*routed("x"), static_cluster("spare"))
    await envoy.want(CDS, "*")
    await envoy.takes(CDS, "x", "spare")
    await envoy.gets(RDS, "r")
    publish(*routed("x"))
    await envoy.expect(CDS, *("" if envoy.delta else ("x",)), removed=("spare",) if envoy.delta else ())


async def test_e06_a_held_cluster_that_comes_back_is_not_disturbed(envoy, publish):
    publish(*routed("x", "y"))
    await start(envoy, "x", "y")
    publish(*routed("x"))
    await envoy.expect(RDS, "r")
    publish(*routed("x", "y"))
    await envoy.ack(RDS)
    await envoy.takes(RDS, "r")
    await envoy.nothing()


async def test_e06_a_cluster_that_comes_back_while_it_goes_is_routed_to_when_it_is_back(envoy, publish):
    """The race: the removal is on its way, not confirmed, and the next snapshot routes to the cluster."""
    publish(*routed("x", "y"))
    await start(envoy, "x", "y")
    publish(*routed("x"))
    await envoy.takes(RDS, "r")
    await envoy.expect(CDS, *("" if envoy.delta else "x"), removed=("y",) if envoy.delta else ())
    if envoy.delta:
        await envoy.takes(EDS, removed=("y",))
    await envoy.nothing()
    publish(*routed("x", "y"))
    await envoy.takes(EDS, "y")
    await envoy.nothing()
    await envoy.ack(CDS)
    await envoy.expect(CDS, *changed(envoy, "xy", "y"))
    await envoy.takes(EDS, "y")
    await envoy.nothing()
    await envoy.ack(CDS)
    await envoy.takes(RDS, "r")


async def test_e06_the_members_of_a_held_composite_are_held(envoy, publish):
    def fleet(*engines):
        found = [http_listener("l", "r"), routes("r", *(f"to-{engine}" for engine in engines))]
        for engine in engines:
            found += [composite_cluster(f"to-{engine}", engine), eds_cluster(engine), assignment(engine, 80)]
        return found

    publish(*fleet("x", "y"))
    await envoy.want(CDS, "*")
    await envoy.takes(CDS, "x", "y", "to-x", "to-y")
    await envoy.gets(EDS, "x", "y")
    await envoy.gets(RDS, "r")
    publish(*fleet("x"))
    await envoy.expect(RDS, "r")
    await envoy.nothing()
    await envoy.ack(RDS)
    if envoy.delta:
        await envoy.takes(CDS, removed=("y", "to-y"))
    else:
        await envoy.takes(CDS, "x", "to-x")


async def test_e07_what_is_no_longer_asked_for_is_not_sent(envoy, publish):
    """The race: a change waits behind an unconfirmed response, and the client leaves the name meanwhile."""
    publish(*routed("x", "y"))
    await envoy.want(EDS, "x", "y")
    await envoy.expect(EDS, "x", "y")
    publish(*routed("x", "y")[:3], assignment("x", 80), eds_cluster("y"), assignment("y", 81))
    await envoy.nothing()
    await envoy.drop(EDS, "y")
    await envoy.nothing()
    if envoy.delta:
        await envoy.ack(EDS)
    await envoy.nothing()


@pytest.mark.parametrize("mode", ["ads"])
async def test_e08_requests_while_responses_wait_do_not_block(envoy, world):
    """Responses of all types are out and unconfirmed, more changes wait, and requests keep coming."""
    names = {type_: f"only-{type_.name}" for type_ in TYPES}

    def everything(content):
        parts = [snapshot(type_, {name: content}) for type_, name in names.items()]
        return Snapshot.of(r for part in parts for each in part.types.values() for r in each.values())

    world.server.publish(FRONTEND, everything("1"))
    for type_ in TYPES:
        await envoy.want(type_, names[type_])
        await envoy.expect(type_, names[type_])
    world.server.publish(FRONTEND, everything("2"))
    await envoy.nothing()
    for type_ in reversed(TYPES):
        await envoy.ack(type_)
    for _ in TYPES:
        await envoy.on(CDS).hear()
    await envoy.nothing()


async def test_e09_endpoints_are_answered_for_the_names_asked(envoy, publish):
    """The snapshot has moved on and the client still asks for the clusters it knows: it is answered for
    those that exist, never with silence about all."""
    publish(*routed("x", "y"))
    publish(*routed("y", "z"))
    await envoy.want(EDS, "x", "y")
    await envoy.expect(EDS, "y", removed=("x",) if envoy.delta else ())


async def test_e10_other_assignments_are_served_when_a_cluster_was_refused(envoy, publish):
    publish(*routed("x", "y"))
    await envoy.want(CDS, "*")
    await envoy.expect(CDS, "x", "y")
    await envoy.nack(CDS)
    await envoy.gets(EDS, "x")
