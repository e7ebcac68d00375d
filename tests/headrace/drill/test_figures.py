"""What users saw, as numbers."""

from __future__ import annotations

import pytest

from headrace.drill.drill import Figures
from headrace.drill.evidence import Counters, Evidence
from headrace.drill.figures import turns, usual
from tests.headrace.drill.evidence import ANSWER, answers, evidence, sample


def figures(found: Evidence) -> Figures:
    return usual(found, lambda before, now: now.ready["west-gpu"] < before.ready["west-gpu"])


def test_failures_are_told_apart_by_what_the_engine_had_sent():
    found = figures(
        evidence(
            [
                *answers(0, 10),
                *answers(10, 10.1, failure="reset", status=None, engine=None),
                *answers(11, 11.2, failure="http_503", status=503, engine=None),
                *answers(12, 12.3, failure="truncated", streamed=True),
                *answers(13, 13.4, failure="http_500", status=500),
            ]
        )
    )
    assert (found["failed"], found["without_headers"]) == (10, 3)
    assert (found["cut"], found["engine_errors"]) == (3, 4)


def test_a_stream_that_the_fault_caught_under_way_counts():
    found = figures(evidence([*answers(0, 9), *answers(9.5, 9.6, failure="cut", e2e_s=1.0)]))
    assert (found["requests"], found["cut"]) == (1, 1)


def test_refusals_are_no_failures_and_must_say_when_to_come_again():
    refused = {"status": 429, "engine": None}
    found = figures(evidence([*answers(10, 10.3, retry_after="2", **refused), *answers(11, 11.1, **refused)]))
    assert (found["failed"], found["shed"], found["refused_unhelpfully"]) == (0, 4, 1)


def test_added_latency_is_that_of_the_fault_over_that_of_the_calm():
    found = figures(evidence([*answers(0, 10), *answers(10, 20, e2e_s=0.25), *answers(20, 30, e2e_s=9.0)]))
    assert found["calm_p50_ms"] == pytest.approx(100)
    assert found["added_p50_ms"] == pytest.approx(150)


def test_retries_are_counted_from_the_fault_on():
    looks = [Counters(9.9, 5, 1), Counters(15, 20, 2), Counters(30, 25, 4)]
    found = figures(evidence(answers(10, 20), counters=looks))
    assert (found["retried"], found["retries_refused"]) == (20, 3)
    assert found["attempts"] == pytest.approx(1.2)


def test_reaction_is_the_first_look_that_shows_it():
    looks = [sample(9), sample(10.2), sample(10.7, ready=1), sample(10.9, ready=1)]
    assert figures(evidence(samples=looks))["react_s"] == pytest.approx(0.7)


def test_a_reaction_that_never_came_is_no_number():
    assert figures(evidence(samples=[sample(9), sample(12)]))["react_s"] is None


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        (answers(20, 30), 0),
        ([*answers(20, 23, e2e_s=0.5), *answers(23, 30)], 3),
        ([*answers(20, 24), *answers(24, 24.1, failure="reset"), *answers(24.1, 30)], 5),
        (answers(20, 30, e2e_s=0.5), None),
    ],
)
def test_recovery_is_the_end_of_the_last_bad_second(after: list, seconds: float | None):
    assert figures(evidence([*answers(0, 10), *after]))["recover_s"] == seconds


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([], 0),
        ([0.5, 0.5], 0),
        ([0.9, 0.6, 0.3], 0),
        ([0.9, 0.6, 0.9], 1),
        ([0.9, 0.86, 0.9, 0.86], 0),
        ([0.9, 0.6, 0.85, 0.5, 0.8], 3),
        ([0.9, 0.84, 0.80, 0.84, 0.9], 1),
    ],
)
def test_turns_are_counted_where_a_share_moved_enough(values: list[float], count: int):
    assert turns(values) == count


def test_the_most_restless_share_counts():
    looks = [sample(10 + n, west_gpu=0.5 + 0.2 * (n % 2), east_gpu=0.5) for n in range(5)]
    assert figures(evidence(samples=looks))["reversals"] == 3


def test_nothing_sent_gives_no_latency_and_no_failure():
    found = figures(evidence([ANSWER]))
    assert (found["requests"], found["failed"], found["added_p50_ms"]) == (0, 0, None)
