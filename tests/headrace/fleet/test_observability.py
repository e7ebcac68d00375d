"""What can be seen of a running fleet, by the names that dashboards rely on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.demo.fleet import Fleet
from tests.headrace.fleet.conftest import Loading
from tests.headrace.fleet.small import answered, demand, until

NAMES = {
    "headrace_build_info",
    "headrace_policy_info",
    "headrace_policy_reloads",
    "headrace_plan_rounds",
    "headrace_plan_duration_seconds",
    "headrace_plan_gap_ratio",
    "headrace_plan_latency_seconds",
    "headrace_snapshot_timestamp_seconds",
    "headrace_snapshot_sequence",
    "headrace_mode",
    "headrace_demand_rps",
    "headrace_demand_age_seconds",
    "headrace_requests",
    "headrace_share_ratio",
    "headrace_network_rtt_seconds",
    "headrace_share_realised_ratio",
    "headrace_moved_share",
    "headrace_retry_ratio",
    "headrace_engine_replicas",
    "headrace_engine_load_rps",
    "headrace_engine_capacity_rps",
    "headrace_engine_utilization_ratio",
    "headrace_engine_price_seconds",
    "headrace_engine_penalty_ratio",
    "headrace_engine_ttft_seconds",
    "headrace_engine_tbot_seconds",
    "headrace_engine_kv_usage_ratio",
    "headrace_engine_prefix_hit_ratio",
    "headrace_engine_load_mismatch_ratio",
    "headrace_engine_waiting_requests",
    "headrace_engine_running_requests",
    "headrace_engine_report_age_seconds",
    "headrace_reports",
    "headrace_xds_clients",
    "headrace_xds_lagging_clients",
    "headrace_xds_nacked_clients",
    "headrace_xds_responses",
    "headrace_xds_nacks",
    "headrace_xds_ack_seconds",
    "headrace_xds_refused",
    "headrace_event_loop_lag_seconds",
    "headrace_state_save_timestamp_seconds",
}


async def test_every_metric_is_there_and_no_label_is_unbounded(fleet: Fleet, loaded: Loading):
    async def scrape() -> dict:
        async with fleet.http.get(f"http://127.0.0.1:{fleet.ports['metrics']}/metrics") as answer:
            return {f.name: f for f in text_string_to_metric_families(await answer.text())}

    async with loaded(fleet):
        await until(fleet, lambda status: demand(status) > 40)
        families = await answered(scrape, lambda found: found.keys() >= NAMES)
    labels = {label for family in families.values() for sample in family.samples for label in sample.labels}
    assert labels <= {
        *("frontend", "model", "class", "engine", "region", "state", "type", "reason", "result"),
        *("trigger", "stage"),
        *("mode", "source", "quantile", "version", "solver", "revision", "hash", "le"),
    }


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_a_serving_control_plane_is_live_and_ready(fleet: Fleet, path: str):
    async with fleet.http.get(f"http://127.0.0.1:{fleet.ports['metrics']}{path}") as answer:
        assert answer.status == 200


async def test_the_live_state_can_be_planned_and_explained_offline(fleet: Fleet, tmp_path: Path):
    from click.testing import CliRunner

    from headrace.cli import main

    await until(fleet, lambda status: status["last_round"] is not None)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(await fleet.api("/api/state")))
    where = ["--policy", str(fleet.policy_path), "--state", str(state)]
    planned = CliRunner().invoke(main, ["plan", *where, "--json"])
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.output)["shares"] == (await fleet.api("/api/status"))["shares"]
    explained = CliRunner().invoke(main, ["explain", *where])
    assert explained.exit_code == 0, explained.output
    assert "west-gpu" in explained.output
