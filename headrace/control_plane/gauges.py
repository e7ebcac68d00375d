"""Gauges of the present state, made at scrape time: a series goes when its object leaves the policy, and what
is not known has no series (names: design/observability.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headrace import __version__
from headrace.control_plane.certificates import earliest_expiry
from headrace.control_plane.families import KEY, Sample, finite, gauge, one, split_key
from headrace.control_plane.plan_gauges import planned
from headrace.control_plane.traffic_gauges import traffic
from optimizer import Correction
from signals.engine_signals import engine_signal
from signals.readings import Signal
from signals.replicas import Presence, Replica

if TYPE_CHECKING:
    from headrace.control_plane.control_plane import ControlPlane

_LAG_S = 15.0
_FILE_STATES = ("in_force", "held", "refused")
_MODES = ("planning", "frozen", "held", "holding_stale")


class Gauges(Collector):
    """Collects from a running control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        plane = self._plane
        for part in (
            self._info,
            lambda: traffic(plane.policy, plane.traffic.view()),
            self._shares,
            lambda: planned(plane.policy, plane.last_round, plane.publisher.limits, plane.envoys()),
            self._replicas,
            self._learned,
            self._signals,
        ):
            yield from part()
        yield from self._clients()

    def _info(self) -> Iterator[Metric]:
        plane, policy = self._plane, self._plane.policy
        yield gauge(
            "headrace_build_info", "this build", ("version", "solver"), one(1, (__version__, _solver()))
        )
        labels = (policy.revision, policy.content_hash[:12])
        yield gauge("headrace_policy_info", "policy in force", ("revision", "hash"), one(1, labels))
        states: Iterator[Sample] = (((name,), float(name == plane.gate.state)) for name in _FILE_STATES)
        yield gauge("headrace_policy_file", "what became of the policy file", ("state",), states)
        stamp, sequence = plane.published_at, plane.served.sequence
        yield gauge("headrace_snapshot_timestamp_seconds", "last publication", (), one(stamp))
        yield gauge("headrace_snapshot_sequence", "sequence of the shares", (), one(sequence))
        modes: Iterator[Sample] = (((name,), float(name == plane.mode)) for name in _MODES)
        yield gauge("headrace_mode", "what planning does", ("mode",), modes)
        expiry = earliest_expiry(policy) if not plane.config.insecure_dev else None
        name = "headrace_certificate_expiry_timestamp_seconds"
        yield gauge(name, "when the first of our own certificates expires", (), one(expiry))

    def _shares(self) -> Iterator[Metric]:
        labels = (*KEY, "engine")
        shares = self._plane.served.shares()
        published: Iterator[Sample] = (
            ((frontend, *split_key(key), engine), share)
            for frontend, rows in shares.items()
            for key, row in rows.items()
            for engine, share in row.items()
        )
        yield gauge("headrace_share_ratio", "published shares, shed included", labels, published)

    def _replicas(self) -> Iterator[Metric]:
        plane, now = self._plane, self._plane.clock()
        members = plane.membership.view().engines
        states: Iterator[Sample] = (
            ((engine, state), number)
            for engine, replicas in members.items()
            for state, number in sorted(Counter(map(_state, replicas)).items())
        )
        yield gauge("headrace_engine_replicas", "replicas", ("engine", "state"), states)
        penalties = plane.engine_states()
        factors: Iterator[Sample] = (((name,), state.penalty) for name, state in penalties.items())
        yield gauge("headrace_engine_penalty_ratio", "factor on capacity", ("engine",), factors)
        mismatch: Iterator[Sample] = (((name,), ratio) for name, ratio in plane.protection.mismatch.items())
        yield gauge("headrace_engine_load_mismatch_ratio", "reported over sent", ("engine",), mismatch)
        ages: Iterator[Sample] = (((name,), _oldest(replicas, now)) for name, replicas in members.items())
        yield gauge("headrace_engine_report_age_seconds", "of the oldest report", ("engine",), ages)

    def _learned(self) -> Iterator[Metric]:
        """How plans correct profiles, as factors and as an offset."""
        plane = self._plane
        used = {name: Correction() for name in plane.policy.engines} | plane.learner.corrections(plane.rules)
        ratios: Iterator[Sample] = (
            ((name, parameter), value)
            for name, found in used.items()
            for parameter, value in (("tbot", found.tbot_factor), ("load", found.load_factor))
        )
        labels = ("engine", "parameter")
        yield gauge("headrace_engine_correction_ratio", "learned over profile, as planned", labels, ratios)
        offsets: Iterator[Sample] = (((n,), found.ttft_offset_ms / 1000) for n, found in used.items())
        name = "headrace_engine_correction_ttft_seconds"
        yield gauge(name, "learned offset of TTFT, as planned", ("engine",), offsets)
        learning: Iterator[Sample] = (
            ((n,), float(not found.paused)) for n, found in plane.learner.known().items()
        )
        yield gauge("headrace_engine_learning", "1 while reports are learned from", ("engine",), learning)

    def _signals(self) -> Iterator[Metric]:
        members, now = self._plane.membership.view().engines, self._plane.clock()
        for name, signal in _REPORTED.items():
            samples: Iterator[Sample] = (
                ((engine,), engine_signal(replicas, signal, now).value)
                for engine, replicas in members.items()
            )
            yield gauge(f"headrace_engine_{name}", "as reported", ("engine",), samples)
        for name, quantiles in _LATENCIES.items():
            labels = ("engine", "source", "quantile")
            yield gauge(
                f"headrace_engine_{name}_seconds", "latency", labels, iter(self._latency(name, quantiles))
            )

    def _latency(self, name: str, quantiles: Mapping[str, Signal]) -> list[Sample]:
        members, now = self._plane.membership.view().engines, self._plane.clock()
        samples: list[Sample] = []
        for engine, replicas in members.items():
            for quantile, signal in quantiles.items():
                value = engine_signal(replicas, signal, now).value
                samples.append(((engine, "reported", quantile), None if value is None else value / 1000))
        found = self._plane.last_round
        if found and found.plan:
            for engine, planned in found.plan.engines.items():
                value = planned.ttft_ms if name == "ttft" else planned.tbot_ms
                samples.append(((engine, "predicted", "mean"), finite(value / 1000)))
        return samples

    def _clients(self) -> Iterator[Metric]:
        xds = self._plane.xds
        clients: Iterator[Sample] = (
            ((frontend,), len(xds.connections(frontend))) for frontend in self._plane.policy.frontends
        )
        yield gauge("headrace_xds_clients", "connected Envoys", ("frontend",), clients)
        ratios = sorted(self._plane.traffic.attempts_mismatch().items())
        mismatch: Iterator[Sample] = (((frontend,), ratio) for frontend, ratio in ratios)
        text = "attempts at engines by load reports over those by counters"
        yield gauge("headrace_attempts_mismatch_ratio", text, ("frontend",), mismatch)
        lagging, nacked = Counter[str](), Counter[str]()
        for client in xds.status():
            for found in client.types:
                lagging[found.type] += found.waiting_s is not None and found.waiting_s >= _LAG_S
                nacked[found.type] += found.error is not None
        for name, counts in (("lagging", lagging), ("nacked", nacked)):
            samples: Iterator[Sample] = (((kind,), number) for kind, number in sorted(counts.items()))
            yield gauge(f"headrace_xds_{name}_clients", f"Envoys that are {name}", ("type",), samples)


_REPORTED = {
    "kv_usage_ratio": Signal.KV_USAGE_RATIO,
    "prefix_hit_ratio": Signal.PREFIX_HIT_RATIO,
    "waiting_requests": Signal.WAITING,
    "running_requests": Signal.RUNNING,
}

_LATENCIES = {
    "ttft": {"mean": Signal.TTFT_MEAN_MS, "p50": Signal.TTFT_P50_MS, "p99": Signal.TTFT_P99_MS},
    "tbot": {"mean": Signal.TBOT_MEAN_MS, "p50": Signal.TBOT_P50_MS, "p99": Signal.TBOT_P99_MS},
}


def _solver() -> str:
    try:
        return f"highspy {version('highspy')}"
    except PackageNotFoundError:
        return f"cbc of pulp {version('pulp')}"


def _oldest(replicas: Sequence[Replica], now: float) -> float | None:
    return max((age for replica in replicas if (age := replica.age_s(now)) is not None), default=None)


def _state(replica: Replica) -> str:
    if replica.quarantined:
        return "quarantined"
    return "silent" if replica.presence is Presence.SILENT else replica.state.value
