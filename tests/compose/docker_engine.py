"""A Docker engine for the compose run: the one at hand, or one of our own, started and ended by pid.

Our own needs root, `dockerd` and `debootstrap` (Debian: docker.io, docker-compose, debootstrap). It keeps
everything in one folder, changes no firewall rule and makes no default bridge. As no registry may be in
reach, its base image is made on the spot from Debian packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

BASE_IMAGE = "headrace-base"
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_PACKAGES = "python3,python3-venv,ca-certificates,openssl"


class NoDockerError(RuntimeError):
    """No Docker engine here, and none can be started; the text says why."""


@contextmanager
def docker(directory: Path) -> Iterator[Mapping[str, str]]:
    """Yield the environment in which `docker` and `docker-compose` reach an engine; raises NoDockerError."""
    if shutil.which("docker") is None:
        raise NoDockerError("no docker command")
    if compose_command() is None:
        raise NoDockerError("no docker-compose and no compose plugin")
    if _answers(os.environ):
        yield os.environ
        return
    for program in ("dockerd", "debootstrap"):
        if shutil.which(program) is None:
            raise NoDockerError(f"no Docker engine answers, and {program} is not installed to start one")
    if os.geteuid() != 0:
        raise NoDockerError("no Docker engine answers, and only root can start one")
    with _own_engine(directory) as environment:
        yield environment


def compose_command() -> list[str] | None:
    """The compose program: version 2's plugin if there is one, else version 1."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def make_base_image(directory: Path, environment: Mapping[str, str]) -> None:
    """Import a minimal Debian with Python as BASE_IMAGE, unless it is there."""
    listed = subprocess.run(
        ["docker", "images", "-q", BASE_IMAGE], env=environment, capture_output=True, check=True
    )
    if listed.stdout.strip():
        return
    root = directory / "rootfs"
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", root],
        check=True,
        capture_output=True,
    )
    # The build reaches the package index through the same authorities as this machine.
    shutil.copy(_CA_BUNDLE, root / _CA_BUNDLE.relative_to("/"))
    (root / "etc/pip.conf").write_text(f"[global]\ncert = {_CA_BUNDLE}\n")
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            ["docker", "import", "-", BASE_IMAGE],
            env=environment,
            stdin=tar.stdout,
            check=True,
            capture_output=True,
        )


def _answers(environment: Mapping[str, str]) -> bool:
    return (
        subprocess.run(["docker", "info"], env=environment, capture_output=True, check=False).returncode == 0
    )


@contextmanager
def _own_engine(directory: Path) -> Iterator[Mapping[str, str]]:
    socket = directory / "docker.sock"
    environment = {**os.environ, "DOCKER_HOST": f"unix://{socket}", "COMPOSE_HTTP_TIMEOUT": "200"}
    arguments = ["--data-root", directory / "lib", "--exec-root", directory / "run"]
    arguments += ["--pidfile", directory / "dockerd.pid", "-H", f"unix://{socket}", "--bridge=none"]
    arguments += [f"--{name}=false" for name in ("iptables", "ip6tables", "ip-forward", "ip-masq")]
    with (directory / "dockerd.log").open("wb") as log:
        engine = subprocess.Popen(["dockerd", *arguments], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while not _answers(environment):
            if engine.poll() is not None or time.monotonic() > deadline:
                raise NoDockerError(
                    f"dockerd does not start: {(directory / 'dockerd.log').read_text()[-500:]}"
                )
            time.sleep(0.2)
        yield environment
    finally:
        engine.terminate()
        engine.wait(60)
        _remove_control_groups()


def _remove_control_groups() -> None:
    for group in Path("/sys/fs/cgroup").glob("*/docker"):
        if group.is_dir():
            try:
                group.rmdir()
            except OSError:
                # In use by another engine of this machine.
                continue
