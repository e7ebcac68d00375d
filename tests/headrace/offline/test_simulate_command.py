"""`headrace simulate` and its scenario files."""

import json
from pathlib import Path

import pytest
import yaml

from headrace.scenario_file import read_scenario
from tests.headrace.offline.commands import run


def test_simulate_runs_a_scenario_file(tmp_path):
    scenario = yaml.safe_load(Path("examples/scenarios/s1-talk.yaml").read_text(encoding="utf-8"))
    short = {**scenario, "duration_s": 60, "warm_up_s": 30}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(short))
    rows = json.loads(run("simulate", tmp_path / "s.yaml", "--policy-name", "global", "--json"))
    assert rows[0]["policy"] == "global"
    assert rows[0]["ttft_mean_ms"] == pytest.approx(817, rel=0.02)


def test_simulate_refuses_an_unknown_field_with_its_place(tmp_path):
    (tmp_path / "s.yaml").write_text("name: x\ncolour: red\n")
    assert "colour" in run("simulate", tmp_path / "s.yaml", code=2) or "profiles" in run(
        "simulate", tmp_path / "s.yaml", code=2
    )


def test_a_scenario_that_says_a_thing_twice_is_refused_with_file_line_and_key(tmp_path):
    scenario = tmp_path / "s.yaml"
    scenario.write_text("name: x\nscale:\n  sizes: [[2, 3]]\n  rounds: 2\n  rounds: 9\n")
    said = run("simulate", scenario, code=2)
    assert f"{scenario}:5: scale.rounds: the key is already on line 4" in said


def test_a_wrong_value_of_a_scenario_is_told_with_its_line(tmp_path):
    scenario = tmp_path / "s.yaml"
    scenario.write_text("name: x\nscale:\n  sizes: [[2, 3]]\n  rounds: 0\n")
    assert f"{scenario}:4: scale.rounds: " in run("simulate", scenario, code=2)


def test_every_example_scenario_can_be_read():
    files = sorted(Path("examples/scenarios").glob("*.yaml"))
    assert len(files) >= 9
    for file in files:
        read_scenario(file).build()


SCALE = {"name": "small", "scale": {"sizes": [[2, 3], [3, 5]], "rounds": 2, "noise": 0.001}}


def test_a_scale_scenario_times_each_size_and_counts_what_one_front_end_is_sent(tmp_path):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCALE))
    rows = json.loads(run("simulate", tmp_path / "s.yaml", "--json"))
    assert [(row["frontends"], row["engines"]) for row in rows] == [(2, 3), (3, 5)]
    for row in rows:
        assert (row["cold"]["rounds"], row["warm"]["rounds"], row["quiet"]["rounds"]) == (1, 2, 2)
        assert all(row[kind]["wall_ms"] > 0 for kind in ("cold", "warm", "quiet"))
        assert row["gap"] <= 1e-3
        assert 1 <= row["entries_mean"] <= row["entries_most"]
        assert 100 < row["rds_bytes"] < row["snapshot_bytes"]


def test_a_scale_scenario_is_told_as_a_table(tmp_path):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCALE))
    told = run("simulate", tmp_path / "s.yaml")
    assert "2 × 3" in told
    assert "route bytes" in told


def test_a_scale_scenario_refuses_what_only_a_closed_loop_has(tmp_path):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCALE))
    assert "--policy-name" in run("simulate", tmp_path / "s.yaml", "--policy-name", "global", code=2)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"name": "x", "scale": {"sizes": [[0, 3]]}}))
    assert "scale.sizes.0.0" in run("simulate", tmp_path / "s.yaml", code=2)
