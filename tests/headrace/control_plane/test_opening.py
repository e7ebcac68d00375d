"""Which policy a control plane starts with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.control_plane.config import ServeConfig
from headrace.control_plane.opening import opening
from headrace.control_plane.store import FILE_NAME, SavedState, StateStore
from headrace.policy import Policy, PolicyError, load
from tests.headrace.fleet.small import POLICY

BROKEN = POLICY.replace("region: west, profile", "region: atlantis, profile")


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    """A control plane that ended with `POLICY` in force."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    saved = SavedState(fleet="test", policy=load(path).archive.to_json())
    StateStore(tmp_path / "state").save(saved)
    return ServeConfig(policy=path, state_dir=tmp_path / "state")


def test_an_unchanged_file_is_in_force_and_nothing_is_to_be_judged(config: ServeConfig):
    assert opening(config).found is None


def test_an_edit_is_to_be_judged_while_the_saved_policy_is_in_force(config: ServeConfig):
    config.policy.write_text(POLICY.replace("interval_s: 1", "interval_s: 2"))
    start = opening(config)
    assert isinstance(start.found, Policy)
    assert (start.policy.planning.interval_s, start.found.planning.interval_s) == (1, 2)


def test_a_broken_file_is_to_be_refused_while_the_saved_policy_is_in_force(config: ServeConfig):
    config.policy.write_text(BROKEN)
    start = opening(config)
    assert start.policy.engines["west-gpu"].region == "west"
    assert "atlantis" in str(start.found)


def test_a_file_that_is_gone_leaves_the_saved_policy_in_force(config: ServeConfig):
    config.policy.unlink()
    start = opening(config)
    assert start.policy.engines["west-gpu"].region == "west"
    assert isinstance(start.found, PolicyError)


def test_an_accepted_file_is_in_force_at_once(config: ServeConfig):
    config.policy.write_text(POLICY.replace("interval_s: 1", "interval_s: 2"))
    start = opening(replace(config, accept_policy=True))
    assert (start.policy.planning.interval_s, start.found) == (2, None)


def test_a_file_of_another_fleet_is_in_force_at_once(config: ServeConfig):
    config.policy.write_text(POLICY.replace("fleet: test", "fleet: other"))
    start = opening(config)
    assert (start.policy.fleet, start.found) == ("other", None)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text("{"),
        lambda path: StateStore(path.parent).save(SavedState(fleet="test")),
        lambda path: StateStore(path.parent).save(SavedState(fleet="test", policy={"folder": False})),
        lambda path: StateStore(path.parent).save(
            SavedState(
                fleet="test", policy={"folder": False, "own": ["p.yaml"], "texts": {"p.yaml": "version: 0"}}
            )
        ),
    ],
    ids=["none", "torn", "without a policy", "not an archive", "of a version with other rules"],
)
def test_without_a_saved_policy_that_can_be_used_the_file_decides(config: ServeConfig, spoil):
    spoil(config.state_dir / FILE_NAME)
    assert opening(config).found is None
    config.policy.write_text(BROKEN)
    with pytest.raises(PolicyError, match="atlantis"):
        opening(config)
