"""One small fleet per test that hurts it; each test ends with every process gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from headrace.demo.fleet import Fleet
from headrace.demo.load import LoadGenerator
from tests.headrace.fleet.small import load_for, small


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(small(), tmp_path, early_headers=False) as fleet:
        yield fleet


Loading = Callable[..., AbstractAsyncContextManager[LoadGenerator]]


@pytest.fixture
def loaded() -> Loading:
    """`async with loaded(fleet) as generator`: load runs inside; on leaving, all answers have come."""

    @contextlib.asynccontextmanager
    async def loading(fleet: Fleet, **shape: float) -> AsyncIterator[LoadGenerator]:
        generator = load_for(fleet, **shape)
        task = asyncio.create_task(generator.run())
        try:
            yield generator
        finally:
            generator.stop()
            await task

    return loading
