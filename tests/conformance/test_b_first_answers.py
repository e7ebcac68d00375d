"""B. First answers, versions and nonces; the state-of-the-world rules, and what of them holds for delta."""

import grpc
import pytest
from envoy_data_plane.envoy.config.core import v3 as core

from tests.conformance.dialogue import FRONTEND
from tests.conformance.resources import snapshot
from tests.conformance.test_a_subscription import ROOTS, pushed
from xds_server.events import Connected
from xds_server.resource_types import CDS, EDS, LDS, RDS, RTDS, TYPES

PARTIAL = [type_ for type_ in TYPES if type_ not in ROOTS]
sotw_only = pytest.mark.parametrize("protocol", ["sotw"])
roots = pytest.mark.parametrize("type_", ROOTS, ids=lambda type_: type_.name)
partial = pytest.mark.parametrize("type_", PARTIAL, ids=lambda type_: type_.name)


async def test_b01_one_answer_with_type_version_and_nonce(client, publish, mode):
    publish(a="1")
    await client.want("a", type_url="" if mode == "single" else None)
    answer = await client.expect("a")
    assert answer.version
    assert answer.nonce
    await client.ack()
    await client.nothing()


@pytest.mark.parametrize("mode", ["ads"])
async def test_b02_an_aggregated_request_needs_a_type_url(client, publish):
    publish(a="1")
    await client.want("a", type_url="")
    code, details = await client.ends()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "type_url" in details


@pytest.mark.parametrize("mode", ["single"])
async def test_b02_a_single_type_stream_refuses_another_type(client, publish, type_):
    publish(a="1")
    await client.want("a", type_url=next(other.url for other in TYPES if other is not type_))
    code, details = await client.ends()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert type_.url in details


async def test_b03_the_node_of_the_first_request_stands_for_the_stream(client, publish, world):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    await client.also("b")
    await world.quiet()
    assert [event.client.id for event in world.of(Connected)] == [client.node.id]


@pytest.mark.parametrize("node", [None, core.Node(cluster=FRONTEND)], ids=["no node", "no id"])
async def test_b04_a_first_request_without_node_id_is_refused(client, publish, world, node):
    publish(a="1")
    client.node = node or core.Node()
    await client.want("a")
    code, details = await client.ends()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "node.id" in details
    assert not world.of(Connected)


async def test_b05_an_ack_is_answered_with_silence(client, publish):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    await client.nothing()


@sotw_only
async def test_b06_a_stale_nonce_is_ignored(client, publish):
    publish(a="1", b="1")
    await client.want("a")
    first = await client.expect("a")
    await client.ack()
    publish(a="2", b="1")
    await client.expect("a")
    await client.want("a", "b", nonce=first.nonce)
    await client.nothing()
    await client.want("a", "b")
    await client.expect(*pushed(client, "ab", "b"))


async def test_b07_two_pushes_differ_in_nonce_and_version(client, publish):
    publish(a="1")
    await client.want("a")
    first = await client.expect("a")
    await client.ack()
    publish(a="2")
    second = await client.expect("a")
    assert first.nonce != second.nonce
    assert first.version != second.version


async def test_b08_two_answers_at_the_same_version_differ_in_nonce(client, publish):
    publish(a="1", b="1")
    await client.want("a")
    first = await client.expect("a")
    await client.ack()
    await client.also("b")
    second = await client.hear()
    assert first.nonce != second.nonce


async def test_b09_a_new_name_at_the_same_version_is_answered(client, publish):
    publish(a="1", b="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    await client.also("b")
    await client.expect(*pushed(client, "ab", "b"))


@sotw_only
async def test_b10_a_new_name_that_does_not_exist_is_waited_for(client, publish, type_):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    await client.also("b")
    if type_ is RTDS:
        await client.expect("b")  # Envoy does not start without an answer for each layer
        await client.ack()
    else:
        await client.nothing()
    publish(a="1", b="1")
    await client.expect(*pushed(client, "ab", "b"))


async def test_b11_fewer_names_are_not_answered(client, publish):
    publish(a="1", b="1")
    await client.want("a", "b")
    await client.expect("a", "b")
    await client.ack()
    await client.drop("b")
    await client.nothing()


async def test_b12_a_name_that_appears_later_is_pushed(client, publish, type_):
    publish(b="1")
    await client.want("a")
    if type_ is RTDS:
        await client.expect("a")
        await client.ack()
    elif client.delta:
        await client.expect(removed=("a",))
        await client.ack()
    elif type_.answers_nothing:
        await client.expect()
        await client.ack()
    publish(a="1", b="1")
    await client.expect("a")


@sotw_only
@roots
@pytest.mark.parametrize("names", [(), ("a", "b", "c")], ids=["wildcard", "named"])
async def test_b13_root_types_carry_the_full_state(client, publish, names):
    publish(a="1", b="1", c="1")
    await client.want(*names)
    await client.expect("a", "b", "c")
    await client.ack()
    publish(a="1", b="2", c="1")
    await client.expect("a", "b", "c")


@partial
async def test_b14_other_types_carry_the_change(client, publish):
    publish(a="1", b="1", c="1")
    await client.want("a", "b", "c")
    await client.expect("a", "b", "c")
    await client.ack()
    publish(a="1", b="2", c="1")
    await client.expect("b")


@sotw_only
@roots
async def test_b15_deletion_of_a_root_type_is_absence(client, publish):
    publish(a="1", b="1")
    await client.want()
    await client.expect("a", "b")
    await client.ack()
    publish(a="1")
    await client.expect("a")
    await client.ack()
    publish()
    await client.expect()


@sotw_only
@pytest.mark.parametrize("type_", [EDS, RDS], ids=lambda type_: type_.name)
async def test_b16_deletion_of_other_types_is_silent_and_re_creation_is_sent(client, publish):
    publish(a="1", b="1")
    await client.want("a", "b")
    await client.expect("a", "b")
    await client.ack()
    publish(a="1")
    await client.nothing()
    publish(a="1", b="1")
    await client.expect("b")


async def test_b17_an_unrelated_change_is_silent(client, publish):
    publish(a="1", b="1", c="1")
    await client.want("a", "c")
    await client.expect("a", "c")
    await client.ack()
    publish(a="1", b="2", c="1")
    await client.nothing()


@sotw_only
async def test_b18_a_first_request_for_nothing_that_exists(client, publish, type_):
    """Answered empty, so that the client can finish its start; not for routes, since a listener without
    routes must not open; layers always exist."""
    publish(b="1")
    await client.want("a")
    if type_ is RDS:
        await client.nothing()
    else:
        await client.expect(*("a" if type_ is RTDS else ""))


@sotw_only
async def test_b19_a_reconnecting_client_is_sent_everything_it_asks_for(client, publish):
    """Also at a version this instance would issue: what the client holds besides that is not known."""
    publish(a="1", b="1")
    await client.want("a", "b", version="of-another-replica")
    await client.expect("a", "b")


@pytest.mark.parametrize("nonce", ["of-another-stream"])
async def test_b19_a_nonce_of_an_earlier_stream_does_not_silence_the_first_answer(client, publish, nonce):
    publish(a="1")
    await client.want("a", nonce=nonce)
    await client.expect("a")


async def test_b20_equal_content_is_not_pushed(client, publish):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    publish(a="1")
    await client.nothing()


async def test_b21_before_the_first_snapshot_the_stream_is_unavailable(client, publish, world):
    """Not parked: an Envoy that waits in silence cannot try another replica of the control plane (G18)."""
    world.server.declare({FRONTEND})
    await client.want("a")
    code, details = await client.ends()
    assert code is grpc.StatusCode.UNAVAILABLE
    assert FRONTEND in details


@pytest.mark.parametrize("mode", ["ads"])
@pytest.mark.parametrize("type_", [CDS], ids=["cds"])
async def test_b22_a_change_of_one_type_answers_that_type_only(client, world):
    both = snapshot(CDS, {"a": "1"}), snapshot(LDS, {"x": "1"})
    world.server.publish(FRONTEND, merged(*both))
    await client.want()
    await client.expect("a")
    await client.ack()
    await client.want(of=LDS)
    await client.expect("x", of=LDS)
    await client.ack(of=LDS)
    world.server.publish(FRONTEND, merged(snapshot(CDS, {"a": "2"}), both[1]))
    await client.expect("a")
    await client.nothing()
    world.server.publish(FRONTEND, merged(snapshot(CDS, {"a": "2"}), snapshot(LDS, {"x": "2"})))
    await client.expect("x", of=LDS)


def merged(first, *others):
    for other in others:
        for resources in other.types.values():
            first = first.with_resources(*resources.values())
    return first
