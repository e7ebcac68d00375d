"""Load reports beside counters: they agree, or one of them loses something."""

from __future__ import annotations

import pytest

from signals.attempts import AttemptsCheck


class Envoy:
    """One Envoy's reports, a minute apart."""

    def __init__(self, check, node_id="envoy-1"):
        self.check, self.node_id = check, node_id
        self.now = 0.0
        self.total = 0.0

    def tells(self, reported, counted, after_s=60.0):
        self.now += after_s
        self.total += counted
        self.check.observe(
            "us-east",
            self.node_id,
            reported=reported,
            counted={"a": self.total},
            interval_s=60.0,
            now=self.now,
        )


@pytest.fixture
def check():
    return AttemptsCheck()


def test_equal_counts_agree(check):
    envoy = Envoy(check)
    for _ in range(5):
        envoy.tells(500, 500)
    assert check.ratios() == {"us-east": pytest.approx(1.0)}


def test_what_one_way_loses_shows(check):
    envoy = Envoy(check)
    for _ in range(5):
        envoy.tells(500, 1000)
    assert check.ratios() == {"us-east": pytest.approx(0.5)}


def test_counters_that_stand_still_show(check):
    envoy = Envoy(check)
    for _ in range(3):
        envoy.tells(500, 0)
    assert check.ratios()["us-east"] > 100


def test_a_flush_that_comes_a_little_later_does_not_last(check):
    envoy = Envoy(check)
    envoy.tells(500, 450)
    envoy.tells(500, 400)
    for _ in range(10):
        envoy.tells(500, 500)
    assert check.ratios() == {"us-east": pytest.approx(1.0, abs=0.02)}


def test_an_old_difference_fades(check):
    envoy = Envoy(check)
    for _ in range(5):
        envoy.tells(100, 500)
    for _ in range(60):
        envoy.tells(500, 500)
    assert check.ratios() == {"us-east": pytest.approx(1.0, abs=0.02)}


def test_what_happened_before_the_first_report_or_in_a_gap_is_in_neither(check):
    envoy = Envoy(check)
    envoy.tells(0, 1_000_000)
    envoy.tells(500, 500)
    envoy.tells(20, 5_000, after_s=600)
    envoy.tells(500, 500)
    assert check.ratios() == {"us-east": pytest.approx(1.0)}


def test_few_attempts_say_nothing(check):
    envoy = Envoy(check)
    envoy.tells(10, 20)
    envoy.tells(10, 20)
    assert check.ratios() == {}


def test_an_envoy_without_counters_is_not_compared(check):
    for minute in range(3):
        check.observe("us-east", "envoy-1", reported=500, counted=None, interval_s=60.0, now=60.0 * minute)
    assert check.ratios() == {}


def test_the_envoys_of_a_front_end_count_together(check):
    one, other = Envoy(check, "envoy-1"), Envoy(check, "envoy-2")
    for _ in range(3):
        one.tells(900, 900)
        other.tells(100, 300)
    assert check.ratios() == {"us-east": pytest.approx(1000 / 1200)}
