import math

import pytest

from headrace.demo.fake_engine.profile import EngineProfile, ProfileError

ENTRY = {
    "t0_ms": 24,
    "lambda_max_rps": 5.5,
    "capacity_rps": 4.6,
    "ttft_ms": {"base": 130, "knee_rps": 4.2, "slope": 90},
    "reference": {"input_tokens": 1200, "output_tokens": 210},
}


def test_a_policy_profile_reads_into_the_same_curve():
    profile = EngineProfile.from_policy(ENTRY)
    assert profile.tbot_s(2.75) == pytest.approx(0.048)
    assert profile.ttft_s(4.6) == pytest.approx(0.130 + 0.4 * 0.090)
    assert EngineProfile.from_policy(ENTRY | {"ttft_ms": {"base": 100, "queue": 50}}).ttft_s(
        2.75
    ) == pytest.approx(0.150)
    assert (profile.input_tokens, profile.output_tokens) == (1200, 210)


def test_from_lambda_max_on_the_time_between_tokens_is_infinite():
    assert EngineProfile.from_policy(ENTRY).tbot_s(5.5) == math.inf


def test_the_reference_prompt_takes_the_base_and_a_cached_one_less():
    profile = EngineProfile.from_policy(ENTRY)
    assert profile.prefill_s(1200) == pytest.approx(0.130)
    assert profile.prefill_s(0) < profile.prefill_s(600) < 0.130


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity_rps": 5.5}, "capacity_rps is 5.5, expected below lambda_max_rps"),
        ({"t0_ms": 0}, "t0_ms is 0.0, expected a finite number above 0"),
        ({"t0_ms": math.nan}, "t0_ms is nan"),
        ({"table": []}, "unknown field 'table'"),
        ({"ttft_ms": {"slope": 1}}, "'base' is missing"),
        ({"ttft_ms": {"base": -1}}, "ttft_base_ms is -1.0, expected a finite number 0 or more"),
    ],
)
def test_a_wrong_profile_is_refused_by_name(change, message):
    with pytest.raises(ProfileError, match=message):
        EngineProfile.from_policy(ENTRY | change)
