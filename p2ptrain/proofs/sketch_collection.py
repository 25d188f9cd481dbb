"""Collect the claims and the stated sketches of all participants of one attempt.

Nobody can compute a sketch before the documents of all claims are known, because they give the
seed. Every document and every statement proves itself: the roster names the digest of a document,
and a statement is signed. So it does not matter which participant delivers them, and a participant
that shows its own to some of the others only is not missing to anybody.

When everything is there, the contributions can be judged. If something is missing at the deadline,
its owner is suspected. If more than half of the other participants are missing, this peer is
probably the one that is cut off, so it judges nobody.

This module does not know clocks or the network. Nodes use it in `p2ptrain/node/reduce`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.names import label
from p2ptrain.proofs.claims import Claim, decode_claim
from p2ptrain.proofs.sketches import seed_of
from p2ptrain.proofs.stated_sketch import StatedSketch, read_statement

Outcome = Literal["wait", "judge", "fault", "unknown"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The next thing to do in an attempt: wait for more, judge the statements, give up because the
    `suspects` are at fault, or go on without a judgement. `reason` says why, in words."""

    outcome: Outcome
    suspects: tuple[PeerId, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class SketchBook:
    """All that one participant, `me`, knows about an attempt. `roster` is the digest of its Roster
    entry, and `parts` the number of sketches in each statement."""

    me: PeerId
    roster: Digest
    step: int
    participants: tuple[Participant, ...]
    parts: int
    documents: dict[PeerId, bytes] = field(default_factory=dict)
    """The encoded claims. The digests in the roster prove them."""
    statements: dict[PeerId, bytes] = field(default_factory=dict)
    """The signed statements, one for each participant."""
    _claims: dict[PeerId, Claim] = field(default_factory=dict)
    _stated: dict[PeerId, StatedSketch] = field(default_factory=dict)
    _faults: dict[PeerId, str] = field(default_factory=dict)

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return tuple(each.peer for each in self.participants)

    @property
    def seed(self) -> int | None:
        """The seed of all sketches; None while a document is missing."""
        if len(self._claims) < len(self.participants):
            return None
        return seed_of(self.roster, [self.contribution(peer) for peer in self.peers])

    @property
    def stated(self) -> list[StatedSketch]:
        """The statements in the roster's order. All of them must be here."""
        return [self._stated[peer] for peer in self.peers]

    def begins_with(self, peer: PeerId) -> bool:
        """Return whether `me`, and not `peer`, begins their swaps. Each participant begins with
        about half of the others."""
        mine, theirs = self.peers.index(self.me), self.peers.index(peer)
        return (mine < theirs) == ((mine + theirs) % 2 == 1)

    def contribution(self, peer: PeerId) -> Digest:
        """Return the digest of the contribution of a participant, whose document must be here."""
        return self._claims[peer].contribution

    def incomplete(self) -> tuple[PeerId, ...]:
        """Return the participants whose claim or statement is missing."""
        return tuple(peer for peer in self.peers if self.lacks(peer))

    def lacks(self, peer: PeerId) -> bool:
        return peer not in self._claims or peer not in self._stated

    def take_document(self, data: bytes) -> None:
        """Add a claim, from anybody.
        Raises RemoteProtocolError: the roster does not name it, or it contradicts the roster."""
        claim = decode_claim(data)
        part = next((each for each in self.participants if each.peer == claim.peer), None)
        if part is None or claim.digest != part.claim:
            raise RemoteProtocolError("it shows a claim that the roster does not name")
        told = (claim.step, claim.tokens, claim.blocks)
        if told != (self.step, part.tokens, part.blocks):
            self._faults[claim.peer] = "its claim says something else than the roster"
            return
        self._claims[claim.peer] = claim
        self.documents[claim.peer] = data

    def take_statement(self, data: bytes, verify: Verify, of: PeerId | None = None) -> None:
        """Add a statement, from anybody. Two different statements of one participant prove that it
        lies. Raises RemoteProtocolError: it is malformed, not signed, or about something else, or
        not about `of`."""
        stated = read_statement(data, verify)
        if of not in (None, stated.peer):
            raise RemoteProtocolError("it shows the sketch of somebody else")
        if stated.roster != self.roster or stated.peer not in self.peers:
            raise RemoteProtocolError("a sketch is about a different attempt")
        if len(stated.parts) != self.parts:
            raise RemoteProtocolError("a sketch has a wrong number of parts")
        known = self._stated.get(stated.peer)
        if known is not None and known != stated:
            self._faults[stated.peer] = "it has signed two different sketches"
            return
        self._stated[stated.peer] = stated
        self.statements[stated.peer] = data

    def take_own_of(self, peer: PeerId, document: bytes, statement: bytes, verify: Verify) -> None:
        """Add the claim and the statement that `peer` shows unasked about itself; each may be
        empty. Copies of what is here cost nothing.
        Raises RemoteProtocolError: one of them is invalid, or about somebody else. That is not held
        against the peer: it has shown nothing, so it is asked."""
        if document and document != self.documents.get(peer):
            if decode_claim(document).peer != peer:
                raise RemoteProtocolError("it shows the claim of somebody else")
            self.take_document(document)
        is_known = peer in self._faults or statement == self.statements.get(peer)
        if statement and not is_known:
            self.take_statement(statement, verify, of=peer)

    def note_fault(self, peer: PeerId, what: str) -> None:
        """Record that `peer` itself has shown something invalid about itself."""
        self._faults[peer] = what

    def decision(self, now_s: float, deadline_s: float) -> Decision:
        """Return what to do now. `deadline_s` is the time until which to wait."""
        if self._faults:
            words = "; ".join(f"{label(peer)}: {what}" for peer, what in self._faults.items())
            return Decision("fault", tuple(self._faults), words)
        # Without all documents nobody can make a statement. So only their owners are late.
        no_document = tuple(peer for peer in self.peers if peer not in self._claims)
        late = no_document or tuple(peer for peer in self.peers if peer not in self._stated)
        if not late:
            return Decision("judge")
        if now_s < deadline_s:
            return Decision("wait", late)
        what = "claims" if no_document else "sketches"
        words = f"no {what} came from {', '.join(map(label, late))}"
        if self.me in late:
            return Decision("unknown", (), "this node's own sketch is not ready")
        if 2 * len(late) > len(self.participants) - 1:
            return Decision("unknown", (), f"{words}, so this node is probably cut off")
        return Decision("fault", late, words)
