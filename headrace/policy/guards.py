"""Edits that are valid but drastic, or that loosen a residency rule, wait until somebody accepts them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.policy.effective import leaves, shown
from headrace.policy.policy import EngineSpec, Policy, meet
from headrace.policy.problems import dotted

Rule = frozenset[str] | None
"""Jurisdictions that are allowed; None = all."""


@dataclass(frozen=True, slots=True)
class Accept:
    """The edit may act at once."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The edit waits for `headrace policy accept`; the old policy stays in force."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One effective value that an edit changes, as it may be shown; None where it is not there."""

    path: str
    old: object
    new: object


def judge(old: Policy, new: Policy, moves: float, capacity_drop: float) -> Accept | Hold:
    """Whether `new` may replace `old` without being asked.

    `moves`: fraction of all demand that the plan under `new` would move (0..1). `capacity_drop`: see
    `capacity_drop`. The limits are those of `old`: an edit cannot lift the guard it runs into.
    """
    guards = old.planning.guards
    reasons = [f"residency: {reason}" for reason in loosens_residency(old, new)]
    if moves > guards.hold_if_moves_over:
        reasons.append(f"moves {moves:.1%} of all demand; the limit is {guards.hold_if_moves_over:.1%}")
    if capacity_drop > guards.hold_if_capacity_drops_over:
        limit = guards.hold_if_capacity_drops_over
        reasons.append(f"takes away {capacity_drop:.1%} of a model's capacity; the limit is {limit:.1%}")
    return Hold(tuple(reasons)) if reasons else Accept()


def capacity_drop(old: Policy, new: Policy, ready_replicas: Mapping[str, float]) -> float:
    """The largest fraction of its capacity that any model loses by the edit, 0..1.

    Counted with the replicas that are ready now; an engine that nothing is known of counts those that the
    policy names, else one.
    """
    losses = [0.0]
    after = _capacities(new, ready_replicas)
    for model, before in _capacities(old, ready_replicas).items():
        if before > 0:
            losses.append(1 - after.get(model, 0.0) / before)
    return max(losses)


def _capacities(policy: Policy, ready_replicas: Mapping[str, float]) -> dict[str, float]:
    total: dict[str, float] = {}
    for engine in policy.engines.values():
        capacity = _replica_rps(engine) * ready_replicas.get(engine.name, _named_replicas(engine))
        total[engine.model] = total.get(engine.model, 0.0) + capacity
    return total


def _replica_rps(engine: EngineSpec) -> float:
    """Planned reference requests/s of one replica; `auto` is the same before and after."""
    share = 1.0 if engine.max_utilization == "auto" else engine.max_utilization
    return engine.profile.capacity_rps * share if engine.state == "active" else 0.0


def _named_replicas(engine: EngineSpec) -> float:
    members = engine.members
    return float(members.replicas or len(members.static or ()) or 1)


def differences(old: Policy, new: Policy) -> tuple[Difference, ...]:
    """Every effective value that differs, sorted by path: what a held edit would change."""
    before, after = dict(leaves(old)), dict(leaves(new))
    changed = [path for path in before | after if before.get(path) != after.get(path)]
    found = (
        Difference(dotted(path), shown(path, before.get(path)), shown(path, after.get(path)))
        for path in changed
    )
    return tuple(sorted(found, key=lambda difference: difference.path))


def loosens_residency(old: Policy, new: Policy) -> tuple[str, ...]:
    """Why the same request could be served in more places than before; empty when it could not.

    A request is the same when it comes in at the same front-end and listener with the same class header and
    `model`. So a rule that is dropped counts, and so do a name that moves to a freer model, a default class
    that changes, a front-end that takes another's place, and a region that is given another jurisdiction.
    """
    freer: dict[tuple[str, str], set[str]] = {}
    kinds = set(_classes(old, new))
    models = _models(old, new)
    for before, after in _frontends(old, new):
        for (old_model, new_model), (old_class, new_class) in itertools.product(models, kinds):
            was = _rule(old, before, f"{old_model}/{old_class}")
            now = _rule(new, after, f"{new_model}/{new_class}")
            if more := _freer(old, new, was, now):
                freer.setdefault((after, more), set()).add(f"{new_model}/{new_class}")
    return tuple(
        f"front-end {frontend}, {_some(keys)}: {more}" for (frontend, more), keys in sorted(freer.items())
    )


def _some(keys: set[str]) -> str:
    first = min(keys)
    return first if len(keys) == 1 else f"{first} and {len(keys) - 1} more"


def _rule(policy: Policy, frontend: str, key: str) -> Rule:
    return meet(policy.key_specs[key].residency, policy.frontends[frontend].residency)


def _freer(old: Policy, new: Policy, was: Rule, now: Rule) -> str:
    """How `now` allows more than `was`; empty when it does not."""
    if was is None:
        return ""
    if now is None:
        return f"the rule {_listed(was)} is gone"
    if now - was:
        return f"{_listed(now)} instead of {_listed(was)}"
    for name, region in new.regions.items():
        known = old.regions.get(name)
        label = known.jurisdiction if known else region.jurisdiction
        if region.jurisdiction in now and label not in was:
            return f"region {name} counts as {region.jurisdiction}, no longer as {label or 'nowhere'}"
    return ""


def _listed(rule: frozenset[str]) -> str:
    return "[" + ", ".join(sorted(rule)) + "]"


def _frontends(old: Policy, new: Policy) -> Iterator[tuple[str, str]]:
    """Old and new front-end of the same traffic. One that is new may stand in for one that has gone."""
    gone = [name for name in old.frontends if name not in new.frontends]
    for name, frontend in new.frontends.items():
        if name in old.frontends:
            yield name, name
        else:
            yield from ((other, name) for other in gone if old.frontends[other].region == frontend.region)


def _models(old: Policy, new: Policy) -> set[tuple[str, str]]:
    """Old and new model of the same name in the `model` field."""
    before, after = _served(old), _served(new)
    pairs = set()
    for name, model in before.items():
        now = after.get(name) or _by_prefix(after, name.removesuffix("*"))
        if now is not None:
            pairs.add((model, now))
    return pairs


def _served(policy: Policy) -> dict[str, str]:
    return {
        name: model_id
        for model_id, model in policy.models.items()
        for name in (*model.served_as, *model.aliases, *model.adapters)
    }


def _by_prefix(served: Mapping[str, str], name: str) -> str | None:
    return next(
        (served[name[:end] + "*"] for end in range(len(name), 0, -1) if name[:end] + "*" in served), None
    )


def _classes(old: Policy, new: Policy) -> Iterator[tuple[str, str]]:
    """Old and new class of the same request at the same listener."""
    headers = {(item.match.header, item.match.value) for item in old.classes.values() if item.match}
    for listener in old.listeners.keys() & new.listeners.keys():
        for header in (None, *headers):
            yield _class_of(old, listener, header), _class_of(new, listener, header)


def _class_of(policy: Policy, listener: str, header: tuple[str, str] | None) -> str:
    item = policy.listeners[listener]
    if item.trust_headers and header is not None:
        for name in policy.match_order:
            match = policy.classes[name].match
            if match and (match.header, match.value) == header:
                return name
    return item.default_class
