"""C. Refusals: the last good stays, nothing loops, everything else flows."""

import pytest

from tests.conformance.dialogue import FRONTEND
from tests.conformance.resources import snapshot
from tests.conformance.test_a_subscription import ROOTS, pushed
from tests.conformance.test_b_first_answers import merged
from xds_server.events import Acked, Nacked
from xds_server.resource_types import CDS, RDS, TYPES


def acked(world, type_, name):
    return list(world.server.acked_versions(FRONTEND, type_, name).values())


async def test_c01_a_refusal_is_recorded_and_confirms_nothing(client, publish, world, type_):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    await world.quiet()
    before = acked(world, type_, "a")
    publish(a="2")
    answer = await client.expect("a")
    await client.nack("no such thing")
    await world.quiet()
    [event] = world.of(Nacked)
    assert (event.type, event.code, event.message) == (type_.name, 3, "no such thing")
    assert (event.client.id, event.version, event.names) == (client.node.id, answer.version, ("a",))
    assert acked(world, type_, "a") == before


async def test_c02_refused_content_is_not_sent_again(client, publish):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.nack()
    await client.nothing()
    publish(a="1")
    await client.nothing()
    publish(a="1", b="1")
    await client.nothing()


async def test_c03_changed_content_recovers(client, publish, world, type_):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.nack()
    publish(a="2")
    await client.expect("a")
    await client.ack()
    await client.nothing()
    assert world.of(Acked)[-1].recovered
    assert acked(world, type_, "a") == [world.server.snapshot(FRONTEND).of_type(type_.url)["a"].version]


async def test_c04_refusing_the_first_response_is_not_a_first_request(client, publish):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.nack(version="")
    await client.nothing()


async def test_c05_a_refusal_that_adds_a_name_is_served_that_name(client, publish):
    publish(a="1", b="1")
    await client.want("a")
    await client.expect("a")
    client.names[client.type.url] = ["a", "b"]
    await client.nack(subscribe=("b",))
    await client.expect(*pushed(client, "ab", "b"))


@pytest.mark.parametrize("type_", [RDS], ids=["rds"])
@pytest.mark.parametrize("mode", ["ads"])
async def test_c06_a_refusal_in_one_type_leaves_the_others_alone(client, world):
    def publish(content):
        parts = snapshot(CDS, {"c": content}), snapshot(RDS, {"a": content})
        world.server.publish(FRONTEND, merged(*parts))

    publish("1")
    await client.want("a", of=RDS)
    await client.expect("a", of=RDS)
    await client.want("*", of=CDS)
    await client.expect("c", of=CDS)
    await client.ack(of=CDS)
    await client.nack(of=RDS)
    await client.nothing()
    publish("2")
    await client.expect("c", of=CDS)
    await client.expect("a", of=RDS)


@pytest.mark.parametrize("type_", [t for t in TYPES if t not in ROOTS], ids=lambda type_: type_.name)
async def test_c07_after_a_refusal_the_clients_state_is_unknown_not_old(client, publish, world, type_):
    """A client may have accepted part of a refused response (grpc proposal A46), so going back to the
    content it confirmed before is a change and is sent."""
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    publish(a="2")
    await client.expect("a")
    await client.nack()
    publish(a="1")
    await client.expect("a")


async def test_c08_a_refusal_with_a_stale_nonce_blames_nothing(client, publish, world):
    publish(a="1")
    await client.want("a")
    first = await client.expect("a")
    await client.ack()
    publish(a="2")
    await client.expect("a")
    await client.nack(nonce=first.nonce)
    await world.quiet()
    [event] = world.of(Nacked)
    assert event.stale
    await client.ack()
    await client.nothing()
    assert not world.of(Acked)[-1].recovered


async def test_c09_the_same_refusal_again_is_counted_but_told_as_repeated(client, publish, world):
    publish(a="1")
    await client.want("a")
    for number, reason in enumerate(["bad", "bad", "worse"]):
        await client.expect("a")
        await client.nack(reason)
        publish(a=f"{number}+")
    await client.expect("a")
    await client.ack()
    await world.quiet()
    assert [event.repeated for event in world.of(Nacked)] == [False, True, False]
    assert [event.recovered for event in world.of(Acked)] == [True]


async def test_c09_a_refusal_said_twice_of_one_response_is_told_as_repeated(client, publish, world):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.nack("bad")
    await client.nack("bad")
    await client.nothing()
    assert [(event.stale, event.repeated) for event in world.of(Nacked)] == [(False, False), (True, True)]
