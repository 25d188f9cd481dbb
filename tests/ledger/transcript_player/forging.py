"""Make messages that an honest ledger never sends, for transcripts with liars or damaged
messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from p2ptrain.ids import PeerId, RunId
from p2ptrain.ledger.chain.values import (
    Certificate,
    Certified,
    Entry,
    LineId,
    Roster,
    Skip,
    Value,
    vote_message,
)
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.messages.evidence import Evidence, Statement
from p2ptrain.ledger.messages.messages import (
    Accept,
    Accepted,
    Accusation,
    Message,
    Outcome,
    Promise,
    Propose,
)
from p2ptrain.simulation.disk import signature_of
from p2ptrain.testing.ledgers import Unicast, digest
from tests.ledger.transcript_player.fault import StoryFault


def forged(victim: Ledger, kind: str, liar: PeerId, by: Sequence[PeerId]) -> Message:
    """Return a forged message to `victim`.

    If the kind is `accusation`, the message is evidence with two genuine votes of the first peer in
    `by`. For any other kind, the message is an outcome for the next height. The outcome's
    certificate names all peers in `by`, but only the liar's own signature is genuine.
    """
    state = victim.state
    if kind == "accusation":
        return Accusation(two_votes(state.line, state.height + 1, by[0]))
    value: Value = Skip(state.step)
    if kind == "roster":
        value = Roster(state.step, state.attempt, (liar,), ())
    entry = Entry(state.height + 1, state.head, value)
    message = vote_message(state.line, entry.height, 0, entry.digest)
    own = signature_of(liar, message)
    votes = tuple((voter, own if voter == liar else b"forged") for voter in sorted(by))
    return Outcome(Certified(entry, Certificate(entry.height, 0, entry.digest, votes)))


def two_votes(line: LineId, height: int, voter: PeerId) -> Evidence:
    """Return evidence with two votes of one round for different entries, both genuinely signed by
    `voter`.
    """
    entries = digest("one"), digest("other")
    votes = [
        Statement(None, 0, entry, signature_of(voter, vote_message(line, height, 0, entry)))
        for entry in entries
    ]
    return Evidence(line, height, voter, *votes)


def tampered(unicast: Unicast, part: str, run: RunId) -> Unicast:
    """Return the message with one part altered.

    The part is a vote's `line`, `height` or `entry`, a `signature`, or `claim`: the proposer's
    signature in a promise, which proves the entry that the voter has accepted. `twin` replaces a
    proposal with a different one, signed by the same proposer.
    """
    message = unicast.message
    match message, part:
        case Accept(vote), "line":
            other = RunId(digest("another run"))
            signature = signature_of(vote.voter, replace(vote, line=other).message)
            return replace(unicast, message=Accept(replace(vote, line=other, signature=signature)))
        case Accept(vote), "height":
            return replace(unicast, message=Accept(replace(vote, height=vote.height + 1)))
        case Accept(vote), "entry":
            return replace(unicast, message=Accept(replace(vote, entry=digest("another entry"))))
        case Accept(vote), "signature":
            return replace(unicast, message=Accept(replace(vote, signature=b"noise")))
        case Propose(), "signature":
            return replace(unicast, message=replace(message, signature=b"noise"))
        case Propose(), "twin":
            return replace(unicast, message=twin_of(message, unicast.sender, run))
        case Promise(accepted=Accepted() as claim), "claim":
            invented = replace(claim, signature=b"invented")
            return replace(unicast, message=replace(message, accepted=invented))
        case Promise(), "signature":
            return replace(unicast, message=replace(message, signature=b"noise"))
        case _:
            raise StoryFault(f"{type(message).__name__.lower()} has no {part} to alter")


def twin_of(proposal: Propose, proposer: PeerId, run: RunId) -> Propose:
    """Return a second proposal for the same round with another valid entry, correctly signed."""
    entry = proposal.entry
    if not isinstance(entry.value, Roster) or len(entry.value.participants) < 2:
        raise StoryFault("a twin can be made only of a roster with several participants")
    first, *others = entry.value.participants
    twin = replace(entry, value=replace(entry.value, participants=(*others, first)))
    message = vote_message(run, entry.height, proposal.round, twin.digest)
    return replace(proposal, entry=twin, signature=signature_of(proposer, message))
