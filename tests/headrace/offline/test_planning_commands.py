"""The offline commands, through the command line, with a real policy file."""

import json

import pytest
import yaml
from click.testing import CliRunner

from headrace.cli import main
from headrace.policy import load
from headrace.problem import EngineState, PlanningRules
from headrace.profiles import auto_utilization
from headrace.state_file import FleetState
from optimizer import ProblemError
from tests.headrace.offline.commands import run

KEY = "llama-70b/interactive"
BATCH = "llama-70b/batch"

POLICY = {
    "version": 1,
    "fleet": "test",
    "regions": {"us": {"jurisdiction": "us"}, "eu": {"jurisdiction": "eu"}},
    "frontends": {"us": {"region": "us"}, "eu": {"region": "eu", "residency": ["eu"]}},
    "listeners": {"public": {"port": 8443, "default_class": "interactive", "trust_headers": True}},
    "classes": {
        "interactive": {"priority": 100, "output_tokens": 200, "tbot_slo_ms": 80},
        "batch": {
            "priority": 10,
            "output_tokens": 800,
            "input_tokens": 1200,
            "match": {"header": "x-traffic-class", "value": "batch"},
        },
    },
    "models": {"llama-70b": {"served_as": ["meta-llama/Llama-3.3-70B-Instruct"], "requires": ["tools"]}},
    "profiles": {
        "h100": {
            "t0_ms": 24,
            "lambda_max_rps": 5.5,
            "capacity_rps": 4.6,
            "ttft_ms": {"base": 130, "knee_rps": 4.2, "slope": 90},
            "reference": {"input_tokens": 1200, "output_tokens": 200},
        }
    },
    "engines": {
        "us-1": {"model": "llama-70b", "region": "us", "profile": "h100", "capabilities": ["tools"]},
        "eu-1": {"model": "llama-70b", "region": "eu", "profile": "h100", "capabilities": ["tools"]},
        "eu-old": {"model": "llama-70b", "region": "eu", "profile": "h100"},
        "us-spot": {
            "model": "llama-70b",
            "region": "us",
            "profile": "h100",
            "capabilities": ["tools"],
            "classes": ["batch"],
            "max_share": 0.5,
        },
    },
    "network": {"rtt_ms": {"us": {"eu": 80}}},
}

STATE = {
    "demand_rps": {"us": {KEY: 6.0, BATCH: 1.0}, "eu": {KEY: 5.0}},
    "engines": {
        "us-1": {"ready_replicas": 4},
        "eu-1": {"ready_replicas": 4, "penalty": 1.0},
        "eu-old": {"ready_replicas": 4},
        "us-spot": {"ready_replicas": 2},
    },
}


@pytest.fixture
def files(tmp_path):
    policy, state = tmp_path / "policy.yaml", tmp_path / "state.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    state.write_text(yaml.safe_dump(STATE))
    return ["--policy", str(policy), "--state", str(state)]


def test_plan_prints_json_with_every_stable_field(files):
    plan = json.loads(run("plan", *files, "--json"))
    assert {
        "objective_ms",
        "lower_bound_ms",
        "gap",
        "shares",
        "engines",
        "e2e_ms",
        "exact",
        "moved",
        "solve_ms",
    } <= set(plan)
    assert set(plan["engines"]["us-1"]) == {"load_rps", "capacity_rps", "price_ms", "ttft_ms", "tbot_ms"}


def test_residency_capability_and_class_rules_hold(files):
    shares = json.loads(run("plan", *files, "--json", "--demand-scale", "3"))["shares"]
    assert set(shares["eu"][KEY]) <= {"eu-1", "shed"}
    assert "us-spot" not in shares["us"][KEY]
    assert shares["us"][BATCH].get("us-spot", 0) <= 0.5 + 2e-6
    assert all("eu-old" not in row for rows in shares.values() for row in rows.values())


def test_a_what_if_changes_one_thing(files):
    plan = json.loads(run("plan", *files, "--json", "--set", "engines.eu-1.ready_replicas=0"))
    assert plan["shares"]["eu"][KEY] == {"shed": 1.0}
    assert "zero capacity" in plan["unserved"]["eu"][KEY]
    more = json.loads(run("plan", *files, "--json", "--set", f"demand_rps.us.{KEY}=2.5"))
    assert more["engines"]["us-1"]["load_rps"] < plan["engines"]["us-1"]["load_rps"] + 1e-9


def test_what_was_learned_is_planned_with_and_explained(files):
    slower = ("--set", "engines.us-1.tbot_factor=1.2")
    before, after = (json.loads(run("plan", *files, "--json", *change)) for change in ((), slower))
    assert after["engines"]["us-1"]["tbot_ms"] > 1.1 * before["engines"]["us-1"]["tbot_ms"]
    text = run("explain", *files, *slower, "--engine", "us-1", "us", KEY)
    assert "profile corrected by reports: TBOT ×1.20, load ×1.00, TTFT +0 ms" in text
    assert "load_factor" in CliRunner().invoke(
        main, ["plan", *files, "--set", "engines.us-1.load_factor=2"]
    ).output  # fmt: skip


PUBLISHED = {"previous_shares": {"us": {KEY: {"us-1": 0.2, "eu-1": 0.8}}, "eu": {KEY: {"eu-1": 1.0}}}}


@pytest.fixture
def wide(monkeypatch):
    """A terminal in which no cell of a table is cut."""
    monkeypatch.setenv("COLUMNS", "200")


def test_what_moves_of_the_published_shares_is_shown(files, tmp_path, wide):
    assert "nothing was published before" in run("plan", *files)
    (tmp_path / "state.yaml").write_text(yaml.safe_dump({**STATE, **PUBLISHED}))
    told = run("plan", *files, "--policy-name", "nearest")
    plan = json.loads(run("plan", *files, "--policy-name", "nearest", "--json"))
    assert plan["moved"]["us"][KEY] == pytest.approx(0.8, abs=1e-5)
    (row,) = [line for line in told.splitlines() if "80.00%" in line and KEY in line]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "us", KEY, "80.00%", "eu-1 80.00%", "us-1 80.00%",
    ]  # fmt: skip
    assert "40.00% of demand: 4.80 requests/s" in told
    stays = yaml.safe_dump({**STATE, "previous_shares": plan["shares"]})
    (tmp_path / "state.yaml").write_text(stays)
    told = run("plan", *files, "--policy-name", "nearest")
    assert "0.00% of demand" in told
    assert "Movement" not in told


def test_another_policy_and_a_difference_can_be_shown(files, tmp_path, wide):
    saved = tmp_path / "plan.json"
    saved.write_text(run("plan", *files, "--json"))
    table = run("plan", *files, "--policy-name", "round_robin", "--diff", saved)
    assert "before" in table
    assert "load before" in table
    assert "price before" in table
    assert "round_robin" in table


def test_a_difference_can_be_read_by_machines(files, tmp_path):
    saved = tmp_path / "plan.json"
    saved.write_text(run("plan", *files, "--json"))
    before = json.loads(saved.read_text())
    same = json.loads(run("plan", *files, "--json", "--diff", saved))["diff"]
    assert same == {"shares": {}, "engines": {}}
    after = json.loads(run("plan", *files, "--json", "--diff", saved, "--demand-scale", "3"))
    change = after["diff"]["engines"]["eu-1"]
    for field in ("load_rps", "price_ms"):
        was, now = before["engines"]["eu-1"][field], after["engines"]["eu-1"][field]
        assert change[field] == pytest.approx(now - was)
    assert after["diff"]["shares"]["eu"][KEY]["shed"] == after["shares"]["eu"][KEY]["shed"]
    assert after["diff"]["objective_ms"] > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not a plan"), ("{}", "no `shares`"), ('{"shares": {"us": 1}}', "shares.us: 1; expected a map")],
)
def test_a_difference_against_something_else_is_refused_with_its_place(files, tmp_path, text, said):
    (tmp_path / "plan.json").write_text(text)
    assert said in run("plan", *files, "--diff", tmp_path / "plan.json", code=2)


def test_explain_answers_for_one_front_end(files):
    lines = run("explain", *files, "us", KEY).splitlines()
    assert any(line.startswith(f"us {KEY} → us-1") for line in lines)
    assert any("one more replica saves" in line for line in lines)


def test_a_price_that_is_not_unique_is_told_as_a_range(files):
    full = (*files, "--demand-scale", "3")
    said = run("explain", *full, "--engine", "eu-1", "eu", KEY).splitlines()[-1]
    entry = json.loads(run("explain", *full, "--engine", "eu-1", "--json"))["engines"][0]
    low, high = entry["price_low_ms"], entry["price_high_ms"]
    assert low < entry["price_ms"] < high
    assert f"(anything from {low:.1f} to {high:.1f} would do)" in said
    assert "anything from" not in run("explain", *files, "--engine", "eu-1", "eu", KEY)


def test_explain_names_the_rules_in_conflict(files):
    text = run("explain", *files, "--set", "engines.eu-1.ready_replicas=0", "eu", KEY)
    assert f"eu {KEY} → us-1 0%: may not serve it: residency" in text
    assert f"eu {KEY} → eu-old 0%: may not serve it: capability" in text
    assert f"eu {KEY} → eu-1 0%: may serve it but has no capacity now: 0 ready replicas" in text


def test_explain_has_a_line_for_every_engine_of_the_model_and_says_which_rule_bars_it(files):
    told = json.loads(run("explain", *files, "--json"))
    lines = {(r["frontend"], r["key"], r["destination"]): r for r in told["shares"]}
    rows = [(f, k) for f, row in STATE["demand_rps"].items() for k in row]
    assert {name for name in lines if name[2] != "shed"} == {
        (*row, engine) for row in rows for engine in POLICY["engines"]
    }
    barred = {name for name, r in lines.items() if r["relation"] == "barred"}
    assert barred == {("us", KEY, "eu-old"), ("us", KEY, "us-spot"), ("us", BATCH, "eu-old")} | {
        ("eu", KEY, engine) for engine in ("us-1", "us-spot", "eu-old")
    }
    assert "may not serve it: classes" in lines["us", KEY, "us-spot"]["text"]
    assert lines["us", BATCH, "us-spot"]["relation"] != "barred"
    assert told["conflicts"] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("engines.nobody.ready_replicas=1", "engines.nobody"),
        ("demand_rps.us.unknown/class=1", "unknown/class"),
        ("engines.us-1.penalty=7", "engines[us-1].penalty"),
        ("engines.us-1.colour=1", "colour"),
        (f"demand_rps.us.{KEY}=lots", "lots"),
        ("nonsense", "PATH=VALUE"),
    ],
)
def test_a_wrong_state_is_refused_with_its_place(files, change, said):
    assert said in run("plan", *files, "--set", change, code=2)


def test_a_state_that_says_a_thing_twice_is_refused_with_file_line_and_key(files, tmp_path):
    state = tmp_path / "state.yaml"
    state.write_text(f"demand_rps:\n  us:\n    {KEY}: 1\n    {KEY}: 9\n")
    said = run("plan", *files, code=2)
    assert f"{state}:4: demand_rps.us.{KEY}: the key is already on line 3" in said
    state.write_text(f'{{"demand_rps": {{"us": {{"{KEY}": 1}}, "us": {{"{KEY}": 9}}}}}}')
    assert f"{state}:1: demand_rps.us: the key is already on line 1" in run("plan", *files, code=2)


def test_a_state_of_a_large_fleet_can_be_read(tmp_path):
    rows = {f"us-{n}": {f"engine-{e}": 12.5 for e in range(1000)} for n in range(60)}
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"demand_rps": {"us-0": {KEY: 1.0}}, "network_ms": rows}))
    assert state.stat().st_size > 1 << 20
    assert len(FleetState.read(state).network_ms) == 60


def test_every_number_of_json_is_read_as_one(tmp_path):
    state = tmp_path / "state.json"
    demand = {KEY: 1e-5, BATCH: 5e-324, "other/class": 1e30}
    state.write_text(json.dumps({"demand_rps": {"us": demand}}))
    assert FleetState.read(state).demand_rps["us"] == demand


def test_the_strictest_slo_of_the_allowed_classes_sets_the_capacity(files):
    rules = PlanningRules.of(load(files[1]))
    assert rules.engines["us-1"].slo_capacity_rps == pytest.approx(5.5 * (1 - 24 / 80))
    assert rules.engines["us-spot"].slo_capacity_rps is None


def test_work_follows_tokens(files):
    keys = PlanningRules.of(load(files[1])).keys
    assert keys[BATCH].work["us-1"] == pytest.approx(0.5 + 0.5 * 4)
    assert keys[KEY].work == {}


def test_measured_distances_go_before_the_policys(files):
    rules = PlanningRules.of(load(files[1]))
    state = {name: EngineState(4.0) for name in rules.engines}
    problem = rules.problem(demand=STATE["demand_rps"], engines=state, network_ms={"us": {"eu-1": 33.0}})
    assert problem.network_ms["us"]["eu-1"] == 33.0
    assert problem.network_ms["us"]["us-1"] == 1.0
    with pytest.raises(ProblemError, match="ghost"):
        rules.problem(demand={}, engines=state, network_ms={"us": {"ghost": 1.0}})


def test_auto_utilization_follows_the_noise_of_the_load():
    assert [auto_utilization(load) for load in (0.0, 6.0, 90.0, 1e6)] == [0.70, 0.72, 0.91, 0.95]


def test_fit_writes_a_profile_that_a_policy_takes(tmp_path):
    rows = ["load_rps,ttft_ms,tbot_ms"]
    rows += [f"{x},{130 + 90 * max(0, x - 4.2):.3f},{24 / (1 - x / 5.5):.4f}" for x in (0.5, 1, 2, 3, 4, 4.5)]
    (tmp_path / "m.csv").write_text("\n".join(rows))
    out = run(
        "fit",
        tmp_path / "m.csv",
        "--out",
        tmp_path / "p.yaml",
        "--input-tokens",
        1200,
        "--output-tokens",
        200,
    )
    assert "λmax 5.5" in out
    policy = {**POLICY, "profiles": {"h100": {"file": "p.yaml"}}}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    assert load(tmp_path / "policy.yaml").profiles["h100"].lambda_max_rps == pytest.approx(5.5, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("load_rps,ttft_ms\n1,2", "tbot_ms"),
        ("load_rps,ttft_ms,tbot_ms\n1,2,x", "line 2"),
        ("load_rps,ttft_ms,tbot_ms\n1,2,nan", "line 2"),
        ("concurrency,ttft_ms,tbot_ms\n1,2,3", "--output-tokens"),
        ("load_rps,ttft_ms,tbot_ms\n1,2,3", "at least two"),
    ],
)
def test_fit_refuses_what_it_cannot_use(tmp_path, text, said):
    (tmp_path / "m.csv").write_text(text)
    assert said in run("fit", tmp_path / "m.csv", code=2)


def test_a_plot_of_the_fit_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "m.csv").write_text("load_rps,ttft_ms,tbot_ms\n1,100,10\n2,110,12\n3,130,15\n")
    run("fit", tmp_path / "m.csv", "--plot", tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
