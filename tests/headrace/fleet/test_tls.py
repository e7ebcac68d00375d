"""Envoys and control plane over mutual TLS: the certificate must name the front-end."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import yaml

from headrace.child import Child
from headrace.demo.fake_engine.config import EngineConfig
from headrace.demo.fake_engine.profile import EngineProfile
from headrace.demo.fake_engine.server import EngineServer
from headrace.envoy_bootstrap import Bootstrap, ClientTls
from headrace.envoy_process import EnvoyProcess
from tests.headrace.fleet.small import MODEL, POLICY, answered

IDENTITY = "{frontend}.frontend.test"
SERVER_NAME = "control-plane.test"


@pytest.fixture
def certificates(tmp_path: Path) -> trustme.CA:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    _write(ca.issue_cert(SERVER_NAME), tmp_path, "server")
    for frontend in ("west", "east"):
        _write(ca.issue_cert(IDENTITY.format(frontend=frontend)), tmp_path, frontend)
    return ca


def _write(leaf: trustme.LeafCert, folder: Path, name: str) -> None:
    leaf.private_key_pem.write_to_path(str(folder / f"{name}.key"))
    for blob in leaf.cert_chain_pems:
        blob.write_to_path(str(folder / f"{name}.pem"), append=True)


def _mutual(identity: str) -> dict[str, Any]:
    files = {"cert": "server.pem", "key": "server.key", "client_ca": "ca.pem"}
    return {"identity": identity, **{name: {"file": file} for name, file in files.items()}}


@pytest.fixture
async def engine() -> AsyncIterator[EngineServer]:
    profile = EngineProfile(t0_ms=1, lambda_max_rps=60, capacity_rps=50, ttft_base_ms=1)
    config = EngineConfig(engine="west-gpu", replica="r1", models=(MODEL,), profile=profile)
    async with EngineServer(config) as server:
        yield server


@pytest.fixture
async def control(
    tmp_path: Path, certificates: trustme.CA, engine: EngineServer
) -> AsyncIterator[tuple[Child, int]]:
    document = yaml.safe_load(POLICY)
    document["engines"]["west-gpu"]["members"] = {"static": [f"127.0.0.1:{engine.port}"]}
    del document["engines"]["east-gpu"]
    document["security"] = {
        "xds": _mutual(IDENTITY),
        "reports": _mutual("{engine}.engine.test"),
    }
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(document))
    argv = [sys.executable, "-m", "headrace", "serve", "--policy", str(tmp_path / "policy.yaml")]
    for port in ("xds", "reports", "metrics", "admin"):
        argv += [f"--{port}", "127.0.0.1:0"]
    child = await Child.start("control", [*argv, "--ports-file", str(tmp_path / "ports")], tmp_path / "log")
    try:
        yield child, (await child.ports(tmp_path / "ports"))["xds"]
    finally:
        await child.stop()


def envoy(folder: Path, port: int, *, frontend: str, certificate: str) -> EnvoyProcess:
    tls = ClientTls(
        folder / f"{certificate}.pem", folder / f"{certificate}.key", folder / "ca.pem", SERVER_NAME
    )
    return EnvoyProcess(
        Bootstrap(frontend=frontend, fleet="test", xds=[("127.0.0.1", port)], node_id="one", tls=tls)
    )


async def test_an_envoy_with_its_front_ends_certificate_serves(tmp_path: Path, control: tuple[Child, int]):
    async with envoy(tmp_path, control[1], frontend="west", certificate="west") as running:
        ports = await running.ready()
        url = f"http://127.0.0.1:{ports['public']}/v1/chat/completions"
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
            assert answer.status == 200
            assert answer.headers["x-headrace-engine"] == "west-gpu"


async def test_an_envoy_with_another_front_ends_certificate_is_refused(
    tmp_path: Path, control: tuple[Child, int]
):
    async def log() -> dict[str, str]:
        return {"log": control[0].tail()}

    async with envoy(tmp_path, control[1], frontend="west", certificate="east"):
        seen = await answered(log, lambda answer: "envoy_refused" in answer["log"])
    assert "the client certificate is not one of front-end 'west'" in seen["log"]
