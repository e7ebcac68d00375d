"""Small fleets for tests."""

from optimizer import Engine, Key, Problem, Profile

KEY = "meta-llama/Llama-3.3-70B-Instruct/interactive"

# Round trips of the talk's three regions, ms.
RTT = {
    "A": {"a": 1.0, "b": 98.0, "c": 167.0},
    "B": {"a": 98.0, "b": 1.0, "c": 237.0},
    "C": {"a": 167.0, "b": 237.0, "c": 1.0},
}
DEMAND = {"A": {KEY: 90.0}, "B": {KEY: 120.0}, "C": {KEY: 40.0}}
CAPACITY = {"a": 100.0, "b": 100.0, "c": 80.0}


def queue_profile(capacity: float) -> Profile:
    """TTFT = 120 + 80·u/(1 − u), u = load/capacity; no time between tokens."""
    return Profile.parametric(
        capacity_rps=capacity, lambda_max_rps=capacity, ttft_base_ms=120, ttft_queue_ms=80
    )


def flat_profile(capacity: float) -> Profile:
    """A latency that load does not change."""
    return Profile.parametric(capacity_rps=capacity, lambda_max_rps=10 * capacity, ttft_base_ms=120)


def talk(profile=queue_profile, max_utilization=0.97, rtt=RTT, **changes) -> Problem:
    """The example of the talk: three regions, demand 90/120/40, capacity 100/100/80."""
    fields = {
        "demand_rps": DEMAND,
        "network_ms": rtt,
        "engines": {
            name: Engine(profile(capacity), max_utilization=max_utilization)
            for name, capacity in CAPACITY.items()
        },
        "keys": {KEY: Key()},
        "eligible": {(frontend, KEY): frozenset(CAPACITY) for frontend in DEMAND},
    }
    return Problem(**{**fields, **changes})
