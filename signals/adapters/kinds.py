"""Engine kinds: which metric says what, aliases included, and how samples are made of them.

vLLM's names were read off vLLM 0.32; `gpu_cache_usage_perc` and `time_per_output_token_seconds` are those of
older releases. A rename must never read as zero: what is not found stays absent, and `missing` names it.
SGLang's names are those of its documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

from signals.adapters.scrape import Between, Scrape
from signals.messages import ErrorRate, Sample

PROCESS_START = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One kind of engine. Each field holds names in order of preference; empty = it does not tell."""

    name: str
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    kv_usage: tuple[str, ...]
    ttft_s: tuple[str, ...]
    tbot_s: tuple[str, ...]
    prompt_tokens: tuple[str, ...]
    output_tokens: tuple[str, ...]
    finished: tuple[str, ...]
    """Counter of requests that ended, whatever way."""
    failed: tuple[tuple[str, str, str], ...] = ()
    """(kind of error, label, value) of the finished counter."""
    rejected: tuple[str, ...] = ()
    prefix_queries: tuple[str, ...] = ()
    prefix_hits: tuple[str, ...] = ()
    prefix_hit_ratio: tuple[str, ...] = ()
    asleep: tuple[tuple[str, str, str], ...] = ()
    """(metric, label, value) that is 0 while the engine cannot serve."""

    def wanted(self) -> tuple[str, ...]:
        """Every metric that is read."""
        groups = (
            *(self.running, self.waiting, self.kv_usage, self.ttft_s, self.tbot_s),
            *(self.prompt_tokens, self.output_tokens, self.finished, self.rejected),
            *(self.prefix_queries, self.prefix_hits, self.prefix_hit_ratio),
            tuple(metric for metric, _, _ in self.asleep),
        )
        return (PROCESS_START, *(name for group in groups for name in group))

    def missing(self, scrape: Scrape) -> tuple[str, ...]:
        """Signals that the page should tell and does not: an engine whose names we do not know."""
        gauges = {"running": self.running, "waiting": self.waiting, "kv_usage": self.kv_usage}
        return tuple(signal for signal, names in gauges.items() if scrape.total(*names) is None)

    def serves(self, scrape: Scrape) -> bool:
        """False while the engine says that it is asleep."""
        return all(scrape.total(metric, **{label: value}) != 0.0 for metric, label, value in self.asleep)

    def read(self, between: Between) -> Sample:
        """What the newer scrape tells, rates and distributions since the older one."""
        now = between.after
        return Sample(
            measured_for_ms=max(0, round(between.seconds * 1000)),
            running=now.total(*self.running),
            waiting=now.total(*self.waiting),
            kv_usage_ratio=now.mean(*self.kv_usage),
            ttft_ms=between.distribution(*self.ttft_s, scale=1000.0),
            tbot_ms=between.distribution(*self.tbot_s, scale=1000.0),
            prompt_tokens_per_s=between.rate(*self.prompt_tokens),
            output_tokens_per_s=between.rate(*self.output_tokens),
            requests_per_s=self._arrivals(between),
            errors=self._errors(between),
            prefix_hit_ratio=self._prefix_hit_ratio(between),
        )

    def _arrivals(self, between: Between) -> float | None:
        """What ended, and what more is inside than before."""
        ended, inside, before = (
            between.rate(*self.finished),
            self._inside(between.after),
            self._inside(between.before),
        )
        if ended is None or inside is None or before is None:
            return None
        return max(0.0, ended + (inside - before) / between.seconds)

    def _inside(self, scrape: Scrape) -> float | None:
        running = scrape.total(*self.running)
        return None if running is None else running + (scrape.total(*self.waiting) or 0.0)

    def _errors(self, between: Between) -> list[ErrorRate]:
        rates = [(kind, between.rate(*self.finished, **{label: value})) for kind, label, value in self.failed]
        rates += [("overload", between.rate(*self.rejected))] if self.rejected else []
        return [ErrorRate(kind=kind, per_s=rate) for kind, rate in rates if rate is not None]

    def _prefix_hit_ratio(self, between: Between) -> float | None:
        queries, hits = between.rate(*self.prefix_queries), between.rate(*self.prefix_hits)
        if queries and hits is not None:
            return min(1.0, hits / queries)
        return between.after.mean(*self.prefix_hit_ratio)


VLLM = EngineKind(
    name="vllm",
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ttft_s=("vllm:time_to_first_token_seconds",),
    tbot_s=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    prompt_tokens=("vllm:prompt_tokens_total",),
    output_tokens=("vllm:generation_tokens_total",),
    finished=("vllm:request_success_total",),
    failed=(("internal", "finished_reason", "error"),),
    rejected=("vllm:admission_rejections_total",),
    prefix_queries=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    prefix_hits=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    asleep=(("vllm:engine_sleep_state", "sleep_state", "awake"),),
)

SGLANG = EngineKind(
    name="sglang",
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    kv_usage=("sglang:token_usage",),
    ttft_s=("sglang:time_to_first_token_seconds",),
    tbot_s=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    prompt_tokens=("sglang:prompt_tokens_total",),
    output_tokens=("sglang:generation_tokens_total",),
    finished=("sglang:num_requests_total",),
    prefix_hit_ratio=("sglang:cache_hit_rate",),
)

KINDS = {kind.name: kind for kind in (VLLM, SGLANG)}
