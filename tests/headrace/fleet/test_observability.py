"""What can be seen of a running fleet, by the names that dashboards rely on."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.demo.fleet import Fleet
from tests.headrace.fleet.conftest import Loading
from tests.headrace.fleet.small import answered, demand, failures, ready, small, until

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
    "headrace_engine_correction_ratio",
    "headrace_engine_correction_ttft_seconds",
    "headrace_engine_learning",
    "headrace_engine_retry_budget_ratio",
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
    "headrace_certificate_expiry_timestamp_seconds",
}
PAGE = (Path(__file__).parents[3] / "docs" / "observability.md").read_text()


looked_at = pytest.mark.asyncio(loop_scope="module")
"""Tests that only look share one fleet."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with Fleet(small(), tmp_path_factory.mktemp("fleet"), early_headers=False) as fleet:
        yield fleet


async def scrape(fleet: Fleet) -> dict[str, Metric]:
    """Family name -> family, as Prometheus reads them."""
    async with fleet.http.get(f"http://127.0.0.1:{fleet.ports['metrics']}/metrics") as answer:
        return {f.name: f for f in text_string_to_metric_families(await answer.text())}


def series(families: dict[str, Metric], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Values of one sample name by some of its labels; summed over the others."""
    found: dict[tuple[str, ...], float] = {}
    for family in families.values():
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in labels)
                found[key] = found.get(key, 0.0) + sample.value
    return found


@looked_at
async def test_the_live_state_can_be_planned_and_explained_offline(shared: Fleet, tmp_path: Path):
    from click.testing import CliRunner

    from headrace.cli import main

    await until(shared, lambda status: status["last_round"] is not None)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(await shared.api("/api/state")))
    where = ["--policy", str(shared.policy_path), "--state", str(state)]
    planned = CliRunner().invoke(main, ["plan", *where, "--json"])
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.output)["shares"] == (await shared.api("/api/status"))["shares"]
    explained = CliRunner().invoke(main, ["explain", *where])
    assert explained.exit_code == 0, explained.output
    assert "west-gpu" in explained.output


@looked_at
async def test_every_metric_is_there_and_no_label_is_unbounded(shared: Fleet, loaded: Loading):
    async with loaded(shared):
        await until(shared, lambda status: demand(status) > 40)
        families = await answered(lambda: scrape(shared), lambda found: found.keys() >= NAMES)
    exported = {found.name + ("_total" if found.type == "counter" else "") for found in families.values()}
    assert {name for name in exported if f"`{name}`" not in PAGE} == set()
    assert {stage for (stage,) in series(families, "headrace_plan_duration_seconds_count", "stage")} == {
        *("collect", "solve", "partition", "publish")
    }
    ended = series(families, "headrace_requests_total", "frontend", "outcome")
    assert ended["west", "ok"] > 0
    assert ended["west", "error"] == ended["west", "shed"] == 0
    labels = {label for family in families.values() for sample in family.samples for label in sample.labels}
    assert labels <= {
        *("frontend", "model", "class", "engine", "region", "state", "type", "reason", "result"),
        *("trigger", "stage", "outcome", "parameter"),
        *("mode", "source", "quantile", "version", "solver", "revision", "hash", "le"),
    }


@looked_at
async def test_what_engines_really_answered_stands_beside_their_shares(shared: Fleet, loaded: Loading):
    def agree(families: dict[str, Metric]) -> bool:
        where = ("frontend", "model", "class", "engine")
        wanted = series(families, "headrace_share_ratio", *where)
        found = series(families, "headrace_share_realised_ratio", *where)
        used = {key: share for key, share in wanted.items() if share > 0.05}
        return bool(used) and all(abs(found.get(key, 0.0) - share) < 0.1 for key, share in used.items())

    async with loaded(shared):
        await until(shared, lambda status: demand(status) > 40)
        await answered(lambda: scrape(shared), agree)


async def test_with_every_reporter_silent_shares_are_held_and_requests_served(fleet: Fleet, loaded: Loading):
    async with loaded(fleet) as generator:
        await until(fleet, lambda status: demand(status) > 40)
        for engine, replica in fleet.engines:
            await fleet.fault(engine, replica, mute=True)
        silent = await until(fleet, lambda status: status["mode"] == "holding_stale")
        families = await answered(lambda: scrape(fleet), lambda found: "headrace_mode" in found)
    assert series(families, "headrace_mode", "mode")["holding_stale",] == 1.0
    assert {engine: ready(silent, engine) for engine in silent["engines"]} == {"west-gpu": 2, "east-gpu": 2}
    assert failures(generator) == []


async def test_a_serving_control_plane_is_live_and_ready_though_every_engine_hangs(fleet: Fleet):
    for engine, replica in fleet.engines:
        await fleet.fault(engine, replica, hang=True)
    for path in ("/livez", "/readyz"):
        async with fleet.http.get(f"http://127.0.0.1:{fleet.ports['metrics']}{path}") as answer:
            assert answer.status == 200
    assert (await fleet.api("/api/status"))["mode"] == "planning"


EVERY_LINE = {"event", "level", "ts", "fleet", "revision", "snapshot"}


async def test_the_log_tells_what_happened_in_lines_of_one_form(fleet: Fleet, loaded: Loading):
    async def log() -> dict[str, list[dict[str, object]]]:
        lines = [json.loads(line) for line in fleet.control.log.read_text().splitlines()]
        return {line["event"]: [each for each in lines if each["event"] == line["event"]] for line in lines}

    started = {"control_plane_started", "control_plane_ready", "policy_loaded", "replica_joined"}
    started |= {"replica_ready", "plan_published", "envoy_connected", "envoy_in_sync", "state_saved"}
    async with loaded(fleet):
        await until(fleet, lambda status: demand(status) > 40)
        await answered(log, lambda found: found.keys() >= started)
        for drain, event in ((True, "engine_emptied"), (False, "engine_ready")):
            for replica in ("r1", "r2"):
                await fleet.fault("west-gpu", replica, drain=drain)
            await answered(log, lambda found, event=event: event in found)
        seen = await answered(log, lambda found: {"replica_drain_acked", "guard_applied"} <= found.keys())
    assert [line["engine"] for line in seen["engine_emptied"]] == ["west-gpu"]
    assert seen["replica_drain_acked"][0]["reason"] == "every Envoy acknowledged"
    assert "engine_lost" not in seen
    for event, lines in seen.items():
        assert re.fullmatch(r"[a-z][a-z_]*", event)
        assert f"`{event}`" in PAGE
        assert all(line.keys() >= EVERY_LINE for line in lines), event
    published = seen["plan_published"]
    assert [line["snapshot"] for line in published] == sorted({line["snapshot"] for line in published})
