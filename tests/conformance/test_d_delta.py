"""D. The incremental variant."""

import pytest

from tests.conformance.dialogue import FRONTEND
from tests.conformance.resources import snapshot
from tests.conformance.test_a_subscription import ROOTS
from tests.conformance.test_b_first_answers import merged
from xds_server.events import Acked, Nacked
from xds_server.resource_types import CDS, EDS, LDS, RDS, RTDS, TYPES

without_layers = pytest.mark.parametrize(
    "type_", [type_ for type_ in TYPES if type_ is not RTDS], ids=lambda type_: type_.name
)
"""A layer that is asked for always exists, so absence shows in the other types only."""


@pytest.fixture
def protocol():
    return "delta"


async def held_versions(world, type_, *names):
    """What a client would hold after asking for these."""
    client = world.client("delta", "ads", type_)
    await client.want(*names)
    return (await client.hear()).versions


async def test_d01_a_wildcard_with_nothing_to_send_is_answered_once(client, publish):
    publish()
    await client.want("*")
    await client.expect()
    await client.ack()
    await client.nothing()
    publish(a="1")
    await client.expect("a")


@without_layers
async def test_d02_a_missing_name_is_told_as_removed(client, publish):
    publish(b="1")
    await client.want("b", "c")
    await client.expect("b", removed=("c",))


async def test_d03_current_initial_versions_are_not_sent_again(client, publish, world, type_):
    publish(a="1", b="1")
    versions = await held_versions(world, type_, "a", "b")
    await client.want("a", "b", held={"b": versions["b"]})
    await client.expect("a")
    await client.ack()
    publish(a="1", b="2")
    await client.expect("b")


async def test_d03_a_reconnecting_client_with_everything_hears_nothing(client, publish, world, type_):
    publish(a="1", b="1")
    await client.want("a", "b", held=await held_versions(world, type_, "a", "b"))
    await client.nothing()
    publish(a="2", b="1")
    await client.expect("a")


async def test_d03_a_reconnecting_wildcard_with_everything_is_answered_empty(client, publish, world, type_):
    publish(a="1", b="1")
    await client.want("*", held=await held_versions(world, type_, "a", "b"))
    await client.expect()


@without_layers
@pytest.mark.parametrize("names", [("*",), ("a", "x")], ids=["wildcard", "named"])
async def test_d04_what_vanished_while_away_is_removed_at_once(client, publish, world, type_, names):
    publish(a="1", x="1")
    versions = await held_versions(world, type_, "a", "x")
    publish(a="1")
    await client.want(*names, held=versions)
    await client.expect(removed=("x",))


async def test_d05_an_update_carries_the_change_with_its_version(client, publish):
    publish(a="1", b="1")
    await client.want("a", "b")
    first = await client.expect("a", "b")
    await client.ack()
    publish(a="2", b="1")
    second = await client.expect("a")
    assert second.versions["a"] != first.versions["a"]


@without_layers
async def test_d06_removal_and_return(client, publish):
    publish(a="1", x="1")
    await client.want("a", "x")
    await client.expect("a", "x")
    await client.ack()
    publish(a="1")
    await client.expect(removed=("x",))
    await client.ack()
    publish(a="1", x="1")
    await client.expect("x")


@pytest.mark.parametrize("type_", [RTDS], ids=["rtds"])
async def test_d06_a_removed_layer_becomes_empty(client, publish):
    publish(a="1")
    await client.want("a")
    full = await client.expect("a")
    await client.ack()
    publish()
    empty = await client.expect("a")
    assert len(empty.bodies["a"]) < len(full.bodies["a"])


async def test_d07_names_one_after_the_other(client, publish):
    publish(a="1", b="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    await client.also("b")
    await client.expect("b")


async def test_d08_unsubscribing_stops_updates(client, publish):
    publish(a="1", b="1")
    await client.want("a", "b")
    await client.expect("a", "b")
    await client.ack()
    await client.drop("a")
    await client.nothing()
    publish(a="2", b="1")
    await client.nothing()


async def test_d09_changes_between_acks_coalesce_to_the_last(client, publish, world, type_):
    publish(a="1", b="1")
    await client.want("a", "b")
    await client.expect("a", "b")
    publish(a="2", b="1")
    publish(a="3", b="2")
    await client.nothing()
    await client.ack()
    answer = await client.expect("a", "b")
    current = world.server.snapshot(FRONTEND).of_type(type_.url)
    assert answer.versions == {name: current[name].version for name in "ab"}
    await client.ack()
    await client.nothing()


async def test_d10_two_clients_both_hear_a_change_of_one_resource(client, publish, world, type_, mode):
    other = world.client("delta", mode, type_)
    publish(a="1")
    for each in (client, other):
        await each.want("*")
        await each.expect("a")
        await each.ack()
    publish(a="2")
    for each in (client, other):
        await each.expect("a")
        await each.ack()
        await each.nothing()


async def test_d11_sotw_and_delta_clients_of_one_front_end(client, publish, world, type_, mode):
    sotw = world.client("sotw", mode, type_)
    publish(a="1", b="1")
    for each in (client, sotw):
        await each.want("*")
        await each.expect("a", "b")
        await each.ack()
    publish(a="2", b="1")
    await client.expect("a")
    await sotw.expect(*("ab" if type_ in ROOTS else "a"))


async def test_d12_a_stale_nonce_does_not_void_a_subscription_change(client, publish):
    publish(a="1", b="1")
    await client.want("a")
    first = await client.expect("a")
    await client.ack()
    publish(a="2", b="1")
    await client.expect("a")
    await client.also("b", nonce=first.nonce)
    await client.nothing()  # one response a type: the new name waits for the confirmation
    await client.ack()
    await client.expect("b")


async def test_d13_a_request_without_nonce_confirms_nothing(client, publish, world):
    publish(a="1", b="1")
    await client.want("a")
    await client.expect("a")
    await client.also("b", nonce="")
    await client.nothing()
    assert not world.of(Acked)
    await client.nack()
    await client.expect("b")
    await client.also("b", nonce="")
    await world.quiet()
    assert not world.of(Acked)


async def test_d14_an_unknown_nonce_confirms_nothing_and_harms_nothing(client, publish, world):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.ack(nonce="never-sent")
    await client.nothing()
    assert not world.of(Acked)
    assert not world.of(Nacked)
    await client.ack()
    publish(a="2")
    await client.expect("a")


async def test_d15_one_response_of_a_type_is_out_at_a_time(client, publish):
    publish(a="1", b="1")
    await client.want("a", "b")
    await client.expect("a", "b")
    publish(a="2", b="1")
    await client.nothing()
    await client.ack()
    await client.expect("a")


@pytest.mark.parametrize("mode", ["ads"])
@pytest.mark.parametrize("type_", [CDS], ids=["cds"])
async def test_d16_nonces_increase_across_the_types_of_a_stream(client, world):
    world.server.publish(FRONTEND, merged(*(snapshot(type_, {"a": "1"}) for type_ in (CDS, EDS, LDS, RDS))))
    numbers = []
    for type_ in (CDS, EDS, LDS, RDS):
        await client.want("a", of=type_)
        answer = await client.expect("a", of=type_)
        numbers.append(int(answer.nonce.rpartition(".")[2]))
        await client.ack(of=type_)
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("mode", ["ads"])
@pytest.mark.parametrize("type_", [CDS], ids=["cds"])
async def test_d17_extension_configs_are_not_served_and_not_missed(client, world):
    """ECDS is not offered: filters travel in the listener. Asking for it is ignored and harms no one."""
    world.server.publish(FRONTEND, snapshot(CDS, {"a": "1"}))
    await client.want("*")
    await client.expect("a")
    await client.ack()
    extension = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
    await client.also("filter", type_url=extension, nonce="")
    await client.nothing()
    world.server.publish(FRONTEND, snapshot(CDS, {"a": "2"}))
    await client.expect("a")


@pytest.mark.parametrize("mode", ["ads"])
@pytest.mark.parametrize("type_", [CDS], ids=["cds"])
async def test_d18_interleaved_types_on_one_stream(client, world):
    names = {type_: f"only-{type_.name}" for type_ in TYPES}
    world.server.publish(FRONTEND, merged(*(snapshot(type_, {name: "1"}) for type_, name in names.items())))
    for type_, name in names.items():
        await client.want(name, of=type_)
        await client.expect(name, of=type_)
    for type_ in reversed(TYPES):
        await client.ack(of=type_)
    await client.nothing()
    for type_ in TYPES:
        await client.also("b", of=type_)
        if type_ is RTDS:
            await client.expect("b", of=type_)
        else:
            await client.expect(removed=("b",), of=type_)
