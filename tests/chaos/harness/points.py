"""The points where a node can be stopped.

They are before and after every action that other nodes, or the restarted node, rely on. The table
lists these actions in the order in which a node performs them in one outer step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Whether the node that passes a point leads the round that the point is about."""

    PROPOSER = "proposer"
    OTHER = "other"


BOTH = (Role.PROPOSER, Role.OTHER)
LEADS, FOLLOWS = (Role.PROPOSER,), (Role.OTHER,)


class Side(StrEnum):
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Deed:
    """An action of a node in an outer step, and the roles that perform it.

    `later_round`: the action happens only at a height that is not decided in its first round.
    """

    name: str
    meaning: str
    roles: tuple[Role, ...] = BOTH
    later_round: bool = False


DEEDS = (
    Deed("send-ready", "the heartbeat that tells of work done"),
    Deed("send-prepare", "a later round's proposer asks for promises", LEADS, later_round=True),
    Deed("write-promise", "a promise goes into the log of votes", BOTH, later_round=True),
    Deed("send-promise", "a promise leaves for the proposer", FOLLOWS, later_round=True),
    Deed("write-vote-roster", "the vote for a roster goes into the log of votes"),
    Deed("send-propose-roster", "the proposer asks for votes for a roster", LEADS),
    Deed("send-vote-roster", "the vote for a roster leaves for the proposer", FOLLOWS),
    Deed("write-entry-roster", "the certified roster goes into the ledger's log"),
    Deed("send-outcome-roster", "the proposer announces the certified roster", LEADS),
    Deed("scatter", "reduce-scatter: a partial sum has come, and the own part is added"),
    Deed("gather", "all-gather: a finished part has come, and is taken as it is"),
    Deed("write-update", "the update goes into the store, chunks and manifest"),
    Deed("send-done", "the heartbeat that tells of the update"),
    Deed("write-vote-commit", "the vote for a commit goes into the log of votes"),
    Deed("send-propose-commit", "the proposer asks for votes for a commit", LEADS),
    Deed("send-vote-commit", "the vote for a commit leaves for the proposer", FOLLOWS),
    Deed("write-entry-commit", "the certified commit goes into the ledger's log"),
    Deed("send-outcome-commit", "the proposer announces the certified commit", LEADS),
    Deed("apply", "the update is applied to θ and m"),
    Deed("write-snapshot", "a snapshot goes into the store, chunks and manifest"),
    Deed("write-head", "the store's head is replaced"),
)
"""In the order of an outer step."""

DEED = {deed.name: deed for deed in DEEDS}


@dataclass(frozen=True, slots=True)
class Point:
    """The moment before or after a deed."""

    side: Side
    deed: str

    def __post_init__(self) -> None:
        if self.deed not in DEED:
            raise ValueError(f"no node does {self.deed!r}; deeds are {', '.join(DEED)}")

    def __str__(self) -> str:
        return f"{self.side}:{self.deed}"

    @classmethod
    def parse(cls, text: str) -> Point:
        """Parse a text such as `before:apply`. Raises ValueError."""
        side, _, deed = text.partition(":")
        return cls(Side(side), deed)


def all_points() -> Iterator[Point]:
    for deed in DEEDS:
        for side in Side:
            yield Point(side, deed.name)
