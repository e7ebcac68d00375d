"""The demo's fleet: every part a real process on this machine, ended with the context that started it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from headrace.child import Child
from headrace.demo.scenario import Scenario
from headrace.envoy_bootstrap import Bootstrap
from headrace.envoy_process import EnvoyProcess
from headrace.policy import Policy, load

_FLUSH_S = 1.0
_HEADRACE = (sys.executable, "-m", "headrace")


class Fleet:
    """Control plane, one Envoy a front-end, and the engines' replicas.

    `async with Fleet(scenario, directory) as fleet` returns once every Envoy serves. Files (policy, state,
    logs) go to `directory`, which the caller owns.
    """

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        *,
        planning_policy: str | None = None,
        early_headers: bool = True,
        frontends: Mapping[str, int] | None = None,
    ) -> None:
        """`frontends`: front-end -> number of Envoys (default: one each)."""
        self.scenario = scenario
        self.directory = directory
        self.policy_path = directory / "policy.yaml"
        self.policy: Policy
        self._planning_policy = planning_policy
        self._early_headers = early_headers
        self._envoy_counts = frontends or dict.fromkeys(scenario.document["frontends"], 1)
        self._stack = AsyncExitStack()
        self._started = 0
        self.control: Child
        self.ports: Mapping[str, int] = {}
        self.engines: dict[tuple[str, str], Child] = {}
        """(engine, replica) -> process."""
        self.engine_ports: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.envoys: dict[str, list[EnvoyProcess]] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException as error:
            if hasattr(self, "control"):
                error.add_note(f"control plane:\n{self.control.tail()}")
            await self._stop()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        """End the engines side by side, since each says goodbye first, then everything else."""
        await asyncio.gather(*(engine.stop(2.0) for engine in self.engines.values()))
        await self._stack.aclose()

    async def _start(self) -> None:
        self.policy_path.write_text(yaml.safe_dump(dict(self.scenario.document), sort_keys=False))
        self.policy = load(self.policy_path)
        self.http = await self._stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        )
        await self.start_control_plane()
        replicas = [(e, f"r{i + 1}") for e, count in self.scenario.replicas.items() for i in range(count)]
        async with asyncio.TaskGroup() as group:
            for engine, replica in replicas:
                group.create_task(self.start_engine(engine, replica))
        async with asyncio.TaskGroup() as group:
            for name, count in self._envoy_counts.items():
                group.create_task(self._start_envoys(name, count))

    # ---- control plane ------------------------------------------------------------------------------

    async def start_control_plane(self) -> None:
        """Start it, on the ports it had before if it was running: Envoys and engines know them."""
        ports_file = self.directory / "control-plane-ports.json"
        ports_file.unlink(missing_ok=True)
        argv = [*_HEADRACE, "serve", "--policy", str(self.policy_path), "--insecure-dev"]
        argv += ["--state-dir", str(self.directory / "state"), "--ports-file", str(ports_file)]
        for name in ("xds", "reports", "metrics", "admin"):
            argv += [f"--{name}", f"127.0.0.1:{self.ports.get(name, 0)}"]
        if self._planning_policy:
            argv += ["--policy-name", self._planning_policy]
        self.control = await self._child("control-plane", argv)
        self.ports = await self.control.ports(ports_file)

    async def api(self, path: str) -> Any:
        """Return what the admin API says at `path`."""
        async with self.http.get(f"http://127.0.0.1:{self.ports['admin']}{path}") as answer:
            return await answer.json()

    # ---- engines ------------------------------------------------------------------------------------

    async def start_engine(self, engine: str, replica: str) -> None:
        """Start one replica; it is a member once it has reported."""
        number = self._started = self._started + 1
        ports_file = self.directory / f"engine-{number}-ports.json"
        profile_file = self.directory / f"engine-{number}-profile.yaml"
        profile_file.write_text(yaml.safe_dump(dict(self.scenario.profile(engine))))
        rtt = {f: self.policy.network_ms(f, engine) for f in self.policy.frontends}
        argv = [*_HEADRACE, "fake-engine", "--engine", engine, "--replica", replica]
        argv += ["--model", self.scenario.served_as(engine), "--fleet", self.policy.fleet]
        argv += ["--region", self.policy.engines[engine].region, "--profile", str(profile_file)]
        argv += ["--output-tokens", str(self.scenario.output_tokens()), "--input-tokens", "100"]
        argv += ["--report", f"127.0.0.1:{self.ports['reports']}", "--ports-file", str(ports_file)]
        argv += ["--rtt", ",".join(f"{name}={ms:g}" for name, ms in rtt.items()), "--admin-port", "0"]
        argv += ["--early-headers" if self._early_headers else "--no-early-headers"]
        child = await self._child(f"engine-{engine}-{replica}", argv)
        self.engines[engine, replica] = child
        self.engine_ports[engine, replica] = await child.ports(ports_file)

    async def fault(self, engine: str, replica: str, **faults: Any) -> None:
        """Switch faults of one replica (`slow_factor`, `error_rate`, `hang`, `drain`, …)."""
        port = self.engine_ports[engine, replica]["admin"]
        async with self.http.post(f"http://127.0.0.1:{port}/admin/faults", json=faults) as answer:
            answer.raise_for_status()

    async def stats(self, engine: str, replica: str) -> Any:
        """Return what one replica tells of itself."""
        port = self.engine_ports[engine, replica]["admin"]
        async with self.http.get(f"http://127.0.0.1:{port}/stats") as answer:
            return await answer.json()

    # ---- front-ends ---------------------------------------------------------------------------------

    async def _start_envoys(self, frontend: str, count: int) -> None:
        for number in range(count):
            await self.start_envoy(frontend, f"{frontend}-{number + 1}")

    async def start_envoy(self, frontend: str, node_id: str, timeout_s: float | None = 30.0) -> EnvoyProcess:
        """Start one more Envoy of a front-end and wait until it serves (`timeout_s` None: for ever)."""
        bootstrap = Bootstrap(
            frontend=frontend,
            fleet=self.policy.fleet,
            xds=[("127.0.0.1", self.ports["xds"])],
            node_id=node_id,
            flush_interval_s=_FLUSH_S,
            overload=self.policy.protection.overload,
        )
        envoy = await self._stack.enter_async_context(
            EnvoyProcess(bootstrap, directory=self.directory / node_id)
        )
        await envoy.ready(timeout_s)
        self.envoys.setdefault(frontend, []).append(envoy)
        return envoy

    def url(self, frontend: str, listener: str = "public", number: int = 0) -> str:
        """Base URL of a front-end's listener."""
        return f"http://127.0.0.1:{self.envoys[frontend][number].ports[listener]}"

    async def _child(self, name: str, argv: list[str]) -> Child:
        child = await Child.start(name, argv, self.directory / f"{name}.log")
        self._stack.push_async_callback(child.stop, 2.0)
        return child
