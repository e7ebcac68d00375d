from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.policy import Policy, load

BASE = """\
version: 1
fleet: prod
revision: 4f2c1a9
regions:
  us-east: {jurisdiction: us, replica_cidrs: [10.16.0.0/12]}
  us-west: {jurisdiction: us}
  eu-west: {jurisdiction: eu, gateway: "gw.euw1.example.net:15443"}
  lab: {}
frontends:
  us-east: {region: us-east}
  eu-west: {region: eu-west, residency: [eu]}
listeners:
  public: {port: 8443, default_class: interactive, trust_headers: false}
  internal: {port: 8444, default_class: batch, trust_headers: true}
classes:
  interactive: {priority: 100, ttft_slo_ms: {p95: 2000}, tbot_slo_ms: 80, output_tokens: 250, work: 1}
  batch: {priority: 10, output_tokens: 800, work: 3, match: {header: x-traffic-class, value: batch}}
match_order: [batch]
models:
  llama-70b:
    served_as: [meta-llama/Llama-3.3-70B-Instruct]
    aliases: [chat-latest]
    requires: [tools]
  llama-8b:
    served_as: [meta-llama/Llama-3.1-8B-Instruct]
    adapters: [legal-v3, "acme-*"]
    classes:
      interactive: {output_tokens: 120}
profiles:
  h100:
    t0_ms: 24
    lambda_max_rps: 5.5
    capacity_rps: 4.6
    ttft_ms: {base: 130, knee_rps: 4.2, slope: 90}
  a100:
    capacity_rps: 25
    table: [{load_rps: 0, ttft_ms: 120, tbot_ms: 9}, {load_rps: 24, ttft_ms: 400, tbot_ms: 30}]
defaults:
  engine: {capabilities: [tools]}
engines:
  us-east-h100-{01..03}: {model: llama-70b, region: us-east, profile: h100}
  eu-west-h100: {model: llama-70b, region: eu-west, profile: h100}
  spot: {model: llama-70b, region: us-west, profile: h100, classes: [batch], max_share: 0.5}
  us-east-a100: {model: llama-8b, region: us-east, profile: a100, members: {static: ["10.16.0.7:8000"]}}
  eu-west-pool: {model: llama-8b, region: eu-west, profile: a100,
    members: {gateway: "epp.example.net:80", replicas: 12}}
  lab-a100: {model: llama-8b, region: lab, profile: a100}
network:
  same_region_rtt_ms: 1
  rtt_ms:
    us-east: {us-west: 62, eu-west: 76, lab: 5}
    eu-west: {us-west: 137, lab: 80}
"""


@pytest.fixture
def base() -> str:
    return BASE


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write the base policy with some text replaced; returns its path."""

    def put(*edits: tuple[str, str], extra: str = "", name: str = "policy.yaml") -> Path:
        text = BASE
        for old, new in edits:
            assert old in text, old
            text = text.replace(old, new, 1)
        file = tmp_path / name
        file.write_text(text + extra)
        return file

    return put


@pytest.fixture
def policy(write: Callable[..., Path]) -> Policy:
    return load(write())
