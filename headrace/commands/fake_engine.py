"""`headrace fake-engine`: one replica of a fake inference engine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headrace.demo.fake_engine.config import EngineConfig
from headrace.demo.fake_engine.profile import EngineProfile, ProfileError

_CURVE = {
    "t0_ms": "time between tokens of a request that is alone",
    "lambda_max_rps": "requests/s at which the time between tokens grows without bound",
    "capacity_rps": "requests/s the replica is sold for; sizes its batch",
    "ttft_base_ms": "time to first token without load",
    "ttft_knee_rps": "requests/s from which the time to first token grows",
    "ttft_slope_ms": "ms of time to first token per request/s above the knee",
    "ttft_queue_ms": "ms of time to first token per u / (1 - u), u = load / lambda_max",
    "input_tokens": "prompt tokens of the reference request",
    "output_tokens": "answer tokens of the reference request, and of a request without a limit",
}


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _curve_options(command: Any) -> Any:
    for name, text in reversed(_CURVE.items()):
        kind = int if name.endswith("tokens") else float
        command = click.option(f"--{name.replace('_', '-')}", type=kind, help=text)(command)
    return command


@click.command("fake-engine")
@click.option("--engine", required=True, help="engine name, as in the policy")
@click.option("--replica", default=socket.gethostname, help="unique within the engine [default: host name]")
@click.option("--model", "models", required=True, multiple=True, help="served name; the first is the base")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=0, show_default=True, help="0 = any free port")
@click.option("--admin-port", type=int, help="second port for /stats and /admin, alive while --port refuses")
@click.option("--profile", "profile_file", type=click.Path(path_type=Path), help="YAML of one policy profile")
@_curve_options
@click.option("--max-num-seqs", type=click.IntRange(1), help="batch slots [default: enough for the capacity]")
@click.option("--kv-cache-tokens", type=click.IntRange(1), help="size of the KV cache")
@click.option("--max-model-len", default=131_072, show_default=True)
@click.option("--early-headers/--no-early-headers", default=True, help="as vLLM")
@click.option("--rtt", "rtt_text", default="", help="ms by calling front-end: 'us-east=2,eu-west=80'")
@click.option("--shutdown-timeout", default=0.0, show_default=True, help="seconds to drain after SIGTERM")
@click.option("--report", "report_to", multiple=True, metavar="HOST:PORT", help="where to report load")
@click.option("--fleet", default="demo", show_default=True)
@click.option("--region", default="")
@click.option("--cluster", default="")
@click.option("--advertise", help="IP address that Envoys dial [default: --host]")
@click.option("--token-file", type=click.Path(exists=True, path_type=Path), help="bearer token for reports")
@click.option("--ca", type=_FILE, help="CA of the control plane: TLS")
@click.option("--cert", type=_FILE, help="certificate that names the engine")
@click.option("--key", type=_FILE, help="its key")
@click.option("--seed", default=0, show_default=True, help="of the injected errors")
@click.option("--print-port", is_flag=True, help="print the bound ports as one JSON line on stdout")
@click.option("--ports-file", type=click.Path(path_type=Path), help="write the bound ports there as JSON")
def command(
    profile_file: Path | None,
    rtt_text: str,
    shutdown_timeout: float,
    token_file: Path | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    print_port: bool,
    ports_file: Path | None,
    **options: Any,
) -> None:
    """An OpenAI-compatible engine with a real load curve."""
    try:
        profile = _profile(profile_file, {name: options.pop(name) for name in _CURVE})
        rtt_ms = _round_trips(rtt_text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    config = EngineConfig(
        profile=profile,
        rtt_ms=rtt_ms,
        shutdown_timeout_s=shutdown_timeout,
        token=token_file.read_text().strip() if token_file else None,
        tls=_tls(ca, cert, key),
        **options,
    )
    sys.exit(asyncio.run(_serve(config, print_port, ports_file)))


def _tls(ca: Path | None, cert: Path | None, key: Path | None) -> Any:
    if ca is None and cert is None:
        return None
    from signals.tls import TlsFiles

    return TlsFiles(cert, key, ca)


async def _serve(config: EngineConfig, print_port: bool, ports_file: Path | None) -> int:
    from headrace.child import write_ports
    from headrace.demo.fake_engine.server import EngineServer

    server = EngineServer(config)
    await server.start()
    ports = {"http": server.port, "admin": server.admin_port, "pid": os.getpid()}
    if print_port:
        click.echo(json.dumps(ports))
        sys.stdout.flush()
    if ports_file is not None:
        write_ports(ports_file, ports)
    return await server.run()


def _profile(file: Path | None, given: dict[str, Any]) -> EngineProfile:
    values = {name: value for name, value in given.items() if value is not None}
    if file is None:
        return EngineProfile(**values)
    import yaml

    try:
        entry = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ProfileError(f"{file}: {error}") from None
    if not isinstance(entry, dict):
        raise ProfileError(f"{file}: expected a mapping with one profile's fields")
    return replace(EngineProfile.from_policy(entry), **values)


def _round_trips(text: str) -> dict[str, float]:
    """Read 'frontend=ms,frontend=ms'; raises ValueError."""
    table = {}
    for item in filter(None, text.split(",")):
        frontend, separator, value = item.partition("=")
        try:
            table[frontend.strip()] = float(value)
        except ValueError:
            separator = ""
        if not separator or not 0 <= table[frontend.strip()] <= 60_000:
            raise ValueError(f"--rtt {item!r}: expected front-end=milliseconds, 0 to 60000")
    return table
