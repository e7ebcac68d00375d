import betterproto2
import pytest
from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.clusters.composite import v3 as composite
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.service.discovery import v3 as discovery
from envoy_data_plane.envoy.service.load_stats import v3 as load_stats
from envoy_data_plane.envoy.service.runtime import v3 as runtime
from envoy_data_plane.envoy.type import v3 as type_v3
from envoy_data_plane.google import rpc
from envoy_data_plane.xds.type.matcher import v3 as matcher

from xds_server import views

GENERATED: dict[str, type[betterproto2.Message]] = {
    "DiscoveryRequest": discovery.DiscoveryRequest,
    "DeltaDiscoveryRequest": discovery.DeltaDiscoveryRequest,
    "Node": core.Node,
    "BuildVersion": core.BuildVersion,
    "SemanticVersion": type_v3.SemanticVersion,
    "Status": rpc.Status,
    "TypedExtensionConfig": core.TypedExtensionConfig,
    "Cluster": cluster.Cluster,
    "EdsClusterConfig": cluster.ClusterEdsClusterConfig,
    "ConfigSource": core.ConfigSource,
    "CommonLbConfig": cluster.ClusterCommonLbConfig,
    "Percent": type_v3.Percent,
    "RingHashLbConfig": cluster.ClusterRingHashLbConfig,
    "MaglevLbConfig": cluster.ClusterMaglevLbConfig,
    "CustomClusterType": cluster.ClusterCustomClusterType,
    "CompositeCluster": composite.ClusterConfig,
    "CompositeEntry": composite.ClusterConfigClusterEntry,
    "ClusterLoadAssignment": endpoint.ClusterLoadAssignment,
    "Policy": endpoint.ClusterLoadAssignmentPolicy,
    "DropOverload": endpoint.ClusterLoadAssignmentPolicyDropOverload,
    "FractionalPercent": type_v3.FractionalPercent,
    "LocalityLbEndpoints": endpoint.LocalityLbEndpoints,
    "Locality": core.Locality,
    "LbEndpoint": endpoint.LbEndpoint,
    "Endpoint": endpoint.Endpoint,
    "Metadata": core.Metadata,
    "Address": core.Address,
    "SocketAddress": core.SocketAddress,
    "Listener": listener.Listener,
    "ApiListener": listener.ApiListener,
    "FilterChain": listener.FilterChain,
    "Filter": listener.Filter,
    "HttpConnectionManager": hcm.HttpConnectionManager,
    "Rds": hcm.Rds,
    "RouteConfiguration": route.RouteConfiguration,
    "VirtualHost": route.VirtualHost,
    "Route": route.Route,
    "RouteList": route.RouteList,
    "RouteAction": route.RouteAction,
    "WeightedCluster": route.WeightedCluster,
    "ClusterWeight": route.WeightedClusterClusterWeight,
    "MirrorPolicy": route.RouteActionRequestMirrorPolicy,
    "Matcher": matcher.Matcher,
    "MatcherList": matcher.MatcherMatcherList,
    "FieldMatcher": matcher.MatcherMatcherListFieldMatcher,
    "MatcherTree": matcher.MatcherMatcherTree,
    "MatchMap": matcher.MatcherMatcherTreeMatchMap,
    "OnMatch": matcher.MatcherOnMatch,
    "Runtime": runtime.Runtime,
    "LoadStatsRequest": load_stats.LoadStatsRequest,
    "ClusterStats": endpoint.ClusterStats,
    "UpstreamLocalityStats": endpoint.UpstreamLocalityStats,
}
WELL_KNOWN = {"Struct", "Value", "Any", "UInt32Value", "UInt64Value", "Empty", "Duration"}


def test_every_view_is_compared_with_a_generated_class():
    assert set(views.SCHEMA) == set(GENERATED) | WELL_KNOWN


@pytest.mark.parametrize("view", GENERATED)
def test_view_has_the_names_and_numbers_of_the_generated_class(view):
    generated = GENERATED[view].__dataclass_fields__
    for number, name, label, type_ in views.fields_of(view):
        field = generated[name].metadata["betterproto"]
        assert field.number == number
        assert field.repeated == (label == "repeated"), name
        assert (field.map_meta is not None) == (label == "map"), name
        if not label:
            scalar = {"int32": {"int32", "enum"}}.get(type_, {type_})
            assert field.proto_type in scalar | {"message"}, name


def test_unknown_fields_are_skipped_and_broken_bytes_are_refused():
    body = bytes(cluster.Cluster(name="a", alt_stat_name="other"))
    assert views.decode("Cluster", body).name == "a"
    with pytest.raises(views.DecodeError):
        views.decode("Cluster", b"\xff\xff")


def test_a_view_is_encoded_as_the_generated_class_is():
    entries = [{"name": "a"}, {"name": "b"}]
    generated = composite.ClusterConfig(clusters=[composite.ClusterConfigClusterEntry(**e) for e in entries])
    assert views.encode("CompositeCluster", {"clusters": entries}) == bytes(generated)
