"""Routing tables: the same policy gives the same bytes, and rules hold whatever is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from headrace.control_plane.enforce import enforce
from headrace.control_plane.rounds import Inputs, Result, plan_round
from headrace.control_plane.served import Served
from headrace.control_plane.table import Limits, Tables
from headrace.policy import Policy, load
from headrace.problem import EngineState, PlanningRules
from optimizer import Partition, Warm
from signals.replicas import MembershipView, Presence, Replica, ReplicaKey, ReplicaState
from tests.headrace.fleet.small import KEY, POLICY
from xds_server.routing import Health
from xds_server.translate import translate

FLEET = Path("examples/fleet")
NONE = Limits()
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


def tables(policy: Policy, members: MembershipView, served: Served, limits: Limits = NONE) -> Tables:
    found = Tables(policy, served, limits)
    found.look(members)
    return found


def bodies(policy: Policy, frontend: str) -> list[tuple[str, str, bytes]]:
    table = tables(policy, everyone(policy), planned(policy)).of(frontend)
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
    table = tables(policy, everyone(policy), planned(policy)).of(EU)
    assert table.engines
    assert {policy.jurisdiction(engine) for engine in table.engines} == {"eu"}


def test_an_engine_that_is_no_longer_eligible_loses_its_intervals_before_any_planning():
    policy = load(FLEET)
    key = next(key for key in policy.key_specs if policy.eligible(EU, key).engines)
    foreign = next(e for e, spec in policy.engines.items() if spec.jurisdiction != "eu")
    home = policy.eligible(EU, key).engines[0]
    served = Served(7, {(EU, key): Partition.fresh({foreign: 0.25, home: 0.75})})
    kept = enforce(policy, served, set(policy.engines))
    assert kept.sequence == 8
    assert kept.partitions[EU, key].shares == {home: 1.0}


def test_a_row_left_without_an_engine_goes_to_the_nearest_eligible_one_that_is_ready():
    policy = load(FLEET)
    key = next(key for key in policy.key_specs if len(policy.eligible(EU, key).engines) > 1)
    foreign = next(e for e, spec in policy.engines.items() if spec.jurisdiction != "eu")
    last = policy.eligible(EU, key).engines[-1]
    kept = enforce(policy, Served(7, {(EU, key): Partition.fresh({foreign: 1.0})}), {last})
    assert kept.partitions[EU, key].shares == {last: 1.0}


def fenced(folder: Path) -> Policy:
    """The small fleet, whose engines are all in the us, with a front-end that may only use the eu."""
    document = yaml.safe_load(POLICY)
    document["regions"]["south"] = {"jurisdiction": "eu"}
    document["frontends"]["west"]["residency"] = ["eu"]
    (folder / "policy.yaml").write_text(yaml.safe_dump(document))
    return load(folder / "policy.yaml")


def test_a_key_that_nobody_may_serve_is_answered_503_with_the_reason(tmp_path: Path):
    policy = fenced(tmp_path)
    served = Served(7, {("west", KEY): Partition.fresh({"west-gpu": 1.0})})
    kept = enforce(policy, served, set(policy.engines))
    (split,) = tables(policy, everyone(policy), kept).of("west").frontends["west"].splits
    assert split.entries == ()
    assert split.reason == "no engine is eligible"


def test_limits_of_engines_that_are_gone_do_not_spoil_the_snapshot(tmp_path: Path):
    policy = fenced(tmp_path)
    stale = {("west", KEY): {"west-gpu": 5, "east-gpu": 5}}
    kept = enforce(policy, Served(7, {}), set(policy.engines))
    for frontend in policy.frontends:
        table = tables(policy, everyone(policy), kept, Limits(stale, stale)).of(frontend)
        assert translate(table, frontend).check() == []


def test_only_front_ends_that_use_an_engine_are_affected_by_its_members(tmp_path: Path):
    policy = fenced(tmp_path)
    found = Tables(policy, enforce(policy, Served(), set(policy.engines)), NONE)
    found.look(everyone(policy))
    for frontend in policy.frontends:
        found.of(frontend)
    assert found.look(everyone(policy)) == frozenset()
    assert found.look(everyone(policy, ReplicaState.DRAINING)) == {"east"}


def test_draining_replicas_are_shown_as_draining_and_starting_ones_not_at_all():
    policy = load(FLEET)
    served = planned(policy)
    engine = next(name for name, spec in policy.engines.items() if spec.region == US)

    def shown(state: ReplicaState) -> list[Health]:
        table = tables(policy, everyone(policy, state), served).of(US)
        return [endpoint.health for endpoint in table.frontends[US].endpoints[engine]]

    assert shown(ReplicaState.DRAINING) == [Health.DRAINING] * 3
    assert shown(ReplicaState.STARTING) == []


def test_an_engine_of_another_region_is_reached_through_that_regions_gateway():
    policy = load(FLEET)
    table = tables(policy, everyone(policy), planned(policy)).of(US)
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
