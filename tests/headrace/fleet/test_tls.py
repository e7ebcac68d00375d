"""Envoys and control plane over mutual TLS: the certificate must name the front-end."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import yaml
from cryptography import x509

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
    """Put key and certificate in place one after the other, each by a rename."""
    for suffix, blobs in (("key", [leaf.private_key_pem]), ("pem", leaf.cert_chain_pems)):
        new = folder / f"{name}.{suffix}.new"
        new.write_bytes(b"".join(blob.bytes() for blob in blobs))
        new.rename(folder / f"{name}.{suffix}")


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


def envoy(folder: Path, port: int, *, frontend: str, certificate: str, ca: str = "ca") -> EnvoyProcess:
    tls = ClientTls(
        folder / f"{certificate}.pem", folder / f"{certificate}.key", folder / f"{ca}.pem", SERVER_NAME
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


async def test_an_envoy_whose_certificate_has_expired_serves_once_it_is_replaced(
    tmp_path: Path, certificates: trustme.CA, control: tuple[Child, int]
):
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    _write(certificates.issue_cert(IDENTITY.format(frontend="west"), not_after=past), tmp_path, "west")
    async with envoy(tmp_path, control[1], frontend="west", certificate="west") as running:
        await answered(lambda: _control_plane(running), _dialled_in_vain)
        _write(certificates.issue_cert(IDENTITY.format(frontend="west")), tmp_path, "west")
        await running.ready()


async def test_an_envoy_learns_a_new_authority_of_the_control_plane(
    tmp_path: Path, certificates: trustme.CA, control: tuple[Child, int]
):
    old, new = tmp_path / "trusted.pem", tmp_path / "trusted.new"
    trustme.CA().cert_pem.write_to_path(str(old))
    certificates.cert_pem.write_to_path(str(new))
    async with envoy(tmp_path, control[1], frontend="west", certificate="west", ca="trusted") as running:
        await answered(lambda: _control_plane(running), _dialled_in_vain)
        new.rename(old)
        await running.ready()


async def test_a_running_envoy_takes_a_rotated_certificate_for_its_next_connection(
    tmp_path: Path, certificates: trustme.CA, control: tuple[Child, int]
):
    async def served() -> dict[str, Any]:
        return {"certs": json.loads(await running.get("/certs"))["certificates"]}

    leaf = certificates.issue_cert(IDENTITY.format(frontend="west"))
    serial = f"{x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).serial_number:x}"
    async with envoy(tmp_path, control[1], frontend="west", certificate="west") as running:
        await running.ready()
        assert serial not in json.dumps(await served())
        _write(leaf, tmp_path, "west")
        await answered(served, lambda answer: serial in json.dumps(answer))


async def _control_plane(running: EnvoyProcess) -> dict[str, int]:
    return await running.counters(r"^(control_plane|cluster\.xds)\.")


def _dialled_in_vain(counters: dict[str, int]) -> bool:
    return counters.get("cluster.xds.upstream_cx_connect_fail", 0) > 1
