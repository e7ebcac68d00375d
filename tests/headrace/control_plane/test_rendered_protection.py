"""Every setting of `protection`, from the policy's text to the field of what Envoy is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.clusters.composite.v3 import ClusterConfig
from envoy_data_plane.envoy.service.runtime.v3 import Runtime

from headrace.control_plane.limits import limits
from headrace.control_plane.rounds import Inputs, Result, plan_round
from headrace.control_plane.served import Served
from headrace.control_plane.table import Tables
from headrace.policy import load
from headrace.policy.schema import EngineProtection
from headrace.policy.schema.base import Shape
from headrace.policy.schema.protection import Retries, Shedding
from headrace.problem import EngineState, PlanningRules
from optimizer import Warm
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey, ReplicaState
from tests.headrace.fleet.small import POLICY
from xds_server.resource_types import CDS, LDS, RDS, RTDS, ResourceType
from xds_server.translate import names, translate

MESSAGES = {LDS: Listener, RDS: RouteConfiguration, CDS: Cluster, RTDS: Runtime}
EXTENSIONS = (ClusterConfig,)
"""Decoded inside the messages; importing them is enough."""
HTTP = "typedExtensionProtocolOptions/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

Rendered = Callable[[ResourceType, str], Any]
"""Type and name -> that resource, as plain values."""

MEMBER = (CDS, "interactive/west-gpu")
COMPOSITE = (CDS, "chat/interactive/west-gpu")
ROUTES = (RDS, names.ROUTES)
LISTENER = (LDS, "public")
RUNTIME = (RTDS, names.RUNTIME_LAYER)
RETRY_POLICY = "virtualHosts/*/routes/*/route/retryPolicy"
LOCAL_REPLIES = "filterChains/*/filters/*/typedConfig/localReplyConfig/mappers/*/headersToAdd/*/header/value"
RETRIES = "circuit_breakers.chat/interactive/west-gpu.default.retry_budget.min_retry_concurrency"
REQUESTS = "circuit_breakers.interactive/west-gpu.default.max_requests"


class Case(NamedTuple):
    """What a field of the policy is set to, and what that is where."""

    value: Any
    resource: tuple[ResourceType, str]
    path: str
    """Keys from the resource's root, `*` for all of a list; in the runtime layer one key."""
    shown: Any
    """None: nothing is there."""

    @property
    def values(self) -> list[Any]:
        return [] if self.shown is None else [self.shown]


CASES = {
    "outlier_detection.enabled": Case(False, MEMBER, "outlierDetection", None),
    "outlier_detection.consecutive_local_origin_failure": Case(
        7, MEMBER, "outlierDetection/consecutiveLocalOriginFailure", 7
    ),
    "outlier_detection.consecutive_gateway_failure": Case(
        8, MEMBER, "outlierDetection/consecutiveGatewayFailure", 8
    ),
    "outlier_detection.consecutive_5xx": Case(9, MEMBER, "outlierDetection/consecutive5Xx", 9),
    "outlier_detection.interval_s": Case(2.5, MEMBER, "outlierDetection/interval", "2.500s"),
    "outlier_detection.base_ejection_time_s": Case(11, MEMBER, "outlierDetection/baseEjectionTime", "11s"),
    "outlier_detection.max_ejection_time_s": Case(90, MEMBER, "outlierDetection/maxEjectionTime", "90s"),
    "outlier_detection.max_ejection_percent": Case(40, MEMBER, "outlierDetection/maxEjectionPercent", 40),
    "health_check.enabled": Case(False, MEMBER, "healthChecks", None),
    "health_check.scope": Case("all", (CDS, "interactive/east-gpu"), "healthChecks/*/timeout", "1s"),
    "health_check.path": Case("/ready", MEMBER, "healthChecks/*/httpHealthCheck/path", "/ready"),
    "health_check.interval_s": Case(6, MEMBER, "healthChecks/*/interval", "6s"),
    "health_check.timeout_s": Case(3, MEMBER, "healthChecks/*/timeout", "3s"),
    "health_check.unhealthy_threshold": Case(4, MEMBER, "healthChecks/*/unhealthyThreshold", 4),
    "health_check.healthy_threshold": Case(3, MEMBER, "healthChecks/*/healthyThreshold", 3),
    "hash.lb": Case("maglev", MEMBER, "lbPolicy", "MAGLEV"),
    "hash.ring_size": Case(2048, MEMBER, "ringHashLbConfig/minimumRingSize", 2048),
    "hash.maglev_table_size": Case(251, MEMBER, "maglevLbConfig/tableSize", 251),
    "hash.balance_factor": Case(
        125, MEMBER, "commonLbConfig/consistentHashingLbConfig/hashBalanceFactor", 125
    ),
    "breakers.max_requests": Case(77, MEMBER, "circuitBreakers/thresholds/*/maxRequests", 77),
    "breakers.headroom": Case(100, RUNTIME, REQUESTS, 182.0),
    "breakers.floor": Case(4096, RUNTIME, REQUESTS, 4096.0),
    "timeouts.connect_s": Case(3, MEMBER, "connectTimeout", "3s"),
    "timeouts.idle_s": Case(9, MEMBER, f"{HTTP}/commonHttpProtocolOptions/idleTimeout", "9s"),
    "panic_threshold_percent": Case(30, MEMBER, "commonLbConfig/healthyPanicThreshold/value", 30),
    "retries.enabled": Case(False, RUNTIME, RETRIES, 0.0),
    "retries.same_engine": Case(3, ROUTES, f"{RETRY_POLICY}/numRetries", 4),
    "retries.statuses": Case([502], ROUTES, f"{RETRY_POLICY}/retriableStatusCodes", [502]),
    "retries.fallback": Case(
        False, COMPOSITE, "clusterType/typedConfig/clusters", [{"name": "interactive/west-gpu"}] * 3
    ),
    "retries.limit": Case(17, RUNTIME, RETRIES, 17.0),
    "retries.floor": Case(4096, RUNTIME, RETRIES, 4096.0),
}
WITH = {"hash.maglev_table_size": {"hash": {"lb": "maglev"}}}
"""What has to be set beside a field for it to count."""
ANSWERS = {
    "shedding.retry_after_shed_s": 41,
    "shedding.retry_after_overflow_s": 42,
    "shedding.retry_after_unavailable_s": 43,
}
ELSEWHERE = {
    "ramp.duration_s",  # weights of endpoints, by time: test_ramp.py
    "ramp.start",
    "shedding.enabled",  # the plan itself: test_reserve.py
    "shedding.reserve",
    "shedding.rotate_s",  # which sessions are refused: test_rotation.py
    "shedding.correct_s",  # when a round is asked for: traffic.py
}


def fields(shape: type[Shape], prefix: str = "") -> Iterator[str]:
    """Dotted paths of all values of a part of the schema."""
    for name, field in shape.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Shape):
            yield from fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def protection(path: str, value: Any) -> dict[str, Any]:
    """The `protection` section that sets one field."""
    section, _, name = path.rpartition(".")
    beside = WITH.get(path, {}).get(section, {})
    return {section: {name: value, **beside}} if section else {name: value}


def small_policy(**sections: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(POLICY)
    return document | sections


def rendered(folder: Path, document: Mapping[str, Any], frontend: str = "west") -> Rendered:
    """What a front-end's Envoys are given, from a policy's text by a round of planning."""
    (folder / "policy.yaml").write_text(yaml.safe_dump(dict(document)))
    policy = load(folder / "policy.yaml")
    inputs = Inputs(
        rules=PlanningRules.of(policy),
        demand_rps={f: dict.fromkeys(policy.key_specs, 9.0) for f in policy.frontends},
        network_ms={},
        engines={name: EngineState(3) for name in policy.engines},
        served=Served(),
    )
    found = plan_round(inputs, Warm())
    assert found.result is Result.PUBLISHED
    tables = Tables(policy, found.served, limits(found, policy, {}))
    tables.look(MembershipView(1, {name: (member(name),) for name in policy.engines}))
    snapshot = translate(tables.of(frontend), frontend)
    return lambda type_, name: MESSAGES[type_].parse(snapshot.of_type(type_.url)[name].body).to_dict()


def member(engine: str) -> Replica:
    key = ReplicaKey(engine, "", "r1")
    return Replica(key, "10.9.0.1", 8000, ReplicaState.READY, Presence.REPORTING)


def at(resource: Any, path: str) -> list[Any]:
    """The different values at a path."""
    if path.startswith("circuit_breakers."):
        return [value for key, value in resource["layer"].items() if key == path]
    found = [resource]
    for key in path.split("/"):
        found = [v for each in found for v in (each if key == "*" else [each[key]] if key in each else [])]
    return [value for i, value in enumerate(found) if value not in found[:i]]


@pytest.fixture(scope="module")
def unedited(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    return rendered(tmp_path_factory.mktemp("unedited"), small_policy())


@pytest.mark.parametrize("path", CASES)
def test_a_field_of_the_policy_reaches_envoys_configuration(path: str, unedited: Rendered, tmp_path: Path):
    case = CASES[path]
    edited = rendered(tmp_path, small_policy(protection=protection(path, case.value)))
    assert at(unedited(*case.resource), case.path) != case.values
    assert at(edited(*case.resource), case.path) == case.values


@pytest.mark.parametrize("path", ANSWERS)
def test_a_retry_after_of_the_policy_reaches_the_listener(path: str, unedited: Rendered, tmp_path: Path):
    seconds = str(ANSWERS[path])
    edited = rendered(tmp_path, small_policy(protection=protection(path, ANSWERS[path])))
    assert seconds not in at(unedited(*LISTENER), LOCAL_REPLIES)
    assert seconds in at(edited(*LISTENER), LOCAL_REPLIES)


def test_no_field_that_guards_traffic_is_left_out_here():
    known = set(fields(EngineProtection))
    known |= {*fields(Retries, "retries."), *fields(Shedding, "shedding.")}
    assert known == CASES.keys() | ANSWERS.keys() | ELSEWHERE


@pytest.mark.parametrize("path", [path for path in CASES if not path.startswith("retries.")])
def test_an_engines_own_protection_reaches_its_clusters(path: str, tmp_path: Path):
    case = CASES[path]
    document = small_policy()
    engine = "east-gpu" if case.resource[1].endswith("east-gpu") else "west-gpu"
    document["engines"][engine]["protection"] = protection(path, case.value)
    assert at(rendered(tmp_path, document)(*case.resource), case.path) == case.values


def test_an_engines_own_protection_leaves_other_engines_as_they_are(unedited: Rendered, tmp_path: Path):
    document = small_policy()
    other = (CDS, "interactive/east-gpu")
    document["engines"]["west-gpu"]["protection"] = {"timeouts": {"connect_s": 3}, "hash": {"lb": "maglev"}}
    assert rendered(tmp_path, document)(*other) == unedited(*other)


def test_front_ends_check_the_health_of_their_own_regions_engines_only(tmp_path: Path):
    document = small_policy(protection={"health_check": {"scope": "home"}})
    checked = {
        (frontend, engine)
        for frontend in ("west", "east")
        for envoy in [rendered(tmp_path, document, frontend)]
        for engine in ("west-gpu", "east-gpu")
        if "healthChecks" in envoy(CDS, f"interactive/{engine}")
    }
    assert checked == {("west", "west-gpu"), ("east", "east-gpu")}
