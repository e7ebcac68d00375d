"""Prometheus metrics under vLLM 0.32's names (docs.vllm.ai, "Production metrics")."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_FINISHED = ("stop", "length", "abort", "error", "repetition")


class EngineMetrics:
    """The counters and histograms of one engine process."""

    def __init__(self, model: str) -> None:
        """Start at zero, labelled with the served model's first name."""
        self._registry = CollectorRegistry()
        self._labels = {"engine": "0", "model_name": model}
        ProcessCollector(registry=self._registry)
        self.prompt_tokens = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self.generation_tokens = self._counter("generation_tokens", "Number of generation tokens processed.")
        self.prefix_queries = self._counter(
            "prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."
        )
        self.prefix_hits = self._counter(
            "prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."
        )
        self._counter("num_preemptions", "Cumulative number of preemption from the engine.")
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _PER_TOKEN
        )
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            _PER_TOKEN,
        )
        self.e2e = self._histogram(
            "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _LATENCY
        )
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", _LATENCY
        )
        self.prefill_time = self._histogram(
            "request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", _LATENCY
        )
        self.decode_time = self._histogram(
            "request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", _LATENCY
        )
        self.prompt_length = self._histogram(
            "request_prompt_tokens", "Number of prefill tokens processed.", _TOKENS
        )
        self.answer_length = self._histogram(
            "request_generation_tokens", "Number of generation tokens processed.", _TOKENS
        )
        success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )
        self.success = {
            reason: success.labels(**self._labels, finished_reason=reason) for reason in _FINISHED
        }
        sleep = self._gauge_family("engine_sleep_state", "Engine sleep state.", "sleep_state")
        for state in ("awake", "weights_offloaded", "discard_all"):
            sleep.labels(**self._labels, sleep_state=state).set(state == "awake")

    def expose_load(
        self, running: Callable[[], float], waiting: Callable[[], float], kv_usage: Callable[[], float]
    ) -> None:
        """Read the load gauges from these functions at every scrape."""
        self._gauge("num_requests_running", "Number of requests in model execution batches.", running)
        self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", kv_usage)
        reasons = self._gauge_family(
            "num_requests_waiting_by_reason", "Number of waiting requests by reason.", "reason"
        )
        reasons.labels(**self._labels, reason="capacity").set_function(waiting)
        reasons.labels(**self._labels, reason="deferred").set(0)

    def expose_cache(self, block_size: int, blocks: int) -> None:
        """Publish the size of the KV cache, in tokens a block and blocks."""
        config = {
            "block_size": str(block_size),
            "num_gpu_blocks": str(blocks),
            "enable_prefix_caching": "True",
        }
        Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            ["engine", *config],
            registry=self._registry,
        ).labels(engine="0", **config).set(1)

    def text(self) -> bytes:
        """Return the exposition text, version 0.0.4."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help_text: str) -> Counter:
        family = Counter(f"vllm:{name}", help_text, list(self._labels), registry=self._registry)
        return family.labels(**self._labels)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(
            f"vllm:{name}", help_text, list(self._labels), registry=self._registry, buckets=buckets
        )
        return family.labels(**self._labels)

    def _gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        family = Gauge(f"vllm:{name}", help_text, list(self._labels), registry=self._registry)
        family.labels(**self._labels).set_function(read)

    def _gauge_family(self, name: str, help_text: str, label: str) -> Gauge:
        return Gauge(f"vllm:{name}", help_text, [*self._labels, label], registry=self._registry)
