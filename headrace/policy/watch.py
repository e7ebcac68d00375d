"""Following a policy while it is edited, mounted and swapped under our feet."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

from watchfiles import awatch

from headrace.policy.load import load, policy_files
from headrace.policy.policy import Policy
from headrace.policy.problems import Place, PolicyError, Problem
from headrace.policy.source import MAX_BYTES

POLL_S = 1.0
"""Longest time after which the files are looked at although nothing was reported (network mounts, folders
that were deleted and made anew)."""
SETTLE_MS = 50
"""Quiet time that ends a burst of writes."""

_Signature = tuple[str, str]


async def watch(
    path: str | Path, stop: asyncio.Event, current: Policy | PolicyError | None = None
) -> AsyncIterator[Policy | PolicyError]:
    """Yield the policy whenever it differs from the last one yielded, or why it cannot be used, until `stop`.

    The first result comes at once unless it equals `current`. The same error is yielded once. Folders of
    the path, of the files behind symlinks and of profile files are watched, so an atomic rename, an edit in
    place and a ConfigMap's `..data` swap are all seen. Nothing ends the iteration but `stop`.
    """
    last = _signature(current) if current else None
    files: tuple[str, ...] = ()
    seen: object = None
    while not stop.is_set():
        state = _state(path, files)
        if state != seen:
            result = await asyncio.to_thread(_load, path)
            files = result.files
            seen = state if state == _state(path, files) else None
            if _signature(result) != last:
                last = _signature(result)
                yield result
        if seen is not None:
            await _change(path, files, seen, stop)


def _load(path: str | Path) -> Policy | PolicyError:
    try:
        return load(path)
    except PolicyError as error:
        return error
    except Exception as error:  # a fault of ours must not end the watch: the last good policy stays
        refused = PolicyError([Problem(Place(str(path), 0), "", f"cannot be loaded: {error!r}")])
        refused.__cause__ = error
        return refused


def _signature(result: Policy | PolicyError) -> _Signature:
    if isinstance(result, Policy):
        return result.content_hash, result.revision
    return "error", str(result)


def _folders(path: Path, files: tuple[str, ...]) -> set[Path]:
    """Every existing folder in which a change could matter: those of the names and of what they lead to."""
    names = [path, *map(Path, files)]
    folders = {path} if path.is_dir() else set()
    for name in names:
        step = name
        for _ in range(16):  # a chain of symlinks, each in its own folder
            folders.add(step.parent)
            if not step.is_symlink():
                break
            step = step.parent / step.readlink()
        folders.add(name.resolve().parent)
    return {folder for folder in folders if folder.is_dir()}


def _state(path: str | Path, files: tuple[str, ...]) -> tuple[object, ...]:
    """Names and content of all files that matter; what is the same needs no loading."""
    try:
        own = policy_files(Path(path))
    except OSError:
        own = []
    return tuple((name, _content(name)) for name in sorted({*own, *map(Path, files)}))


def _content(file: Path) -> bytes | None:
    try:
        if not file.is_file():
            return None
        with file.open("rb") as stream:
            return hashlib.sha256(stream.read(MAX_BYTES + 1)).digest()
    except OSError:
        return None


async def _change(path: str | Path, files: tuple[str, ...], seen: object, stop: asyncio.Event) -> None:
    """Return when the files look different from `seen`, or on `stop`."""
    if _state(path, files) != seen:
        return
    try:
        async with aclosing(_ticks(_folders(Path(path), files), stop)) as ticks:
            async for _ in ticks:
                if _state(path, files) != seen:
                    return
    except (OSError, RuntimeError):  # a folder vanished between looking and watching
        await _pause(POLL_S, stop)


async def _ticks(folders: set[Path], stop: asyncio.Event) -> AsyncGenerator[None]:
    """One tick a change in the folders, and one every `POLL_S`."""
    if not folders:
        await _pause(POLL_S, stop)
        yield
        return
    changes = awatch(
        *folders,
        watch_filter=None,
        recursive=False,
        step=SETTLE_MS,
        rust_timeout=int(POLL_S * 1000),
        yield_on_timeout=True,
        stop_event=stop,
    )
    async with aclosing(changes):
        async for _ in changes:
            yield


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
