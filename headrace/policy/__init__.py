"""The policy file: `load` it, `watch` it, ask the `Policy`. For operators: docs/policy.md."""

from headrace.policy.load import load
from headrace.policy.policy import Eligibility, EngineSpec, KeySpec, Policy
from headrace.policy.problems import PolicyError, Problem
from headrace.policy.watch import watch

__all__ = ["Eligibility", "EngineSpec", "KeySpec", "Policy", "PolicyError", "Problem", "load", "watch"]
