"""How long a source counted, told from late messages and wrong clocks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from signals.pace import Pace

AHEAD = 3600.0
"""Of the source's clock."""


def intervals(*messages: tuple[float, float]) -> list[float]:
    """Of messages by (when written, when arrived) on the receiver's clock."""
    pace = Pace()
    return [
        late - early
        for early, late in pairwise(pace.read_at(written + AHEAD, arrived) for written, arrived in messages)
    ]


@pytest.mark.parametrize("late_s", [0.5, 3.0, 4.9, 12.0])
def test_a_late_message_shortens_no_interval_and_lengthens_none(late_s: float):
    messages = [(0, 0), (5, 5), (10, 10 + late_s), (15, max(15, 10 + late_s)), (20, max(20, 10 + late_s))]
    assert intervals(*messages) == pytest.approx([5.0] * 4)


def test_a_late_first_message_makes_no_interval_shorter_than_it_was():
    assert intervals((0, 3), (5, 5), (10, 10)) == pytest.approx([5.0, 5.0])
    assert intervals((0, 5), (5, 5), (10, 10)) == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("step", [-7200.0, -20.0, -4.9, -4.0, -2.0, 2.0, 45.0, 7200.0])
def test_a_clock_that_is_set_changes_no_interval(step: float):
    assert intervals((0, 0), (5, 5), (10 + step, 10), (15 + step, 15)) == pytest.approx([5.0] * 3)


def test_a_gap_is_a_long_interval():
    assert intervals((0, 0), (5, 5), (65, 66), (70, 70)) == pytest.approx([5.0, 60.0, 5.0])


def test_a_source_that_says_nothing_is_believed_to_be_in_time():
    pace = Pace()
    assert [pace.read_at(None, now) for now in (7.0, 12.0)] == [7.0, 12.0]
