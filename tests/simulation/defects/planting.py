"""How a deliberate defect is planted into the production code, and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

Patch = Callable[[object, str, object], None]
"""patch(owner, name, replacement), undone at the end."""

Plant = Callable[[Patch], None]


STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`caught_by`: the checkers of which one has to object; STUCK is that the run stands still.
    `profile`: a world that brings it out, in so many outer steps of so many peers.
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
