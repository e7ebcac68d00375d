"""Profiles from measurements, and their slow correction from reports."""

import math

import numpy as np
import pytest

from optimizer import (
    Correction,
    Learning,
    ProblemError,
    Profile,
    followed,
    ramped_replicas,
    with_exploration,
)
from optimizer.fit import Measurement, fit_profile, little_rps

TRUE = Profile.parametric(
    capacity_rps=20, lambda_max_rps=22, t0_ms=20, ttft_base_ms=80, ttft_knee_rps=10, ttft_slope=10
)


def measured(profile=TRUE, loads=range(1, 20), noise=0.0, seed=0):
    rng = np.random.default_rng(seed)

    def blur(value):
        return value * float(np.exp(rng.normal(0, noise)))

    return [Measurement(float(x), blur(profile.ttft_ms(x)), blur(profile.tbot_ms(x))) for x in loads]


def test_clean_measurements_give_the_parameters_back():
    fit = fit_profile(measured())
    assert fit.form == "parametric"
    assert fit.t0_ms == pytest.approx(20, rel=1e-6)
    assert fit.lambda_max_rps == pytest.approx(22, rel=1e-6)
    assert fit.r_squared == pytest.approx(1)
    assert fit.profile.ttft_ms(18) == pytest.approx(160, rel=0.02)


def test_the_stated_error_covers_the_truth_under_noise():
    fits = [fit_profile(measured(noise=0.03, seed=seed)) for seed in range(30)]
    inside = [abs(fit.lambda_max_rps - 22) <= 2 * fit.lambda_max_error_rps for fit in fits]
    assert np.mean(inside) > 0.8


def test_capacity_is_the_largest_load_within_the_slo():
    assert fit_profile(measured(), tbot_slo_ms=80).profile.capacity_rps == pytest.approx(16.5, rel=1e-3)


def test_an_slo_that_no_load_meets_is_refused_with_what_an_idle_replica_does():
    with pytest.raises(ProblemError, match="idle replica"):
        fit_profile(measured(), tbot_slo_ms=5)


@pytest.mark.parametrize(
    "points",
    [
        [Measurement(x, 100.0, 10.0) for x in (1.0, 2.0, 3.0)],
        [Measurement(x, t, b) for x, t, b in ((1, 300, 14), (8, 120, 9), (16, 180, 12), (32, 90, 30))],
        [Measurement(1.0, 50.0, 9.0), Measurement(4.0, 80.0, 20.0)],
        [Measurement(x, 50 + 40 * (x > 5), 10 + (x % 3)) for x in map(float, range(1, 12))],
    ],
    ids=["constant", "not monotone", "two points", "noisy"],
)
def test_awkward_measurements_still_give_a_convex_profile(points):
    profile = fit_profile(points).profile
    load = np.linspace(0, profile.capacity_rps, 200)
    for latency in profile.curve.latency(load):
        assert np.all(np.isfinite(latency))
        assert np.all(np.diff(latency) >= -1e-6 * latency.max())
    _, slope_a, _, slope_b = profile.curve.congestion(load)
    assert np.all(np.diff(slope_a) >= -1e-6 * max(1, slope_a.max()))
    assert np.all(np.diff(slope_b) >= -1e-6 * max(1, slope_b.max()))


def test_loads_past_the_knee_do_not_spoil_the_law():
    points = [*measured(loads=range(1, 19)), Measurement(24.0, 6000.0, 150.0)]
    fit = fit_profile(points)
    assert fit.lambda_max_rps == pytest.approx(22, rel=0.02)
    assert any("knee" in note for note in fit.notes)


@pytest.mark.parametrize(
    "points",
    [[], [Measurement(1.0, 1.0, 1.0)], [Measurement(1.0, 1.0, math.nan)], [Measurement(-1.0, 1.0, 1.0)]],
)
def test_too_few_or_invalid_measurements_are_refused(points):
    with pytest.raises(ProblemError):
        fit_profile(points)


def test_littles_law_turns_users_into_requests():
    assert little_rps(10, 100, 10, 91) == pytest.approx(10)


def learn(true, seconds=3000, correction=None, learning=None):
    rng = np.random.default_rng(0)
    found = correction or Correction()
    for t in range(seconds):
        load = float(np.clip(10 + 4 * np.sin(t / 200), 0, 0.95 * true.capacity_rps))
        found = found.update(
            TRUE,
            load_rps=load,
            dt_s=1.0,
            tbot_ms=true.tbot_ms(load) * float(np.exp(rng.normal(0, 0.05))),
            ttft_ms=true.ttft_ms(load),
            learning=learning,
        )
    return found


def slower(factor):
    return Correction(tbot_factor=factor, load_factor=0.8, ttft_offset_ms=50).apply(TRUE)


def test_a_slower_engine_is_learned():
    found = learn(slower(1.2)).apply(TRUE)
    for load in (4, 8, 12):
        assert found.tbot_ms(load) == pytest.approx(slower(1.2).tbot_ms(load), rel=0.1)


def test_reports_never_raise_capacity_above_the_profile():
    better = Profile.parametric(capacity_rps=30, lambda_max_rps=33, t0_ms=10, ttft_base_ms=80)
    assert learn(better).apply(TRUE).capacity_rps <= TRUE.capacity_rps


def test_what_is_learned_stays_within_its_bounds():
    found = learn(slower(20.0), learning=Learning(tbot_factor=(0.9, 1.1)))
    assert found.tbot_factor <= 1.1


def test_a_frozen_correction_ignores_samples():
    assert learn(slower(1.2), correction=Correction().freeze()) == Correction().freeze()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, None])
def test_invalid_samples_are_left_out(bad):
    assert Correction().update(TRUE, load_rps=5.0, dt_s=1.0, tbot_ms=bad, ttft_ms=bad) == Correction()


def test_a_new_replica_counts_little_by_little():
    assert ramped_replicas([1000.0, 0.0, 30.0], ramp_s=60) == pytest.approx(1 + 0.1 + 0.55)


def test_an_unknown_engine_gets_a_trickle():
    out = with_exploration({"A": {"m/c": {"a": 1.0}}}, ["new"], {"new": ("A", "m/c")}, part=0.01)
    assert out["A"]["m/c"] == {"a": 0.99, "new": 0.01}


def test_plans_follow_only_what_is_worth_planning_for():
    used = Correction()
    assert followed(used, Correction(tbot_factor=1.03, load_factor=0.97, ttft_offset_ms=9.0)) is used
    assert followed(used, Correction(tbot_factor=1.0511)) == Correction(tbot_factor=1.06)
    assert followed(used, Correction(ttft_offset_ms=-11.0)) == Correction(ttft_offset_ms=-10.0)
