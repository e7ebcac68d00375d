"""Gauges of the present state, made at scrape time: a series goes when its object leaves the policy, and what
is not known has no series (design/observability.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace import __version__
from signals.readings import Signal
from signals.replicas import Presence, Replica

if TYPE_CHECKING:
    from headrace.control_plane.control_plane import ControlPlane

_KEY = ["frontend", "model", "class"]


def split_key(key: str) -> tuple[str, str]:
    """`<model>/<class>` as a pair."""
    model, _, traffic_class = key.rpartition("/")
    return model, traffic_class


class Gauges(Collector):
    """Collects from a running control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """Yield every gauge."""
        yield from self._info()
        yield from self._snapshot()
        yield from self._demand()
        yield from self._plan()
        yield from self._engines()
        yield from self._clients()

    def _info(self) -> Iterator[Metric]:
        policy = self._plane.policy
        build = GaugeMetricFamily("headrace_build_info", "this build", labels=["version"])
        build.add_metric([__version__], 1)
        info = GaugeMetricFamily("headrace_policy_info", "policy in force", labels=["revision", "hash"])
        info.add_metric([policy.revision, policy.content_hash[:12]], 1)
        yield build
        yield info

    def _snapshot(self) -> Iterator[Metric]:
        plane = self._plane
        if plane.published_at is not None:
            yield GaugeMetricFamily(
                "headrace_snapshot_timestamp_seconds", "last publication", plane.published_at
            )
        yield GaugeMetricFamily(
            "headrace_snapshot_sequence", "sequence of the shares", plane.publisher.served.sequence
        )
        mode = GaugeMetricFamily("headrace_mode", "what planning does", labels=["mode"])
        for name in ("planning", "frozen", "held", "holding_stale"):
            mode.add_metric([name], float(name == plane.mode))
        yield mode

    def _demand(self) -> Iterator[Metric]:
        view = self._plane.demand.view(self._plane.clock())
        rps = GaugeMetricFamily("headrace_demand_rps", "first attempts per second", labels=_KEY)
        for (frontend, key), point in sorted(view.demand.items()):
            rps.add_metric([frontend, *split_key(key)], point.rps)
        age = GaugeMetricFamily("headrace_demand_age_seconds", "since the last counters", labels=["frontend"])
        for frontend, age_s in sorted(view.age_s.items()):
            age.add_metric([frontend], age_s)
        yield rps
        yield age

    def _plan(self) -> Iterator[Metric]:
        shares = GaugeMetricFamily("headrace_share_ratio", "published shares", labels=[*_KEY, "engine"])
        for frontend, rows in self._plane.publisher.served.shares().items():
            for key, row in rows.items():
                for engine, share in row.items():
                    shares.add_metric([frontend, *split_key(key), engine], share)
        yield shares
        found = self._plane.last_round
        if found and found.plan:
            yield GaugeMetricFamily("headrace_plan_gap_ratio", "certified gap of the plan", found.plan.gap)

    def _engines(self) -> Iterator[Metric]:
        found = self._plane.last_round
        if found and found.plan:
            load = GaugeMetricFamily("headrace_engine_load_rps", "planned load, work/s", labels=["engine"])
            capacity = GaugeMetricFamily(
                "headrace_engine_capacity_rps", "effective capacity, work/s", labels=["engine"]
            )
            price = GaugeMetricFamily(
                "headrace_engine_price_seconds", "price of one more unit of load", labels=["engine"]
            )
            for name, engine in found.plan.engines.items():
                load.add_metric([name], engine.load_rps)
                capacity.add_metric([name], engine.capacity_rps)
                price.add_metric([name], engine.price_ms / 1000)
            yield from (load, capacity, price)
        yield from self._replicas()

    def _replicas(self) -> Iterator[Metric]:
        members = self._plane.membership.view()
        states = GaugeMetricFamily("headrace_engine_replicas", "replicas", labels=["engine", "state"])
        for engine, replicas in members.engines.items():
            for state, number in sorted(Counter(map(_state, replicas)).items()):
                states.add_metric([engine, state], number)
        yield states
        for signal, name in ((Signal.RUNNING, "running_requests"), (Signal.WAITING, "waiting_requests")):
            family = GaugeMetricFamily(f"headrace_engine_{name}", "as reported", labels=["engine"])
            now = self._plane.clock()
            for engine, replicas in members.engines.items():
                values = [v for replica in replicas if (v := replica.value(signal, now)) is not None]
                if values:
                    family.add_metric([engine], sum(values))
            yield family

    def _clients(self) -> Iterator[Metric]:
        clients = GaugeMetricFamily("headrace_xds_clients", "connected Envoys", labels=["frontend"])
        for frontend in self._plane.policy.frontends:
            clients.add_metric([frontend], len(self._plane.xds.connections(frontend)))
        yield clients


def _state(replica: Replica) -> str:
    if replica.quarantined:
        return "quarantined"
    return "silent" if replica.presence is Presence.SILENT else replica.state.value
