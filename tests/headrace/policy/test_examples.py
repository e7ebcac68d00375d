"""The examples say what the documentation says of them."""

from __future__ import annotations

from pathlib import Path

from headrace.policy import load

EXAMPLES = Path(__file__).parents[3] / "examples"
DEMAND = {"us-east": 90, "eu-west": 120, "ap-south": 40}
REPLICAS = {"us-east-gpu": 5, "eu-west-gpu": 5, "ap-south-gpu": 4}


def test_the_small_fleet_is_short_in_one_region_only():
    policy = load(EXAMPLES / "policy.yaml")
    capacity = {
        spec.region: spec.profile.capacity_rps * REPLICAS[name] for name, spec in policy.engines.items()
    }
    assert capacity == {"us-east": 100, "eu-west": 100, "ap-south": 80}
    assert [region for region in DEMAND if DEMAND[region] > capacity[region]] == ["eu-west"]
    room = sum(
        policy.engines[n].max_utilization * policy.engines[n].profile.capacity_rps * c
        for n, c in REPLICAS.items()
    )
    assert room > 1.05 * sum(DEMAND.values())


def test_the_spare_engine_is_the_nearer_one():
    policy = load(EXAMPLES / "policy.yaml")
    assert policy.network_ms("eu-west", "ap-south-gpu") == 98
    assert policy.network_ms("eu-west", "us-east-gpu") == 237
    assert policy.network_ms("us-east", "ap-south-gpu") == 167


def test_the_small_fleet_serves_a_name_with_a_dot_and_a_slash():
    (model,) = load(EXAMPLES / "policy.yaml").models.values()
    assert model.served_as == ("meta-llama/Llama-3.3-70B-Instruct",)


def test_the_large_fleet_keeps_eu_requests_in_the_eu():
    policy = load(EXAMPLES / "fleet")
    for key in policy.key_specs:
        engines = policy.eligible("eu-west", key).engines
        assert engines
        assert {policy.jurisdiction(engine) for engine in engines} == {"eu"}


def test_the_large_fleet_has_a_spot_pool_for_batch_only():
    policy = load(EXAMPLES / "fleet")
    assert policy.engines["us-west-h100-spot"].max_share == 0.5
    assert "us-west-h100-spot" in policy.eligible("us-west", "llama-70b/batch").engines
    assert "us-west-h100-spot" not in policy.eligible("us-west", "llama-70b/interactive").engines
