"""docker-compose.yml without Docker: what it promises, and every service's command line really started."""

import asyncio
import json
import re
import shutil
import sys
from contextlib import AsyncExitStack

import pytest
import yaml

from headrace.child import Child
from tests.compose.compose_file import CONFIG, FILE, ROOT, Loopback, image_command, services

FRONTENDS = ("us-east", "eu-west", "ap-south")


def test_there_is_a_control_plane_an_envoy_and_an_engine_for_each_region_and_a_load():
    expected = {"certs", "control-plane", "load"}
    expected |= {f"{part}-{region}" for part in ("envoy", "engine") for region in FRONTENDS}
    assert set(services()) == expected


def test_the_file_is_of_a_version_that_docker_compose_1_29_and_2_both_read():
    assert yaml.safe_load(FILE.read_text())["version"] == "2.4"


@pytest.mark.parametrize("name", services())
def test_every_service_comes_back_after_a_crash_and_all_but_the_load_have_a_health_check(name):
    service = services()[name]
    assert service["restart"] == "unless-stopped"
    assert ("healthcheck" in service) is (name != "load")


def test_ports_are_published_on_loopback_only():
    published = {name: service.get("ports", []) for name, service in services().items()}
    assert {name for name, ports in published.items() if ports} == {
        "control-plane",
        *(f"envoy-{region}" for region in FRONTENDS),
    }
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert "127.0.0.1:7403:7403" in published["control-plane"]


def test_the_policys_folder_is_mounted_so_that_an_edit_arrives():
    mounts = services()["control-plane"]["volumes"]
    (folder,) = [mount.split(":")[0] for mount in mounts if f":{CONFIG}" in mount]
    assert (ROOT / folder / "policy.yaml").is_file()


def test_a_stopped_replica_has_time_to_drain():
    for region in FRONTENDS:
        service = services()[f"engine-{region}"]
        (drain_s,) = [
            float(argument.partition("=")[2])
            for argument in service["command"]
            if argument.startswith("--shutdown-timeout=")
        ]
        assert float(service["stop_grace_period"].removesuffix("s")) > drain_s


def test_both_images_are_built_from_the_same_base():
    bases = {
        (ROOT / path).read_text().split("ARG BASE=")[1].split()[0]
        for path in ("Dockerfile", "envoy/Dockerfile")
    }
    assert len(bases) == 1


class Started:
    """The fleet of the file as processes on loopback, one replica an engine."""

    def __init__(self, directory):
        self.directory = directory
        config = directory / "config"
        shutil.copytree(ROOT / "examples/compose", config)
        policy = config / "policy.yaml"
        # Three front-ends share this machine, so each Envoy takes a port of its own.
        policy.write_text(policy.read_text().replace("port: 8443", "port: 0, address: 127.0.0.1"))
        self.loopback = Loopback(config, directory / "state")
        self._stack = AsyncExitStack()

    async def __aenter__(self):
        await self._stack.__aenter__()
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exception):
        await self._stack.aclose()

    async def _start(self):
        addresses = self.loopback.addresses
        for port in (18000, 7401, 7402, 7403):
            addresses[f"0.0.0.0:{port}"] = "127.0.0.1:0"
        addresses["--host=0.0.0.0"] = "--host=127.0.0.1"
        addresses["--port=8000"] = "--port=0"
        ports_file = self.directory / "ports.json"
        control = await self.start("control-plane", f"--ports-file={ports_file}", "--insecure-dev")
        ports = await control.ports(ports_file)
        addresses["control-plane:7401"] = f"127.0.0.1:{ports['reports']}"
        addresses["control-plane:18000"] = f"127.0.0.1:{ports['xds']}"
        await asyncio.gather(*(self.start(f"engine-{region}") for region in FRONTENDS))
        await asyncio.gather(*(self._start_envoy(region) for region in FRONTENDS))

    async def _start_envoy(self, region):
        envoy = await self.start(f"envoy-{region}", "--admin-port=0", "--flush-interval=1")
        port = await listener_port(envoy)
        self.loopback.addresses[f"envoy-{region}:8443"] = f"127.0.0.1:{port}"

    async def start(self, name, *more):
        arguments = [*self.loopback.command(services()[name]), *more]
        child = await Child.start(
            name, [sys.executable, "-m", "headrace", *arguments], self.directory / f"{name}.log"
        )
        self._stack.push_async_callback(child.stop, 3.0)
        return child


async def listener_port(envoy):
    """The port in the line that the process logs once Envoy serves."""
    async with asyncio.timeout(40):
        while True:
            for line in envoy.log.read_text().splitlines():
                if '"envoy_ready"' in line:
                    return json.loads(line)["listeners"]["public"]
            assert envoy.running, envoy.tail()
            await asyncio.sleep(0.05)


async def test_every_services_command_line_starts_and_together_they_serve(tmp_path):
    async with Started(tmp_path) as fleet:
        command = services()["load"]["command"]
        # A sixth of the rate, for a third of the replicas on a machine that runs other tests too.
        rates = {argument: slower(argument, 6) for argument in command if argument.startswith("--rate=")}
        fleet.loopback.addresses.update(rates)
        load = await fleet.start("load", "--duration=3")
        assert await asyncio.wait_for(load.process.wait(), 60) == 0, load.tail()
        lines = [json.loads(line) for line in load.log.read_text().splitlines()]
    assert {line["frontend"] for line in lines} == set(FRONTENDS)
    for line in lines:
        assert line["requests"] > 0
        assert line["failed"] == 0, line
        assert line["ok"] > 0


def slower(argument, divisor):
    name, _, rps = argument.rpartition("=")
    return f"{name}={float(rps) / divisor:g}"


def test_command_lines_name_a_sub_command_each():
    commands = {image_command(service)[0] for service in services().values() if "command" in service}
    assert commands == {"serve", "fake-engine", "envoy", "load"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program for certificates")
async def test_the_certificates_carry_the_names_that_the_policy_asks_for(tmp_path):
    script = await Child.start(
        "certs", ["sh", str(ROOT / "examples/compose/certs.sh"), str(tmp_path)], tmp_path / "log"
    )
    try:
        async with asyncio.timeout(30):
            while not (tmp_path / "done").exists():
                assert script.running, script.tail()
                await asyncio.sleep(0.05)
    finally:
        await script.stop()
    names = {name: await alternative_names(tmp_path / f"{name}.crt") for name in certificates()}
    assert names["control-plane"] == "DNS:control-plane"
    for region in FRONTENDS:
        assert names[f"frontend-{region}"] == f"URI:spiffe://compose/frontend/{region}"
        assert names[f"engine-{region}-gpu"] == f"URI:spiffe://compose/engine/{region}-gpu"


def certificates():
    """Every leaf certificate that the policy or a command line names."""
    text = FILE.read_text() + (ROOT / "examples/compose/policy.yaml").read_text()
    return set(re.findall(r"/certs/([a-z-]+)\.crt", text)) - {"ca"}


async def alternative_names(path):
    command = ("openssl", "x509", "-in", path, "-noout", "-ext", "subjectAltName")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    text, _ = await process.communicate()
    return text.decode().splitlines()[-1].strip()
