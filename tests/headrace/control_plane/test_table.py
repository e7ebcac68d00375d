"""Routing tables: the same policy gives the same bytes, and rules hold whatever is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from headrace.control_plane.rounds import Inputs, Result, enforce, plan_round
from headrace.control_plane.served import Served
from headrace.control_plane.table import Limits, Tables
from headrace.policy import Policy, load
from headrace.problem import EngineState, PlanningRules
from optimizer import Partition, Warm
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey, ReplicaState
from xds_server.routing import Health
from xds_server.translate import translate

FLEET = Path("examples/fleet")
EU, US = "eu-west", "us-east"


def reverse_maps(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reverse_maps(value[key]) for key in reversed(list(value))}
    return [reverse_maps(item) for item in value] if isinstance(value, list) else value


def reversed_folder(target: Path) -> Path:
    for path in sorted(FLEET.rglob("*.yaml")):
        copy = target / path.relative_to(FLEET)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(yaml.safe_dump(reverse_maps(yaml.safe_load(path.read_text())), sort_keys=False))
    return target


def everyone(policy: Policy, state: ReplicaState = ReplicaState.READY) -> MembershipView:
    engines = {
        name: tuple(
            Replica(ReplicaKey(name, "", f"r{i}"), f"10.9.{number}.{i}", 8000, state, Presence.REPORTING)
            for i in (1, 2, 3)
        )
        for number, name in enumerate(policy.engines)
    }
    return MembershipView(1, engines)


def planned(policy: Policy, served: Served | None = None) -> Served:
    found = plan_round(
        Inputs(
            rules=PlanningRules.of(policy),
            demand_rps={f: dict.fromkeys(policy.key_specs, 3.0) for f in policy.frontends},
            network_ms={},
            engines={name: EngineState(3) for name in policy.engines},
            served=served or Served(),
        ),
        Warm(),
    )
    assert found.result is Result.PUBLISHED
    return found.served


def bodies(policy: Policy, frontend: str) -> list[tuple[str, str, bytes]]:
    table = Tables(policy, everyone(policy), planned(policy), Limits()).of(frontend)
    snapshot = translate(table, frontend)
    return [
        (url, name, resource.body)
        for url, resources in sorted(snapshot.types.items())
        for name, resource in sorted(resources.items())
    ]


def test_the_order_of_keys_in_the_policy_changes_no_byte(tmp_path: Path):
    straight, turned = load(FLEET), load(reversed_folder(tmp_path))
    for frontend in straight.frontends:
        assert bodies(turned, frontend) == bodies(straight, frontend)


def test_no_engine_outside_the_jurisdiction_has_a_cluster_in_a_front_end_with_residency():
    policy = load(FLEET)
    assert policy.frontends[EU].residency
    table = Tables(policy, everyone(policy), planned(policy), Limits()).of(EU)
    assert table.engines
    assert {policy.jurisdiction(engine) for engine in table.engines} == {"eu"}


def test_an_engine_that_is_no_longer_eligible_loses_its_intervals_before_any_planning():
    policy = load(FLEET)
    key = next(key for key in policy.key_specs if policy.eligible(EU, key).engines)
    foreign = next(e for e, spec in policy.engines.items() if spec.jurisdiction != "eu")
    home = policy.eligible(EU, key).engines[0]
    served = Served(7, {(EU, key): Partition.fresh({foreign: 0.25, home: 0.75})})
    kept = enforce(policy, served)
    assert kept.sequence == 8
    assert kept.partitions[EU, key].shares == {home: 1.0}


def test_a_key_that_nobody_may_serve_any_more_is_answered_503_with_the_reason():
    policy = load(FLEET)
    key = next(key for key in policy.key_specs if policy.eligible(EU, key).engines)
    foreign = next(e for e, spec in policy.engines.items() if spec.jurisdiction != "eu")
    kept = enforce(policy, Served(7, {(EU, key): Partition.fresh({foreign: 1.0})}))
    table = Tables(policy, everyone(policy), kept, Limits()).of(EU)
    split = next(s for s in table.frontends[EU].splits if f"{s.model}/{s.traffic_class}" == key)
    assert split.entries == ()
    assert split.reason == "no engine is eligible"


def test_draining_replicas_are_shown_as_draining_and_starting_ones_not_at_all():
    policy = load(FLEET)
    served = planned(policy)
    engine = next(name for name, spec in policy.engines.items() if spec.region == US)

    def shown(state: ReplicaState) -> list[Health]:
        table = Tables(policy, everyone(policy, state), served, Limits()).of(US)
        return [endpoint.health for endpoint in table.frontends[US].endpoints[engine]]

    assert shown(ReplicaState.DRAINING) == [Health.DRAINING] * 3
    assert shown(ReplicaState.STARTING) == []


def test_an_engine_of_another_region_is_reached_through_that_regions_gateway():
    policy = load(FLEET)
    table = Tables(policy, everyone(policy), planned(policy), Limits()).of(US)
    engine = next(
        name
        for name in table.engines
        if policy.regions[policy.engines[name].region].gateway and policy.engines[name].region != US
    )
    host, port = policy.regions[policy.engines[engine].region].gateway.rsplit(":", 1)
    assert [(e.address, e.port) for e in table.frontends[US].endpoints[engine]] == [(host, int(port))]
    assert table.engines[engine].dns


def test_served_state_survives_saving():
    served = planned(load(FLEET))
    again = Served.from_json(served.to_json())
    assert again.partitions == served.partitions
    assert again.sequence == served.sequence


def test_the_same_inputs_are_not_published_twice():
    policy = load(FLEET)
    served = planned(policy)
    again = plan_round(
        Inputs(
            rules=PlanningRules.of(policy),
            demand_rps={f: dict.fromkeys(policy.key_specs, 3.0) for f in policy.frontends},
            network_ms={},
            engines={name: EngineState(3) for name in policy.engines},
            served=served,
        ),
        Warm(),
    )
    assert again.served is served
    assert again.moved == 0
