"""One scrape of an engine's Prometheus page, and what happened between two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from signals.messages import Distribution

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scrape:
    """The wanted samples of a page by name. Times are monotonic seconds."""

    at: float
    samples: Mapping[str, tuple[tuple[Labels, float], ...]]

    def total(self, *names: str, **labels: str) -> float | None:
        """The sum over all label sets (models, data-parallel ranks) of the first name that is there; None
        when none is, which is not zero. NaN (a summary without observations) counts as absent."""
        for name in names:
            values = [value for found, value in self.samples.get(name, ()) if labels.items() <= found.items()]
            if values := [value for value in values if not math.isnan(value)]:
                return math.fsum(values)
        return None

    def mean(self, *names: str) -> float | None:
        """The mean over all label sets of the first name that is there."""
        for name in names:
            if values := [value for _, value in self.samples.get(name, ()) if not math.isnan(value)]:
                return math.fsum(values) / len(values)
        return None

    def buckets(self, name: str) -> dict[float, float]:
        """Upper bound -> cumulative count of a histogram, summed over label sets."""
        found: dict[float, float] = {}
        for labels, value in self.samples.get(f"{name}_bucket", ()):
            bound = float(labels["le"])
            found[bound] = found.get(bound, 0.0) + value
        return found


def parse(page: str, wanted: Iterable[str], at: float) -> Scrape:
    """Read the wanted metrics (base names; histograms' parts come along) of a page.

    A page has hundreds of samples, of which a few are read: the others are dropped before parsing (27 ms for
    all of a vLLM page). Raises ValueError when what is left is not Prometheus text.
    """
    prefixes = tuple(wanted)
    lines = (line for line in page.splitlines() if line.startswith(prefixes))
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    return Scrape(at, {name: tuple(found) for name, found in samples.items()})


@dataclass(frozen=True, slots=True)
class Between:
    """Two scrapes of one process, the older first."""

    before: Scrape
    after: Scrape

    @property
    def seconds(self) -> float:
        """Time between them."""
        return self.after.at - self.before.at

    def rate(self, *names: str, **labels: str) -> float | None:
        """Increase per second of a counter; None when it is not told, or decreased (a restart)."""
        now, then = self.after.total(*names, **labels), self.before.total(*names, **labels)
        if now is None or self.seconds <= 0 or now < (then or 0.0):
            return None
        return (now - (then or 0.0)) / self.seconds

    def distribution(self, *names: str, scale: float) -> Distribution | None:
        """A histogram's observations in between, values times `scale`; None without any (not zero)."""
        for name in names:
            counts, sums = self._increase(f"{name}_count"), self._increase(f"{name}_sum")
            if counts is None or sums is None:
                continue
            if counts <= 0 or sums < 0:
                return None
            after, before = self.after.buckets(name), self.before.buckets(name)
            buckets = [(bound, after[bound] - before.get(bound, 0.0)) for bound in sorted(after)]
            p50, p99 = quantile(buckets, 0.5), quantile(buckets, 0.99)
            return Distribution(
                mean=sums / counts * scale,
                p50=None if p50 is None else p50 * scale,
                p99=None if p99 is None else p99 * scale,
                count=counts,
            )
        return None

    def _increase(self, name: str) -> float | None:
        now = self.after.total(name)
        return None if now is None else now - (self.before.total(name) or 0.0)


def quantile(buckets: list[tuple[float, float]], fraction: float) -> float | None:
    """A quantile of cumulative buckets (bound, count) in order, linear inside a bucket, as Prometheus'
    histogram_quantile does; the highest finite bound for what lies beyond. None when empty."""
    if not buckets or buckets[-1][1] <= 0:
        return None
    rank = fraction * buckets[-1][1]
    lower_bound, lower_count = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if math.isinf(bound) or count == lower_count:
                return lower_bound
            return lower_bound + (bound - lower_bound) * (rank - lower_count) / (count - lower_count)
        lower_bound, lower_count = bound, count
    return lower_bound
