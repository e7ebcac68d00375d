"""`headrace demo` as a user runs it: what it writes, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

MARK = "HEADRACE_TEST_RUN"


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


def left_over(run_id: str) -> list[str]:
    """Command lines of processes that inherited the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={run_id}".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


async def start_demo(run_id: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace", "demo", "--rate-divisor", "10", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {MARK: run_id},
    )


async def test_the_demo_writes_what_its_clients_saw_and_leaves_nothing(tmp_path: Path, run_id: str):
    out = tmp_path / "out.json"
    demo = await start_demo(run_id, "--warmup", "3", "--duration", "4", "--json", str(out))
    text, _ = await demo.communicate()
    assert demo.returncode == 0, text.decode()
    result = json.loads(out.read_text())
    assert set(result) >= {"snapshot_version", "shares", "frontends"}
    assert set(result["frontends"]) == {"us-east", "eu-west", "ap-south"}
    for row in result["frontends"].values():
        assert row["failed"] == 0
        assert row["ok"] == row["requests"] > 0
        assert sum(row["by_engine"].values()) == row["ok"]
        assert {"mean", "p50", "p99"} <= set(row["ttft_ms"]) & set(row["e2e_ms"])
    assert b"divided by 10" in text
    assert left_over(run_id) == []


async def test_an_interrupted_demo_leaves_nothing(run_id: str):
    demo = await start_demo(run_id, "--duration", "600")
    assert demo.stdout is not None
    async for line in demo.stdout:
        if b"warm-up" in line:
            break
    assert len(left_over(run_id)) > 10
    demo.send_signal(signal.SIGINT)
    text, _ = await demo.communicate()
    assert demo.returncode == 130, text.decode()
    assert left_over(run_id) == []


async def test_a_killed_demo_takes_its_processes_along(run_id: str):
    demo = await start_demo(run_id, "--duration", "600")
    assert demo.stdout is not None
    async for line in demo.stdout:
        if b"warm-up" in line:
            break
    demo.kill()
    await demo.communicate()  # returns when the last holder of its output is gone
    async with asyncio.timeout(10):
        while left_over(run_id):  # noqa: ASYNC110  # the kernel ends them, and no event tells
            await asyncio.sleep(0.05)
