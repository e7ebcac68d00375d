"""From a policy's profiles and classes to the optimizer's: curves, work, and head-room for noise. Pure."""

from __future__ import annotations

import math

from headrace.policy import KeySpec
from headrace.policy.schema import ParametricProfile, TableProfile
from headrace.policy.schema import ProfileFields as PolicyProfile
from optimizer import ProblemError, Profile

DISPERSION = 4.0
"""Index of dispersion of request arrivals: what noise of demand is taken to be, here and for surges."""


def auto_utilization(load_rps: float, dispersion: float = DISPERSION) -> float:
    """Head-room for the noise of arrivals: what 15 s may exceed a 30 s estimate by at p95.

    In whole hundredths, so that a plan does not follow the noise of the estimate.
    """
    if load_rps <= 0.0:
        return 0.70
    noise = math.sqrt(dispersion / (15.0 * load_rps) + dispersion / (60.0 * load_rps))
    return round(min(0.95, max(0.70, 1.0 / (1.0 + 1.65 * noise))), 2)


def profile(name: str, item: PolicyProfile) -> Profile:
    """A profile of the policy as the optimizer's."""
    try:
        if isinstance(item, TableProfile):
            points = [(p.load_rps, p.ttft_ms, p.tbot_ms) for p in item.table]
            return Profile.from_table(points, item.capacity_rps)
        assert isinstance(item, ParametricProfile)
        return Profile.parametric(
            capacity_rps=item.capacity_rps,
            lambda_max_rps=item.lambda_max_rps,
            t0_ms=item.t0_ms,
            ttft_base_ms=item.ttft_ms.base,
            ttft_knee_rps=item.ttft_ms.knee_rps,
            ttft_slope=item.ttft_ms.slope,
            ttft_queue_ms=item.ttft_ms.queue,
        )
    except ProblemError as error:
        raise ProblemError(f"profiles.{name}", str(error)) from error


def work(spec: KeySpec, item: PolicyProfile) -> float:
    """Load of one request of a class, in the profile's reference requests.

    Prefill and decoding each in proportion to their tokens, weighted by `prefill_share`; 1 when the policy
    says nothing to compare.
    """
    if spec.work is not None:
        return spec.work
    ref = item.reference
    if ref is None or (spec.input_tokens is None and spec.output_tokens is None):
        return 1.0
    prompt = ref.input_tokens if spec.input_tokens is None else spec.input_tokens
    answer = ref.output_tokens if spec.output_tokens is None else spec.output_tokens
    hit = ref.prefix_hit if spec.prefix_hit is None else spec.prefix_hit
    prefill = prompt * (1.0 - hit) / (ref.input_tokens * (1.0 - ref.prefix_hit))
    total = item.prefill_share * prefill + (1.0 - item.prefill_share) * answer / ref.output_tokens
    return max(total, 1e-6)
