import pytest

from xds_server.debounce import Debounce


def published(changes, until=20):
    """Times, in tenths of a second, at which a publication happens; quiet 1 s, at most 5 s."""
    debounce, times = Debounce(1.0, 5.0), []
    for tenth in range(until * 10):
        if tenth in changes:
            debounce.note(tenth / 10)
        if debounce.take(tenth / 10):
            times.append(tenth)
    return times


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], []),
        ([0], [10]),
        ([0, 5, 9], [19]),
        ([0, 30], [10, 40]),
        (range(0, 100, 5), [50, 105]),
    ],
    ids=["nothing", "one", "a burst is one", "two apart", "never quiet: at the latest after 5 s"],
)
def test_publications(changes, expected):
    assert published(changes) == expected


def test_without_a_quiet_time_it_is_at_once():
    debounce = Debounce(0, 0)
    assert debounce.due_at is None
    debounce.note(3.0)
    assert debounce.due_at == 3.0
    assert debounce.take(3.0)
    assert not debounce.take(4.0)


def test_contradicting_times_are_refused():
    with pytest.raises(ValueError, match="quiet_s <= longest_s"):
        Debounce(2, 1)
