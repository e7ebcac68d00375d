"""F. What is checked before a snapshot is published."""

import pytest

from tests.conformance.dialogue import FRONTEND, World
from tests.conformance.resources import (
    assignment,
    composite_cluster,
    eds_cluster,
    http_listener,
    layer,
    routes,
    static_cluster,
)
from xds_server.inspection.listeners import HTTP_CONNECTION_MANAGER
from xds_server.resource_types import CDS, LDS
from xds_server.resources import Resource, ResourceError
from xds_server.snapshot import Snapshot, SnapshotError

CONSISTENT = (
    http_listener("l", "r"),
    routes("r", "to-x"),
    composite_cluster("to-x", "x"),
    eds_cluster("x"),
    assignment("x", 80),
    layer("headrace"),
)


def problems(*resources, layers=()):
    return Snapshot.of(resources).check(layers)


def without(name):
    return [resource for resource in CONSISTENT if resource.name != name]


def test_f01_a_consistent_snapshot_has_no_problems():
    assert problems(*CONSISTENT, layers=["headrace"]) == []


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        ([assignment("x", 80)], "eds 'x' is used by no cds resource"),
        ([eds_cluster("x")], "cds 'x' needs eds 'x', which is missing"),
        ([http_listener("l", "r")], "lds 'l' needs rds 'r', which is missing"),
        ([http_listener("l", "r"), routes("other")], "lds 'l' needs rds 'r', which is missing"),
        ([routes("r")], "rds 'r' is used by no lds resource"),
        (without("to-x"), "rds 'r' needs cds 'to-x', which is missing"),
        ([composite_cluster("to-x", "x")], "cds 'to-x' needs cds 'x', which is missing"),
    ],
)
def test_f02_to_f06_and_f11_references_are_followed(resources, problem):
    assert problem in problems(*resources)


def test_f07_the_service_name_is_the_reference():
    assert problems(eds_cluster("x", service="s"), assignment("s", 80)) == []
    assert "cds 'x' needs eds 's', which is missing" in problems(
        eds_cluster("x", service="s"), assignment("x", 80)
    )


def test_f08_the_default_filter_chain_counts():
    from envoy_data_plane.envoy.config.listener import v3 as listener

    message = listener.Listener.parse(http_listener("l", "r").body)
    message.default_filter_chain, message.filter_chains = message.filter_chains[0], []
    assert "lds 'l' needs rds 'r', which is missing" in problems(Resource.of(message))


def test_f09_an_unknown_type_is_refused():
    with pytest.raises(ResourceError, match="not a type that is served"):
        Resource(HTTP_CONNECTION_MANAGER, "x", b"")


def test_f10_the_same_name_with_other_content_is_refused_by_name():
    with pytest.raises(SnapshotError, match="cds 'x' occurs twice"):
        Snapshot.of([static_cluster("x", "1"), static_cluster("x", "2")])


def test_f11_runtime_layers_of_the_bootstrap_must_exist():
    assert problems(static_cluster("x"), layers=["headrace"]) == [
        "runtime layer 'headrace' is missing: Envoy waits 15 s for it at start"
    ]


def test_f11_a_breaker_key_must_name_a_cluster():
    from envoy_data_plane.envoy.service.runtime import v3 as runtime
    from envoy_data_plane.google import protobuf

    key = "circuit_breakers.chat/interactive/eu.default.retry_budget.min_retry_concurrency"
    values = {key: protobuf.Value(number_value=3), "other.key": protobuf.Value(number_value=1)}
    found = Resource.of(runtime.Runtime(name="headrace", layer=protobuf.Struct(fields=values)))
    assert problems(found) == ["rtds 'headrace' needs cds 'chat/interactive/eu', which is missing"]
    assert problems(found, static_cluster("chat/interactive/eu")) == []


def test_a_resource_whose_bytes_are_another_message_is_a_problem():
    assert problems(Resource(CDS.url, "x", b"\xff\xff"))[0].startswith("cds 'x': not a Cluster")
    assert "cds 'y': name is 'x'" in problems(Resource(CDS.url, "y", static_cluster("x").body))


async def test_f12_after_a_refused_snapshot_the_last_good_one_is_served(world):
    world.server.publish(FRONTEND, Snapshot.of(CONSISTENT))
    good = world.server.snapshot(FRONTEND)
    with pytest.raises(SnapshotError, match=r"us-east.*to-x.*missing"):
        world.server.publish(FRONTEND, Snapshot.of(without("to-x")))
    assert world.server.snapshot(FRONTEND) is good
    client = world.client("delta", "ads", CDS)
    await client.want("*")
    await client.expect("to-x", "x")


async def test_f12_one_front_ends_bad_snapshot_does_not_stop_the_others(world):
    snapshots = {"bad": Snapshot.of(without("x")), "good": Snapshot.of(CONSISTENT)}
    refused = world.server.publish_all(snapshots)
    assert set(refused) == {"bad"}
    assert world.server.snapshot("good") == snapshots["good"]
    assert world.server.snapshot("bad") is None


async def test_an_empty_snapshot_is_never_published(world):
    with pytest.raises(SnapshotError, match="empty"):
        world.server.publish(FRONTEND, Snapshot.of([]))


async def test_a_missing_bootstrap_layer_is_refused():
    world = World(runtime_layers=["headrace"])
    with pytest.raises(SnapshotError, match="headrace"):
        world.server.publish(FRONTEND, Snapshot.of([static_cluster("x")]))


def test_only_changed_names_are_changes():
    old = Snapshot.of(CONSISTENT)
    new = old.with_resources(static_cluster("y"), http_listener("l", "r", content="2"))
    assert new.changes_from(old) == {CDS.url: {"y"}, LDS.url: {"l"}}
    assert old.changes_from(old) == {}
