"""Decoding of Envoy's metrics-service messages with protobuf's own runtime.

One flush of 100 engines took betterproto2 170 ms and this runtime 0.24 ms, so the few fields that are read
are described here and decoded in C. Unknown fields are skipped. Sources: envoy/service/metrics/v3/
metrics_service.proto, io/prometheus/client/metrics.proto (prometheus/client_model).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_Field = descriptor_pb2.FieldDescriptorProto
_STRING, _DOUBLE, _UINT64 = _Field.TYPE_STRING, _Field.TYPE_DOUBLE, _Field.TYPE_UINT64
_INT64 = _Field.TYPE_INT64

_PACKAGE = "headrace.envoy_metrics"
_MESSAGES: dict[str, tuple[tuple[str, int, Any, bool], ...]] = {
    # message -> (field, number, scalar type or message name, repeated)
    "Node": (("id", 1, _STRING, False), ("cluster", 2, _STRING, False)),
    "Identifier": (("node", 1, "Node", False),),
    "LabelPair": (("name", 1, _STRING, False), ("value", 2, _STRING, False)),
    "Value": (("value", 1, _DOUBLE, False),),
    "Histogram": (("sample_count", 1, _UINT64, False), ("sample_sum", 2, _DOUBLE, False)),
    "Metric": (
        ("label", 1, "LabelPair", True),
        ("gauge", 2, "Value", False),
        ("counter", 3, "Value", False),
        ("timestamp_ms", 6, _INT64, False),
        ("histogram", 7, "Histogram", False),
    ),
    "MetricFamily": (("name", 1, _STRING, False), ("metric", 4, "Metric", True)),
    "StreamMetricsMessage": (
        ("identifier", 1, "Identifier", False),
        ("envoy_metrics", 2, "MetricFamily", True),
    ),
}
_CLUSTER_LABEL = "envoy.cluster_name"


@dataclass(frozen=True, slots=True)
class Point:
    """One metric of one Envoy at one flush.

    `value` is a counter's total since the Envoy started, a gauge's value, or a histogram's sum over the
    flush interval; `count` a histogram's number of observations in that interval.
    """

    name: str
    cluster: str
    """Envoy's cluster name, "" when the metric is not a cluster's."""
    value: float
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """One message of the stream. `node` is (front-end, instance id), told in the first message only."""

    node: tuple[str, str] | None
    points: tuple[Point, ...]
    read_at: float | None = None
    """When the counters were read, by the Envoy's own clock (Unix seconds); None when it does not say."""


class MetricsDecoder:
    """Bytes of `StreamMetricsMessage` -> `Flush`."""

    def __init__(self) -> None:
        file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto2")
        for name, fields in _MESSAGES.items():
            message = file.message_type.add(name=name)
            for field_name, number, kind, repeated in fields:
                field = message.field.add(name=field_name, number=number)
                field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
                if isinstance(kind, str):
                    field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
                else:
                    field.type = kind
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.StreamMetricsMessage")
        self._message = message_factory.GetMessageClass(descriptor)

    def decode(self, data: bytes) -> Flush:
        """Decode one message; ValueError when it is not one."""
        try:
            message: Any = self._message.FromString(data)
        except DecodeError as error:
            raise ValueError(f"not a StreamMetricsMessage: {error}") from error
        node = message.identifier.node
        read_ms = next((m.timestamp_ms for family in message.envoy_metrics for m in family.metric), 0)
        return Flush(
            node=(node.cluster, node.id) if message.HasField("identifier") else None,
            points=tuple(point for family in message.envoy_metrics for point in _points(family)),
            read_at=read_ms / 1000 or None,
        )


def _points(family: Any) -> Iterator[Point]:
    for metric in family.metric:
        label = next((label.value for label in metric.label if label.name == _CLUSTER_LABEL), "")
        name, cluster = (family.name, label) if label else _untagged(family.name)
        if metric.HasField("counter"):
            yield Point(name, cluster, metric.counter.value)
        elif metric.HasField("gauge"):
            yield Point(name, cluster, metric.gauge.value)
        elif metric.HasField("histogram"):
            yield Point(name, cluster, metric.histogram.sample_sum, metric.histogram.sample_count)


def _untagged(name: str) -> tuple[str, str]:
    """Name without cluster, and cluster: unless `emit_tags_as_labels` is set, Envoy writes
    `cluster.<cluster>.<metric>`. Our cluster names hold no dots."""
    kind, _, rest = name.partition(".")
    cluster, _, metric = rest.partition(".")
    return (f"cluster.{metric}", cluster) if kind == "cluster" and metric else (name, "")
