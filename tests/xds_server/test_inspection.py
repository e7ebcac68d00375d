"""What a client would refuse is found before it is sent."""

from datetime import timedelta

import pytest
from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.type import v3 as type_v3
from envoy_data_plane.google import protobuf
from envoy_data_plane.xds.core import v3 as xds_core
from envoy_data_plane.xds.type.matcher import v3 as matcher

from tests.conformance.resources import composite_cluster, http_manager
from xds_server.resource_types import CDS
from xds_server.resources import Reference, Resource

HERE = core.Locality(region="here")


def at(address, port=80, weight=None):
    socket = core.SocketAddress(address=address, port_value=port)
    host = endpoint.Endpoint(address=core.Address(socket_address=socket))
    return endpoint.LbEndpoint(endpoint=host, load_balancing_weight=weight)


def place(*endpoints, locality=HERE, **fields):
    return endpoint.LocalityLbEndpoints(locality=locality, lb_endpoints=list(endpoints), **fields)


def assignment_problems(*places, **fields):
    message = endpoint.ClusterLoadAssignment(cluster_name="x", endpoints=list(places), **fields)
    return Resource.of(message).problems


def drops(*percentages):
    overloads = [
        endpoint.ClusterLoadAssignmentPolicyDropOverload(category=f"c{number}", drop_percentage=percentage)
        for number, percentage in enumerate(percentages)
    ]
    return endpoint.ClusterLoadAssignmentPolicy(drop_overloads=overloads)


def test_a_good_assignment_has_no_problems():
    there = core.Locality(region="there")
    percentage = type_v3.FractionalPercent(numerator=100)
    assert not assignment_problems(
        place(at("10.0.0.1", weight=2**32 - 2), at("::1", weight=1)),
        place(at("10.0.0.1", port=81), locality=there, priority=1, load_balancing_weight=2**32 - 1),
        policy=drops(percentage),
    )
    assert not assignment_problems()


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ([place(at("10.0.0.1", weight=0))], "weight 0"),
        ([place(at("10.0.0.1", weight=2**32 - 1), at("10.0.0.2"))], "sum to 4294967296"),
        ([place(at("10.0.0.1"), load_balancing_weight=0)], "weight 0"),
        ([place(at("10.0.0.1"), at("10.0.0.1"))], "10.0.0.1:80 occurs 2 times"),
        ([place(at("10.0.0.1"), priority=1)], "dense from 0"),
        ([place(at("10.0.0.1")), place(at("10.0.0.2"))], "locality here// occurs 2 times"),
        ([place(at("10.0.0.1"), locality=None)], "no locality"),
        ([place(at("engine.example"))], "'engine.example', which is not an IP address"),
        ([place(at(""))], "not an IP address"),
        ([place(at("10.0.0.1", port=0))], "port 0"),
        ([place(at("10.0.0.1", port=65536))], "port 65536"),
        (
            [
                place(at("10.0.0.1"), load_balancing_weight=2**32 - 1),
                place(at("10.0.0.2"), locality=core.Locality(zone="b"), load_balancing_weight=1),
            ],
            "locality weights of priority 0 sum to 4294967296",
        ),
    ],
)
def test_assignments_that_clients_refuse(places, problem):
    [found] = assignment_problems(*places)
    assert problem in found


@pytest.mark.parametrize(
    ("percentages", "problem"),
    [
        ([type_v3.FractionalPercent(numerator=1)] * 2, "2 drop categories"),
        ([type_v3.FractionalPercent(numerator=101)], "more than everything"),
        ([type_v3.FractionalPercent(numerator=1, denominator=7)], "unknown denominator"),
    ],
)
def test_drop_policies_that_clients_refuse(percentages, problem):
    [found] = assignment_problems(policy=drops(*percentages))
    assert problem in found


def cluster_problems(**fields):
    return Resource.of(cluster.Cluster(name="x", **fields)).problems


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": cluster.ClusterDiscoveryType.EDS}, "eds_config"),
        ({"connect_timeout": timedelta(0)}, "connect_timeout"),
        ({"ring_hash_lb_config": cluster.ClusterRingHashLbConfig(minimum_ring_size=1 << 24)}, "ring size"),
        (
            {
                "ring_hash_lb_config": cluster.ClusterRingHashLbConfig(
                    minimum_ring_size=1024, maximum_ring_size=512
                )
            },
            "minimum_ring_size 1024 is above",
        ),
        ({"maglev_lb_config": cluster.ClusterMaglevLbConfig(table_size=65536)}, "prime"),
        (
            {"common_lb_config": cluster.ClusterCommonLbConfig(healthy_panic_threshold=type_v3.Percent(101))},
            "healthy_panic_threshold",
        ),
    ],
)
def test_clusters_that_envoy_refuses(fields, problem):
    assert any(problem in found for found in cluster_problems(**fields))


def test_composites_that_envoy_refuses():
    assert "needs members" in composite_cluster("x").problems[0]
    assert "its own member" in composite_cluster("x", "x").problems[0]


def test_names_are_allowed_where_envoy_resolves_them():
    inside = endpoint.ClusterLoadAssignment(cluster_name="x", endpoints=[place(at("engine.example"))])
    assert not cluster_problems(load_assignment=inside)


def to(*entries, **match):
    weights = [route.WeightedClusterClusterWeight(name=name, weight=weight) for name, weight in entries]
    action = route.RouteAction(weighted_clusters=route.WeightedCluster(clusters=weights))
    return route.Route(match=route.RouteMatch(prefix="/"), route=action)


def host(name="h", domains=("*",), **fields):
    return route.VirtualHost(name=name, domains=list(domains), **fields)


def routes(*hosts):
    return Resource.of(route.RouteConfiguration(name="r", virtual_hosts=list(hosts)))


@pytest.mark.parametrize(
    ("hosts", "problem"),
    [
        ([host(routes=[to(("a", 0))])], "sum to 0"),
        ([host(routes=[to(("a", 2**32 - 1), ("b", 1))])], "sum to 4294967296"),
        ([host(routes=[to()])], "weighted_clusters is empty"),
        ([host(routes=[to(("", 1))])], "exactly one of name and cluster_header"),
        ([host(), host(domains=["other"])], "virtual host name 'h' occurs 2 times"),
        ([host(), host("other")], "domain '*' occurs 2 times"),
        ([host(domains=[])], "needs a name and domains"),
        ([host(routes=[route.Route(match=route.RouteMatch(prefix="/"))])], "has no action"),
        ([host(routes=[route.Route(route=route.RouteAction(cluster="a"))])], "has no match"),
    ],
)
def test_routes_that_envoy_refuses(hosts, problem):
    assert any(problem in found for found in routes(*hosts).problems)


def test_routes_refer_to_plain_weighted_mirrored_and_matched_clusters():
    mirror = route.RouteActionRequestMirrorPolicy(cluster="mirror")
    plain = route.Route(
        match=route.RouteMatch(prefix="/a"),
        route=route.RouteAction(cluster="plain", request_mirror_policies=[mirror]),
    )
    found = routes(host(routes=[plain, to(("w1", 1), ("w2", 2))]), host("m", ["m"], matcher=tree("matched")))
    names = {"plain", "mirror", "w1", "w2", "matched"}
    assert found.references == {Reference(CDS.url, name) for name in names}
    assert not found.problems


def tree(cluster_name):
    """A virtual host matcher: header value -> route."""
    leaf = protobuf.Any.pack(
        route.Route(match=route.RouteMatch(prefix="/"), route=route.RouteAction(cluster=cluster_name))
    )
    action = xds_core.TypedExtensionConfig(name="route", typed_config=leaf)
    outcomes = matcher.MatcherMatcherTreeMatchMap(map={"m": matcher.MatcherOnMatch(action=action)})
    return matcher.Matcher(matcher_tree=matcher.MatcherMatcherTree(exact_match_map=outcomes))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "needs an address"),
        ({"address": at("127.0.0.1").endpoint.address}, "needs a filter chain"),
        ({"api_listener": listener.ApiListener(api_listener=http_manager())}, "needs rds or route_config"),
        (
            {"api_listener": listener.ApiListener(api_listener=http_manager(rds=hcm.Rds()))},
            "rds needs config_source and route_config_name",
        ),
    ],
)
def test_listeners_that_envoy_refuses(fields, problem):
    assert any(problem in found for found in Resource.of(listener.Listener(name="l", **fields)).problems)


def test_the_problems_of_inline_routes_are_the_listeners():
    inline = route.RouteConfiguration(name="r", virtual_hosts=[host(routes=[to(("a", 0))])])
    found = Resource.of(
        listener.Listener(
            name="l", api_listener=listener.ApiListener(api_listener=http_manager(route_config=inline))
        )
    )
    assert "sum to 0" in found.problems[0]
    assert found.references == {Reference(CDS.url, "a")}
