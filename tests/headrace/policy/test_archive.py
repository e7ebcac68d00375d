"""A policy loaded again from the text that was in force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.policy import Policy, load
from headrace.policy.archive import Archive
from tests.headrace.policy.test_folder import DIGEST, REPORTS, split


@pytest.fixture
def several_files(base: str, tmp_path: Path) -> Path:
    """A folder policy with a profile and tokens in files of their own, outside of the folder."""
    start, end = base.index("  a100:\n"), base.index("defaults:\n")
    profile = base[start:end].removeprefix("  a100:\n").replace("    ", "")
    (tmp_path / "a100.yaml").write_text(profile)
    (tmp_path / "tokens.yaml").write_text(f"spot: [{DIGEST}]\n")
    folder = tmp_path / "policy"
    folder.mkdir()
    split(base[:start] + "  a100: {file: ../a100.yaml}\n" + base[end:], folder)
    (folder / "c.yaml").write_text(REPORTS.replace("tokens.yaml", "../tokens.yaml"))
    return folder


def _again(policy: Policy, path: Path) -> Policy:
    """What the archive gives after a way through the saved state."""
    return load(path, Archive.from_json(json.loads(json.dumps(policy.archive.to_json()))))


def test_all_files_of_a_policy_come_back_although_those_on_disk_are_others(several_files: Path):
    policy = load(several_files)
    for name in ("policy/a.yaml", "policy/b.yml", "policy/c.yaml", "a100.yaml", "tokens.yaml"):
        (several_files.parent / name).write_text("broken: [")
    (several_files / "d.yaml").write_text("one: more\n")
    again = _again(policy, several_files)
    assert again == policy
    assert again.files == policy.files
    assert again.archive == policy.archive


def test_a_policy_comes_back_without_any_file_on_disk(several_files: Path):
    policy = load(several_files)
    for file in policy.files:
        Path(file).unlink()
    several_files.rmdir()
    assert _again(policy, several_files) == policy


def test_paths_to_secrets_mean_the_same_in_an_archived_policy(base: str, tmp_path: Path):
    path = tmp_path / "policy.yaml"
    path.write_text(base + REPORTS.replace("{file: tokens.yaml}", f'{{spot: ["{DIGEST}"]}}'))
    policy = load(path)
    path.unlink()
    assert _again(policy, path).secret_path("reports", "cert") == tmp_path / "a"


def test_an_archive_holds_digests_of_tokens_and_the_content_of_no_key_or_certificate(several_files: Path):
    for name in ("a", "b"):  # as `REPORTS` calls the certificate and its key
        (several_files / name).write_text(f"-----BEGIN SECRET {name}-----")
    text = json.dumps(load(several_files).archive.to_json())
    assert DIGEST in text
    assert "BEGIN SECRET" not in text
