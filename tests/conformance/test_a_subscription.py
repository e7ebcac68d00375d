"""A. What a client is subscribed to."""

import pytest

from xds_server.resource_types import CDS, LDS, TYPES

ROOTS = (CDS, LDS)


def pushed(client, everything, change):
    """What a push holds: SotW root types carry everything, all others the change."""
    return set(everything) if client.type.full_state and not client.delta else set(change)


@pytest.mark.parametrize("type_", ROOTS, ids=lambda type_: type_.name)
async def test_a01_empty_first_request_is_and_stays_the_wildcard(client, publish):
    publish(a="1", b="1")
    await client.want()
    await client.expect("a", "b")
    await client.ack()
    await client.nothing()
    publish(a="1", b="1", c="1")
    await client.expect(*pushed(client, "abc", "c"))


@pytest.mark.parametrize("type_", ROOTS, ids=lambda type_: type_.name)
@pytest.mark.parametrize("protocol", ["sotw"])
async def test_a02_naming_one_resource_ends_the_legacy_wildcard(client, publish):
    publish(a="1", b="1")
    await client.want()
    await client.expect("a", "b")
    await client.want("a")
    await client.nothing()
    publish(a="1", b="2")
    await client.nothing()
    publish(a="2", b="2")
    await client.expect("a")


@pytest.mark.parametrize("protocol", ["sotw"])
async def test_a03_an_empty_list_after_names_is_nothing_and_not_everything(client, publish):
    publish(a="1", b="1")
    await client.want("a")
    await client.expect("a")
    await client.want()
    await client.nothing()
    publish(a="2", b="2")
    await client.nothing()


async def test_a04_explicit_wildcard_with_and_without_names(client, publish):
    publish(a="1", b="1")
    await client.want("*")
    await client.expect("a", "b")
    await client.ack()
    await client.also("a")
    if client.delta:
        await client.expect("a")  # asked for by name: given again (A12)
        await client.ack()
    await client.drop("*")
    await client.nothing()
    publish(a="1", b="2")
    await client.nothing()
    await client.also("*")
    await client.expect(*pushed(client, "ab", "b"))


@pytest.mark.parametrize("type_", ROOTS, ids=lambda type_: type_.name)
@pytest.mark.parametrize("protocol", ["delta"])
async def test_a05_a_name_beside_the_legacy_wildcard_leaves_it_on(client, publish):
    publish(a="1", b="1")
    await client.want()
    await client.expect("a", "b")
    await client.ack()
    await client.also("a")
    await client.expect("a")
    await client.ack()
    publish(a="1", b="2")
    await client.expect("b")


@pytest.mark.parametrize("protocol", ["delta"])
async def test_a06_leaving_the_wildcard_keeps_the_names(client, publish):
    publish(a="1", b="1")
    await client.want("*", "a")
    await client.expect("a", "b")
    await client.ack()
    await client.drop("*")
    await client.nothing()
    publish(a="1", b="2")
    await client.nothing()
    publish(a="2", b="2")
    await client.expect("a")


@pytest.mark.parametrize("protocol", ["delta"])
async def test_a07_unsubscribing_an_unknown_name_changes_nothing(client, publish):
    publish(a="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    await client.drop("never-asked-for")
    await client.nothing()
    publish(a="2")
    await client.expect("a")


@pytest.mark.parametrize("protocol", ["delta"])
async def test_a08_unsubscribing_a_name_under_the_wildcard_tells_which_it_is(client, publish):
    publish(a="1", b="1")
    await client.want("*", "b", "c")
    expected_layer = {"c"} if client.type.name == "rtds" else set()  # an asked-for layer always exists
    await client.expect("a", "b", *expected_layer, removed=() if expected_layer else ("c",))
    await client.ack()
    await client.drop("b")
    await client.expect("b")
    await client.ack()
    await client.drop("c")
    await client.expect(removed=("c",))


@pytest.mark.parametrize("type_", [t for t in TYPES if t not in ROOTS], ids=lambda type_: type_.name)
async def test_a09_other_types_have_no_legacy_wildcard(client, publish):
    publish(a="1")
    await client.want()
    await client.nothing()
    await client.want("*")
    await client.expect("a")


@pytest.mark.parametrize("protocol", ["delta"])
async def test_a10_initial_versions_are_taken_as_known(client, publish, world):
    publish(a="1", b="1")
    first = world.client("delta", "ads", client.type)
    await first.want("a", "b")
    versions = (await first.expect("a", "b")).versions
    await client.want("a", "b", held=versions)
    await client.nothing()
    publish(a="2", b="1")
    await client.expect("a")


@pytest.mark.parametrize("protocol", ["sotw"])
async def test_a11_leaving_and_asking_again_sends_again(client, publish):
    publish(a="1", b="1")
    await client.want("a")
    await client.expect("a")
    await client.ack()
    await client.want()
    await client.nothing()
    await client.want("a")
    await client.expect("a")


@pytest.mark.parametrize("protocol", ["delta"])
async def test_a12_asking_again_for_a_held_name_sends_it_again(client, publish):
    publish(a="1", b="1")
    await client.want("a", "b")
    await client.expect("a", "b")
    await client.ack()
    await client.also("a")
    await client.expect("a")


async def test_a13_a_name_that_looks_like_a_prefix_is_a_name(client, publish):
    """Glob collections exist for `xdstp:` names only, which this control plane does not use; cluster names
    here hold slashes, and reading `interactive/*` as a prefix would be a guess."""
    publish(**{"class/a": "1"})
    await client.want("class/*", "class/a")
    if client.type.name == "rtds":
        await client.expect("class/*", "class/a")
    else:
        await client.expect("class/a", removed=("class/*",) if client.delta else ())
