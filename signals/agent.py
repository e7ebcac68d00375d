"""The agent beside a real engine: scrapes it, judges whether it serves, and reports it.

| seen | reported |
|---|---|
| the engine answers health and metrics (and the probe, when there is one) | READY with its values |
| it says that it sleeps, or the first probe has not passed | STARTING |
| it refuses connections | DOWN at once |
| it does not answer, or answers 5xx, `fail_after` times in a row | DOWN, though its process lives |
| fewer times | as before, without values |
| a drain was asked for | DRAINING until the agent ends |

A new process of the engine (`process_start_time_seconds`) is a new incarnation and gets a new stream.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import aiohttp
import grpc

from signals.adapters.kinds import PROCESS_START, EngineKind
from signals.adapters.scrape import Between, Scrape, parse
from signals.client import ReportClient
from signals.messages import Hello, Sample, State

_log = logging.getLogger(__name__)
_FAILURES = (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError)
"""What a missing, hung or foreign engine makes of a request to it."""
_IDLE_LOOKS = 2
_PROBE_PROMPT = "This request asks for a single token to see whether the engine can generate any at all."
"""A sentence, not a word: vLLM's CPU build was seen to crash on a prompt of two tokens."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What the agent is told."""

    kind: EngineKind
    target: str
    """Base URL of the engine, http://127.0.0.1:8000."""
    reports: Sequence[str]
    """Report addresses of control planes, host:port."""
    hello: Hello
    """Identity, address and port; served models and incarnation are asked from the engine."""
    interval_s: float = 1.0
    window_s: float = 10.0
    """Rates and distributions are taken over this long."""
    timeout_s: float = 2.0
    fail_after: int = 3
    probe: bool = False
    """One generated token must come back before READY."""
    credentials: grpc.ChannelCredentials | None = None
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Engine:
    """What is known of the engine's present process."""

    started_ms: int
    served_models: list[str]
    scrapes: deque[Scrape] = field(default_factory=deque)


class Agent:
    """Reports one replica until cancelled."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._clock = clock
        self._wall_clock = wall_clock
        self._sample = Sample(state=State.STARTING)
        self._failures = 0
        self._probed = not config.probe
        self._draining = ""
        self._told_missing: tuple[str, ...] = ()
        self._client: ReportClient | None = None
        self._looked = asyncio.Event()

    @property
    def sample(self) -> Sample:
        """The latest sample, as it is reported."""
        return self._sample

    @property
    def client(self) -> ReportClient | None:
        """The client that reports the engine's present process; None before it was ever reached."""
        return self._client

    async def run(self) -> None:
        """Report until cancelled: wait for the engine, report it, and again when its process was replaced."""
        async with self._session() as session:
            while True:
                engine = await self._reach(session)
                self._client = self._make_client(engine)
                reporting = asyncio.create_task(self._client.run())
                try:
                    await self._watch(session, engine)
                finally:
                    reporting.cancel()
                    await asyncio.gather(reporting, return_exceptions=True)

    async def look_once(self) -> Sample:
        """What would be reported, from two scrapes of a reachable engine; DOWN when it does not answer."""
        async with self._session() as session:
            try:
                engine = await self._identify(session)
            except _FAILURES as error:
                return Sample(state=State.DOWN, reason=_text(error))
            await asyncio.sleep(self._config.interval_s)
            return (await self._look(session, engine))[0]

    async def drain(self, reason: str) -> None:
        """Report DRAINING, and return when no Envoy sends here any more, at once when the engine is down
        anyway. Wait with a time-out."""
        self._draining = reason
        self._set(self._sample)
        if self._client is not None and self._sample.state != State.DOWN:
            await self._client.drain_acked()

    async def finished(self) -> None:
        """Return when the engine has nothing left to answer, is down, or was never reached; call it after
        `drain`, and wait with a time-out. An engine that does not tell how much it runs is not waited for.

        What an Envoy sent just before it acknowledged may come in after a look, so two must agree.
        """
        idle = 0
        while self._client is not None and idle < _IDLE_LOOKS:
            self._looked.clear()
            await self._looked.wait()
            idle = idle + 1 if self._is_idle() else 0

    def _is_idle(self) -> bool:
        sample = self._sample
        if sample.state == State.DOWN or "running" in self._told_missing:
            return True
        return sample.running == 0 and not sample.waiting

    def _make_client(self, engine: _Engine) -> ReportClient:
        config = self._config
        hello = replace(config.hello, incarnation=engine.started_ms, engine_kind=config.kind.name)
        hello.served_models = hello.served_models or engine.served_models
        return ReportClient(
            config.reports,
            hello,
            lambda: copy.copy(self._sample),
            interval_s=config.interval_s,
            credentials=config.credentials,
            metadata=config.metadata,
        )

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=self._config.timeout_s)
        return aiohttp.ClientSession(self._config.target, timeout=timeout)

    async def _reach(self, session: aiohttp.ClientSession) -> _Engine:
        """Wait until the engine answers."""
        while True:
            try:
                return await self._identify(session)
            except _FAILURES as error:
                _log.info("engine_awaited", extra={"target": self._config.target, "reason": _text(error)})
                await asyncio.sleep(self._config.interval_s)

    async def _identify(self, session: aiohttp.ClientSession) -> _Engine:
        """Which process it is, and what it serves."""
        scrape = await self._scrape(session)
        async with session.get("/v1/models") as response:
            response.raise_for_status()
            models = [str(model["id"]) for model in (await response.json())["data"]]
        if not models:
            raise ValueError("/v1/models lists no model")
        started_s = scrape.total(PROCESS_START) or self._wall_clock()
        return _Engine(int(started_s * 1000), models, deque([scrape]))

    async def _watch(self, session: aiohttp.ClientSession, engine: _Engine) -> None:
        """Keep the sample up to date until the engine's process is another one."""
        while True:
            sample, scrape = await self._look(session, engine)
            started_s = scrape.total(PROCESS_START) if scrape else None
            if started_s is not None and int(started_s * 1000) != engine.started_ms:
                _log.info("engine_restarted", extra={"target": self._config.target})
                self._probed = not self._config.probe
                return
            self._set(sample)
            self._looked.set()
            await asyncio.sleep(self._config.interval_s)

    def _set(self, sample: Sample) -> None:
        if self._draining and sample.state != State.DOWN:
            sample = replace(sample, state=State.DRAINING, reason=self._draining)
        changed = sample.state != self._sample.state
        self._sample = sample
        if changed and self._client is not None:
            self._client.notify()

    async def _look(self, session: aiohttp.ClientSession, engine: _Engine) -> tuple[Sample, Scrape | None]:
        try:
            scrape = await self._scrape(session)
            await self._ask(session, "/health")
            if not self._probed:
                await self._probe(session, engine.served_models[0])
                self._probed = True
        except aiohttp.ClientConnectorError as error:
            return Sample(state=State.DOWN, reason=_text(error)), None
        except _FAILURES as error:
            return self._doubtful(_text(error)), None
        self._failures = 0
        return self._measured(engine, scrape), scrape

    def _doubtful(self, error: str) -> Sample:
        """No good answer: the state stands for a while, without values."""
        self._failures += 1
        if self._failures >= self._config.fail_after:
            return Sample(state=State.DOWN, reason=f"no good answer {self._failures} times: {error}")
        state = self._sample.state if self._probed else State.STARTING
        return Sample(state=state, reason=error)

    def _measured(self, engine: _Engine, scrape: Scrape) -> Sample:
        kind = self._config.kind
        engine.scrapes.append(scrape)
        while len(engine.scrapes) > 2 and scrape.at - engine.scrapes[1].at >= self._config.window_s:
            engine.scrapes.popleft()
        missing = kind.missing(scrape)
        if missing != self._told_missing:
            self._told_missing = missing
            _log.warning("signal_missing", extra={"signals": list(missing), "kind": kind.name})
        sample = kind.read(Between(engine.scrapes[0], scrape))
        sample.state = State.READY if kind.serves(scrape) else State.STARTING
        return sample

    async def _scrape(self, session: aiohttp.ClientSession) -> Scrape:
        async with session.get("/metrics") as response:
            response.raise_for_status()
            return parse(await response.text(), self._config.kind.wanted(), self._clock())

    async def _ask(self, session: aiohttp.ClientSession, path: str) -> None:
        async with session.get(path) as response:
            response.raise_for_status()

    async def _probe(self, session: aiohttp.ClientSession, model: str) -> None:
        """One token through the whole engine: what answers health may still not serve."""
        body = {"model": model, "prompt": _PROBE_PROMPT, "max_tokens": 1}
        async with session.post("/v1/completions", json=body, timeout=aiohttp.ClientTimeout(60)) as response:
            response.raise_for_status()


def _text(error: BaseException) -> str:
    """An error in few words, short enough for a report."""
    return (str(error) or type(error).__name__)[:160]
