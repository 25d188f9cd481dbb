"""Fixtures for tests of a node's tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from p2ptrain.peers import duplicate_watch
from tests.node.rig import NewRig, Rig, rig


@pytest.fixture(autouse=True)
def quick_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a restarted node waits for the answer of a possible duplicate."""
    monkeypatch.setattr(duplicate_watch, "LOOK_S", 1.0)
    monkeypatch.setattr(duplicate_watch, "ALARM_S", 0.5)


@pytest.fixture(autouse=True)
def threads_end(no_thread_lingers: None) -> None:
    """Check that a test of a node leaves no thread behind."""


@pytest.fixture
async def new_rig() -> AsyncIterator[NewRig]:
    """Make rigs that stay open until the test's own nursery, and so every task on them, has ended.

    The arguments are those of `rig`.
    """
    async with AsyncExitStack() as stack:

        async def opened(folder: Path, **settings: object) -> Rig:
            return await stack.enter_async_context(rig(folder, **settings))  # type: ignore[arg-type]

        yield opened
