"""Running Envoy: the command, its bootstrap, draining and what is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import yaml
from click.testing import CliRunner

from headrace.cli import main
from headrace.envoy_bootstrap import Bootstrap
from headrace.envoy_process import EnvoyMissingError, EnvoyProcess, envoy_binary
from headrace.policy.schema import Overload
from tests.envoy.harness import FLEET, FRONTEND, MODEL, ControlPlane, Pool
from tests.envoy.replica import Received, Replica, chunk, head

on_the_session_loop = pytest.mark.asyncio(loop_scope="session")

ARGUMENTS = ["envoy", "--frontend", "us-east", "--fleet", "prod", "--xds", "10.0.0.1:18000"]


def test_the_printed_bootstrap_is_valid_for_envoy(tmp_path: Path) -> None:
    odd = ["--node-id", "a: {b}, \"c\" ${d} 'e'", "--xds", "[::1]:18001", "--print"]
    printed = CliRunner().invoke(main, [*ARGUMENTS, *odd])
    assert printed.exit_code == 0
    document = yaml.safe_load(printed.stdout)
    assert document["node"]["id"] == "a: {b}, \"c\" ${d} 'e'"
    assert document["node"]["cluster"] == "us-east"
    assert document["node"]["metadata"] == {"fleet": "prod"}
    path = tmp_path / "bootstrap.yaml"
    path.write_text(printed.stdout)
    command = [envoy_binary(), "--mode", "validate", "--config-path", path, "--log-level", "error"]
    assert subprocess.run(command, check=False).returncode == 0


def document(*arguments: str) -> Any:
    printed = CliRunner().invoke(main, ["envoy", "--frontend", "us-east", *arguments, "--print"])
    assert printed.exit_code == 0, printed.output
    return yaml.safe_load(printed.stdout)


def limits(bootstrap: Any) -> dict[str, int]:
    """Limit of every resource monitor by the last part of its name."""
    return {
        monitor["name"].rpartition(".")[2]: value
        for monitor in bootstrap["overload_manager"]["resource_monitors"]
        for field, value in monitor["typed_config"].items()
        if field != "@type"
    }


def edited_policy(folder: Path, **overload: int) -> str:
    policy = yaml.safe_load(Path("examples/policy.yaml").read_text())
    policy.setdefault("protection", {})["overload"] = overload
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    return str(folder / "policy.yaml")


XDS = ("--xds", "10.0.0.1:18000")


def test_an_envoys_own_limits_and_fleet_are_the_policys(tmp_path: Path) -> None:
    policy = edited_policy(tmp_path, max_connections=123, max_heap_mib=456)
    bootstrap = document(*XDS, "--policy", policy)
    assert bootstrap["node"]["metadata"] == {"fleet": "demo"}
    assert limits(bootstrap) == {"global_downstream_max_connections": 123, "fixed_heap": 456 << 20}


def test_options_go_before_the_policys_limits(tmp_path: Path) -> None:
    policy = edited_policy(tmp_path, max_connections=123, max_heap_mib=456)
    bootstrap = document(*XDS, "--policy", policy, "--max-connections", "7", "--max-heap-mib", "64")
    assert limits(bootstrap) == {"global_downstream_max_connections": 7, "fixed_heap": 64 << 20}


def test_without_a_policy_an_envoys_limits_are_the_schemas_defaults() -> None:
    bootstrap = document(*XDS, "--fleet", "prod")
    assert limits(bootstrap) == {
        "global_downstream_max_connections": Overload().max_connections,
        "fixed_heap": Overload().max_heap_mib << 20,
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--frontend", "us-east"], "expected --fleet, or --policy"),
        (["--frontend", "mars", "--policy", "examples/policy.yaml"], "expected one of the policy's"),
        (
            ["--frontend", "us-east", "--policy", "examples/policy.yaml", "--fleet", "other"],
            "the policy is of fleet demo",
        ),
        (["--frontend", "us-east", "--policy", "pyproject.toml"], "pyproject.toml"),
    ],
)
def test_what_does_not_fit_the_policy_is_refused(arguments: list[str], told: str) -> None:
    refused = CliRunner().invoke(main, ["envoy", *arguments, *XDS, "--print"])
    assert refused.exit_code != 0
    assert told in " ".join(refused.output.replace("│", " ").split())


def test_the_written_bootstrap_names_certificates_and_holds_none(tmp_path: Path) -> None:
    ca, folder = trustme.CA(), tmp_path / "envoy"
    leaf = ca.issue_cert("us-east.frontend.test")
    leaf.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    ca.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    tls = ["--tls-cert", "tls.crt", "--tls-key", "tls.key", "--tls-ca", "ca.crt"]
    arguments = [argument if argument.startswith("--") else str(tmp_path / argument) for argument in tls]
    written = CliRunner().invoke(main, [*ARGUMENTS, *arguments, "--write", str(folder)])
    assert written.stdout.strip() == str(folder / "bootstrap.yaml")
    assert not any("-----BEGIN" in file.read_text() for file in folder.iterdir())
    command = [envoy_binary(), "--mode", "validate", "--config-path", folder / "bootstrap.yaml"]
    assert subprocess.run([*command, "--log-level", "error"], check=False).returncode == 0


def test_a_bootstrap_with_certificates_is_more_than_can_be_printed(tmp_path: Path) -> None:
    (tmp_path / "any.pem").touch()
    tls = [
        argument
        for name in ("cert", "key", "ca")
        for argument in (f"--tls-{name}", str(tmp_path / "any.pem"))
    ]
    refused = CliRunner().invoke(main, [*ARGUMENTS, *tls, "--print"])
    assert refused.exit_code == 2
    assert "--write" in refused.output


@pytest.mark.parametrize("address", ["18000", "host:", "host:http", ":1", "host:70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    refused = CliRunner().invoke(main, [*ARGUMENTS, "--xds", address, "--print"])
    assert refused.exit_code == 2
    assert "expected host:port" in refused.output


def test_a_missing_binary_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENVOY", "/nonexistent/envoy")
    with pytest.raises(EnvoyMissingError, match="HEADRACE_ENVOY"):
        envoy_binary()


def test_the_chosen_binary_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENVOY", sys.executable)
    assert envoy_binary() == Path(sys.executable)


@on_the_session_loop
async def test_a_draining_envoy_fails_its_health_path_and_ends_what_runs(
    http: aiohttp.ClientSession,
) -> None:
    release = asyncio.Event()

    async def held(request: Received, out: asyncio.StreamWriter) -> None:
        out.write(head(200, ("transfer-encoding", "chunked")) + chunk(b"first"))
        await out.drain()
        await release.wait()
        out.write(chunk(b"last") + chunk(b""))

    async with ControlPlane() as control_plane, Replica("home-0") as home:
        home.answer = held
        control_plane.push(Pool({"home": [home]}).table())
        command = [sys.executable, "-m", "headrace", "envoy", "--frontend", FRONTEND, "--fleet", FLEET]
        command += ["--xds", f"127.0.0.1:{control_plane.port}", "--admin-port", "0", "--concurrency", "1"]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        assert process.stderr
        events = {}
        while "envoy_ready" not in events:
            event = json.loads(await process.stderr.readline())
            events[event["event"]] = event
        url = f"http://127.0.0.1:{events['envoy_ready']['listeners']['public']}"
        async with http.get(url + "/health") as healthy:
            assert healthy.status == 200
        async with http.post(url + "/v1/chat/completions", json={"model": MODEL}) as answer:
            assert await answer.content.readexactly(5) == b"first"
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                while (await http.get(url + "/health")).status == 200:
                    pass
            release.set()
            assert await answer.content.read() == b"last"
        assert await asyncio.wait_for(process.wait(), 10) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(events["envoy_started"]["pid"], 0)


@on_the_session_loop
async def test_a_process_leaves_nothing_behind(control_plane: ControlPlane) -> None:
    envoy = EnvoyProcess(Bootstrap(FRONTEND, FLEET, [("127.0.0.1", control_plane.port)], "brief"))
    async with envoy:
        pid, directory = envoy.pid, envoy.directory
        assert (directory / "bootstrap.yaml").exists()
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
