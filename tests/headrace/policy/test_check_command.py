"""`headrace check`, as scripts and people use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"


def check(*arguments):
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


@pytest.mark.parametrize("example", ["policy.yaml", "fleet"])
def test_the_examples_are_valid_and_warn_of_nothing(example):
    result = check(EXAMPLES / example)
    assert result.exit_code == 0
    assert "valid" in result.stdout
    assert result.stderr == ""


def test_a_valid_policy_is_summed_up(write):
    result = check(write())
    assert result.exit_code == 0
    assert "Fleet prod: 2 front-ends, 8 engines, 2 models, 2 classes" in result.stdout


def test_an_invalid_policy_exits_with_2_and_every_reason(write):
    file = write(("t0_ms: 24", "t0_ms: -1"), ("port: 8443", "port: x"))
    result = check(file)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert (
        f"{file}:31: profiles.h100.t0_ms: is the number -1; expected a number of at least 0" in result.stderr
    )
    assert "2 problems: the policy is refused" in result.stderr


def test_warnings_do_not_refuse(write):
    result = check(write(("requires: [tools]", "requires: [vision]")))
    assert result.exit_code == 0
    assert "warning: " in result.stderr


def test_a_missing_path_exits_with_2(tmp_path):
    assert check(tmp_path / "no.yaml").exit_code == 2


def test_json_of_a_valid_policy(write):
    found = json.loads(check(write(), "--json").stdout)
    assert (found["valid"], found["fleet"], found["revision"], found["warnings"]) == (
        True,
        "prod",
        "4f2c1a9",
        [],
    )
    assert len(found["hash"]) == 64


def test_json_of_an_invalid_policy(write):
    file = write(("t0_ms: 24", "t0_ms: -1"))
    result = check(file, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == {
        "valid": False,
        "problems": [
            {
                "file": str(file),
                "line": 31,
                "path": "profiles.h100.t0_ms",
                "wrong": "is the number -1",
                "expected": "a number of at least 0",
            }
        ],
    }


@pytest.fixture
def in_force(write):
    """Effective values of a policy: path -> (value, source without the file)."""

    def values(*edits, extra=""):
        file = write(*edits, extra=extra)
        found = json.loads(check(file, "--effective", "--json").stdout)["effective"]
        return {
            path: (item["value"], item["source"].removeprefix(f"{file}:")) for path, item in found.items()
        }

    return values


def test_effective_values_say_where_they_come_from(in_force):
    values = in_force(
        ("max_share: 0.5", "protection: {hash: {ring_size: 4096}}"),
        extra="planning: {interval_s: 2}\nprotection: {hash: {lb: maglev}}\n",
    )
    assert values["planning.interval_s"] == (2, "53")
    assert values["planning.demand_window_s"] == (60, "default")
    assert values["engines.us-east-h100-02.region"] == ("us-east", "41")
    assert values["engines.us-east-h100-02.capabilities"] == (["tools"], "39")
    assert values["engines.us-east-h100-02.max_share"] == (1, "default")
    assert values["engines.spot.protection.hash.ring_size"] == (4096, "43")
    assert values["engines.spot.protection.hash.lb"] == ("maglev", "54")
    assert values["engines.spot.protection.hash.maglev_table_size"] == (65537, "default")
    assert values["engines.spot.members"] == ("reported", "default")
    assert values["engines.us-east-a100.members.static"] == (["10.16.0.7:8000"], "44")
    assert values["engines.spot.max_utilization"] == (0.9, "default")


def test_effective_classes_are_shown_as_they_hold_for_each_model(in_force):
    values = in_force()
    assert values["models.llama-8b.classes.interactive.output_tokens"] == (120, "28")
    assert values["models.llama-70b.classes.interactive.output_tokens"] == (250, "16")
    assert values["models.llama-70b.classes.interactive.tbot_slo_ms.p95"] == (80, "16")
    assert values["models.llama-70b.classes.interactive.churn_price_ms"] == (5, "default")


def test_effective_values_are_readable(write):
    lines = check(write(), "--effective").stdout.splitlines()
    assert "planning.interval_s: 5  # default" in lines
    assert any(line.startswith('fleet: "prod"  # ') and line.endswith("policy.yaml:2") for line in lines)
