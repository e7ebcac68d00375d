"""New shares are on the disk before any Envoy is told of them: no crash gives Envoys less than they had."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.control_plane import persistence
from headrace.control_plane.config import Address, ServeConfig
from headrace.control_plane.control_plane import ControlPlane
from headrace.control_plane.store import SavedState, StateStore
from headrace.log import make_logger
from headrace.policy import load
from tests.headrace.fleet.small import POLICY

_ANY = Address("127.0.0.1", 0)


def config(folder: Path) -> ServeConfig:
    document = yaml.safe_load(POLICY)
    document["engines"]["west-gpu"]["members"] = {"static": ["127.0.0.1:9"]}
    del document["engines"]["east-gpu"]
    (folder / "policy.yaml").write_text(yaml.safe_dump(document))
    return ServeConfig(
        policy=folder / "policy.yaml",
        state_dir=folder / "state",
        insecure_dev=True,
        xds=_ANY,
        reports=_ANY,
        metrics=_ANY,
        admin=_ANY,
    )


class Disk:
    """A state store that writes when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: OSError | None = None) -> None:
        self.asked, self.may_write = threading.Event(), threading.Event()
        save = StateStore.save

        def slow(store: StateStore, state: SavedState) -> None:
            self.asked.set()
            self.may_write.wait(20)
            if error:
                raise error
            save(store, state)

        monkeypatch.setattr(StateStore, "save", slow)


async def _told_before_and_after(folder: Path, disk: Disk, *, hangs: bool = False) -> tuple[bool, bool]:
    """Whether the xDS server had a snapshot while the disk wrote the first shares, and whether in the end.

    A disk that `hangs` writes only once Envoys were told."""
    settings = config(folder)
    plane, stop, told = (
        ControlPlane(settings, load(settings.policy), make_logger()),
        asyncio.Event(),
        asyncio.Event(),
    )
    publish = plane.xds.publish

    def noting(*arguments: Any) -> int:
        told.set()
        return publish(*arguments)

    plane.xds.publish = noting  # type: ignore[method-assign]  # to have an event to wait for
    async with plane.serving():
        running = asyncio.create_task(plane.run(stop))
        await asyncio.to_thread(disk.asked.wait, 20)
        before = told.is_set()
        if not hangs:
            disk.may_write.set()
        await asyncio.wait_for(told.wait(), 20)
        disk.may_write.set()
        stop.set()
        await running
    return before, told.is_set()


async def test_no_envoy_is_told_of_shares_that_are_not_saved_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert await _told_before_and_after(tmp_path, Disk(monkeypatch)) == (False, True)


async def test_a_full_disk_does_not_keep_envoys_from_new_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = Disk(monkeypatch, OSError("No space left on device"))
    assert await _told_before_and_after(tmp_path, disk) == (False, True)


async def test_a_disk_that_hangs_does_not_keep_envoys_from_new_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(persistence, "LIMIT_S", 0.2)
    assert await _told_before_and_after(tmp_path, Disk(monkeypatch), hangs=True) == (False, True)
