"""`docker compose up` for real, with what an operator then does. Not in the default suite:

    pytest tests/compose/docker_run.py --log-cli-level=INFO

Takes about four minutes the first time (the images are built), one minute when HEADRACE_DOCKER_DIR names a
folder that keeps Docker's data between runs.
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.compose.compose_file import FILE, ROOT
from tests.compose.docker_engine import BASE_IMAGE, NoDockerError, compose_command, docker, make_base_image

FRONTENDS = {"us-east": 8443, "eu-west": 8444, "ap-south": 8445}
PROJECT = "headrace-test"
SHOWN = ("frontend", "requests", "failed", "shed", "by_engine")
LOG = logging.getLogger(__name__)
MODEL = "meta-llama/Llama-3.3-70B-Instruct"


class Fleet:
    """The running compose project."""

    def __init__(self, directory, environment):
        self.directory = directory
        self.environment = environment

    def compose(self, *arguments):
        program = compose_command()
        return self._run(
            *program, "-p", PROJECT, "-f", str(self.directory / "docker-compose.yml"), *arguments
        )

    def docker(self, *arguments):
        return self._run("docker", *arguments)

    def _run(self, *arguments):
        result = subprocess.run(arguments, env=self.environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{' '.join(arguments)}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def containers(self, service):
        names = self.docker("ps", "-a", "--format", "{{.Names}}").split()
        return sorted(name for name in names if service in name)

    def inspect(self, container, template):
        return self.docker("inspect", "-f", template, container).strip()

    def status(self):
        with urllib.request.urlopen("http://127.0.0.1:7403/api/status", timeout=5) as answer:
            return json.load(answer)

    def seen_by_clients(self):
        """The load's lines so far."""
        (load,) = self.containers("load")
        return [json.loads(line) for line in self.docker("logs", load).splitlines() if line.startswith("{")]

    def next_lines(self, rounds=1):
        """Wait for the load to report on every front-end this many times more, and return that."""
        before = len(self.seen_by_clients())
        wanted = before + rounds * len(FRONTENDS)
        until(lambda: len(self.seen_by_clients()) >= wanted, 60)
        return self.seen_by_clients()[before:wanted]


def until(holds, limit_s):
    """Wait for it; an answer that does not come, as while the control plane restarts, is a no."""
    deadline = time.monotonic() + limit_s
    while not answered(holds):
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.25)


def answered(holds):
    try:
        return holds()
    except OSError:
        return False


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    kept = os.environ.get("HEADRACE_DOCKER_DIR")
    engine = Path(kept) if kept else tmp_path_factory.mktemp("docker")
    try:
        with docker(engine) as environment:
            make_base_image(engine, environment)
            for image, file in (("headrace", "Dockerfile"), ("headrace-envoy", "envoy/Dockerfile")):
                build = ["docker", "build", "--network=host", f"--build-arg=BASE={BASE_IMAGE}", "-t", image]
                subprocess.run(
                    [*build, "-f", ROOT / file, ROOT], env=environment, check=True, capture_output=True
                )
            yield from running(tmp_path_factory.mktemp("project"), environment)
    except NoDockerError as reason:
        pytest.skip(str(reason))


def running(directory, environment):
    """The project of a copy, whose policy the tests edit, up with no container older than this run."""
    shutil.copy(FILE, directory)
    shutil.copytree(ROOT / "examples/compose", directory / "examples/compose")
    fleet = Fleet(directory, environment)
    try:
        # What a run that was killed has left comes back with the engine.
        fleet.compose("down", "-v")
        started = time.monotonic()
        fleet.compose("up", "-d", "--no-build")
        LOG.info("up in %.1f s", time.monotonic() - started)
        yield fleet
    finally:
        fleet.compose("down", "-v", "-t", "30")
    assert not fleet.containers(PROJECT)
    assert PROJECT not in fleet.docker("network", "ls")


def test_every_front_end_serves_its_models_and_the_load_sees_no_failure(fleet):
    for port in FRONTENDS.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
            assert [model["id"] for model in json.load(answer)["data"]] == [MODEL]
    for line in fleet.next_lines():
        LOG.info("%s", {name: line[name] for name in SHOWN})
        assert line["ok"] > 0
        assert line["failed"] == 0, line


def test_eu_west_sends_what_its_own_engine_cannot_take_to_ap_south(fleet):
    until(
        lambda: fleet.status()["shares"]["eu-west"]["llama-70b/interactive"].get("ap-south-gpu", 0) > 0.05, 60
    )


def test_an_edit_of_the_policy_takes_effect_and_a_broken_one_does_not(fleet):
    profile = fleet.directory / "examples/compose/gpu.yaml"
    good, before = profile.read_text(), fleet.status()["policy_hash"]
    profile.write_text(good.replace("capacity_rps: 20", "capacity_rps: 19.5"))
    until(lambda: fleet.status()["policy_hash"] != before, 10)
    changed = fleet.status()["policy_hash"]
    profile.write_text(good.replace("capacity_rps: 20", "capacity_rps: many"))
    until(lambda: "capacity_rps" in fleet.status()["policy_error"], 10)
    assert fleet.status()["policy_hash"] == changed
    profile.write_text(good)
    until(lambda: fleet.status()["policy_hash"] == before, 10)


def test_a_replica_that_crashes_comes_back_and_only_streams_it_was_serving_are_cut(fleet):
    replica = fleet.containers("engine-us-east")[0]
    os.kill(int(fleet.inspect(replica, "{{.State.Pid}}")), signal.SIGKILL)
    until(lambda: fleet.inspect(replica, "{{.RestartCount}} {{.State.Running}}") == "1 true", 30)
    failures = {kind for line in fleet.next_lines(2) for kind in line["failures"]}
    LOG.info("failures while a replica crashed: %s", failures or "none")
    assert failures <= {"cut"}


def test_a_replica_that_is_stopped_drains_without_a_failed_request(fleet):
    fleet.next_lines()
    replica = fleet.containers("engine-eu-west")[0]
    fleet.docker("stop", "-t", "30", replica)
    assert fleet.inspect(replica, "{{.State.ExitCode}}") == "0"
    lines = fleet.next_lines(2)
    fleet.docker("start", replica)
    assert not [line["failures"] for line in lines if line["failed"]]


def test_the_control_plane_restarts_without_a_failed_request(fleet):
    fleet.next_lines()
    fleet.compose("restart", "control-plane")
    lines = fleet.next_lines(2)
    assert not [line["failures"] for line in lines if line["failed"]]
    until(lambda: fleet.status()["ready"], 60)


def test_containers_become_healthy(fleet):
    for container in fleet.containers(PROJECT):
        if "load" not in container:
            until(lambda name=container: fleet.inspect(name, "{{.State.Health.Status}}") == "healthy", 60)
