"""The reporter's end of a load report stream: what an engine, or the agent beside it, embeds.

    client = ReportClient(["10.0.0.5:7401"], Hello(fleet="prod", engine="us-east-h100", ...), measure)
    task = asyncio.create_task(client.run())
    ...
    client.notify()                  # the state changed: report now, not at the next interval
    await client.drain_acked()       # no Envoy sends here any more

`measure` returns a `Sample` of the present state; `sequence`, and `valid_for_ms` where it is None, are
filled in. Every control-plane address gets its own stream and its own copy of every report, and each
reconnects on its own (full jitter, `RECONNECT_BASE_S` doubling to `RECONNECT_CAP_S`), beginning with the
complete state. Contract: DESIGN, "Signals".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from signals.messages import METHOD, PROTOCOL_MINOR, Directive, Hello, ReportMessage, Sample, State
from signals.strict import parse

RECONNECT_BASE_S = 0.5
RECONNECT_CAP_S = 30.0
_VALID_INTERVALS = 5
"""A sample stays valid for this many intervals unless the reporter says otherwise."""

_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The pause between attempts is ours (full jitter), so the channel's own must never be the longer one.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.max_receive_message_length", 64 * 1024),
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Link:
    """What is known about one control-plane address. Only touched by that address's task."""

    target: str
    connected: bool = False
    """A stream is open and the control plane answered on it."""
    drain_acked: bool = False
    refused: str | None = None
    """Code and reason of the last refusal, None once accepted."""
    attempts: int = 0
    """Attempts to connect since the last success."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class ReportClient:
    """Pushes one replica's load reports to every given control plane until cancelled."""

    def __init__(
        self,
        targets: Sequence[str],
        hello: Hello,
        sample: Callable[[], Sample],
        *,
        interval_s: float = 1.0,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        rng: random.Random | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Report `sample()` to `targets` ("host:port"), plaintext unless `credentials` are given.

        `interval_s` holds until a control plane says otherwise. `metadata` goes with every stream, for
        example `("authorization", "Bearer ...")`. `wall_clock` gives Unix seconds.
        """
        if not targets:
            raise ValueError("ReportClient needs at least one control-plane address")
        if not hello.protocol_minor:
            hello.protocol_minor = PROTOCOL_MINOR
        self._hello = hello
        self._sample = sample
        self._interval_s = interval_s
        self._credentials = credentials
        self._metadata = tuple(metadata)
        self._rng = rng or random.Random()
        self._wall_clock = wall_clock
        # Must grow across restarts of the reporter within one incarnation of the engine.
        self._sequence = int(wall_clock() * 1000)
        self._state = State.UNSPECIFIED
        self._changed = asyncio.Condition()
        self.links: dict[str, Link] = {target: Link(target) for target in targets}

    async def run(self) -> None:
        """Report until cancelled. Never raises for what the network or a control plane does."""
        async with asyncio.TaskGroup() as group:
            for link in self.links.values():
                group.create_task(self._serve(link))

    def notify(self) -> None:
        """Send a report to every control plane now, for a change of state."""
        for link in self.links.values():
            link.wake.set()

    async def drain_acked(self) -> None:
        """Wait until no Envoy sends here: every control plane that is connected has said so.

        Wait with a time-out: with no control plane connected it does not return.
        """
        async with self._changed:
            await self._changed.wait_for(self._all_acked)

    async def connected(self) -> None:
        """Wait until at least one control plane has accepted the hello."""
        async with self._changed:
            await self._changed.wait_for(lambda: any(link.connected for link in self.links.values()))

    async def answered(self) -> None:
        """Wait until at least one control plane has accepted or refused the hello; see `links`."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: any(link.connected or link.refused for link in self.links.values())
            )

    def _all_acked(self) -> bool:
        connected = [link for link in self.links.values() if link.connected]
        return bool(connected) and all(link.drain_acked for link in connected)

    async def _serve(self, link: Link) -> None:
        options = list(_CHANNEL_OPTIONS)
        channel = (
            grpc.aio.insecure_channel(link.target, options)
            if self._credentials is None
            else grpc.aio.secure_channel(link.target, self._credentials, options)
        )
        async with channel:
            report = channel.stream_stream(METHOD)
            while True:
                link.attempts += 1
                retry_after_s = await self._stream_once(link, report(metadata=self._metadata))
                await self._set(link, connected=False, drain_acked=False)
                await asyncio.sleep(max(retry_after_s, self._backoff_s(link.attempts)))

    def _backoff_s(self, attempts: int) -> float:
        """Full jitter: uniform below a cap that doubles (AWS Architecture Blog, 2015)."""
        return self._rng.uniform(0.0, min(RECONNECT_CAP_S, RECONNECT_BASE_S * 2.0 ** min(attempts - 1, 16)))

    async def _stream_once(self, link: Link, call: Any) -> float:
        """One stream from hello to its end; seconds that the control plane asked to stay away."""
        sender = asyncio.create_task(self._send(link, call))
        try:
            return await self._receive(link, call)
        except (grpc.aio.AioRpcError, ValueError) as error:
            _log.debug("report_stream_ended", extra={"target": link.target, "reason": str(error)})
            return 0.0
        finally:
            sender.cancel()
            call.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _send(self, link: Link, call: Any) -> None:
        hello: Hello | None = self._hello
        while True:
            link.wake.clear()
            if sample := self._next_sample():
                await call.write(bytes(ReportMessage(hello=hello, sample=sample)))
                hello = None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(link.wake.wait(), self._interval_s)

    def _next_sample(self) -> Sample | None:
        """The present state, or None when it cannot be measured: then silence, which is not failure."""
        try:
            sample = self._sample()
        except Exception:
            _log.exception("report_not_measured")
            return None
        self._sequence += 1
        sample.sequence = self._sequence
        if sample.valid_for_ms is None:
            sample.valid_for_ms = int(self._interval_s * 1000 * _VALID_INTERVALS)
        if sample.sent_at_ms is None:
            sample.sent_at_ms = int(self._wall_clock() * 1000)
        self._note_state(sample.state)
        return sample

    def _note_state(self, state: State) -> None:
        if state != self._state:
            self._state = state
            if state not in (State.DRAINING, State.DOWN):
                for link in self.links.values():
                    link.drain_acked = False

    async def _receive(self, link: Link, call: Any) -> float:
        async for data in call:
            directive = parse(Directive, data)
            if directive.refuse is not None:
                refusal = directive.refuse
                link.refused = f"{refusal.code}: {refusal.reason}"
                await self._set(link, connected=False, drain_acked=False)
                _log.warning("report_refused", extra={"target": link.target, "reason": link.refused})
                return float(refusal.retry_after_ms) / 1000
            # A reporter whose clock went back restarts below what was accepted: catch up.
            self._sequence = max(self._sequence, directive.ack)
            if directive.interval_ms:
                self._interval_s = directive.interval_ms / 1000
            link.attempts, link.refused = 0, None
            await self._set(link, connected=True, drain_acked=directive.drain_acked)
        return 0.0

    async def _set(self, link: Link, *, connected: bool, drain_acked: bool) -> None:
        async with self._changed:
            link.connected, link.drain_acked = connected, drain_acked
            self._changed.notify_all()
