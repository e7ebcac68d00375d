"""Which edits wait for a person."""

from __future__ import annotations

import pytest

from headrace.policy import load
from headrace.policy.guards import Accept, Hold, capacity_drop, differences, judge, loosens_residency

EU_FRONTEND = "  eu-west: {region: eu-west, residency: [eu]}\n"


@pytest.fixture
def edited(write, policy):
    """The policy before and after an edit."""

    def edit(*edits, extra=""):
        return policy, load(write(*edits, extra=extra, name="new.yaml"))

    return edit


def test_an_edit_that_changes_little_is_accepted(edited):
    old, new = edited(("capacity_rps: 4.6", "capacity_rps: 4.5"))
    assert judge(old, new, moves=0.02, capacity_drop=0.01) == Accept()


def test_an_edit_that_moves_much_is_held(edited):
    old, new = edited(("us-west: 62", "us-west: 1"))
    assert judge(old, new, moves=0.31, capacity_drop=0) == Hold(
        ("moves 31.0% of all demand; the limit is 30.0%",)
    )
    assert judge(old, new, moves=0.30, capacity_drop=0) == Accept()


def test_an_edit_that_takes_away_much_capacity_is_held(edited):
    old, new = edited(("capacity_rps: 4.6", "capacity_rps: 2.3"))
    drop = capacity_drop(old, new, {})
    assert drop == pytest.approx(0.5)
    assert judge(old, new, moves=0, capacity_drop=drop) == Hold(
        ("takes away 50.0% of a model's capacity; the limit is 25.0%",)
    )


def test_an_edit_cannot_lift_the_guard_that_holds_it(edited):
    old, new = edited(extra="planning: {guards: {hold_if_moves_over: 1}}\n")
    assert isinstance(judge(old, new, moves=0.9, capacity_drop=0), Hold)
    assert isinstance(judge(new, old, moves=0.9, capacity_drop=0), Accept)


# capacity


def test_capacity_counts_the_replicas_that_are_ready(edited):
    old, new = edited(("max_share: 0.5", "state: off"))
    ready = {"us-east-h100-01": 1, "us-east-h100-02": 0, "us-east-h100-03": 0, "eu-west-h100": 0, "spot": 3}
    assert capacity_drop(old, new, ready) == pytest.approx(0.75)


def test_a_models_last_engine_is_all_of_its_capacity(edited):
    old, new = edited(
        *[
            (f"region: {region}, profile: a100", f"region: {region}, profile: a100, state: drain")
            for region in ("us-east", "eu-west", "lab")
        ]
    )
    assert capacity_drop(old, new, {}) == 1


def test_more_capacity_is_no_drop(edited):
    old, new = edited(("{01..03}", "{01..09}"))
    assert capacity_drop(old, new, {}) == 0


# residency


LOOSER = {
    "front-end's rule dropped": (
        [(EU_FRONTEND, "  eu-west: {region: eu-west}\n")],
        "front-end eu-west, llama-70b/batch and 3 more: the rule [eu] is gone",
    ),
    "front-end's rule widened": (
        [("residency: [eu]", "residency: [eu, us]")],
        "front-end eu-west, llama-70b/batch and 3 more: [eu, us] instead of [eu]",
    ),
    "front-end renamed without its rule": (
        [(EU_FRONTEND, "  eu-new: {region: eu-west}\n"), ("    eu-west: {us-west", "    eu-west: {us-west")],
        "front-end eu-new, llama-70b/batch and 3 more: the rule [eu] is gone",
    ),
    "region given another jurisdiction": (
        [("us-west: {jurisdiction: us}", "us-west: {jurisdiction: eu}")],
        "front-end eu-west, llama-70b/batch and 3 more: region us-west counts as eu, no longer as us",
    ),
    "region given a jurisdiction": (
        [("lab: {}", "lab: {jurisdiction: eu}")],
        "front-end eu-west, llama-70b/batch and 3 more: region lab counts as eu, no longer as nowhere",
    ),
}


@pytest.mark.parametrize(("edits", "reason"), LOOSER.values(), ids=LOOSER.keys())
def test_loosening(edited, edits, reason):
    old, new = edited(*edits)
    assert loosens_residency(old, new)[0] == reason
    held = judge(old, new, moves=0, capacity_drop=0)
    assert isinstance(held, Hold)
    assert held.reasons[0] == f"residency: {reason}"


TIGHTER = {
    "same": [],
    "order": [("region: eu-west, residency: [eu]", "residency: [eu], region: eu-west")],
    "front-end's rule added": [("us-east: {region: us-east}", "us-east: {region: us-east, residency: [us]}")],
    "front-end gone": [(EU_FRONTEND, "")],
    "model's rule added": [("requires: [tools]", "residency: [us]")],
    "another region without a rule about it": [("lab: {}", "lab: {}\n  moon: {jurisdiction: moon}")],
}


@pytest.mark.parametrize("edits", TIGHTER.values(), ids=TIGHTER.keys())
def test_not_loosening(edited, edits):
    old, new = edited(*edits)
    assert loosens_residency(old, new) == ()


@pytest.fixture
def with_rules(write):
    """Rules on a model and on a class."""

    def make(*edits, extra=""):
        rules = [("requires: [tools]", "residency: [us]"), ("work: 1", "work: 1, residency: [us, eu]")]
        return load(write(*rules, *edits, extra=extra, name=f"{len(edits)}.yaml"))

    return make


def test_a_models_rule_dropped(with_rules):
    found = loosens_residency(with_rules(), with_rules(("residency: [us]\n", "requires: [tools]\n")))
    assert "front-end us-east, llama-70b/batch: the rule [us] is gone" in found


def test_a_name_that_moves_to_a_freer_model(with_rules):
    new = with_rules(
        ("aliases: [chat-latest]", "aliases: []"), ('"acme-*"]', '"acme-*"]\n    aliases: [chat-latest]')
    )
    assert "front-end us-east, llama-8b/batch: the rule [us] is gone" in loosens_residency(with_rules(), new)


def test_a_name_that_falls_under_a_freer_models_prefix(with_rules):
    new = with_rules(("aliases: [chat-latest]", "aliases: []"), ('"acme-*"', '"chat-*"'))
    assert "front-end us-east, llama-8b/batch: the rule [us] is gone" in loosens_residency(with_rules(), new)


def test_a_class_rule_dropped(with_rules):
    new = with_rules((", residency: [us, eu]", ""))
    assert "front-end us-east, llama-8b/interactive: the rule [eu, us] is gone" in loosens_residency(
        with_rules(), new
    )


def test_a_default_class_that_becomes_freer(with_rules):
    new = with_rules(("default_class: interactive", "default_class: batch"))
    assert "front-end us-east, llama-8b/batch: the rule [eu, us] is gone" in loosens_residency(
        with_rules(), new
    )


# what would change


def test_what_an_edit_changes_is_shown(edited):
    old, new = edited(("capacity_rps: 4.6", "capacity_rps: 4.5"), ("  spot:", "  spot-b:"))
    found = {item.path: (item.old, item.new) for item in differences(old, new)}
    assert found["profiles.h100.capacity_rps"] == (4.6, 4.5)
    assert found["engines.spot.model"] == ("llama-70b", None)
    assert found["engines.spot-b.model"] == (None, "llama-70b")
    assert all(path.startswith(("profiles.h100.capacity", "engines.spot")) for path in found)
