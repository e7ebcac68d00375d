"""What is allowed but probably not meant; shown by `headrace check`, never an error."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.policy.policy import Policy
from headrace.policy.problems import Path, Place, Problem, dotted

WORK_SPREAD = 1.5
"""Classes whose output tokens differ by more must not count as the same work unnoticed."""


def warnings(policy: Policy) -> Iterator[Problem]:
    """All warnings about a policy."""
    yield from _unserved(policy)
    yield from _unknown_work(policy)
    yield from _open_network(policy)


def _problem(policy: Policy, path: Path, wrong: str, expected: str) -> Problem:
    known = path
    while known and known not in policy.places:
        known = known[:-1]
    return Problem(policy.places.get(known, Place("", 0)), dotted(path), wrong, expected)


def _unserved(policy: Policy) -> Iterator[Problem]:
    """Keys that no engine may serve for some front-end: answered 503."""
    for key, spec in policy.key_specs.items():
        dead = [name for name in policy.frontends if not policy.eligible(name, key).engines]
        if dead:
            reasons = sorted(set(policy.eligible(dead[0], key).reasons.values()))
            where = "any front-end" if len(dead) == len(policy.frontends) else ", ".join(dead[:5])
            why = "; ".join(reasons[:3]) or "no engine has this model"
            yield _problem(
                policy,
                ("models", spec.model),
                f"class {spec.traffic_class} has no eligible engine for {where} ({why})",
                "an eligible engine, or these requests are answered 503",
            )


def _unknown_work(policy: Policy) -> Iterator[Problem]:
    """Models whose classes differ in length while a profile without reference makes them weigh the same."""
    for model in policy.models:
        specs = [policy.key_specs[f"{model}/{name}"] for name in policy.classes]
        lengths = [spec.output_tokens for spec in specs if spec.work is None and spec.output_tokens]
        if not lengths or max(lengths) <= WORK_SPREAD * min(lengths):
            continue
        engines = [engine for engine in policy.engines.values() if engine.model == model]
        for profile in sorted({engine.profile_name for engine in engines if not engine.profile.reference}):
            yield _problem(
                policy,
                ("profiles", profile),
                f"has no reference, so requests of {model} count as the same work although their "
                f"output_tokens go from {min(lengths):g} to {max(lengths):g}",
                "a reference, or work for each class",
            )


def _open_network(policy: Policy) -> Iterator[Problem]:
    """Regions whose replicas may report any address."""
    if policy.security.reports is None:
        return
    reported = {engine.region for engine in policy.engines.values() if engine.members.reported}
    for name in sorted(reported):
        if not policy.regions[name].replica_cidrs:
            yield _problem(
                policy,
                ("regions", name),
                "replicas may report any address",
                "replica_cidrs with the networks of its engines",
            )
