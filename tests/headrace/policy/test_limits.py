"""The stated limits: a fleet of that size loads, one more is refused."""

from __future__ import annotations

import pytest

from headrace.policy import PolicyError, load
from headrace.policy.schema import MAX_ADAPTERS, MAX_CLASSES, MAX_ENGINES, MAX_FRONTENDS, MAX_MODELS


def fleet(
    frontends: int = MAX_FRONTENDS,
    engines: int = MAX_ENGINES,
    models: int = MAX_MODELS,
    classes: int = MAX_CLASSES,
    adapters: int = MAX_ADAPTERS,
) -> str:
    """A policy of that size; every engine is written out, adapters are spread over the models."""
    regions = [f"r{i}" for i in range(10)]
    lines = ["version: 1", "fleet: big", "regions:"]
    lines += [f"  {region}: {{jurisdiction: {'eu' if i % 2 else 'us'}}}" for i, region in enumerate(regions)]
    lines += ["frontends:"]
    lines += [
        f"  f{i}: {{region: r{i % 10}{', residency: [eu]' if i % 3 == 0 else ''}}}" for i in range(frontends)
    ]
    lines += ["listeners: {public: {port: 8443, default_class: c0}}", "classes:"]
    lines += [f"  c{i}: {{priority: {i}, match: {{header: x-class, value: c{i}}}}}" for i in range(classes)]
    lines += ["models:"]
    for i in range(models):
        names = ", ".join(f"adapter-{j}" for j in range(i, adapters, models))
        lines.append(f"  m{i}: {{served_as: [org/Model-{i}.0], adapters: [{names}]}}")
    lines += [
        "profiles: {p: {t0_ms: 20, lambda_max_rps: 22, capacity_rps: 20, ttft_ms: {base: 80}}}",
        "engines:",
        *(
            f"  e{i}: {{model: m{i % models}, region: r{i // models % 10}, profile: p}}"
            for i in range(engines)
        ),
        "network:",
        "  rtt_ms:",
    ]
    lines += [
        f"    {a}: {{{', '.join(f'{b}: 50' for b in regions[i + 1 :])}}}" for i, a in enumerate(regions[:-1])
    ]
    return "\n".join(lines) + "\n"


def test_a_fleet_at_every_limit_is_accepted(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(fleet())
    policy = load(file)
    assert len(policy.frontends) == 100
    assert len(policy.engines) == 1_000
    assert len(policy.key_specs) == 500
    assert sum(len(model.adapters) for model in policy.models.values()) == 10_000
    assert policy.network_ms("f0", "e51") == 50


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"frontends": 101}, "frontends: has 101 entries; expected at most 100"),
        ({"engines": 1_001}, "engines: has 1001 entries; expected at most 1000"),
        ({"models": 51, "adapters": 0}, "models: has 51 entries; expected at most 50"),
        ({"classes": 11}, "classes: has 11 entries; expected at most 10"),
        ({"adapters": 10_001}, "models: have 10001 adapter names; expected at most 10000"),
    ],
)
def test_one_more_is_refused(tmp_path, more, message):
    file = tmp_path / "policy.yaml"
    file.write_text(fleet(**more))
    with pytest.raises(PolicyError) as error:
        load(file)
    assert any(message in str(problem) for problem in error.value.problems)


def test_engines_are_counted_after_expansion(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(
        fleet(engines=1).replace(
            "  e0:", "  e-{0001..0900}: {model: m0, region: r0, profile: p}\n  x-{001..101}:"
        )
    )
    with pytest.raises(PolicyError, match="engines: has 1001 entries after expansion; expected at most 1000"):
        load(file)
