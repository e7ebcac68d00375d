"""Where the policy repeats what another package owns, the two agree."""

from __future__ import annotations

import typing

import pytest

from headrace.policy.checks import envoy_spelling
from headrace.policy.schema import PolicyName
from headrace.problem import PlanningRules
from optimizer import POLICIES
from xds_server.translate import names


@pytest.mark.parametrize("model", ["llama-70b", "meta-llama/Llama-3.3-70B-Instruct", "a.b:c/d_e"])
def test_model_ids_are_spelled_as_envoys_names_have_them(model):
    assert envoy_spelling(model) == names.spelled(model)


def test_every_planning_policy_can_be_named():
    assert set(POLICIES) <= set(typing.get_args(PolicyName))


def test_what_check_accepts_can_be_planned_with(policy):
    rules = PlanningRules.of(policy)
    assert rules.eligible["eu-west", "llama-70b/batch"] == {"eu-west-h100"}
    assert rules.engines["lab-a100"].profile.capacity_rps == 25
