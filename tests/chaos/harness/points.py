"""The points at which a node can be stopped.

There is a point before and after every action that other nodes, or the restarted node, rely on.
The table lists these actions in the order of one outer step.
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

    If `later_round` is true, the action happens only at a height that is not decided in its first
    round.
    """

    name: str
    meaning: str
    roles: tuple[Role, ...] = BOTH
    later_round: bool = False


DEEDS = (
    Deed("send-ready", "a heartbeat reports finished work"),
    Deed("send-prepare", "a later round's proposer requests promises", LEADS, later_round=True),
    Deed("write-promise", "a promise is written to the log of votes", BOTH, later_round=True),
    Deed("send-promise", "a promise is sent to the proposer", FOLLOWS, later_round=True),
    Deed("write-vote-roster", "the vote for a roster is written to the log of votes"),
    Deed("send-propose-roster", "the proposer requests votes for a roster", LEADS),
    Deed("send-vote-roster", "the vote for a roster is sent to the proposer", FOLLOWS),
    Deed("write-entry-roster", "the certified roster is written to the ledger's log"),
    Deed("send-outcome-roster", "the proposer announces the certified roster", LEADS),
    Deed("scatter", "reduce-scatter: a partial sum has arrived, and this node adds its own part"),
    Deed("gather", "all-gather: a finished part has arrived, and is used unchanged"),
    Deed("write-update", "the update is written to the store, chunks and manifest"),
    Deed("send-done", "a heartbeat reports the update"),
    Deed("write-vote-commit", "the vote for a commit is written to the log of votes"),
    Deed("send-propose-commit", "the proposer requests votes for a commit", LEADS),
    Deed("send-vote-commit", "the vote for a commit is sent to the proposer", FOLLOWS),
    Deed("write-entry-commit", "the certified commit is written to the ledger's log"),
    Deed("send-outcome-commit", "the proposer announces the certified commit", LEADS),
    Deed("apply", "the update is applied to θ and m"),
    Deed("write-snapshot", "a snapshot is written to the store, chunks and manifest"),
    Deed("write-head", "the store's head is replaced"),
)
"""All actions, in the order of an outer step."""

DEED = {deed.name: deed for deed in DEEDS}


@dataclass(frozen=True, slots=True)
class Point:
    """The moment before or after an action."""

    side: Side
    deed: str

    def __post_init__(self) -> None:
        if self.deed not in DEED:
            raise ValueError(f"unknown action {self.deed!r}; the actions are {', '.join(DEED)}")

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
