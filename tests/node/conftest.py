"""Fixtures for tests of a node's tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.node.rig import NewRig, Rig, rig


@pytest.fixture(autouse=True)
def threads_end(no_thread_lingers: None) -> None:
    """Check that a test of a node leaves no thread behind."""


@pytest.fixture
async def new_rig() -> AsyncIterator[NewRig]:
    """Return a function that opens a rig. The rigs stay open until the test's own nursery has
    ended, and with it every task that uses them.

    The arguments are those of `rig`.
    """
    async with AsyncExitStack() as stack:

        async def opened(folder: Path, **settings: object) -> Rig:
            return await stack.enter_async_context(rig(folder, **settings))  # type: ignore[arg-type]

        yield opened
