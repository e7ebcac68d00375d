"""Sessions change hands as little as the shares demand, and hash space stays whole."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optimizer import UNITS, Partition, ProblemError
from optimizer.partition import CELLS, entry_limit, most_entries, to_units

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
    assert most <= most_entries(12)


@st.composite
def shattered(draw):
    """Partitions of far more intervals than any history leaves."""
    owners = draw(st.lists(names, min_size=1, max_size=300))
    widths = draw(st.lists(st.integers(1, 50), min_size=len(owners), max_size=len(owners)))
    spare = UNITS - sum(widths)
    widths[draw(st.integers(0, len(widths) - 1))] += spare
    return Partition(tuple(zip(owners, widths, strict=True)))


@given(shattered(), shares, st.sampled_from([0.0, 0.02]))
@settings(max_examples=100, deadline=None)
def test_whatever_was_before_new_shares_leave_no_more_than_the_stated_number_of_intervals(old, row, slack):
    after = old.relabel(row, slack)
    assert len(after.entries) <= most_entries(len(after.units))
    assert after.units == to_units(row)


@given(shattered(), shares)
@settings(max_examples=100, deadline=None)
def test_where_nothing_forces_it_tidying_up_stays_within_its_budget(old, row):
    assume(len(old.entries) < most_entries(len(to_units(row))) // 2)
    assert old.relabel(row).moved_from(old) <= 1.02 * least(old, row) + 1e-12


def test_intervals_stay_few_when_shares_are_handed_on_so_that_they_multiply():
    count, piece = 20, 300
    everyone = [f"e{i:02d}" for i in range(count)]
    units = dict.fromkeys(everyone, UNITS // count)
    units["e00"] += UNITS - sum(units.values())
    partition, gathers, most = Partition.fresh(_fractions(units)), everyone[-1], 0
    for turn in range(60):
        heir = everyone[turn % (count - 1)]
        units[heir] += units[gathers] - 1
        units[gathers] = 1
        partition = partition.relabel(_fractions(units))
        for giver in set(everyone) - {gathers, heir}:
            units[giver] -= piece
            units[gathers] += piece
            partition = partition.relabel(_fractions(units))
            most = max(most, len(partition.entries))
    assert entry_limit(count) < most <= most_entries(count)


def _fractions(units):
    return {name: width / UNITS for name, width in units.items()}


@given(shares)
@settings(max_examples=60, deadline=None)
def test_without_history_there_are_few_intervals_and_the_same_for_the_same_shares(row):
    fresh = Partition.fresh(row)
    assert fresh == Partition.fresh(dict(reversed(row.items())))
    assert fresh.units == to_units(row)
    assert len(fresh.entries) <= len(fresh.units) + CELLS - 1 <= most_entries(len(fresh.units))


def test_without_history_similar_shares_have_similar_partitions():
    import numpy as np

    rng = np.random.default_rng(3)
    moved = bound = 0.0
    for _ in range(40):
        weights = rng.dirichlet(np.ones(10) * 5)
        other = weights * np.exp(rng.normal(0, 0.1, 10))
        old, new = ({f"e{i}": float(w / row.sum()) for i, w in enumerate(row)} for row in (weights, other))
        moved += Partition.fresh(new).moved_from(Partition.fresh(old))
        bound += least(Partition.fresh(old), new)
    assert moved / bound <= 2.2  # 2.6 with each destination in one interval


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
