"""RTDS: the numbers that follow the load, in one layer: retry limits and breaker limits.

They are absolute and per Envoy. Envoy falls back to the cluster's own number when a key is gone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from xds_server import views
from xds_server.resources import length_delimited
from xds_server.routing import Split
from xds_server.translate import names

_LAYER, _FIELDS = 2, 1
"""Field numbers of `Runtime.layer` and `Struct.fields`."""
_NUMBER_VALUE = b"\x11"
"""Tag of `Value.number_value`: field 2, 64 bits."""


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


def layer(values: Mapping[str, int]) -> bytes:
    """Encode the layer; keys are sorted, since equal content must be equal bytes.

    Written field by field: a fleet has thousands of limits, they follow the plan, and a limit of 0 has to be
    there, which a view would leave out.
    """
    fields = b"".join(_entry(key, values[key]) for key in sorted(values))
    return views.encode("Runtime", {"name": names.RUNTIME_LAYER}) + length_delimited(_LAYER, fields)


def _entry(key: str, value: int) -> bytes:
    """Encode one entry of a `Struct`: its key and a `Value` that is a number."""
    number = _NUMBER_VALUE + struct.pack("<d", value)
    return length_delimited(_FIELDS, length_delimited(1, key.encode()) + length_delimited(2, number))
