"""The load curve of one replica, in the words of the policy's `profiles` (DESIGN, "Profiles")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIXED_PREFILL = 0.2
"""Part of a reference prefill that does not depend on the prompt's length (scheduling, sampling)."""

_MAX_UTILIZATION = 0.98
_FIELDS = (
    *("capacity_rps", "lambda_max_rps", "t0_ms", "ttft_ms"),
    *("fit", "prefill_share", "reference", "source"),
)


class ProfileError(ValueError):
    """A profile that does not describe an engine; the text names the field and what it should be."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """How latency follows load at one replica, for requests of the reference size.

    TBOT(x) = t0 / (1 - u); TTFT(x) = base + slope * max(0, x - knee) + queue * u / (1 - u); x in requests/s,
    u = x / lambda_max.
    """

    t0_ms: float = 20.0
    """Time between tokens of a request that is alone."""
    lambda_max_rps: float = 30.0
    """Arrival rate at which the time between tokens grows without bound."""
    capacity_rps: float = 25.0
    """Arrival rate the replica is sold for; sizes the batch."""
    ttft_base_ms: float = 120.0
    ttft_knee_rps: float = 0.0
    ttft_slope_ms: float = 0.0
    """Milliseconds of TTFT per request/s above the knee."""
    ttft_queue_ms: float = 0.0
    """Milliseconds of TTFT per u / (1 - u), u = x / lambda_max."""
    input_tokens: int = 100
    """Prompt tokens of the reference request that no cache holds."""
    output_tokens: int = 8

    def __post_init__(self) -> None:
        for name in ("t0_ms", "lambda_max_rps", "capacity_rps", "input_tokens", "output_tokens"):
            _require(self, name, lambda value: value > 0, "above 0")
        for name in ("ttft_base_ms", "ttft_knee_rps", "ttft_slope_ms", "ttft_queue_ms"):
            _require(self, name, lambda value: value >= 0, "0 or more")
        if self.capacity_rps >= self.lambda_max_rps:
            raise ProfileError(
                f"profile: capacity_rps is {self.capacity_rps:g}, expected below lambda_max_rps "
                f"({self.lambda_max_rps:g})"
            )

    @classmethod
    def from_policy(cls, entry: Mapping[str, Any]) -> EngineProfile:
        """Read one entry of the policy's `profiles`.

        Raises ProfileError for a missing or misspelt field, and for the `table` form, which gives no batch.
        """
        if unknown := sorted(set(entry) - set(_FIELDS)):
            raise ProfileError(f"profile: unknown field {unknown[0]!r}, expected one of {', '.join(_FIELDS)}")
        ttft, reference = entry.get("ttft_ms", {}), entry.get("reference", {})
        try:
            return cls(
                t0_ms=float(entry["t0_ms"]),
                lambda_max_rps=float(entry["lambda_max_rps"]),
                capacity_rps=float(entry["capacity_rps"]),
                ttft_base_ms=float(ttft["base"]),
                ttft_knee_rps=float(ttft.get("knee_rps", 0.0)),
                ttft_slope_ms=float(ttft.get("slope", 0.0)),
                ttft_queue_ms=float(ttft.get("queue", 0.0)),
                input_tokens=int(reference.get("input_tokens", 100)),
                output_tokens=int(reference.get("output_tokens", 8)),
            )
        except KeyError as missing:
            raise ProfileError(f"profile: {missing.args[0]!r} is missing") from None

    def tbot_s(self, rps: float) -> float:
        """Mean time between tokens at `rps` requests/s, in seconds; infinite from lambda_max on."""
        headroom = 1.0 - rps / self.lambda_max_rps
        return self.t0_ms / 1000 / headroom if headroom > 0 else math.inf

    def ttft_s(self, rps: float) -> float:
        """Mean time to first token at `rps` requests/s with a free slot, in seconds.

        Beyond lambda_max the queue for a slot takes over, so the formula's own queueing stops growing there.
        """
        u = min(rps / self.lambda_max_rps, _MAX_UTILIZATION)
        above_knee = max(0.0, rps - self.ttft_knee_rps)
        return (
            self.ttft_base_ms + self.ttft_slope_ms * above_knee + self.ttft_queue_ms * u / (1.0 - u)
        ) / 1000

    def prefill_s(self, uncached_tokens: int) -> float:
        """Time to compute the part of a prompt that no cache holds, in seconds."""
        share = FIXED_PREFILL + (1.0 - FIXED_PREFILL) * uncached_tokens / self.input_tokens
        return self.ttft_base_ms / 1000 * share

    @property
    def step_growth_s(self) -> float:
        """How much every further sequence in the batch lengthens a decode step, in seconds.

        A step with n sequences takes t0 + c(n - 1). Arrivals are Poisson with rate x and a request needs
        o - 1 steps after its first token, so the batch is a processor-sharing queue with n / (t0 + c(n - 1))
        steps/s in all. Its number of sequences is negative binomial and Little's law gives a mean time of
        t0 / (1 - x(o - 1)c) a token, whatever the distribution of lengths (insensitivity; Kelly,
        "Reversibility and Stochastic Networks", 1979, section 3.3). That is TBOT(x) for c as returned here.
        """
        return 1.0 / (self.lambda_max_rps * max(1, self.output_tokens - 1))

    @property
    def slots(self) -> int:
        """Sequences a batch needs to carry `capacity_rps`: mean + 3 standard deviations."""
        decode = self.capacity_rps * max(1, self.output_tokens - 1) * self.tbot_s(self.capacity_rps)
        spread = decode / (1.0 - self.capacity_rps / self.lambda_max_rps)
        prefill = self.capacity_rps * self.ttft_s(self.capacity_rps)
        return math.ceil(decode + prefill + 3.0 * math.sqrt(spread + prefill))


def _require(profile: EngineProfile, name: str, holds: Any, wanted: str) -> None:
    value = getattr(profile, name)
    if not (math.isfinite(value) and holds(value)):
        raise ProfileError(f"profile: {name} is {value!r}, expected a finite number {wanted}")
