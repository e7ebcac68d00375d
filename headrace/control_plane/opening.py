"""Which policy a control plane starts with: the one that was in force, while the file on disk is judged."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.control_plane.config import ServeConfig
from headrace.control_plane.store import StateStore
from headrace.policy import Policy, PolicyError, load
from headrace.policy.archive import Archive


@dataclass(frozen=True, slots=True)
class Opening:
    """What to start with."""

    policy: Policy
    """In force from the first moment."""
    found: Policy | PolicyError | None = None
    """What the policy file says, where that is not in force: an edit that was made meanwhile."""


def opening(config: ServeConfig) -> Opening:
    """Load the policy file, and the policy that the saved state was made under.

    The file is in force at once where there is no such state (of this fleet, with a policy that can still be
    loaded), where both say the same, and with `accept_policy`. Raises PolicyError when it is to be in force
    and cannot be used.
    """
    found = _on_disk(config)
    archived = None if config.accept_policy else _archived(config)
    if archived is not None and _other_edit(found, archived):
        return Opening(archived, found)
    if isinstance(found, PolicyError):
        raise found
    return Opening(found)


def _on_disk(config: ServeConfig) -> Policy | PolicyError:
    try:
        return load(config.policy)
    except PolicyError as error:
        return error


def _archived(config: ServeConfig) -> Policy | None:
    saved = StateStore(config.state_dir).peek() if config.state_dir else None
    if saved is None or not saved.policy:
        return None
    try:
        return load(config.policy, Archive.from_json(saved.policy))
    except (PolicyError, KeyError, TypeError):  # of a version with other rules
        return None


def _other_edit(found: Policy | PolicyError, archived: Policy) -> bool:
    """Whether the file is another edit, or none, of the policy that was in force."""
    if isinstance(found, PolicyError):
        return True
    same = (found.content_hash, found.revision) == (archived.content_hash, archived.revision)
    return found.fleet == archived.fleet and not same
