"""Open-loop load: Poisson arrivals of chat requests at every front-end, never waiting for earlier answers.

    generator = LoadGenerator({"us-east": "http://127.0.0.1:8443"}, {"us-east": 90.0}, shape, Random(1))
    async with asyncio.TaskGroup() as group:
        group.create_task(generator.run(40.0))
        ...
        generator.start_measuring()
    generator.summary()["us-east"]["e2e_ms"]["p99"]

A closed loop slows down with the fleet and hides its queues (coordinated omission); this one does not.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import aiohttp

from headrace.demo.conversations import Conversations, RequestShape
from headrace.demo.load_records import SHED_STATUS, Record, summarise

ENGINE_HEADER = "x-engine"
REPLICA_HEADER = "x-engine-replica"
SESSION_HEADER = "x-session-id"
_FIRST_CONTENT = re.compile(rb'"(?:content|text)":"[^"]')
_ERROR_EVENT = b'data: {"error"'
_DONE = b"data: [DONE]"
_KEPT_RECORDS = 500_000


@dataclass(slots=True)
class _Answer:
    """What has come of one answer so far."""

    status: int | None = None
    engine: str | None = None
    replica: str | None = None
    first_content_at: float | None = None
    failure: str | None = None
    retry_after: str | None = None


class Timer(Protocol):
    """A call that can be taken back."""

    def cancel(self) -> None:
        """Take it back."""


class Timers(Protocol):
    """The part of an event loop that arrivals need."""

    def time(self) -> float:
        """Return the time in seconds."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call `callback` at `when`."""


class PoissonArrivals:
    """A Poisson process on the event loop whose rate may change at any time."""

    def __init__(self, rng: random.Random, loop: Timers | None = None) -> None:
        """Use the running event loop's timers unless `loop` is given."""
        self._rng = rng
        self._loop = loop
        self._rps = 0.0
        self._arrive: Callable[[], object] | None = None
        self._timer: Timer | None = None

    def start(self, arrive: Callable[[], object]) -> None:
        """Call `arrive` at every arrival from now on."""
        self._arrive = arrive
        self._loop = self._loop or asyncio.get_running_loop()
        self._arm(self._loop.time())

    def stop(self) -> None:
        """Call it no more."""
        self._arrive = None
        self._cancel()

    def set_rate(self, rps: float) -> None:
        """Set the mean arrivals per second; the process has no memory, so the next one is drawn anew."""
        self._rps = rps
        if self._loop is not None and self._arrive is not None:
            self._arm(self._loop.time())

    def _arm(self, since: float) -> None:
        self._cancel()
        if self._rps > 0 and self._loop is not None:
            due = since + self._rng.expovariate(self._rps)
            self._timer = self._loop.call_at(due, self._fire, due)

    def _fire(self, due: float) -> None:
        # The next one counts from when this was due, so a late event loop catches up.
        self._arm(due)
        assert self._arrive is not None
        self._arrive()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LoadGenerator:
    """Sends requests to front-ends and remembers what came back."""

    def __init__(
        self,
        targets: Mapping[str, str],
        rates: Mapping[str, float],
        shape: RequestShape,
        rng: random.Random,
        *,
        timeout_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`targets`: front-end -> base URL; `rates`: front-end -> requests/s (missing: sends nothing)."""
        self._targets = {frontend: url.rstrip("/") for frontend, url in targets.items()}
        self._conversations = {
            frontend: Conversations(frontend, shape, random.Random(rng.random()))
            for frontend in sorted(targets)
        }
        self._arrivals = {
            frontend: PoissonArrivals(random.Random(rng.random())) for frontend in sorted(targets)
        }
        self._timeout_s = timeout_s
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._clock = clock
        self._measuring_from = clock()
        self._stopped = asyncio.Event()
        for frontend, rps in rates.items():
            self.set_rate(frontend, rps)
        self.records: deque[Record] = deque(maxlen=_KEPT_RECORDS)
        """Requests that arrived since measuring began, in the order they ended."""

    def set_rate(self, frontend: str, rps: float) -> None:
        """Send `rps` requests/s to a front-end from now on."""
        if frontend not in self._targets:
            raise KeyError(f"no front-end {frontend!r}, expected one of {', '.join(self._targets)}")
        self._arrivals[frontend].set_rate(rps)

    def start_measuring(self) -> None:
        """Forget all records; requests that have arrived by now are not recorded."""
        self._measuring_from = self._clock()
        self.records.clear()

    def summary(self) -> dict[str, dict[str, Any]]:
        """Summarise the records (`load_records.summarise`)."""
        return summarise(self.records)

    async def run(self, duration_s: float | None = None) -> None:
        """Send for `duration_s` seconds (None: until `stop`), then wait for the answers."""
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        # Without a limit: a request must never wait for a connection.
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
            asyncio.TaskGroup() as requests,
        ):
            for frontend, arrivals in self._arrivals.items():
                arrivals.start(partial(self._send, frontend, session, requests))
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), duration_s)
            finally:
                for arrivals in self._arrivals.values():
                    arrivals.stop()

    def stop(self) -> None:
        """Send nothing more; `run` returns once all answers have come."""
        self._stopped.set()

    def _send(self, frontend: str, session: aiohttp.ClientSession, requests: asyncio.TaskGroup) -> None:
        # Stamped here: the task may have to wait for its turn.
        requests.create_task(self._request(frontend, session, self._clock()))

    async def _request(self, frontend: str, session: aiohttp.ClientSession, arrived_at: float) -> None:
        key, streamed, body = self._conversations[frontend].next_request()
        answer = _Answer()
        try:
            await self._exchange(f"{self._targets[frontend]}/v1/chat/completions", session, key, body, answer)
        except TimeoutError:
            answer.failure = "timeout"
        except aiohttp.ClientConnectorError:
            answer.failure = "connect"
        except (aiohttp.ClientError, ConnectionError):
            answer.failure = "reset" if answer.status is None else "cut"
        if arrived_at < self._measuring_from:
            return
        first = answer.first_content_at
        self.records.append(
            Record(
                frontend=frontend,
                session=key,
                arrived_at=arrived_at,
                streamed=streamed,
                status=answer.status,
                engine=answer.engine,
                replica=answer.replica,
                ttft_s=first - arrived_at if first is not None and streamed else None,
                e2e_s=self._clock() - arrived_at,
                failure=answer.failure,
                retry_after=answer.retry_after,
            )
        )

    async def _exchange(
        self, url: str, session: aiohttp.ClientSession, key: str, body: bytes, answer: _Answer
    ) -> None:
        async with session.post(url, data=body, headers={SESSION_HEADER: key, **self._headers}) as response:
            answer.status = response.status
            answer.engine = response.headers.get(ENGINE_HEADER)
            answer.replica = response.headers.get(REPLICA_HEADER)
            answer.retry_after = response.headers.get("retry-after")
            if response.status != 200:
                await response.read()
                answer.failure = None if response.status == SHED_STATUS else f"http_{response.status}"
            elif response.content_type == "text/event-stream":
                await self._read_events(response, answer)
            else:
                await response.read()

    async def _read_events(self, response: aiohttp.ClientResponse, answer: _Answer) -> None:
        """Read a stream without parsing it: find the first content, an error event, and the end."""
        tail = b""
        while data := await response.content.readany():
            tail += data
            if answer.first_content_at is None and _FIRST_CONTENT.search(tail):
                answer.first_content_at = self._clock()
            if _ERROR_EVENT in tail:
                answer.failure = "inband_error"
            if answer.first_content_at is not None:
                tail = tail[-len(_ERROR_EVENT) :]
        if answer.failure is None and _DONE not in tail:
            answer.failure = "truncated"
