"""Nothing in a policy depends on the order of its keys."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.policy import Policy, load

EXAMPLE = Path(__file__).parents[3] / "examples" / "policy.yaml"


def reordered(value: Any, order) -> Any:
    """The same document with the keys of every map in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key], order) for key in order(list(value))}
    return [reordered(item, order) for item in value] if isinstance(value, list) else value


def written(document: Any, file: Path) -> Policy:
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return load(file)


def as_bytes(policy: Policy) -> str:
    return policy.document.model_dump_json() + repr(policy.engines) + repr(policy.key_specs)


@pytest.mark.parametrize("source", ["base", "example"])
def test_all_maps_reversed_give_an_equal_policy(base, tmp_path, source):
    text = base if source == "base" else EXAMPLE.read_text()
    document = yaml.safe_load(text)
    one = written(document, tmp_path / "a.yaml")
    two = written(reordered(document, lambda keys: keys[::-1]), tmp_path / "b.yaml")
    assert one == two
    assert one.content_hash == two.content_hash
    assert as_bytes(one) == as_bytes(two)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_any_order_gives_an_equal_policy(seed, tmp_path_factory):
    base = (Path(__file__).parent / "conftest.py").read_text().split('BASE = """\\\n')[1].split('"""')[0]
    document = yaml.safe_load(base)
    random_order = random.Random(seed)
    folder = tmp_path_factory.mktemp("order")
    one = written(document, folder / "a.yaml")
    two = written(reordered(document, lambda keys: random_order.sample(keys, len(keys))), folder / "b.yaml")
    assert (one, one.content_hash, as_bytes(one)) == (two, two.content_hash, as_bytes(two))


def test_sets_mean_the_same_in_any_order(write):
    one = load(
        write(
            ("capabilities: [tools]", "capabilities: [tools, vision]"),
            ("requires: [tools]", "requires: [vision, tools]"),
        )
    )
    two = load(
        write(
            ("capabilities: [tools]", "capabilities: [vision, tools]"),
            ("requires: [tools]", "requires: [tools, vision]"),
        )
    )
    assert one == two


def test_what_is_written_out_equals_the_default(write):
    one = load(write())
    two = load(
        write(
            extra="planning: {interval_s: 5.0, max_utilization: 0.9}\nprotection: {hash: {lb: ring_hash}}\n"
        )
    )
    assert one.content_hash == two.content_hash


def test_the_revision_is_no_part_of_the_hash(write):
    one, two = load(write()), load(write(("revision: 4f2c1a9", "revision: other")))
    assert one.content_hash == two.content_hash
    assert one != two


def test_a_changed_value_changes_the_hash(write):
    assert load(write()).content_hash != load(write(("capacity_rps: 4.6", "capacity_rps: 4.5"))).content_hash
