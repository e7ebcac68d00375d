"""The saved state: atomic, versioned, and never trusted when it is torn or foreign."""

import hashlib
import json
from pathlib import Path

import pytest

from headrace.control_plane.store import FILE_NAME, SavedState, SetAside, StateStore

STATE = SavedState(
    fleet="prod",
    served={"sequence": 7},
    demand_rps={"us-east": {"meta-llama/Llama-3.3-70B/chat": 12.5}},
)


def test_what_was_saved_comes_back(tmp_path: Path):
    StateStore(tmp_path).save(STATE)
    assert StateStore(tmp_path).load("prod") == STATE


def test_no_file_is_no_state(tmp_path: Path):
    assert StateStore(tmp_path / "new").load("prod") is None


def test_state_directory_is_made_on_first_save(tmp_path: Path):
    StateStore(tmp_path / "a" / "b").save(STATE)
    assert StateStore(tmp_path / "a" / "b").load("prod") == STATE


def _edited(document: dict) -> bytes:
    document["state"]["served"]["sequence"] = 8
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda raw: raw[: len(raw) // 2], "delimiter"),
        (lambda raw: b"", "Expecting value"),
        (lambda raw: b"[]", "not a state file of format 2"),
        (lambda raw: _edited(json.loads(raw)), "checksum differs"),
        (lambda raw: raw.replace(b'"format": 2', b'"format": 9'), "not a state file of format 2"),
    ],
    ids=["torn", "empty", "foreign", "edited", "other-format"],
)
def test_a_damaged_file_is_set_aside_with_its_reason(tmp_path: Path, damage, reason: str):
    store = StateStore(tmp_path)
    store.save(STATE)
    path = tmp_path / FILE_NAME
    path.write_bytes(damage(path.read_bytes()))
    result = store.load("prod")
    assert isinstance(result, SetAside)
    assert reason in result.reason or "Unterminated" in result.reason
    assert result.moved_to.exists()
    assert store.load("prod") is None


def test_state_of_another_fleet_is_set_aside(tmp_path: Path):
    StateStore(tmp_path).save(STATE)
    result = StateStore(tmp_path).load("staging")
    assert isinstance(result, SetAside)
    assert result.reason == "state of fleet 'prod', this control plane serves 'staging'"


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = StateStore(tmp_path)
    store.save(STATE)

    def full_disk(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        store.save(SavedState(fleet="prod"))
    assert store.load("prod") == STATE


def test_a_file_from_before_corrections_were_saved_is_still_read(tmp_path: Path):
    StateStore(tmp_path).save(STATE)
    path = tmp_path / FILE_NAME
    document = json.loads(path.read_bytes())
    del document["state"]["learned"]
    body = json.dumps(document["state"], sort_keys=True).encode()
    path.write_text(json.dumps(document | {"sha256": hashlib.sha256(body).hexdigest()}))
    assert StateStore(tmp_path).load("prod") == STATE
