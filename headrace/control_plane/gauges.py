"""Gauges of the present state, made at scrape time: a series goes when its object leaves the policy, and what
is not known has no series (names: design/observability.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace import __version__
from optimizer import SHED, Correction, Plan
from signals.engine_signals import engine_signal
from signals.readings import Signal
from signals.replicas import Presence, Replica

if TYPE_CHECKING:
    from headrace.control_plane.control_plane import ControlPlane

_KEY = ("frontend", "model", "class")
_LAG_S = 15.0
_FILE_STATES = ("in_force", "held", "refused")
_MODES = ("planning", "frozen", "held", "holding_stale")

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


class Gauges(Collector):
    """Collects from a running control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        for part in (
            self._info,
            self._demand,
            self._network,
            self._shares,
            self._plan,
            self._replicas,
            self._learned,
            self._signals,
        ):
            yield from part()
        yield from self._clients()

    def _info(self) -> Iterator[Metric]:
        plane, policy = self._plane, self._plane.policy
        yield gauge(
            "headrace_build_info", "this build", ("version", "solver"), _one((__version__, _solver()), 1)
        )
        labels = (policy.revision, policy.content_hash[:12])
        yield gauge("headrace_policy_info", "policy in force", ("revision", "hash"), _one(labels, 1))
        states: Iterator[Sample] = (((name,), float(name == plane.gate.state)) for name in _FILE_STATES)
        yield gauge("headrace_policy_file", "what became of the policy file", ("state",), states)
        stamp, sequence = plane.published_at, plane.publisher.served.sequence
        yield gauge("headrace_snapshot_timestamp_seconds", "last publication", (), _one((), stamp))
        yield gauge("headrace_snapshot_sequence", "sequence of the shares", (), _one((), sequence))
        modes: Iterator[Sample] = (((name,), float(name == plane.mode)) for name in _MODES)
        yield gauge("headrace_mode", "what planning does", ("mode",), modes)

    def _demand(self) -> Iterator[Metric]:
        view = self._plane.traffic.view()
        policy = self._plane.policy
        points = sorted(
            (row, point)
            for row, point in view.demand.items()
            if row[0] in policy.frontends and row[1] in policy.key_specs
        )
        rps: Iterator[Sample] = (((f, *split_key(k)), point.rps) for (f, k), point in points)
        yield gauge("headrace_demand_rps", "first attempts per second", _KEY, rps)
        ages: Iterator[Sample] = (
            ((frontend,), age) for frontend, age in sorted(view.age_s.items()) if frontend in policy.frontends
        )
        yield gauge("headrace_demand_age_seconds", "since the last counters", ("frontend",), ages)
        requests = CounterMetricFamily("headrace_requests", "requests that arrived", labels=_KEY)
        for (frontend, key), point in points:
            requests.add_metric([frontend, *split_key(key)], point.total)
        yield requests
        retries: dict[tuple[str, str], tuple[float, float]] = {}
        for (frontend, key, _), answers in view.answers.items():
            done, again = retries.get((frontend, key), (0.0, 0.0))
            retries[frontend, key] = (done + answers.completed_rps, again + answers.retry_rps)
        ratios: Iterator[Sample] = (
            ((f, *split_key(k)), again / done if done else None)
            for (f, k), (done, again) in sorted(retries.items())
        )
        yield gauge("headrace_retry_ratio", "retries per final answer", _KEY, ratios)

    def _network(self) -> Iterator[Metric]:
        """Round trips by the policy, and the mean TCP connect time that Envoys measured."""
        policy, found = self._plane.policy, {}
        for frontend in policy.frontends:
            for name, spec in policy.engines.items():
                found[frontend, spec.region, "policy"] = [policy.network_ms(frontend, name)]
        for (frontend, name), seen in self._plane.traffic.view().engines.items():
            if seen.rtt_ms is not None and name in policy.engines:
                place = (frontend, policy.engines[name].region, "measured")
                found.setdefault(place, []).append(seen.rtt_ms)
        labels = ("frontend", "region", "source")
        samples: Iterator[Sample] = ((key, sum(ms) / len(ms) / 1000) for key, ms in sorted(found.items()))
        yield gauge("headrace_network_rtt_seconds", "round trip", labels, samples)

    def _shares(self) -> Iterator[Metric]:
        labels = (*_KEY, "engine")
        shares = self._plane.publisher.served.shares()
        published: Iterator[Sample] = (
            ((frontend, *split_key(key), engine), share)
            for frontend, rows in shares.items()
            for key, row in rows.items()
            for engine, share in row.items()
        )
        yield gauge("headrace_share_ratio", "published shares, shed included", labels, published)
        yield gauge(
            "headrace_share_realised_ratio", "shares of final answers", labels, iter(self._realised())
        )

    def _realised(self) -> list[Sample]:
        """Who answered first attempts, by Envoys' counters; what was shed is not among them."""
        answers = self._plane.traffic.view().answers
        totals: dict[tuple[str, str], float] = {}
        for (frontend, key, _), found in answers.items():
            totals[frontend, key] = totals.get((frontend, key), 0.0) + found.completed_rps
        return [
            ((frontend, *split_key(key), engine), found.completed_rps / total)
            for (frontend, key, engine), found in sorted(answers.items())
            if (total := totals[frontend, key]) > 0 and engine != SHED
        ]

    def _plan(self) -> Iterator[Metric]:
        found = self._plane.last_round
        if found is None or found.plan is None:
            return
        plan = found.plan
        yield gauge("headrace_plan_gap_ratio", "certified gap of the plan", (), _one((), plan.gap))
        yield gauge(
            "headrace_plan_latency_seconds", "planned mean", (), _one((), _finite(plan.e2e_ms / 1000))
        )
        for name, text, value in _ENGINE_PLANS:
            yield gauge(f"headrace_engine_{name}", text, ("engine",), _engines(plan, value))

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
                samples.append(((engine, "predicted", "mean"), _finite(value / 1000)))
        return samples

    def _clients(self) -> Iterator[Metric]:
        xds = self._plane.xds
        clients: Iterator[Sample] = (
            ((frontend,), len(xds.connections(frontend))) for frontend in self._plane.policy.frontends
        )
        yield gauge("headrace_xds_clients", "connected Envoys", ("frontend",), clients)
        lagging, nacked = Counter[str](), Counter[str]()
        for client in xds.status():
            for found in client.types:
                lagging[found.type] += found.waiting_s is not None and found.waiting_s >= _LAG_S
                nacked[found.type] += found.error is not None
        for name, counts in (("lagging", lagging), ("nacked", nacked)):
            samples: Iterator[Sample] = (((kind,), number) for kind, number in sorted(counts.items()))
            yield gauge(f"headrace_xds_{name}_clients", f"Envoys that are {name}", ("type",), samples)


_ENGINE_PLANS: tuple[tuple[str, str, Callable[[Plan, str], float | None]], ...] = (
    ("load_rps", "planned load, work/s", lambda plan, name: plan.engines[name].load_rps),
    ("capacity_rps", "effective capacity, work/s", lambda plan, name: plan.engines[name].capacity_rps),
    ("utilization_ratio", "planned load over capacity", lambda plan, name: _utilization(plan, name)),
    ("price_seconds", "price of one more unit of load", lambda p, name: p.engines[name].price_ms / 1000),
)

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


def _one(labels: Sequence[str], value: float | None) -> Iterator[Sample]:
    yield labels, value


def _engines(plan: Plan, value: Callable[[Plan, str], float | None]) -> Iterator[Sample]:
    return (((name,), value(plan, name)) for name in plan.engines)


def _utilization(plan: Plan, name: str) -> float | None:
    engine = plan.engines[name]
    return engine.load_rps / engine.capacity_rps if engine.capacity_rps else None


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _oldest(replicas: Sequence[Replica], now: float) -> float | None:
    return max((age for replica in replicas if (age := replica.age_s(now)) is not None), default=None)


def _state(replica: Replica) -> str:
    if replica.quarantined:
        return "quarantined"
    return "silent" if replica.presence is Presence.SILENT else replica.state.value
