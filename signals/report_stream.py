"""One load report stream, from hello to its end.

One reader checks and applies messages; one writer says the newest directive, never a queue, so that a
reporter that does not read holds up nobody. Every message ends in exactly one of `RESULTS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from signals.admission import MAX_STRING_BYTES, Admission
from signals.identity import Refused, proof_of
from signals.membership import Membership
from signals.messages import Directive, Hello, Refusal, ReportMessage, Sample, State
from signals.probe import Prober
from signals.readings import measured
from signals.refusals import Refusals
from signals.replicas import Announcement, ReplicaKey, ReplicaState, Report
from signals.strict import parse

RESULTS = (
    "accepted",
    "stale",
    "replayed",
    "invalid",
    "unknown_engine",
    "identity",
    "address",
    "conflict",
    "model",
    "too_large",
    "fleet",
)
"""Labels of `headrace_reports_total`."""

MAX_MESSAGE_BYTES = 64 * 1024
MAX_ERROR_KINDS = 32

_STATES = {
    State.STARTING: ReplicaState.STARTING,
    State.READY: ReplicaState.READY,
    State.DRAINING: ReplicaState.DRAINING,
    State.DOWN: ReplicaState.DOWN,
}
_LEAVING = (ReplicaState.DRAINING, ReplicaState.DOWN)


@dataclass(frozen=True, slots=True)
class ReportLimits:
    """Bounds of the service."""

    handshake_s: float = 5.0
    streams_per_engine: int = 2000
    interval_s: float = 1.0
    """How often reporters are told to report, while there are few; changes of state always come at once."""
    stream_per_s: float = 20.0
    """What one stream may send at length, `stream_burst` at once: beyond that it is read more slowly."""
    stream_burst: int = 40
    reports_per_s: float = 500.0
    """With more, the interval is doubled until all of them together stay below."""
    drain_ack_s: float = 20.0
    """`drain_acked` is said after this long even if some Envoy has not acknowledged."""
    retry_after_s: float = 10.0
    """How long a refused reporter is told to stay away."""
    tick_s: float = 0.5


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What all streams of a service share."""

    membership: Membership
    admission: Callable[[], Admission]
    limits: ReportLimits
    refusals: Refusals
    prober: Prober
    on_result: Callable[[str], None]
    drained: Callable[[ReplicaKey], Awaitable[None]]
    on_drain_acked: Callable[[ReplicaKey, bool], None]
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    streams: Counter[str] = field(default_factory=Counter)
    """Open streams by engine."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """The service ends: streams that end with it say nothing of their replicas."""

    def interval_ms(self) -> int:
        """What reporters are to be told now."""
        interval_s = self.limits.interval_s
        while self.streams.total() > interval_s * self.limits.reports_per_s:
            interval_s *= 2
        return round(interval_s * 1000)


class ReportStream:
    """One reporter's stream."""

    def __init__(self, shared: StreamContext, messages: AsyncIterator[bytes], context: Any) -> None:
        self._shared = shared
        self._messages = messages
        self._context = context
        self._engine = ""
        self._hello = Hello()
        self._proof = proof_of(context)
        self._admission: Admission | None = None
        """The rules that the reporter was last judged by."""
        self._key: ReplicaKey | None = None
        self._stream = 0
        self._state = ReplicaState.STARTING
        self._paid_until = -math.inf
        self._directive = Directive()
        self._said = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve the stream until either side ends it."""
        try:
            await self._open()
            async for data in self._messages:
                self._take(decode(data))
                await self._pace()
        except Refused as refusal:
            await self._refuse(refusal)
        finally:
            self._close()

    async def _open(self) -> None:
        """The first message: admission, and the first state with it."""
        try:
            async with asyncio.timeout(self._shared.limits.handshake_s):
                data = await anext(self._messages)
        except (TimeoutError, StopAsyncIteration):
            raise Refused("invalid", f"no hello within {self._shared.limits.handshake_s:g} s") from None
        message = decode(data)
        if message.hello is None:
            raise Refused("invalid", "the first message carries no hello")
        self._join(message.hello, self._check(message.sample) if message.sample else None)
        self._writer = asyncio.create_task(self._write())
        self._say()

    async def _pace(self) -> None:
        """A reporter that floods is held back by HTTP/2's flow control, and costs the others nothing."""
        limits, now = self._shared.limits, self._shared.clock()
        self._paid_until = max(self._paid_until, now - limits.stream_burst / limits.stream_per_s)
        self._paid_until += 1.0 / limits.stream_per_s
        if self._paid_until > now:
            await asyncio.sleep(self._paid_until - now)

    def _join(self, hello: Hello, report: Report | None) -> None:
        shared = self._shared
        self._engine = hello.engine[:MAX_STRING_BYTES]
        self._hello, self._admission = hello, shared.admission()
        rule = self._admission.check(hello, self._proof)
        if shared.streams[hello.engine] >= shared.limits.streams_per_engine:
            raise Refused(
                "conflict", f"{hello.engine} has {shared.limits.streams_per_engine} streams, the limit"
            )
        key = ReplicaKey(hello.engine, hello.cluster, hello.replica_id)
        announcement = Announcement(key, hello.incarnation, hello.address, hello.port)
        self._stream = shared.membership.join(
            announcement, report, shared.clock(), clusters=rule.clusters, max_replicas=rule.max_replicas
        )
        self._key = key
        shared.streams[key.engine] += 1
        shared.refusals.accepted(self._context.peer(), key.engine)
        if report is not None and report.sequence != shared.membership.sequence(key):
            shared.on_result("replayed")
            return
        shared.on_result("invalid" if report and report.invalid else "accepted")
        if report:
            self._follow(report.state)

    def _take(self, message: ReportMessage) -> None:
        """One later message. A sample that cannot be used is counted and the stream goes on."""
        assert self._key is not None
        self._judge_again()
        if message.sample is None:
            raise Refused("invalid", "a message without a sample")
        try:
            report = self._check(message.sample)
        except Refused as refusal:
            self._shared.on_result(refusal.code)
            self._shared.refusals.add(self._context.peer(), self._engine, refusal, self._shared.clock())
            return
        result = self._shared.membership.apply(self._key, self._stream, report, self._shared.clock())
        if result == "stale":
            raise Refused("stale", "another stream of this replica took over, or it was removed")
        self._shared.on_result(result)
        if result == "replayed":
            self._say()  # the acknowledged sequence lets a reporter with a wrong clock catch up
        elif report.state is not self._state:
            self._follow(report.state)
            self._say()
        elif self._directive.interval_ms != self._shared.interval_ms():
            self._say()

    def _check(self, sample: Sample) -> Report:
        return check(sample, self._shared.wall_clock())

    def _judge_again(self) -> None:
        """After a policy reload. A replica that the new rules do not admit is no member any more."""
        rules = self._shared.admission()
        if rules is not self._admission:
            assert self._key is not None
            try:
                rules.check(self._hello, self._proof)
            except Refused as refusal:
                self._shared.membership.expel(self._key, self._stream, str(refusal))
                raise
            self._admission = rules

    def _follow(self, state: ReplicaState) -> None:
        """Drain begins: await the Envoys. The replica comes back: nothing is drained any more."""
        assert self._key is not None
        leaving = state in _LEAVING
        if leaving and self._drain is None:
            self._drain = asyncio.create_task(self._await_drained())
        elif not leaving and self._drain is not None:
            self._drain.cancel()
            self._drain, self._directive.drain_acked = None, False
        if state is ReplicaState.READY:
            self._shared.prober.ready(self._shared.membership.replica(self._key))
        self._state = state

    async def _await_drained(self) -> None:
        assert self._key is not None
        acked = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._shared.limits.drain_ack_s):
                await self._shared.drained(self._key)
                acked = True
        self._shared.on_drain_acked(self._key, acked)
        self._directive.drain_acked = True
        self._say()

    def _say(self) -> None:
        self._said.set()

    async def _write(self) -> None:
        while True:
            await self._said.wait()
            self._said.clear()
            assert self._key is not None
            self._directive.ack = self._shared.membership.sequence(self._key)
            self._directive.interval_ms = self._shared.interval_ms()
            await self._context.write(self._directive)

    async def _refuse(self, refusal: Refused) -> None:
        shared = self._shared
        shared.on_result(refusal.code)
        shared.refusals.add(self._context.peer(), self._engine, refusal, shared.clock())
        if self._writer is not None:  # one write at a time
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        retry_after_ms = int(shared.limits.retry_after_s * 1000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._context.write(
                    Directive(
                        refuse=Refusal(
                            code=refusal.code, reason=refusal.reason, retry_after_ms=retry_after_ms
                        )
                    )
                )

    def _close(self) -> None:
        for task in (self._writer, self._drain):
            if task is not None:
                task.cancel()
        if self._key is not None:
            shared = self._shared
            shared.streams[self._key.engine] -= 1
            if shared.closing.is_set():
                return
            if shared.membership.leave(self._key, self._stream, shared.clock()):
                shared.prober.lost(shared.membership.replica(self._key))


def decode(data: bytes) -> ReportMessage:
    """A message of the stream; Refused (`too_large`, `invalid`) when it is not one."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise Refused("too_large", f"a message of {len(data)} bytes; the limit is {MAX_MESSAGE_BYTES}")
    try:
        return parse(ReportMessage, data)
    except ValueError as error:
        raise Refused("invalid", str(error)) from error


def check(sample: Sample, wall_now_s: float) -> Report:
    """A sample's required parts, and its valid values. Raises Refused (`invalid`, `too_large`).

    `wall_now_s` is our clock (Unix seconds), for the skew only.
    """
    if sample.state not in _STATES:
        raise Refused(
            "invalid", f"sample.state must be STARTING, READY, DRAINING or DOWN, not {sample.state!r}"
        )
    if not sample.sequence:
        raise Refused("invalid", "sample.sequence is required, from 1")
    if not sample.valid_for_ms:
        raise Refused("invalid", "sample.valid_for_ms is required")
    texts = (sample.reason, *(error.kind for error in sample.errors))
    if any(len(text.encode()) > MAX_STRING_BYTES for text in texts) or len(sample.errors) > MAX_ERROR_KINDS:
        raise Refused(
            "too_large", f"a string over {MAX_STRING_BYTES} bytes or over {MAX_ERROR_KINDS} kinds of errors"
        )
    values, invalid = measured(sample)
    return Report(
        sequence=sample.sequence,
        valid_for_s=sample.valid_for_ms / 1000,
        state=_STATES[sample.state],
        reason=sample.reason,
        values=values,
        invalid=invalid,
        clock_skew_s=None if sample.sent_at_ms is None else sample.sent_at_ms / 1000 - wall_now_s,
    )
