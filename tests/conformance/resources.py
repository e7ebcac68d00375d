"""Small valid resources of every type, and snapshots of them that pass the checks."""

from datetime import timedelta
from zlib import crc32

from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.clusters.composite import v3 as composite
from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.service.runtime import v3 as runtime
from envoy_data_plane.google import protobuf

from xds_server.resource_types import CDS, EDS, LDS, RDS, RTDS, ResourceType
from xds_server.resources import Resource
from xds_server.snapshot import Snapshot

ADS = core.ConfigSource(ads=core.AggregatedConfigSource(), resource_api_version=core.ApiVersion.V3)


def address(port: int, host: str = "127.0.0.1") -> core.Address:
    return core.Address(socket_address=core.SocketAddress(address=host, port_value=port))


def static_cluster(name: str, content: str = "") -> Resource:
    message = cluster.Cluster(name=name, connect_timeout=timedelta(seconds=1), alt_stat_name=content)
    message.type = cluster.ClusterDiscoveryType.STATIC
    return Resource.of(message)


def eds_cluster(name: str, content: str = "", service: str = "") -> Resource:
    return Resource.of(
        cluster.Cluster(
            name=name,
            type=cluster.ClusterDiscoveryType.EDS,
            eds_cluster_config=cluster.ClusterEdsClusterConfig(eds_config=ADS, service_name=service),
            connect_timeout=timedelta(seconds=1),
            alt_stat_name=content,
        )
    )


def composite_cluster(name: str, *members: str) -> Resource:
    entries = [composite.ClusterConfigClusterEntry(name=member) for member in members]
    return Resource.of(
        cluster.Cluster(
            name=name,
            cluster_type=cluster.ClusterCustomClusterType(
                name="envoy.clusters.composite",
                typed_config=protobuf.Any.pack(composite.ClusterConfig(clusters=entries)),
            ),
            lb_policy=cluster.ClusterLbPolicy.CLUSTER_PROVIDED,
            connect_timeout=timedelta(seconds=1),
        )
    )


def assignment(name: str, *ports: int) -> Resource:
    endpoints = [endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=address(port))) for port in ports]
    locality = endpoint.LocalityLbEndpoints(
        locality=core.Locality(region="here"), lb_endpoints=endpoints, load_balancing_weight=1
    )
    return Resource.of(endpoint.ClusterLoadAssignment(cluster_name=name, endpoints=[locality]))


def routes(name: str, *clusters: str, content: str = "") -> Resource:
    """A route per cluster; the last one takes everything."""
    found = [
        route.Route(match=route.RouteMatch(prefix=f"/{to}"), route=route.RouteAction(cluster=to))
        for to in clusters[:-1]
    ]
    found += [
        route.Route(match=route.RouteMatch(prefix="/"), route=route.RouteAction(cluster=to))
        for to in clusters[-1:]
    ]
    host = route.VirtualHost(name=f"host{content}", domains=["*"], routes=found)
    return Resource.of(route.RouteConfiguration(name=name, virtual_hosts=[host]))


def http_manager(**specifier: object) -> protobuf.Any:
    return protobuf.Any.pack(
        hcm.HttpConnectionManager(
            stat_prefix="http",
            http_filters=[hcm.HttpFilter(name="router", typed_config=protobuf.Any.pack(router.Router()))],
            **specifier,
        )
    )


def http_listener(name: str, route_name: str, port: int = 0, content: str = "") -> Resource:
    manager = http_manager(rds=hcm.Rds(config_source=ADS, route_config_name=route_name))
    chain = listener.FilterChain(filters=[listener.Filter(name="hcm", typed_config=manager)])
    return Resource.of(
        listener.Listener(name=name, address=address(port), filter_chains=[chain], stat_prefix=content)
    )


def plain_listener(name: str, content: str = "") -> Resource:
    chain = listener.FilterChain(name="tcp")
    return Resource.of(
        listener.Listener(name=name, address=address(0), filter_chains=[chain], stat_prefix=content)
    )


def layer(name: str, content: str = "") -> Resource:
    values = {"key": protobuf.Value(string_value=content)}
    return Resource.of(runtime.Runtime(name=name, layer=protobuf.Struct(fields=values)))


def resource(type_: ResourceType, name: str, content: str = "1") -> Resource:
    """A resource of any type whose version depends on `content`."""
    if type_ is CDS:
        return static_cluster(name, content)
    if type_ is EDS:
        return assignment(name, 1 + crc32(content.encode()) % 60_000)
    if type_ is LDS:
        return plain_listener(name, content)
    if type_ is RDS:
        return routes(name, content=content)
    assert type_ is RTDS
    return layer(name, content)


def companions(type_: ResourceType, name: str) -> list[Resource]:
    """What uses a resource, so that the snapshot is consistent."""
    if type_ is EDS:
        return [eds_cluster(name)]
    if type_ is RDS:
        return [http_listener(f"for-{name}", name)]
    return []


def snapshot(type_: ResourceType, contents: dict[str, str]) -> Snapshot:
    """name -> content of one type, with companions, and something so that it is never empty."""
    found = [resource(type_, name, content) for name, content in contents.items()]
    extra = [companion for name in contents for companion in companions(type_, name)]
    keeper = layer("keeper") if type_ is not RTDS else static_cluster("keeper")
    return Snapshot.of([*found, *extra, keeper])
