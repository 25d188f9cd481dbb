"""Patch a deliberate defect into the production code, and remove it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

Patch = Callable[[object, str, object], None]
"""A function patch(owner, name, replacement). The patch is undone at the end."""

Plant = Callable[[Patch], None]


STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A deliberate defect.

    `caught_by`: at least one of these checkers must report the defect. STUCK means that the run
    stops making progress. `profile`, `steps` and `peers` describe a world in which the defect has
    an effect.
    """

    name: str
    plant: Plant
    caught_by: tuple[str, ...]
    profile: str
    steps: int = 8
    peers: int = 5

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as undo:
            self.plant(lambda owner, name, new: _patch(undo, owner, name, new))
            yield


def _patch(undo: ExitStack, owner: object, name: str, new: object) -> None:
    undo.enter_context(mock.patch.object(owner, name, new))
