"""Sessions change hands as little as the shares demand, and hash space stays whole."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer import UNITS, Partition, ProblemError
from optimizer.partition import entry_limit, to_units

names = st.sampled_from([f"e{i}" for i in range(8)] + ["shed"])
shares = st.dictionaries(names, st.floats(1e-9, 1), min_size=1).map(
    lambda row: {name: part / sum(row.values()) for name, part in row.items()}
)


def least(old: Partition, new) -> float:
    before, after = old.units, to_units(new)
    return sum(max(0, width - before.get(name, 0)) for name, width in after.items()) / UNITS


@given(st.lists(shares, min_size=2, max_size=12))
@settings(max_examples=100, deadline=None)
def test_every_relabelling_moves_exactly_the_least(rounds):
    partition = Partition.fresh(rounds[0])
    for row in rounds[1:]:
        after = partition.relabel(row, slack=0.0)
        assert after.moved_from(partition) == pytest.approx(least(partition, row), abs=1e-12)
        assert after.units == to_units(row)
        partition = after


@given(st.lists(shares, min_size=2, max_size=12))
@settings(max_examples=60, deadline=None)
def test_widths_are_positive_sum_exactly_and_neighbours_differ(rounds):
    partition = Partition.fresh(rounds[0])
    for row in rounds[1:]:
        partition = partition.relabel(row)
    assert sum(width for _, width in partition.entries) == UNITS
    assert all(width > 0 for _, width in partition.entries)
    assert all(a[0] != b[0] for a, b in zip(partition.entries, partition.entries[1:], strict=False))


@given(st.lists(shares, min_size=2, max_size=8))
@settings(max_examples=40, deadline=None)
def test_the_same_history_gives_the_same_partition(rounds):
    first = second = Partition.fresh(rounds[0])
    for row in rounds[1:]:
        first = first.relabel(row)
        second = second.relabel(dict(reversed(row.items())))
    assert first == second


def test_tidying_up_stays_within_its_budget_and_keeps_entries_few():
    import numpy as np

    rng = np.random.default_rng(5)
    partition, moved, bound, most = Partition.fresh({f"e{i}": 1 / 12 for i in range(12)}), 0.0, 0.0, 0
    for _ in range(200):
        row = rng.dirichlet(np.ones(12) * 5)
        new = {f"e{i}": float(part) for i, part in enumerate(row)}
        after = partition.relabel(new)
        moved += after.moved_from(partition)
        bound += least(partition, new)
        partition, most = after, max(most, len(after.entries))
    assert moved / bound <= 1.02
    assert most <= 2 * entry_limit(12)


def test_unchanged_shares_move_nothing():
    partition = Partition.fresh({"a": 0.3, "b": 0.7})
    assert partition.relabel({"b": 0.7, "a": 0.3}) == partition


def test_a_restart_from_json_moves_nothing():
    partition = Partition.fresh({"a": 0.3, "b": 0.7}).relabel({"a": 0.5, "b": 0.4, "c": 0.1})
    again = Partition.from_json(json.loads(json.dumps(partition.to_json())))
    assert again == partition
    assert again.moved_from(partition) == 0.0


def test_tiny_shares_survive_only_from_half_a_unit_on():
    assert to_units({"a": 1 - 1e-9, "b": 1e-9}) == {"a": UNITS}
    assert to_units({"a": 0.5, "b": 0.5}) == {"a": UNITS // 2, "b": UNITS // 2}


@pytest.mark.parametrize("data", [None, [["a", 1]], [["a"]], [["a", UNITS], ["b", 0]], [["a", float(UNITS)]]])
def test_a_broken_saved_partition_is_refused(data):
    with pytest.raises(ProblemError):
        Partition.from_json(data)


@pytest.mark.parametrize("bad", [{"a": -0.1}, {"a": float("nan")}, {"a": 0.0}])
def test_unusable_shares_are_refused(bad):
    with pytest.raises(ProblemError):
        Partition.fresh(bad)


def test_no_destination_is_an_empty_partition():
    assert Partition.fresh({}).entries == ()
    assert Partition.fresh({}).relabel({"a": 1.0}).entries == (("a", UNITS),)
