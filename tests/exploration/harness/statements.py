"""Extract the votes and promises that a message states, and check whether two statements contradict
each other.

This module follows only SPEC.md, not the ledger's code. A promise (round p, last vote in round a)
states that the sender did not vote in any round between a and p, and never will.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest
from p2ptrain.ledger.messages.messages import Accept, Accepted, Message, Promise, Propose


@dataclass(frozen=True, slots=True)
class Voted:
    height: int
    round: int
    entry: Digest


@dataclass(frozen=True, slots=True)
class Promised:
    """A promise for `round`. `last` is the round of the sender's last vote, or -1 if it has not
    voted.
    """

    height: int
    round: int
    last: int
    entry: Digest | None


Statement = Voted | Promised | None


def statement_of(message: Message) -> Statement:
    match message:
        case Accept(vote):
            return Voted(vote.height, vote.round, vote.entry)
        case Propose(round, entry):
            return Voted(entry.height, round, entry.digest)
        case Promise(height, round, None):
            return Promised(height, round, -1, None)
        case Promise(height, round, Accepted() as accepted):
            return Promised(height, round, accepted.round, accepted.entry.digest)
        case _:
            return None


def contrary(one: Statement, other: Statement) -> bool:
    """Return whether the two statements of one voter contradict each other."""
    match one, other:
        case Voted(), Voted():
            same = (one.height, one.round) == (other.height, other.round)
            return same and one.entry != other.entry
        case Promised(), Promised():
            same = (one.height, one.round) == (other.height, other.round)
            return same and one != other
        case Promised(), Voted():
            return _broken(one, other)
        case Voted(), Promised():
            return _broken(other, one)
        case _:
            return False


def _broken(promise: Promised, vote: Voted) -> bool:
    if promise.height != vote.height:
        return False
    if promise.last == vote.round:
        return promise.entry != vote.entry
    return promise.last < vote.round < promise.round
