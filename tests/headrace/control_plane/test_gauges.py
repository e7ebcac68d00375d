"""Families of metrics, from what they are made of."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import trustme
import yaml
from prometheus_client.core import Metric

from headrace.control_plane import rules
from headrace.control_plane.certificates import earliest_expiry
from headrace.control_plane.limits import limits, retry_budgets
from headrace.control_plane.plan_gauges import planned
from headrace.control_plane.rounds import Inputs, Round, plan_round
from headrace.control_plane.served import Served
from headrace.control_plane.table import Limits
from headrace.control_plane.traffic_gauges import traffic
from headrace.policy import Policy, load
from headrace.problem import EngineState, PlanningRules
from optimizer import Warm
from signals.demand import Demand
from signals.metrics_codec import Flush, Point
from tests.headrace.fleet.small import KEY, POLICY

ROW = {"frontend": "west", "model": "chat", "class": "interactive"}


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return load(tmp_path / "policy.yaml")


def values(families: list[Metric], name: str) -> dict[tuple[str, ...], float]:
    """Label values in their order -> value, of one sample name."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def flush(ok: float, failed: float, shed: float) -> Flush:
    return Flush(
        None,
        (
            Point(f"demand.{KEY}.http_local_rate_limit.enabled", "", ok + failed + shed),
            Point("cluster.upstream_rq_2xx", f"{KEY}/west-gpu", ok),
            Point("cluster.upstream_rq_5xx", f"{KEY}/west-gpu", failed),
            Point("cluster.upstream_rq_completed", f"shed/{KEY}", shed),
        ),
    )


def test_requests_are_counted_by_how_they_ended(policy: Policy):
    demand = Demand(rules.envoy_names(policy))
    demand.observe("west", "a", flush(5000.0, 0.0, 0.0), 0.0)  # long running when it connects: no jump
    demand.observe("west", "a", flush(5100.0, 3.0, 20.0), 5.0)
    found = values(list(traffic(policy, demand.view(5.0))), "headrace_requests_total")
    row = tuple(ROW.values())
    assert found == {(*row, "ok"): 100.0, (*row, "error"): 3.0, (*row, "shed"): 20.0}


def test_a_series_goes_when_its_front_end_leaves_the_policy(policy: Policy, tmp_path: Path):
    demand = Demand(rules.envoy_names(policy))
    for now, ok in ((0.0, 0.0), (5.0, 10.0)):
        demand.observe("west", "a", flush(ok, 0.0, 0.0), now)
    document = yaml.safe_load(POLICY)
    del document["frontends"]["west"]
    (tmp_path / "without.yaml").write_text(yaml.safe_dump(document))
    families = list(traffic(load(tmp_path / "without.yaml"), demand.view(5.0)))
    for name in ("headrace_requests_total", "headrace_demand_rps", "headrace_demand_age_seconds"):
        assert values(families, name) == {}


def plan_of(policy: Policy, west_rps: float) -> Round:
    demand = {"west": {KEY: west_rps}, "east": {KEY: 20.0}}
    engines = {name: EngineState(2) for name in policy.engines}
    found = plan_round(Inputs(PlanningRules.of(policy), demand, {}, engines, Served()), Warm())
    assert found.plan is not None
    return found


def test_planned_latency_of_each_row_averages_to_that_of_the_plan(policy: Policy):
    found = plan_of(policy, 40.0)
    families = list(planned(policy, found, Limits(), {}))
    latency = values(families, "headrace_plan_latency_seconds")
    assert latency.keys() == {("west", "chat", "interactive"), ("east", "chat", "interactive")}
    mean = (
        40.0 * latency["west", "chat", "interactive"] + 20.0 * latency["east", "chat", "interactive"]
    ) / 60
    assert mean == pytest.approx(found.plan.e2e_ms / 1000, rel=1e-6)


def test_an_engine_has_a_retry_budget_while_there_is_spare_and_none_when_all_is_full(policy: Policy):
    envoys = {"west": 2, "east": 1}
    calm, full = plan_of(policy, 40.0), plan_of(policy, 400.0)
    some = retry_budgets(calm, limits(calm, policy, envoys), envoys)
    none = retry_budgets(full, limits(full, policy, envoys), envoys)
    assert some.keys() == {"west-gpu", "east-gpu"}
    assert min(some.values()) > 0.1
    assert set(none.values()) == {0.0}


def test_without_a_plan_there_is_no_series_of_one(policy: Policy):
    assert list(planned(policy, None, Limits(), {})) == []


@pytest.fixture
def secured(tmp_path: Path) -> Policy:
    """Two ports, whose certificates expire on the 9th and on the 8th of March 2031."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    document = yaml.safe_load(POLICY) | {"security": {}}
    for port, day, identity in (("xds", 9, "{frontend}.test"), ("reports", 8, "{engine}.test")):
        expiry = datetime.datetime(2031, 3, day, tzinfo=datetime.UTC)
        leaf = ca.issue_cert("control-plane.test", not_after=expiry)
        leaf.private_key_pem.write_to_path(str(tmp_path / f"{port}.key"))
        leaf.cert_chain_pems[0].write_to_path(str(tmp_path / f"{port}.pem"))
        files = {"cert": f"{port}.pem", "key": f"{port}.key", "client_ca": "ca.pem"}
        section = {name: {"file": file} for name, file in files.items()}
        document["security"][port] = {"identity": identity, **section}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(document))
    return load(tmp_path / "policy.yaml")


def test_the_first_certificate_to_expire_is_told_also_after_it_was_replaced(secured: Policy, tmp_path: Path):
    def day() -> datetime.datetime:
        return datetime.datetime.fromtimestamp(earliest_expiry(secured) or 0.0, datetime.UTC)

    assert day() == datetime.datetime(2031, 3, 8, tzinfo=datetime.UTC)
    (tmp_path / "xds.pem").rename(tmp_path / "reports.pem.new")
    (tmp_path / "reports.pem.new").rename(tmp_path / "reports.pem")
    assert day() == datetime.datetime(2031, 3, 9, tzinfo=datetime.UTC)


def test_a_certificate_that_cannot_be_read_has_no_expiry(secured: Policy, policy: Policy, tmp_path: Path):
    for port in ("xds", "reports"):
        (tmp_path / f"{port}.pem").write_text("half of a certi")
    assert earliest_expiry(secured) is None
    assert earliest_expiry(policy) is None
