"""What a fake engine replica is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.demo.fake_engine.profile import EngineProfile

if TYPE_CHECKING:
    from signals.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One replica: who it is, what it serves, how fast, and whom it reports to."""

    engine: str
    replica: str
    models: tuple[str, ...]
    """Names it answers to; the first is the model, the others aliases and adapters."""
    profile: EngineProfile
    host: str = "127.0.0.1"
    port: int = 0
    admin_port: int | None = None
    """A second port for the admin endpoints, which still answers while `port` refuses; None = none."""
    max_num_seqs: int | None = None
    kv_cache_tokens: int | None = None
    max_model_len: int = 131_072
    early_headers: bool = True
    rtt_ms: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Round trip to each calling front-end (the request's x-headrace-frontend), added to every answer."""
    shutdown_timeout_s: float = 0.0
    """How long running requests may go on after SIGTERM; 0 ends them with an error event, as vLLM does."""
    report_to: tuple[str, ...] = ()
    """Load-report addresses of the control planes, "host:port"."""
    fleet: str = "demo"
    region: str = ""
    cluster: str = ""
    advertise: str | None = None
    """IP address that Envoys dial, if it is not `host`."""
    token: str | None = field(default=None, repr=False)
    """Bearer token for the reports."""
    tls: TlsFiles | None = None
    """CA of the control plane, and the replica's own certificate; reports go in plain text without it."""
    seed: int = 0
