"""A policy that is edited while it is followed, with real files and real symlinks."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import aclosing, asynccontextmanager

import pytest

from headrace.policy import Policy, PolicyError, load, watch


@asynccontextmanager
async def following(path, current=None):
    """`await seen()` gives the next result of the watch."""
    stop = asyncio.Event()
    async with aclosing(watch(path, stop, current)) as results:
        yield lambda: asyncio.wait_for(anext(results), 20)
        stop.set()
        async with asyncio.timeout(20):
            assert [result async for result in results] == []


def capacity(result) -> float:
    assert isinstance(result, Policy), str(result)
    return result.profiles["h100"].capacity_rps


CHANGED = ("capacity_rps: 4.6", "capacity_rps: 4.5")


@pytest.fixture
def texts(base):
    return base, base.replace(*CHANGED)


async def test_the_first_result_comes_at_once(write):
    async with following(write()) as seen:
        assert capacity(await seen()) == 4.6


async def test_what_is_in_force_already_is_not_told_again(write, base):
    file = write()
    async with following(file, load(file)) as seen:
        waiting = asyncio.ensure_future(seen())
        file.write_text(base + "# a comment changes nothing\n")
        file.write_text(base.replace(*CHANGED))
        assert capacity(await waiting) == 4.5


async def test_an_edit_in_place_is_seen(write, texts):
    file = write()
    async with following(file) as seen:
        await seen()
        file.write_text(texts[1])
        assert capacity(await seen()) == 4.5


async def test_an_edit_by_renaming_is_seen(write, texts, tmp_path):
    file = write()
    async with following(file) as seen:
        await seen()
        (tmp_path / "policy.yaml.tmp").write_text(texts[1])
        os.replace(tmp_path / "policy.yaml.tmp", file)
        assert capacity(await seen()) == 4.5


async def test_a_new_revision_alone_is_told(write):
    file = write()
    async with following(file) as seen:
        await seen()
        write(("revision: 4f2c1a9", "revision: next"))
        assert (await seen()).revision == "next"


async def test_a_broken_edit_is_told_and_a_mended_one_too(write, texts):
    file = write()
    async with following(file) as seen:
        await seen()
        file.write_text("fleet: [")
        broken = await seen()
        assert isinstance(broken, PolicyError)
        assert str(file) in str(broken)
        file.write_text(texts[1])
        assert capacity(await seen()) == 4.5


async def test_a_file_that_vanishes_and_returns_is_seen(write, base):
    file = write()
    async with following(file) as seen:
        await seen()
        file.unlink()
        assert "there is no such file" in str(await seen())
        file.write_text(base)
        assert capacity(await seen()) == 4.6


async def test_a_folder_that_vanishes_and_returns_is_seen(tmp_path, base):
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "a.yaml").write_text(base)
    async with following(folder) as seen:
        await seen()
        shutil.rmtree(folder)
        assert isinstance(await seen(), PolicyError)
        folder.mkdir()
        (folder / "a.yaml").write_text(base)
        assert capacity(await seen()) == 4.6


async def test_a_file_that_appears_later_is_seen(tmp_path, base):
    async with following(tmp_path / "none" / "policy.yaml") as seen:
        assert isinstance(await seen(), PolicyError)
        (tmp_path / "none").mkdir()
        (tmp_path / "none" / "policy.yaml").write_text(base)
        assert capacity(await seen()) == 4.6


async def test_a_file_added_to_a_folder_is_seen(tmp_path, base):
    (tmp_path / "a.yaml").write_text(base)
    async with following(tmp_path) as seen:
        assert (await seen()).planning.interval_s == 5
        (tmp_path / "b.yaml").write_text("planning: {interval_s: 2}\n")
        assert (await seen()).planning.interval_s == 2


def mounted(tmp_path, texts):
    """Two versions of a mounted ConfigMap; returns the mount and a function that swaps to a version."""
    mount = tmp_path / "mount"
    mount.mkdir()
    for number, text in enumerate(texts):
        (mount / f"..2026_{number}").mkdir()
        (mount / f"..2026_{number}" / "policy.yaml").write_text(text)

    def swap(number):
        (mount / "..data_tmp").symlink_to(f"..2026_{number}")
        os.replace(mount / "..data_tmp", mount / "..data")

    swap(0)
    (mount / "policy.yaml").symlink_to("..data/policy.yaml")
    return mount, swap


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_the_swap_of_a_configmap_is_seen(tmp_path, texts, what):
    mount, swap = mounted(tmp_path, texts)
    async with following(mount / "policy.yaml" if what == "file" else mount) as seen:
        assert capacity(await seen()) == 4.6
        swap(1)
        assert capacity(await seen()) == 4.5
        swap(0)
        assert capacity(await seen()) == 4.6


async def test_a_link_to_another_folder_is_followed(tmp_path, texts):
    for number, text in enumerate(texts):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "policy.yaml").write_text(text)
    (tmp_path / "link").mkdir()
    link = tmp_path / "link" / "policy.yaml"
    link.symlink_to(tmp_path / "v0" / "policy.yaml")
    async with following(link) as seen:
        assert capacity(await seen()) == 4.6
        (tmp_path / "v0" / "policy.yaml").write_text(texts[1])
        assert capacity(await seen()) == 4.5


async def test_an_edit_of_a_profile_file_is_seen(tmp_path, base):
    (tmp_path / "profiles").mkdir()
    start, end = base.index("  h100:\n"), base.index("  a100:\n")
    profile = base[start:end].removeprefix("  h100:\n").replace("    ", "")
    (tmp_path / "profiles" / "h100.yaml").write_text(profile)
    (tmp_path / "p.yaml").write_text(base[:start] + "  h100: {file: profiles/h100.yaml}\n" + base[end:])
    async with following(tmp_path / "p.yaml") as seen:
        assert capacity(await seen()) == 4.6
        (tmp_path / "profiles" / "h100.yaml").write_text(profile.replace(*CHANGED))
        assert capacity(await seen()) == 4.5


async def test_stopping_ends_a_quiet_watch(write):
    stop = asyncio.Event()
    file = write()

    async def consume():
        return [result async for result in watch(file, stop, load(file))]

    task = asyncio.create_task(consume())
    await asyncio.sleep(0)
    stop.set()
    assert await asyncio.wait_for(task, 20) == []
