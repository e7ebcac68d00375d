"""Latency curves of one replica."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer import ProblemError, Profile
from optimizer.curves import Curves
from optimizer.grid import make_grid


def test_the_harmonic_law_is_what_it_says():
    profile = Profile.parametric(
        capacity_rps=4.6, lambda_max_rps=5.5, t0_ms=24, ttft_base_ms=130, ttft_knee_rps=4.2, ttft_slope=90
    )
    assert profile.tbot_ms(0) == 24
    assert profile.tbot_ms(2.75) == pytest.approx(48)
    assert profile.ttft_ms(4.2) == 130
    assert profile.ttft_ms(4.6) == pytest.approx(130 + 90 * 0.4)
    assert math.isinf(profile.tbot_ms(5.5))


def test_capacity_for_an_slo_is_the_largest_load_within_it():
    profile = Profile.parametric(capacity_rps=5.2, lambda_max_rps=5.5, t0_ms=24)
    assert profile.capacity_for(tbot_ms=80) == pytest.approx(5.5 * (1 - 24 / 80))
    assert profile.capacity_for(tbot_ms=20) == 0.0
    assert profile.capacity_for() == 5.2


def test_a_table_is_interpolated_between_its_points():
    profile = Profile.from_table([(0, 120, 9), (24, 400, 30)])
    assert profile.capacity_rps == 24
    assert profile.ttft_ms(12) == pytest.approx(260, rel=1e-4)
    assert profile.tbot_ms(24) == pytest.approx(30, rel=1e-4)


tables = st.lists(
    st.tuples(st.floats(0, 100), st.floats(1, 5000), st.floats(1, 500)),
    min_size=1,
    max_size=12,
    unique_by=lambda point: point[0],
).filter(lambda points: max(point[0] for point in points) > 0.1)


@given(tables)
@settings(max_examples=60, deadline=None)
def test_any_table_becomes_monotone_latency_and_convex_cost(points):
    profile = Profile.from_table(points, capacity_rps=max(p[0] for p in points))
    load = np.linspace(0, profile.capacity_rps, 301)
    for latency in profile.curve.latency(load):
        assert np.all(np.diff(latency) >= -1e-6 * latency.max())
    _, slope_a, _, slope_b = profile.curve.congestion(load)
    for slope in (slope_a, slope_b):
        assert np.all(np.diff(slope) >= -1e-6 * max(1.0, slope.max()))


@pytest.mark.parametrize(
    "points",
    [[], [(0, math.nan, 1)], [(0, -1, 1)], [(1, 1, 1), (1, 2, 2)]],
    ids=["empty", "nan", "negative", "twice"],
)
def test_an_unusable_table_is_refused(points):
    with pytest.raises(ProblemError):
        Profile.from_table(points, capacity_rps=1.0)


def test_the_coarsest_grid_misses_the_curve_by_less_than_two_thousandths_of_its_cost():
    profile = Profile.parametric(
        capacity_rps=20, lambda_max_rps=22, t0_ms=20, ttft_base_ms=80, ttft_knee_rps=10, ttft_slope=10
    )
    grid = make_grid(profile.curve, 19.0, 1)
    at = grid.load
    a, da, b, db = profile.curve.congestion(at)
    load = np.linspace(0.5, 19, 500)
    true_a, _, true_b, _ = profile.curve.congestion(load)
    tangents = (a + 200 * b)[:, None] + (da + 200 * db)[:, None] * (load - at[:, None])
    miss = (true_a + 200 * true_b - tangents.max(axis=0)) / (load * (80 + 200 * 20))
    assert miss.min() > -1e-9
    assert miss.max() < 2e-3


def test_curves_evaluated_together_are_the_curves_of_each():
    profiles = [
        Profile.parametric(capacity_rps=20, lambda_max_rps=22, t0_ms=20, ttft_base_ms=80),
        Profile.parametric(capacity_rps=9, lambda_max_rps=10, ttft_base_ms=5, ttft_queue_ms=80),
        Profile.parametric(capacity_rps=9, lambda_max_rps=10, ttft_base_ms=5, ttft_knee_rps=4, ttft_slope=3),
        Profile.from_table([(0, 50, 9), (8, 60, 12), (16, 180, 30)]),
    ]
    grids = [make_grid(profile.curve, 0.9 * profile.capacity_rps, fine) for profile, fine in zip(
        profiles, (1, 8, 8, 256), strict=True
    )]  # fmt: skip
    curves = Curves(grids, np.array([0, 1, 2, 3, 1, 0]))
    rng = np.random.default_rng(0)
    for engine, of in enumerate((0, 1, 2, 3, 1, 0)):
        load = rng.uniform(0, 1.2 * grids[of].limit, 50)
        here = np.full(50, engine)
        for together, alone in (
            (curves.latency(here, load), grids[of].curve.latency(load)),
            (curves.congestion(here, load), grids[of].curve.congestion(load)),
        ):
            for one, other in zip(together, alone, strict=True):
                np.testing.assert_array_equal(one, other)
        at = curves.loads(here, np.arange(50))
        wide = np.flatnonzero(np.diff(at) > 1e-9)  # both sides of a corner are as near as numbers can be
        assert np.all(np.diff(at) >= 0)
        between = (at[wide] + at[wide + 1]) / 2
        np.testing.assert_array_equal(curves.below(here[wide], between), wide)
