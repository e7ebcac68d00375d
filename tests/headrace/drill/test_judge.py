"""Verdicts on drills."""

from __future__ import annotations

import json

import pytest

from headrace.drill.catalogue import DRILLS, chosen
from headrace.drill.drill import Drill, Target
from headrace.drill.judge import judge
from headrace.drill.table import details
from tests.headrace.drill.evidence import answers, evidence

CALM = evidence([*answers(0, 30)], notes={"own": 3.0})


def drill(*targets: Target) -> Drill:
    return Drill("d", "nothing is done", targets, figures=lambda found: {"added": len(found.samples)})


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("failed", at_most=0), True),
        (Target("requests", at_most=0), False),
        (Target("requests", at_least=100), True),
        (Target("own", at_least=2, at_most=4), True),
        (Target("added", at_most=0), True),
        (Target("react_s", at_most=9), False),
        (Target("no_such_figure", at_least=0), False),
    ],
)
def test_a_target_is_met_when_its_figure_keeps_the_bound(target: Target, met: bool):
    verdict = judge(drill(target), CALM)
    assert [finding.met for finding in verdict.findings] == [met]
    assert verdict.passed is met


def test_one_missed_target_fails_a_drill():
    assert not judge(drill(Target("failed", at_most=0), Target("own", at_most=0)), CALM).passed


def test_a_verdict_is_plain_json_and_readable_text():
    verdict = judge(drill(Target("own", at_most=2, why="a reason")), CALM)
    document = json.loads(json.dumps(verdict.to_json()))
    assert document["targets"] == [{"target": "own ≤ 2", "value": 3.0, "met": False, "why": "a reason"}]
    assert "MISSED own ≤ 2: 3 (a reason)" in details(verdict)


def test_every_drill_is_judged_on_calm_evidence_without_raising():
    streams = {stream.name for item in DRILLS.values() for stream in item.streams}
    records = dict.fromkeys(streams, tuple(answers(0, 30)))
    for item in DRILLS.values():
        judge(item, _with(records))


def _with(records: dict) -> object:
    from dataclasses import replace

    return replace(CALM, records=records)


def test_drills_are_bounded():
    assert {name for name, item in DRILLS.items() if not 5 <= item.fault_s <= 40} == set()


def test_drills_are_chosen_by_name_in_the_order_given():
    assert [item.name for item in chosen(("engine-slow", "replica-killed"))] == [
        "engine-slow",
        "replica-killed",
    ]
    assert len(chosen(())) == len(DRILLS)


def test_an_unknown_drill_is_named_with_what_there_is():
    with pytest.raises(KeyError, match="no drill 'engine-sloow', expected one of replica-killed"):
        chosen(("engine-sloow",))
