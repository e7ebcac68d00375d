"""What the server tells about its clients."""

import grpc
import pytest
from envoy_data_plane.envoy.admin.v3 import ClientResourceStatus
from envoy_data_plane.envoy.service.status import v3 as status
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from grpc import aio

from tests.conformance.dialogue import FRONTEND
from tests.conformance.resources import resource, snapshot
from xds_server import csds
from xds_server.events import InSync, Lagging
from xds_server.resource_types import CDS, EDS
from xds_server.snapshot import Snapshot
from xds_server.status import State


def states(world):
    [client] = world.server.status()
    [type_] = client.types
    return {resource.name: resource.state for resource in type_.resources}


@pytest.mark.parametrize("type_", [EDS], ids=["eds"])
async def test_the_state_of_each_resource_at_a_client(client, publish, world):
    publish(a="1")
    await client.want("a", "b")
    await client.expect("a", removed=("b",) if client.delta else ())
    missing = State.SENT if client.delta else State.REQUESTED
    assert states(world) == {"a": State.SENT, "b": missing}
    await client.ack()
    await world.quiet()
    assert states(world) == {"a": State.ACKED, "b": State.ABSENT if client.delta else State.REQUESTED}
    publish(a="2")
    await client.expect("a")
    await client.nack("no")
    await world.quiet()
    assert states(world)["a"] is State.NACKED
    [found] = world.server.status()[0].types
    assert (found.error.code, found.error.message, found.waiting_s) == (3, "no", None)
    [resource] = [r for r in found.resources if r.name == "a"]
    assert resource.acked
    assert resource.acked != resource.version


@pytest.mark.parametrize("type_", [EDS], ids=["eds"])
@pytest.mark.parametrize("mode", ["ads"])
async def test_csds_reports_versions_and_reasons_and_no_contents(client, publish, world):
    publish(a="1")
    await client.want("a")
    answer = await client.expect("a")
    await client.nack("field x: is not y")
    await world.quiet()
    async with csds_stub(world) as ask:
        [config] = (await ask()).config
        [found] = config.generic_xds_configs
        assert (config.node.id, config.node.cluster) == (client.node.id, FRONTEND)
        assert (found.name, found.client_status) == ("a", ClientResourceStatus.NACKED)
        assert found.error_state.details == "field x: is not y"
        assert found.xds_config is None
        if client.delta:
            assert found.version_info == answer.versions["a"]


@pytest.mark.parametrize("type_", [EDS], ids=["eds"])
@pytest.mark.parametrize("mode", ["ads"])
async def test_a_response_that_stays_unconfirmed_is_told_once(client, publish, world):
    def lagging():
        world.server.watch_lag()
        return [(event.type, event.for_s) for event in world.of(Lagging)]

    publish(a="1")
    await client.want("a")
    await client.expect("a")
    world.now = 14.0
    assert lagging() == []
    world.now = 16.0
    assert lagging() == [("eds", 16.0)]
    assert lagging() == [("eds", 16.0)]
    await client.ack()
    await world.quiet()
    publish(a="2")
    await client.expect("a")
    world.now = 36.0
    assert lagging() == [("eds", 16.0), ("eds", 20.0)]


@pytest.mark.parametrize("type_", [CDS], ids=["cds"])
@pytest.mark.parametrize("mode", ["ads"])
async def test_a_client_is_told_as_in_sync_when_it_is_new_and_after_it_lagged(client, world):
    def in_sync():
        return [event.sequence for event in world.of(InSync)]

    def publish(content):
        world.server.publish(FRONTEND, Snapshot.of([resource(CDS, "a", content)]))

    publish("1")
    await client.want("a")
    await client.expect("a")
    assert in_sync() == []
    await client.ack()
    await world.quiet()
    assert in_sync() == [1]
    publish("2")
    await client.expect("a")
    await client.ack()
    await world.quiet()
    assert in_sync() == [1], "it never lagged"
    publish("3")
    await client.expect("a")
    world.now = 16.0
    world.server.watch_lag()
    await client.ack()
    await world.quiet()
    assert in_sync() == [1, 3]


async def test_confirmed_is_the_oldest_snapshot_that_some_envoy_still_has(world):
    publish = world.server.publish
    assert world.server.confirmed(FRONTEND) is None
    first = publish(FRONTEND, snapshot(EDS, {"a": "1"}))
    fast, slow = (world.client("delta", "ads", EDS) for _ in range(2))
    for client in fast, slow:
        await client.want("a")
        await client.expect("a")
        await client.ack()
    await world.quiet()
    assert world.server.confirmed(FRONTEND) == first
    changed = snapshot(EDS, {"a": "2"})
    second = publish(FRONTEND, changed)
    assert second > first
    assert publish(FRONTEND, snapshot(EDS, {"a": "2"})) == second
    for client in fast, slow:
        await client.expect("a")
    await fast.ack()
    await world.quiet()
    assert world.server.confirmed(FRONTEND) == first
    assert not world.server.all_acked(FRONTEND, changed.of_type(EDS.url)["a"])
    await slow.ack()
    await world.quiet()
    assert world.server.confirmed(FRONTEND) == second
    assert world.server.all_acked(FRONTEND, changed.of_type(EDS.url)["a"])


async def test_csds_selects_nodes_and_refuses_matchers_it_does_not_know(world):
    world.server.publish(FRONTEND, snapshot(EDS, {"a": "1"}))
    for node in "envoy-a", "envoy-b", "other":
        client = world.client("delta", "ads", EDS, node)
        await client.want("a")
        await client.expect("a")
    async with csds_stub(world) as ask:
        assert len((await ask()).config) == 3
        assert [c.node.id for c in (await ask(matcher.StringMatcher(exact="other"))).config] == ["other"]
        assert len((await ask(matcher.StringMatcher(prefix="envoy-"))).config) == 2
        with pytest.raises(aio.AioRpcError) as refused:
            await ask(matcher.StringMatcher(suffix="b"))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


class csds_stub:
    """A CSDS server on a port of its own, and a call."""

    def __init__(self, world):
        self._world = world

    async def __aenter__(self):
        self._server = aio.server()
        csds.register(self._world.server, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._channel = aio.insecure_channel(f"127.0.0.1:{port}")
        call = self._channel.unary_unary(f"/{csds.SERVICE}/FetchClientStatus")

        async def ask(node_id=None):
            matchers = [matcher.NodeMatcher(node_id=node_id)] if node_id else []
            return status.ClientStatusResponse.parse(
                await call(bytes(status.ClientStatusRequest(node_matchers=matchers)))
            )

        return ask

    async def __aexit__(self, *_):
        await self._channel.close()
        await self._server.stop(None)
