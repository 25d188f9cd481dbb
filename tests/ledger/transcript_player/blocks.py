"""Split a transcript into blocks of commands and expected traces, and replace these by the actual
traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.ledger.transcript_player.story import Story, StoryFault

RULE = "----"


@dataclass(frozen=True, slots=True)
class Block:
    """Commands and their expected trace. `first_line` is the line number of the first command,
    counted from 1.
    """

    first_line: int
    commands: tuple[str, ...]
    expected: tuple[str, ...]

    def text(self) -> str:
        lines = [*self.commands, RULE, *self.expected] if self.expected else self.commands
        return "\n".join(lines)


def blocks_of(text: str) -> list[Block]:
    """Split a transcript into blocks at empty lines."""
    blocks: list[Block] = []
    lines: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.strip():
            lines.append(line.rstrip())
        elif lines:
            blocks.append(_block(number - len(lines), lines))
            lines = []
    return blocks


def _block(first_line: int, lines: Sequence[str]) -> Block:
    at = lines.index(RULE) if RULE in lines else len(lines)
    return Block(first_line, tuple(lines[:at]), tuple(lines[at + 1 :]))


def played(blocks: Sequence[Block]) -> list[Block]:
    """Play the blocks, and return them with their actual traces.

    Raises StoryFault with the line number if a command is invalid or an `expect` fails.
    """
    story = Story()
    real: list[Block] = []
    for block in blocks:
        trace: list[str] = []
        for offset, command in enumerate(block.commands):
            try:
                trace += story.do(command)
            except StoryFault as exc:
                raise StoryFault(f"line {block.first_line + offset}: {exc}") from exc
        real.append(Block(block.first_line, block.commands, tuple(trace)))
    return real


def rewritten(text: str) -> str:
    """Return the transcript with its actual trace. Raises StoryFault."""
    return "\n\n".join(block.text() for block in played(blocks_of(text))) + "\n"
