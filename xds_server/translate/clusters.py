"""CDS: member clusters (an engine's replicas), composite clusters (attempts), shed clusters (refusals).

A member changes only when its engine's settings do, never for load: a changed member drops its idle
connections and warms again. What follows the load are the composite (free to change), EDS and RTDS.

Settings that many clusters share are encoded once; a cluster is its settings and its names, concatenated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import cache, lru_cache

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    CircuitBreakersThresholdsRetryBudget,
    Cluster,
    ClusterCommonLbConfig,
    ClusterCommonLbConfigConsistentHashingLbConfig,
    ClusterDiscoveryType,
    ClusterDnsLookupFamily,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    ClusterMaglevLbConfig,
    ClusterRingHashLbConfig,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.cluster.v3 import OutlierDetection as EnvoyOutlierDetection
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as HeaderMutationRule
from envoy_data_plane.envoy.config.core.v3 import (
    HealthCheck as EnvoyHealthCheck,
)
from envoy_data_plane.envoy.config.core.v3 import (
    HealthCheckHttpHealthCheck,
    Http1ProtocolOptions,
    HttpProtocolOptions,
    TcpKeepalive,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutation, Mutations
from envoy_data_plane.envoy.extensions.filters.http.upstream_codec.v3 import UpstreamCodec
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamHttpProtocolOptions,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptionsExplicitHttpConfig
from envoy_data_plane.envoy.type.v3 import Percent

from xds_server import views
from xds_server.resources import length_delimited
from xds_server.routing import Endpoint, Engine, HealthCheck, OutlierDetection
from xds_server.translate import endpoints as eds
from xds_server.translate import names
from xds_server.translate.packing import ads, overwrite, pack

DEFAULT_RETRY_LIMIT = 10
"""Concurrent retries of a composite for which the runtime layer names no limit."""

MAX_RESPONSE_HEADERS_KB = 192
MAX_RESPONSE_HEADERS = 200

_LB_POLICIES = {"ring_hash": ClusterLbPolicy.RING_HASH, "maglev": ClusterLbPolicy.MAGLEV}
_COMPOSITE = "type.googleapis.com/envoy.extensions.clusters.composite.v3.ClusterConfig"
_EDS_CONFIG, _LOAD_ASSIGNMENT = 3, 33
"""Field numbers of `Cluster.eds_cluster_config` and `Cluster.load_assignment`."""
_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def member(traffic_class: str, engine: Engine, dns_endpoints: Iterable[Endpoint] = ()) -> bytes:
    """Encode the cluster of an engine's replicas for one class.

    `dns_endpoints` are used for an engine that is found by DNS only. Raises ValueError for an unknown
    load-balancing policy.
    """
    if engine.lb_policy not in _LB_POLICIES:
        known = ", ".join(_LB_POLICIES)
        raise ValueError(f"engine {engine.name!r}: lb_policy {engine.lb_policy!r} is not one of {known}")
    name = names.member(traffic_class, engine.name)
    encoded = _settings(replace(engine, name="")) + _named(name)
    if engine.dns:
        assignment = eds.named(name, eds.replicas(engine.name, dns_endpoints, hostnames=True))
        return encoded + length_delimited(_LOAD_ASSIGNMENT, assignment)
    return encoded + _service(name)


def composite(
    model: str, traffic_class: str, engine: str, fallback: str | None, same_engine: int, tell_engine: bool
) -> bytes:
    """Encode the cluster that chooses a member by attempt: the engine, the engine `same_engine` times more,
    the fallback. It is one longer than the route has retries: with more retries "no healthy upstream" would
    hide an engine's own error.

    `tell_engine` puts the attempt's engine into a request header, which only gateways need.

    An entry without a usable replica is passed over within the same attempt, so an engine that is known to
    be gone costs no retry. Without a fallback the engine is tried once more, to keep the length.
    """
    tried = [engine] * (1 + same_engine) + [fallback or engine]
    members = [names.member(traffic_class, each) for each in tried]
    attempts = views.encode("CompositeCluster", {"clusters": [{"name": each} for each in members]})
    kind = {"name": "envoy.clusters.composite", "typed_config": {"type_url": _COMPOSITE, "value": attempts}}
    name = names.composite(model, traffic_class, engine)
    return _composite_settings(tell_engine) + _named(name) + views.encode("Cluster", {"cluster_type": kind})


def shed(model: str, traffic_class: str) -> bytes:
    """Encode the cluster of the shed part of one key: no endpoints, everything dropped by its EDS policy."""
    name = names.shed(model, traffic_class)
    return _shed_settings() + _named(name) + _service(name)


def _named(name: str) -> bytes:
    """Encode the part of a cluster that says its name, for Envoy and in stats."""
    return views.encode("Cluster", {"name": name, "alt_stat_name": name})


def _service(name: str) -> bytes:
    """Encode the part of a cluster that says which load assignment is its own."""
    return length_delimited(_EDS_CONFIG, _by_ads() + views.encode("EdsClusterConfig", {"service_name": name}))


@cache
def _by_ads() -> bytes:
    return bytes(ClusterEdsClusterConfig(eds_config=ads()))


@lru_cache(maxsize=256)
def _settings(engine: Engine) -> bytes:
    """Encode what the members of all engines with these settings have in common."""
    cluster = Cluster(
        connect_timeout=_seconds(engine.connect_timeout_s),
        lb_policy=_LB_POLICIES[engine.lb_policy],
        common_lb_config=_common_lb(engine),
        health_checks=[_health_check(engine.health_check)] if engine.health_check else [],
        # An unhealthy or removed replica must get nothing new at once, whatever its checks say.
        ignore_health_on_host_removal=True,
        outlier_detection=_outliers(engine.outlier_detection) if engine.outlier_detection else None,
        circuit_breakers=_breakers(engine.max_requests),
        typed_extension_protocol_options={_HTTP: pack(_http(engine))},
        upstream_connection_options=UpstreamConnectionOptions(
            tcp_keepalive=TcpKeepalive(keepalive_probes=3, keepalive_time=30, keepalive_interval=10)
        ),
    )
    if engine.lb_policy == "maglev":
        cluster.maglev_lb_config = ClusterMaglevLbConfig(table_size=engine.maglev_table_size)
    else:
        cluster.ring_hash_lb_config = ClusterRingHashLbConfig(
            minimum_ring_size=engine.ring_size, maximum_ring_size=max(engine.ring_size, 8 << 20)
        )
    if engine.dns:
        cluster.type = ClusterDiscoveryType.STRICT_DNS
        cluster.dns_lookup_family = ClusterDnsLookupFamily.V4_PREFERRED
    else:
        cluster.type = ClusterDiscoveryType.EDS
    return bytes(cluster)


@cache
def _composite_settings(tell_engine: bool) -> bytes:
    # The percentage is of the composite's own active requests, which are always 0: only the absolute
    # number limits retries.
    budget = CircuitBreakersThresholdsRetryBudget(
        budget_percent=Percent(value=0.0), min_retry_concurrency=DEFAULT_RETRY_LIMIT
    )
    thresholds = [CircuitBreakersThresholds(retry_budget=budget)]
    return bytes(
        Cluster(
            lb_policy=ClusterLbPolicy.CLUSTER_PROVIDED,
            circuit_breakers=CircuitBreakers(thresholds=thresholds),
            typed_extension_protocol_options=({_HTTP: pack(_seen_by_engines())} if tell_engine else {}),
        )
    )


@cache
def _shed_settings() -> bytes:
    return bytes(
        Cluster(
            type=ClusterDiscoveryType.EDS,
            common_lb_config=ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0)),
        )
    )


def _common_lb(engine: Engine) -> ClusterCommonLbConfig:
    """Never send to a replica known to be unhealthy; apply health changes at once."""
    bounded = engine.hash_balance_factor
    return ClusterCommonLbConfig(
        healthy_panic_threshold=Percent(value=engine.panic_threshold_percent),
        update_merge_window=timedelta(0),
        consistent_hashing_lb_config=(
            ClusterCommonLbConfigConsistentHashingLbConfig(hash_balance_factor=bounded) if bounded else None
        ),
    )


def _health_check(check: HealthCheck) -> EnvoyHealthCheck:
    """Check each replica on a fresh connection: a kept one races with the engine's keep-alive timeout."""
    return EnvoyHealthCheck(
        timeout=_seconds(check.timeout_s),
        interval=_seconds(check.interval_s),
        no_traffic_interval=_seconds(check.interval_s),
        interval_jitter_percent=10,
        unhealthy_threshold=check.unhealthy_threshold,
        healthy_threshold=check.healthy_threshold,
        reuse_connection=False,
        http_health_check=HealthCheckHttpHealthCheck(host="headrace", path=check.path),
    )


def _outliers(detection: OutlierDetection) -> EnvoyOutlierDetection:
    """Eject by runs of failures, split by who failed; never by success rate, which needs many replicas."""
    return EnvoyOutlierDetection(
        consecutive_5xx=detection.consecutive_5xx,
        enforcing_consecutive_5xx=100,
        consecutive_gateway_failure=detection.consecutive_gateway_failure,
        enforcing_consecutive_gateway_failure=100,
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure=detection.consecutive_local_origin_failure,
        enforcing_consecutive_local_origin_failure=100,
        enforcing_success_rate=0,
        enforcing_local_origin_success_rate=0,
        enforcing_failure_percentage=0,
        enforcing_failure_percentage_local_origin=0,
        interval=_seconds(detection.interval_s),
        base_ejection_time=_seconds(detection.base_ejection_time_s),
        max_ejection_time=_seconds(detection.max_ejection_time_s),
        max_ejection_percent=detection.max_ejection_percent,
        # An engine that refuses every request while it drains still says that it is healthy.
        successful_active_health_check_uneject_host=False,
    )


def _breakers(limit: int) -> CircuitBreakers:
    """Bound requests, connections and waiting requests alike; the runtime layer may set other numbers."""
    thresholds = CircuitBreakersThresholds(
        max_connections=limit, max_pending_requests=limit, max_requests=limit, max_retries=limit
    )
    return CircuitBreakers(thresholds=[thresholds])


def _http(engine: Engine) -> UpstreamHttpProtocolOptions:
    """Speak HTTP/1.1, as the engines do, and close idle connections before they would."""
    return UpstreamHttpProtocolOptions(
        common_http_protocol_options=HttpProtocolOptions(
            idle_timeout=_seconds(engine.idle_timeout_s),
            max_headers_count=MAX_RESPONSE_HEADERS,
            max_response_headers_kb=MAX_RESPONSE_HEADERS_KB,
        ),
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
            http_protocol_options=Http1ProtocolOptions()
        ),
    )


def _seen_by_engines() -> UpstreamHttpProtocolOptions:
    """Tell a gateway which of the engines behind it is meant, as only here the attempt's engine is known; and
    which attempt it is, so that a gateway which could try again leaves it to us.

    Filters on the way to a replica are those of the cluster that the route names: the composite.
    """
    headers = (
        overwrite(names.ENGINE_HEADER, names.ENGINE_OF_REPLICA),
        overwrite(names.ATTEMPT_HEADER, names.ATTEMPT),
    )
    mutations = Mutations(request_mutations=[HeaderMutationRule(append=header) for header in headers])
    return UpstreamHttpProtocolOptions(
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
            http_protocol_options=Http1ProtocolOptions()
        ),
        http_filters=[
            HttpFilter(name=names.HEADER_FILTER, typed_config=pack(HeaderMutation(mutations=mutations))),
            HttpFilter(name="envoy.filters.http.upstream_codec", typed_config=pack(UpstreamCodec())),
        ],
    )


def _seconds(value: float) -> timedelta:
    return timedelta(seconds=value)
