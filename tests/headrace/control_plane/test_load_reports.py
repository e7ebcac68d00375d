"""LRS as the product uses it: a real Envoy's load reports beside its counters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import yaml

from headrace.control_plane.config import Address, ServeConfig
from headrace.control_plane.control_plane import ControlPlane
from headrace.demo.fake_engine.config import EngineConfig
from headrace.demo.fake_engine.profile import EngineProfile
from headrace.demo.fake_engine.server import EngineServer
from headrace.envoy_bootstrap import Bootstrap
from headrace.envoy_process import EnvoyProcess
from headrace.log import make_logger
from headrace.policy import load
from tests.headrace.fleet.small import MODEL, POLICY, answered

_ANY = Address("127.0.0.1", 0)


async def test_load_reports_and_counters_of_a_real_envoy_agree(tmp_path: Path):
    profile = EngineProfile(t0_ms=1, lambda_max_rps=600, capacity_rps=500, ttft_base_ms=1)
    engine = EngineConfig(engine="west-gpu", replica="r1", models=(MODEL,), profile=profile)
    async with EngineServer(engine) as server:
        plane = ControlPlane(_config(tmp_path, server.port), load(tmp_path / "policy.yaml"), make_logger())
        stop = asyncio.Event()
        async with plane.serving() as ports:
            running = asyncio.create_task(plane.run(stop))
            try:
                await _sends_requests(plane, ports["xds"])
            finally:
                stop.set()
                await running


def _config(folder: Path, port: int) -> ServeConfig:
    document = yaml.safe_load(POLICY)
    document["engines"]["west-gpu"]["members"] = {"static": [f"127.0.0.1:{port}"]}
    del document["engines"]["east-gpu"]
    document["profiles"]["gpu"] |= {"lambda_max_rps": 6000, "capacity_rps": 5000}
    (folder / "policy.yaml").write_text(yaml.safe_dump(document))
    return ServeConfig(
        policy=folder / "policy.yaml",
        insecure_dev=True,
        xds=_ANY,
        reports=_ANY,
        metrics=_ANY,
        admin=_ANY,
        load_report_interval_s=1.0,
    )


async def _sends_requests(plane: ControlPlane, xds_port: int) -> None:
    bootstrap = Bootstrap(
        frontend="west", fleet="test", xds=[("127.0.0.1", xds_port)], node_id="one", flush_interval_s=0.5
    )
    async with EnvoyProcess(bootstrap) as envoy, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{(await envoy.ready())['public']}/v1/chat/completions"
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}

        async def mismatch() -> dict[str, float]:
            for _ in range(10):
                async with http.post(url, json=body) as answer:
                    assert answer.status == 200
            return {"value": plane.traffic.attempts_mismatch().get("west", 0.0)}

        await answered(mismatch, lambda seen: 0.9 < seen["value"] < 1.1)
