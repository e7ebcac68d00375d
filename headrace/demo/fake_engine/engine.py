"""The asyncio shell around the batch: one timer a replica, mailboxes for the answers, counters."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.demo.fake_engine.batching import Batch, Sequence, Step
from headrace.demo.fake_engine.call import Call
from headrace.demo.fake_engine.metrics import EngineMetrics
from headrace.demo.fake_engine.prefix_cache import BLOCK_TOKENS, PrefixCache
from headrace.demo.fake_engine.profile import EngineProfile
from headrace.demo.fake_engine.refusal import CORE_DEAD, Refusal
from headrace.demo.fake_engine.window import Window

REPORT_SPAN_S = 2.0
"""Rates and latencies in load reports are of this many seconds."""


@dataclass(slots=True, eq=False, kw_only=True)
class Generation(Sequence):
    """A sequence together with the mailbox its request handler reads from."""

    cached_tokens: int
    finish_reason: str
    streamed: bool
    delay_s: float
    """Time that tokens travel to the caller."""
    delivered: int = 0
    failure: Refusal | None = None
    waiter: asyncio.Future[None] | None = field(default=None, repr=False)

    async def beyond(self, count: int) -> int:
        """Wait for more than `count` tokens and return how many there are; raises Refusal if it failed."""
        while self.delivered <= count and self.failure is None:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        if self.delivered > count:
            return self.delivered
        assert self.failure is not None
        raise self.failure

    def deliver(self, count: int) -> None:
        """Let the handler see the first `count` tokens."""
        self.delivered = count
        self._wake()

    def fail(self, failure: Refusal) -> None:
        """Let the handler see that no further token comes."""
        self.failure = failure
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class Engine:
    """One replica's model at work on the event loop's clock. Owns batch, cache and counters."""

    def __init__(
        self,
        profile: EngineProfile,
        model: str,
        *,
        max_num_seqs: int | None = None,
        kv_cache_tokens: int | None = None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`kv_cache_tokens` bounds what running sequences and cached prompts may hold, each for itself."""
        self.profile = profile
        self._loop = loop
        self._clock: Callable[[], float] = loop.time
        self._batch = Batch(profile, max_num_seqs)
        whole_batch = 4 * self._batch.max_num_seqs * (profile.input_tokens + profile.output_tokens)
        self._kv_cache_tokens = kv_cache_tokens or max(whole_batch, 1 << 17)
        self._cache = PrefixCache(self._kv_cache_tokens)
        self._timer: asyncio.TimerHandle | None = None
        self.window = Window(REPORT_SPAN_S)
        self.metrics = EngineMetrics(model)
        self.metrics.expose_load(lambda: self.running, lambda: self.waiting, lambda: self.kv_usage)
        self.metrics.expose_cache(BLOCK_TOKENS, self._kv_cache_tokens // BLOCK_TOKENS)
        self.dead = False

    @property
    def max_num_seqs(self) -> int:
        """Slots of the batch."""
        return self._batch.max_num_seqs

    @property
    def running(self) -> int:
        """Requests in the batch; 0 while hung, as a vLLM whose core does not answer says."""
        return 0 if self._batch.frozen else self._batch.running

    @property
    def waiting(self) -> int:
        """Requests in the queue; 0 while hung."""
        return 0 if self._batch.frozen else self._batch.waiting

    @property
    def kv_usage(self) -> float:
        """Part of the KV cache that running requests hold, 0 to 1."""
        return min(1.0, self._batch.kv_tokens / self._kv_cache_tokens)

    def submit(self, call: Call, session: str | None, delay_s: float) -> Generation:
        """Start a generation; its tokens become visible `delay_s` seconds after they are computed."""
        if self.dead:
            raise Refusal(500, CORE_DEAD)
        cached = self._cache.lookup(session, call.prompt) if session else 0
        generation = Generation(
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens(self.profile.output_tokens),
            prefill_s=self.profile.prefill_s(call.prompt_tokens - cached),
            cached_tokens=cached,
            finish_reason=call.finish_reason(self.profile.output_tokens),
            streamed=call.stream,
            delay_s=delay_s,
        )
        now = self._clock()
        self._count_arrival(generation, now)
        self._batch.submit(generation, now)
        self._arm()
        return generation

    def abort(self, generation: Generation) -> None:
        """Free what a generation holds, at once. One that has finished is no error."""
        if not generation.finished:
            self._batch.abort(generation, self._clock())
            self._arm()

    def fail_all(self, failure: Refusal) -> None:
        """End every generation with `failure` after the tokens it has."""
        for sequence in self._batch.sequences():
            assert isinstance(sequence, Generation)
            self._batch.abort(sequence, self._clock())
            sequence.fail(failure)
        self._arm()

    def die(self) -> None:
        """Fail everything that runs and everything to come: the engine core is gone."""
        self.dead = True
        self.fail_all(Refusal(500, CORE_DEAD))

    def set_speed(self, slow_factor: float) -> None:
        """Make every prefill and step from the next one on `slow_factor` times as long."""
        self._batch.slow_factor = slow_factor

    def set_hung(self, hung: bool) -> None:
        """Stand still, or go on."""
        if hung:
            self._batch.freeze(self._clock())
        else:
            self._batch.thaw(self._clock())
        self._arm()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        at = self._batch.next_event_at()
        if self._timer is not None:
            if self._timer.when() == at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._advance) if math.isfinite(at) else None

    def _advance(self) -> None:
        self._timer = None
        now = self._clock()
        while (step := self._batch.poll(now)) is not None:
            self._publish(step)
        self._arm()

    def _publish(self, step: Step) -> None:
        self._count_step(step)
        for sequence in (*step.started, *step.decoded):
            assert isinstance(sequence, Generation)
            if sequence.finished:
                self._count_finish(sequence)
            elif not sequence.streamed:
                continue
            if sequence.delay_s:
                self._loop.call_at(step.at + sequence.delay_s, sequence.deliver, sequence.produced)
            else:
                sequence.deliver(sequence.produced)

    def _count_arrival(self, generation: Generation, now: float) -> None:
        self.window.arrivals.add(now, 1.0)
        self.window.prompt_tokens.add(now, generation.prompt_tokens)
        self.window.cached_tokens.add(now, generation.cached_tokens)
        self.metrics.prompt_tokens.inc(generation.prompt_tokens)
        self.metrics.prefix_queries.inc(generation.prompt_tokens)
        self.metrics.prefix_hits.inc(generation.cached_tokens)

    def _count_step(self, step: Step) -> None:
        for sequence in step.started:
            ttft_s = step.at - sequence.arrived_at
            self.window.ttft_ms.add(step.at, ttft_s * 1000)
            self.metrics.ttft.observe(ttft_s)
        tokens = len(step.decoded)
        if tokens:
            self.window.tbot_ms.add(step.at, step.duration_s * 1000, tokens)
            for _ in range(tokens):
                self.metrics.inter_token.observe(step.duration_s)
        self.window.output_tokens.add(step.at, tokens + len(step.started))
        self.metrics.generation_tokens.inc(tokens + len(step.started))

    def _count_finish(self, generation: Generation) -> None:
        metrics, last = self.metrics, generation.last_token_at
        decode_s = last - generation.first_token_at
        metrics.e2e.observe(last - generation.arrived_at)
        metrics.queue_time.observe(generation.admitted_at - generation.arrived_at)
        metrics.prefill_time.observe(generation.first_token_at - generation.admitted_at)
        metrics.decode_time.observe(decode_s)
        if generation.output_tokens > 1:
            metrics.per_token.observe(decode_s / (generation.output_tokens - 1))
        metrics.prompt_length.observe(generation.prompt_tokens)
        metrics.answer_length.observe(generation.output_tokens)
        metrics.success[generation.finish_reason].inc()
