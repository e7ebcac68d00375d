"""When counters were read, told from when they arrived."""

from __future__ import annotations

import pytest

from signals.lateness import Lateness

AHEAD = 3600.0
"""Of the source's clock."""


def read(*messages: tuple[float, float]) -> list[float]:
    """Messages by (when written, when arrived) on the receiver's clock; when they are taken to be written."""
    lateness = Lateness()
    return [lateness.read_at(written + AHEAD, arrived) for written, arrived in messages]


def test_a_message_that_took_longer_than_others_is_late_by_the_difference():
    assert read((0, 0.1), (5, 5.1), (10, 14.4), (15, 15.1)) == pytest.approx([0.1, 5.1, 10.1, 15.1], abs=0.02)


def test_a_quicker_message_than_any_is_the_new_measure():
    assert read((0, 3.0), (5, 5.1), (10, 10.1)) == pytest.approx([3.0, 5.1, 10.1], abs=0.02)


def test_clocks_that_drift_apart_make_no_message_late_for_long():
    slow = [(5.0 * i, 5.0 * i * 1.0005) for i in range(1000)]
    assert read(*slow)[-1] == pytest.approx(slow[-1][1], abs=0.01)


@pytest.mark.parametrize("step", [-7200.0, -20.0, -6.0, 45.0, 7200.0])
def test_a_clock_that_is_set_is_no_lateness(step: float):
    lateness = Lateness()
    lateness.read_at(0.0, 0.0)
    assert lateness.read_at(5.0 + step, 5.0) == pytest.approx(5.0)
    assert lateness.read_at(10.0 + step, 12.0) == pytest.approx(10.0, abs=0.02)


def test_a_source_that_says_nothing_is_believed_to_be_in_time():
    assert Lateness().read_at(None, 7.0) == 7.0
