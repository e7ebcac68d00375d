"""Start-up, faults and shut-down of one fake engine replica."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from aiohttp import web

from headrace.demo.fake_engine.app import EngineApp
from headrace.demo.fake_engine.config import EngineConfig
from headrace.demo.fake_engine.engine import Engine
from headrace.demo.fake_engine.faults import Faults

if TYPE_CHECKING:
    from signals.client import ReportClient
    from signals.messages import Sample

DRAIN_ACK_LIMIT_S = 20.0
"""No control plane lets a drain wait longer (design/signals.md)."""
_LATE_REQUESTS_S = 0.5
"""After the acknowledgement, requests that were already on their way may still come in."""
_CRASH_LINGER_S = 0.4
"""How long a vLLM API server outlives its engine core."""
_FLUSH_S = 1.0
_FINAL_REPORT_S = 0.1


class EngineServer:
    """A replica: `async with EngineServer(config) as server: ... server.port`."""

    def __init__(self, config: EngineConfig, *, wall_clock: Callable[[], float] = time.time) -> None:
        """Prepare a replica; `wall_clock` gives Unix seconds, its first value is the incarnation."""
        self._config = config
        self._wall_clock = wall_clock
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self._draining: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.admin_port: int | None = None

    async def start(self) -> None:
        """Bind the ports, then begin to report."""
        config, loop = self._config, asyncio.get_running_loop()
        incarnation_ms = int(self._wall_clock() * 1000)
        self.engine = Engine(
            config.profile,
            config.models[0],
            max_num_seqs=config.max_num_seqs,
            kv_cache_tokens=config.kv_cache_tokens,
            loop=loop,
        )
        self.app = EngineApp(
            config,
            self.engine,
            self._apply,
            wall_clock=self._wall_clock,
            rng=random.Random(config.seed),
        )
        self._runner = web.AppRunner(
            self.app.application(), handler_cancellation=True, access_log=None, shutdown_timeout=_FLUSH_S
        )
        await self._runner.setup()
        await self._listen(config.port)
        self._admin_runner = web.AppRunner(
            self.app.admin_application(), access_log=None, shutdown_timeout=_FLUSH_S
        )
        if config.admin_port is not None:
            await self._admin_runner.setup()
            admin = web.TCPSite(self._admin_runner, config.host, config.admin_port)
            await admin.start()
            self.admin_port = admin.port
        self._incarnation_ms = incarnation_ms
        self._reporter: ReportClient | None = None
        self._reporting: asyncio.Task[None] | None = None
        if config.report_to:
            self._start_reporter()

    async def run(self) -> int:
        """Serve until SIGTERM, SIGINT or a crash fault, shut down, and return the exit code."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stopping.set)
        await self._stopping.wait()
        await self.shut_down()
        return self._exit_code

    async def shut_down(self) -> None:
        """Leave as vLLM does on SIGTERM: at once, or draining for up to the shut-down time-out."""
        timeout_s = self._config.shutdown_timeout_s
        if timeout_s > 0 and not self.engine.dead:
            await self._finish_within(timeout_s)
        await self._refuse_connections()
        self.engine.die()
        self._notify()
        await _quietly(self.app.idle(), _FLUSH_S)
        if self._reporter is not None:
            await asyncio.sleep(_FINAL_REPORT_S)
        await self.close()

    async def close(self) -> None:
        """End everything at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.close()
        await self._runner.cleanup()
        await self._admin_runner.cleanup()

    async def __aenter__(self) -> EngineServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _finish_within(self, timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        await _quietly(self._drain(), timeout_s)
        self.app.accepting = False
        await _quietly(self.app.idle(), deadline - asyncio.get_running_loop().time())

    async def _drain(self) -> None:
        """Say DRAINING, go on serving until no Envoy sends here any more, then accept nothing."""
        self.app.draining = True
        self._notify()
        if self._reporter is not None:
            await _quietly(self._reporter.drain_acked(), DRAIN_ACK_LIMIT_S)
            await asyncio.sleep(_LATE_REQUESTS_S + max(self._config.rtt_ms.values(), default=0.0) / 1000)
        self.app.accepting = False

    async def _apply(self, faults: Faults) -> None:
        """Put a changed set of faults into force."""
        self.engine.set_speed(faults.slow_factor)
        self.engine.set_hung(faults.hang)
        if faults.refuse:
            await self._refuse_connections()
        elif self._site is None:
            await self._listen(self.port)
        await self._mute(faults.mute)
        if faults.drain and not self.app.draining:
            self._draining = self._spawn(self._drain())
        elif not faults.drain and self.app.draining:
            if self._draining is not None:
                self._draining.cancel()
            self.app.draining, self.app.accepting = False, True
            self._notify()
        if faults.crash:
            self._spawn(self._crash())

    async def _crash(self) -> None:
        self.engine.die()
        self._exit_code = 1
        await asyncio.sleep(_CRASH_LINGER_S)
        self._stopping.set()

    async def _listen(self, port: int) -> None:
        site = web.TCPSite(self._runner, self._config.host, port, reuse_address=True)
        await site.start()
        self._site: web.TCPSite | None = site
        self.port = site.port

    async def _refuse_connections(self) -> None:
        if self._site is None:
            return
        site, self._site = self._site, None
        await site.stop()
        if self._runner.server is not None:
            self.app.close_connections(self._runner.server)

    def _start_reporter(self) -> None:
        # Imported here: a replica that does not report starts faster without grpc.
        from headrace.demo.fake_engine.reporting import make_reporter

        self._reporter = make_reporter(
            self._config, self.port, self._incarnation_ms, self._sample, self._reported_clock
        )
        self._reporting = self._spawn(self._reporter.run())

    def _reported_clock(self) -> float:
        return self._wall_clock() + self.app.faults.clock_offset_s

    async def _mute(self, mute: bool) -> None:
        """End the report streams, or begin again as after a cut of the network."""
        if mute and self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
            self._reporting = self._reporter = None
        elif not mute and self._reporting is None and self._config.report_to:
            self._start_reporter()

    def _sample(self) -> Sample:
        from headrace.demo.fake_engine.reporting import take_sample
        from signals.messages import State

        state = State.DOWN if self.engine.dead else State.DRAINING if self.app.draining else State.READY
        return take_sample(self.engine, state, asyncio.get_running_loop().time())

    def _notify(self) -> None:
        if self._reporter is not None:
            self._reporter.notify()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _quietly(work: Coroutine[Any, Any, None], limit_s: float) -> None:
    """Await `work` for at most `limit_s` seconds; running out of time is no error."""
    with suppress(TimeoutError):
        await asyncio.wait_for(work, max(0.0, limit_s))
