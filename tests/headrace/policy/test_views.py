"""What a loaded policy answers."""

from __future__ import annotations

import pytest

from headrace.policy import load

CHAT, BATCH = "llama-70b/interactive", "llama-70b/batch"


def test_names_with_ranges_stand_for_several_engines(policy):
    assert [name for name in policy.engines if name.startswith("us-east-h100")] == [
        "us-east-h100-01",
        "us-east-h100-02",
        "us-east-h100-03",
    ]
    assert policy.engines["us-east-h100-02"].model == "llama-70b"


def test_several_ranges_multiply_and_keep_their_width(write):
    policy = load(write(("us-east-h100-{01..03}", "us-{8..10}-h-{098..099}")))
    names = [name for name in policy.engines if name.startswith("us-") and "-h-" in name]
    assert names == sorted(f"us-{a}-h-{b}" for a in (8, 9, 10) for b in ("098", "099"))


def test_keys_are_all_pairs_of_model_and_class(policy):
    assert policy.keys() == (
        ("llama-70b", "batch"),
        ("llama-70b", "interactive"),
        ("llama-8b", "batch"),
        ("llama-8b", "interactive"),
    )
    assert list(policy.key_specs) == list(map("/".join, policy.keys()))


def test_a_model_overrides_fields_of_a_class(policy):
    assert policy.key_specs["llama-8b/interactive"].output_tokens == 120
    assert policy.key_specs["llama-70b/interactive"].output_tokens == 250
    assert policy.key_specs["llama-8b/interactive"].priority == 100


def test_a_bare_service_level_means_p95(policy):
    slo = policy.key_specs[CHAT].tbot_slo_ms
    assert slo is not None
    assert slo.p95 == 80
    assert slo.p99 is None


def test_keys_without_churn_prices_take_the_fleets(write):
    policy = load(
        write(("work: 3", "work: 3, churn_price_ms: 0"), extra="planning: {churn: {price_ms: 7}}\n")
    )
    assert policy.key_specs[CHAT].churn_price_ms == 7
    assert policy.key_specs[BATCH].churn_price_ms == 0


def test_defaults_act_where_an_engine_says_nothing_else(write):
    policy = load(
        write(
            ("{capabilities: [tools]}", "{capabilities: [tools], state: drain, max_utilization: 0.5}"),
            ("region: lab,", "region: lab, state: active, capabilities: [],"),
        )
    )
    assert policy.engines["spot"].state == "drain"
    assert policy.engines["lab-a100"].state == "active"
    assert policy.engines["lab-a100"].capabilities == frozenset()
    assert policy.engines["lab-a100"].max_utilization == 0.5


def test_utilization_comes_from_the_engine_then_planning(write):
    policy = load(
        write(("max_share: 0.5", "max_utilization: auto"), extra="planning: {max_utilization: 0.8}\n")
    )
    assert policy.engines["spot"].max_utilization == "auto"
    assert policy.engines["lab-a100"].max_utilization == 0.8


def test_model_defaults_act_where_a_model_says_nothing_else(write):
    policy = load(
        write(
            (
                "  engine: {capabilities: [tools]}",
                "  engine: {capabilities: [tools]}\n  model: {stream_idle_s: 60, max_request_mib: 1}",
            ),
            ("requires: [tools]", "max_request_mib: 32"),
        )
    )
    assert policy.models["llama-70b"].max_request_mib == 32
    assert policy.models["llama-8b"].max_request_mib == 1
    assert policy.models["llama-70b"].stream_idle_s == 60


def test_protection_is_fleet_wide_unless_an_engine_differs(write):
    policy = load(
        write(
            ("max_share: 0.5", "protection: {hash: {ring_size: 4096}}"),
            ("{capabilities: [tools]}", "{capabilities: [tools], protection: {timeouts: {idle_s: 9}}}"),
            extra="protection: {hash: {lb: maglev}, timeouts: {connect_s: 2}}\n",
        )
    )
    spot, other = policy.engines["spot"].protection, policy.engines["lab-a100"].protection
    assert (spot.hash.lb, spot.hash.ring_size) == ("maglev", 4096)
    assert (other.hash.lb, other.hash.ring_size) == ("maglev", 1024)
    assert (spot.timeouts.connect_s, spot.timeouts.idle_s) == (2, 9)


def test_safe_defaults(policy):
    protection = policy.protection
    assert protection.panic_threshold_percent == 0
    assert protection.hash.lb == "ring_hash"
    assert protection.health_check.scope == "home"
    assert protection.outlier_detection.max_ejection_percent == 100
    assert policy.planning.policy == "global"
    assert policy.planning.max_utilization == 0.90
    assert not policy.listeners["public"].trust_headers
    for model in policy.models.values():
        assert model.longest_generation_s == 900
        assert model.first_byte_timeout_s is None  # a slow first token is not tried again


def test_members_of_each_kind(write):
    policy = load(write(("max_share: 0.5", 'members: {dns: "pool.example.net:80", replicas: 4}')))
    assert policy.engines["lab-a100"].members.reported
    assert policy.engines["us-east-a100"].members.static == ("10.16.0.7:8000",)
    assert policy.engines["eu-west-pool"].members.gateway == "epp.example.net:80"
    assert policy.engines["eu-west-pool"].members.replicas == 12
    assert policy.engines["spot"].members.dns == "pool.example.net:80"


def test_listeners_may_bind_free_ports(write):
    policy = load(write(("port: 8443", "port: 0"), ("port: 8444", "port: 0")))
    assert {listener.port for listener in policy.listeners.values()} == {0}


def test_a_profile_of_either_kind(policy):
    assert policy.engines["spot"].profile.capacity_rps == 4.6
    assert policy.engines["spot"].profile_name == "h100"
    assert [point.load_rps for point in policy.profiles["a100"].table] == [0, 24]


# network


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ("us-east: {us-west: 62, eu-west: 76, lab: 5, spot: 61}", 61),  # front-end/engine
        ("us-east: {us-west: 62, eu-west: 76, lab: 5}", 62),  # front-end/region
    ],
)
def test_the_most_specific_round_trip_wins(write, edit, expected):
    policy = load(write(("us-east: {us-west: 62, eu-west: 76, lab: 5}", edit)))
    assert policy.network_ms("us-east", "spot") == expected


def test_round_trips_between_regions_are_symmetric(policy):
    assert policy.network_ms("us-east", "eu-west-h100") == 76
    assert policy.network_ms("eu-west", "us-east-a100") == 76


def test_a_front_ends_own_row_beats_its_regions(write):
    policy = load(
        write(
            (
                "  us-east: {region: us-east}\n  eu",
                "  edge: {region: us-east}\n  us-east: {region: us-east}\n  eu",
            ),
            ("  rtt_ms:\n", "  rtt_ms:\n    edge: {us-west: 40}\n"),
        )
    )
    assert policy.network_ms("edge", "spot") == 40
    assert policy.network_ms("us-east", "spot") == 62
    assert policy.network_ms("edge", "eu-west-h100") == 76


def test_within_a_region_the_round_trip_has_a_default(write):
    policy = load(write(("  same_region_rtt_ms: 1\n", "")))
    assert policy.network_ms("us-east", "us-east-a100") == 1
    policy = load(write(("same_region_rtt_ms: 1", "same_region_rtt_ms: 2.5")))
    assert policy.network_ms("us-east", "us-east-a100") == 2.5


# eligibility


def test_eligible_engines_and_the_reasons_of_the_others(policy):
    found = policy.eligible("us-east", CHAT)
    assert found.engines == ("eu-west-h100", "us-east-h100-01", "us-east-h100-02", "us-east-h100-03")
    assert found.reasons == {"spot": "classes: serves only batch"}


def test_residency_of_the_front_end_binds(policy):
    found = policy.eligible("eu-west", BATCH)
    assert found.engines == ("eu-west-h100",)
    assert found.reasons["spot"] == "residency: in jurisdiction us, allowed: eu"


def test_an_engine_without_jurisdiction_never_serves_a_key_with_a_rule(policy):
    found = policy.eligible("eu-west", "llama-8b/batch")
    assert found.reasons["lab-a100"] == "residency: in a region without jurisdiction, allowed: eu"
    assert "lab-a100" in policy.eligible("us-east", "llama-8b/batch").engines


def test_residency_of_model_and_class_and_front_end_intersect(write):
    policy = load(
        write(("requires: [tools]", "residency: [us, eu]"), ("work: 1", "work: 1, residency: [us]"))
    )
    assert policy.key_specs[CHAT].residency == {"us"}
    found = policy.eligible("eu-west", CHAT)
    assert found.engines == ()
    assert set(found.reasons.values()) == {
        "residency: in jurisdiction us, allowed: none",
        "residency: in jurisdiction eu, allowed: none",
    }


def test_a_models_override_cannot_lift_a_class_rule(write):
    policy = load(
        write(
            ("work: 1", "work: 1, residency: [us]"),
            ("      interactive: {output_tokens: 120}", "      interactive: {residency: [us, eu]}"),
        )
    )
    assert policy.key_specs["llama-8b/interactive"].residency == {"us"}


def test_a_class_rule_told_by_a_header_holds_when_the_default_class_is_as_strict(write):
    policy = load(
        write(
            ("work: 3, match", "work: 3, residency: [us, eu], match"), ("work: 1", "work: 1, residency: [us]")
        )
    )
    assert policy.key_specs[BATCH].residency == {"us", "eu"}


def test_missing_capabilities_are_named(write):
    policy = load(write(("requires: [tools]", "requires: [tools, vision]")))
    assert policy.eligible("us-east", BATCH).reasons["spot"] == "capability: lacks vision"


@pytest.mark.parametrize("state", ["drain", "off"])
def test_engines_that_are_not_active_are_not_eligible(write, state):
    policy = load(write(("max_share: 0.5", f"state: {state}")))
    assert policy.eligible("us-east", BATCH).reasons["spot"] == f"state: {state}"


def test_deny_rules_bite_where_all_their_fields_fit(write):
    policy = load(
        write(
            extra="deny:\n"
            "  - {frontend: us-east, engine: 'us-east-h100-{01..02}', class: batch, reason: maintenance}\n"
            "  - {region: us-west}\n"
        )
    )
    found = policy.eligible("us-east", BATCH)
    assert found.reasons == {
        "us-east-h100-01": "denied: maintenance",
        "us-east-h100-02": "denied: maintenance",
        "spot": "denied by a rule",
    }
    assert "us-east-h100-01" in policy.eligible("us-east", CHAT).engines


def test_a_deny_rule_for_one_front_end_leaves_its_neighbour_alone(write):
    policy = load(
        write(
            ("  us-east: {region: us-east}\n  eu", "  a: {region: us-east}\n  b: {region: us-east}\n  eu"),
            extra="deny: [{frontend: b, region: us-west}]\n",
        )
    )
    assert "spot" in policy.eligible("a", BATCH).engines
    assert policy.eligible("b", BATCH).reasons["spot"] == "denied by a rule"


# warnings


def test_a_key_that_nobody_may_serve_is_a_warning(write):
    policy = load(write(("requires: [tools]", "requires: [vision]")))
    assert [warning.wrong for warning in policy.warnings] == [
        "class batch has no eligible engine for any front-end (capability: lacks vision; "
        "residency: in jurisdiction us, allowed: eu)",
        "class interactive has no eligible engine for any front-end (capability: lacks vision; "
        "residency: in jurisdiction us, allowed: eu)",
    ]


def test_classes_of_different_length_that_count_the_same_are_a_warning(write):
    policy = load(write(("output_tokens: 250, work: 1", "output_tokens: 250"), ("work: 3, ", "")))
    assert [str(w).partition("profiles.")[2] for w in policy.warnings] == [
        "h100: has no reference, so requests of llama-70b count as the same work although their "
        "output_tokens go from 250 to 800; expected a reference, or work for each class",
        "a100: has no reference, so requests of llama-8b count as the same work although their "
        "output_tokens go from 120 to 800; expected a reference, or work for each class",
    ]


def test_a_reference_makes_classes_of_different_length_comparable(write):
    reference = "reference: {input_tokens: 1200, output_tokens: 210}\n"
    policy = load(
        write(
            ("output_tokens: 250, work: 1", "output_tokens: 250"),
            ("work: 3, ", ""),
            ("    t0_ms: 24\n", f"    t0_ms: 24\n    {reference}"),
            ("    capacity_rps: 25\n", f"    capacity_rps: 25\n    {reference}"),
        )
    )
    assert policy.warnings == ()


def test_the_base_policy_warns_of_nothing(policy):
    assert policy.warnings == ()


def test_a_revision_that_looks_like_a_number_is_taken_as_written(write):
    for revision in ("1234567", "0123456", "12e4567", "2026-01-01", "yes"):
        assert load(write(("revision: 4f2c1a9", f"revision: {revision}"))).revision == revision
