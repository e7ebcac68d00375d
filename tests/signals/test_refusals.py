"""The list of refused reporters."""

from __future__ import annotations

from signals.identity import Refused
from signals.refusals import Refusals

NO = Refused("fleet", "this is fleet 'prod'")


def test_a_refusal_is_told_at_once_and_then_once_a_minute_with_its_count():
    told = []
    refusals = Refusals(told.append)
    for second in range(0, 130, 10):
        refusals.add(f"ipv4:10.0.0.9:{4000 + second}", "us-h100", NO, float(second))
    assert [entry.times for entry in told] == [1, 7, 13]
    (entry,) = refusals.list()
    assert (entry.peer, entry.engine, entry.code, entry.since, entry.last) == (
        "ipv4:10.0.0.9", "us-h100", "fleet", 0.0, 120.0,
    )  # fmt: skip


def test_it_is_over_when_the_reporter_gets_in():
    refusals = Refusals()
    refusals.add("ipv4:10.0.0.9:1", "us-h100", NO, 0.0)
    refusals.add("ipv4:10.0.0.9:1", "us-a100", NO, 0.0)
    refusals.accepted("ipv4:10.0.0.9:2", "us-h100")
    assert [entry.engine for entry in refusals.list()] == ["us-a100"]


def test_the_list_is_bounded():
    refusals = Refusals()
    for number in range(3000):
        refusals.add(f"ipv4:10.0.0.9:{number}", f"engine-{number}", NO, float(number))
    assert len(refusals.list()) == 1000
    assert refusals.list()[-1].engine == "engine-2999"
