"""Rotation of shed intervals: shares stay, sessions take turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control_plane.rotation import rotated
from optimizer import SHED, UNITS, Partition

FIRST = Partition.fresh({"a": 0.5, "b": 0.3, SHED: 0.2})


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", SHED]), st.integers(1, 1000)), min_size=2, max_size=12),
    st.floats(0, 1),
)
def test_no_share_changes(pieces: list[tuple[str, int]], fraction: float):
    entries: list[tuple[str, int]] = []
    for name, width in pieces:
        if not entries or entries[-1][0] != name:
            entries.append((name, width))
    entries[-1] = (entries[-1][0], entries[-1][1] + UNITS - sum(width for _, width in entries))
    before = Partition(tuple(entries))
    assert rotated(before, fraction).units == before.units


def test_a_step_moves_that_part_of_the_refused_sessions_and_as_many_served_ones():
    assert rotated(FIRST, 0.1).moved_from(FIRST) == pytest.approx(0.2 * 0.1 * 2, abs=1e-5)


def test_every_session_is_refused_at_some_time_and_none_for_ever():
    refused = [0] * 100
    partition = FIRST
    for _ in range(100):
        for slot in range(100):
            refused[slot] += _owner(partition, slot * UNITS // 100) == SHED
        partition = rotated(partition, 0.25)
    assert min(refused) > 0
    assert max(refused) < 100


@pytest.mark.parametrize("shares", [{"a": 1.0}, {SHED: 1.0}])
def test_nothing_shed_or_all_of_it_stays_as_it_is(shares: dict[str, float]):
    partition = Partition.fresh(shares)
    assert rotated(partition, 0.5) is partition


def _owner(partition: Partition, at: int) -> str:
    for name, width in partition.entries:
        if at < width:
            return name
        at -= width
    raise AssertionError("beyond the hash space")
