"""Load reports of a fake engine (design/signals.md): who it is, and what it measures."""

from __future__ import annotations

import socket
from collections.abc import Callable

from headrace.demo.fake_engine.config import EngineConfig
from headrace.demo.fake_engine.engine import Engine
from headrace.demo.fake_engine.window import Summary
from signals.client import ReportClient
from signals.messages import Distribution, ErrorRate, Hello, Sample, State
from signals.tls import channel_credentials


def make_reporter(
    config: EngineConfig,
    port: int,
    incarnation_ms: int,
    measure: Callable[[], Sample],
    wall_clock: Callable[[], float],
) -> ReportClient:
    """Return the client that reports `measure()` for the replica that listens on `port`.

    `wall_clock` gives the Unix seconds that the reports carry.
    """
    hello = Hello(
        agent_version="fake-engine",
        fleet=config.fleet,
        engine=config.engine,
        region=config.region,
        cluster=config.cluster,
        replica_id=config.replica,
        incarnation=incarnation_ms,
        address=advertised_address(config),
        port=port,
        engine_kind="fake",
        served_models=list(config.models),
    )
    credentials = None
    if config.tls is not None:
        credentials = channel_credentials(config.tls)
    metadata = [("authorization", f"Bearer {config.token}")] if config.token is not None else []
    return ReportClient(
        config.report_to,
        hello,
        measure,
        credentials=credentials,
        metadata=metadata,
        wall_clock=wall_clock,
    )


def advertised_address(config: EngineConfig) -> str:
    """Return the IP address that Envoys dial.

    A replica that listens on every address names the one its packets to the control plane leave from, or the
    one of its host's name while the control plane's cannot be resolved.
    """
    if config.advertise is not None:
        return config.advertise
    if config.host not in ("0.0.0.0", "::"):
        return config.host
    host, _, port = config.report_to[0].rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket only looks up the route; nothing is sent.
            probe.connect((host, int(port)))
        except socket.gaierror:
            return socket.gethostbyname(socket.gethostname())
        return str(probe.getsockname()[0])


def take_sample(engine: Engine, state: State, now: float) -> Sample:
    """Return what the engine did in the last window, `now` in seconds of the engine's clock."""
    window = engine.window
    span_s = window.span_s
    sample = Sample(
        state=state,
        measured_for_ms=round(span_s * 1000),
        running=float(engine.running),
        waiting=float(engine.waiting),
        kv_usage_ratio=engine.kv_usage,
        prompt_tokens_per_s=window.prompt_tokens.total(now) / span_s,
        output_tokens_per_s=window.output_tokens.total(now) / span_s,
        requests_per_s=window.arrivals.total(now) / span_s,
        errors=[
            ErrorRate(kind=kind, per_s=series.total(now) / span_s)
            for kind, series in sorted(window.errors.items())
        ],
        max_concurrency=float(engine.max_num_seqs),
        prefix_hit_ratio=window.prefix_hit_ratio(now),
    )
    sample.ttft_ms = _distribution(window.ttft_ms.summary(now))
    sample.tbot_ms = _distribution(window.tbot_ms.summary(now))
    return sample


def _distribution(summary: Summary | None) -> Distribution | None:
    if summary is None:
        return None
    return Distribution(mean=summary.mean, p50=summary.p50, p99=summary.p99, count=summary.count)
