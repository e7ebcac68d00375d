"""What every family of metrics is made with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily

KEY = ("frontend", "model", "class")
"""Labels of what there is once for a front-end and key."""

Sample = tuple[Sequence[str], float | None]
"""Label values, and the value; None = no series."""


def split_key(key: str) -> tuple[str, str]:
    """`<model>/<class>` as a pair."""
    model, _, traffic_class = key.rpartition("/")
    return model, traffic_class


def gauge(name: str, text: str, labels: Sequence[str], samples: Iterator[Sample]) -> GaugeMetricFamily:
    """One family from its samples."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def one(value: float | None, labels: Sequence[str] = ()) -> Iterator[Sample]:
    """The only sample of a family."""
    yield labels, value


def finite(value: float) -> float | None:
    """None for what is infinite or undefined: no series."""
    return value if math.isfinite(value) else None
