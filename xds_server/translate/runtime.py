"""RTDS: the numbers that follow the load, in one layer: retry limits and breaker limits.

They are absolute and per Envoy. Envoy falls back to the cluster's own number when a key is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from envoy_data_plane.envoy.service.runtime.v3 import Runtime
from envoy_data_plane.google.protobuf import Struct, Value

from xds_server.routing import Split
from xds_server.translate import names


def limits(splits: Iterable[Split]) -> dict[str, int]:
    """Collect runtime key -> number: retry limits belong to composites, request limits to members."""
    values: dict[str, int] = {}
    for split in splits:
        for engine, limit in split.retry_limit.items():
            cluster = names.composite(split.model, split.traffic_class, engine)
            values[f"circuit_breakers.{cluster}.default.retry_budget.min_retry_concurrency"] = limit
        for engine, limit in split.request_limit.items():
            cluster = names.member(split.traffic_class, engine)
            # Not connections: a request beyond that limit would wait in a queue that nobody sees.
            values[f"circuit_breakers.{cluster}.default.max_requests"] = limit
    return values


def layer(values: Mapping[str, int]) -> Runtime:
    """Build the layer; keys are sorted, since equal content must be equal bytes."""
    fields = {key: Value(number_value=float(values[key])) for key in sorted(values)}
    return Runtime(name=names.RUNTIME_LAYER, layer=Struct(fields=fields))
