"""Answer processes that ask whether they are the only process with their identity.

Two processes with one identity cannot hear each other: a neighbour has one gossip stream for each
identity, and the stream leads to only one of the two. But each of them can ask a member, and gets
the reply. So a member acts as a mailbox. It gives each asker the nonces of other processes that
asked with the same identity, and the proofs that these processes sent. An *incarnation* is a number
that identifies one start of a node. If a member has recently heard from a different incarnation of
the asker, it also announces the asker's nonce to all members by gossip, in a *notice* that it
signs. So the two processes do not have to ask the same member.

A member does not check the proofs: the asker checks each proof with its own key, and does not trust
the member. If a member lies or withholds a proof, the asker still has the answers of other members.
All memory is bounded, and everything is forgotten after `KEPT_S`.

This module does no I/O: times are arguments, notices are results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from p2ptrain.eviction import IsMember, most_dispensable, nobody
from p2ptrain.ids import PeerId
from p2ptrain.peers.identity_messages import (
    CHALLENGES_MAX,
    PROOFS_MAX,
    IdentityNotice,
    IdentityProof,
    IdentityQuestion,
    IdentityReply,
)
from p2ptrain.peers.incarnations import Incarnations
from p2ptrain.rate_limit import Allowance

KEPT_S = 30.0
"""Seconds for which a nonce is kept until the other process asks here. Each process asks four
members every few seconds, so within this time the two ask a common member even among a hundred."""

PEERS_MAX = 4096
"""Maximum number of peers with a mailbox: as many as the peer table has."""

ASKERS_MAX = 4
"""Maximum number of incarnations of one peer whose nonces are kept. Only a holder of that peer's
key can ask, so nobody else can use up these places."""

AUTHORS_MAX = 16
OF_AUTHOR_MAX = 2
"""Limits on the notices kept about one peer: those of AUTHORS_MAX members, and OF_AUTHOR_MAX of
each member, one for each of two processes. A liar can fill only the places of one member."""

SUSPECTED_S = 8.0
"""Seconds for which a process that asked is assumed to be alive: a live process asks its next
question earlier than that."""

QUESTIONS_PER_S = 4.0
QUESTIONS_BURST = 16
"""Limits on the questions of one peer. They allow two processes that each ask once a second, and
two more that have just started."""

NOTICES_PER_S = 0.5
NOTICES_BURST = 16
"""Limits on all notices of this node. Two processes need fewer to find each other. A notice costs
every host 3.5 ms, and a lying member can make all others send notices. With a hundred members, the
attack takes 100 × 0.5 notices per second × 3.5 ms: a sixth of a core on every host."""

NOTICE_AGAIN_S = 2.0
"""Minimum seconds between two announced challenges of one process, and between two announced proofs
of one process."""

PROOFS_KEPT = OF_AUTHOR_MAX * AUTHORS_MAX + PROOFS_MAX
"""Maximum number of proofs kept about one peer."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Box:
    """Messages that wait for the processes of one peer, the oldest first, each with its time of
    arrival.

    - `asked`: the newest nonce of each incarnation that asked here.
    - `told`: the challenges that members announced. The key is (member, nonce).
    - `proofs`: the proofs received. The key is (the peer that sent the proof, nonce).
    - `announced`: what this node announced. The key is (whether it was a proof, incarnation).
    """

    asked: dict[int, tuple[bytes, float]] = field(default_factory=dict)
    told: dict[tuple[PeerId, bytes], tuple[None, float]] = field(default_factory=dict)
    proofs: dict[tuple[PeerId, bytes], tuple[IdentityProof, float]] = field(default_factory=dict)
    announced: dict[tuple[bool, int], tuple[None, float]] = field(default_factory=dict)

    def forget(self, before: float) -> None:
        _forget(self.asked, before)
        _forget(self.told, before)
        _forget(self.proofs, before)
        _forget(self.announced, before)


@dataclass(slots=True)
class IdentityMailboxes:
    """The mailboxes of all peers. The caller publishes what `pop_notices` returns."""

    incarnations: Incarnations
    is_member: IsMember = nobody
    notices: list[IdentityNotice] = field(default_factory=list)
    _boxes: dict[PeerId, _Box] = field(default_factory=dict)
    _questions: Allowance = field(
        default_factory=lambda: Allowance(QUESTIONS_BURST, QUESTIONS_PER_S)
    )
    _announced: Allowance = field(default_factory=lambda: Allowance(NOTICES_BURST, NOTICES_PER_S))

    def answer(self, peer: PeerId, question: IdentityQuestion, now: float) -> IdentityReply | None:
        """Return the answer to a question of the admitted `peer`; None if `peer` asks too often."""
        if not self._questions.consume(peer, 1, now):
            return None
        box = self._box(peer, now)
        for proof in question.proofs:
            self._take_proof(peer, box, proof, now)
        _put(box.asked, question.incarnation, question.nonce, now, ASKERS_MAX)
        suspected = self._is_suspected(peer, box, question.incarnation, now)
        if suspected:
            self._announce(box, IdentityNotice(peer, question.nonce), question.incarnation, now)
        return IdentityReply(
            suspected,
            _challenges(box, question.incarnation),
            _proofs_for(peer, box, question.incarnation),
            self.incarnations.mark(peer),
        )

    def note_notice(self, author: PeerId, notice: IdentityNotice, now: float) -> None:
        """Store a notice that a member sent by gossip. This node does not check whether its proof
        is genuine; the process that asked will check."""
        box = self._box(notice.peer, now)
        key = author, notice.nonce
        if notice.proof is None:
            _make_room(box.told, key)
            _put(box.told, key, None, now, OF_AUTHOR_MAX * AUTHORS_MAX)
        else:
            _make_room(box.proofs, key)
            _put(box.proofs, key, notice.proof, now, PROOFS_KEPT)

    def pop_notices(self) -> list[IdentityNotice]:
        """Return the notices to publish now, and forget them."""
        notices, self.notices = self.notices, []
        return notices

    def _is_suspected(self, peer: PeerId, box: _Box, incarnation: int, now: float) -> bool:
        asked_too = any(
            other != incarnation and now < at + SUSPECTED_S for other, (_, at) in box.asked.items()
        )
        told = any(now < at + SUSPECTED_S for _, at in box.told.values())
        return asked_too or told or self.incarnations.is_other_due(peer, incarnation, now)

    def _take_proof(self, peer: PeerId, box: _Box, proof: IdentityProof, now: float) -> None:
        """Keep a proof that `peer` made and sent. If another member announced the nonce, also
        announce the proof by gossip."""
        known = (peer, proof.nonce) in box.proofs
        _put(box.proofs, (peer, proof.nonce), proof, now, PROOFS_KEPT)
        if not known and any(nonce == proof.nonce for _, nonce in box.told):
            self._announce(box, IdentityNotice(peer, proof.nonce, proof), proof.incarnation, now)

    def _announce(self, box: _Box, notice: IdentityNotice, incarnation: int, now: float) -> None:
        key = notice.proof is not None, incarnation
        _, last_s = box.announced.get(key, (None, float("-inf")))
        if now >= last_s + NOTICE_AGAIN_S and self._announced.consume(None, 1, now):
            _put(box.announced, key, None, now, 2 * ASKERS_MAX)
            self.notices.append(notice)

    def _box(self, peer: PeerId, now: float) -> _Box:
        box = self._boxes.pop(peer) if peer in self._boxes else _Box()
        self._boxes[peer] = box
        box.forget(now - KEPT_S)
        if len(self._boxes) > PEERS_MAX:
            del self._boxes[most_dispensable(self._boxes, self.is_member)]
        return box


def _challenges(box: _Box, incarnation: int) -> tuple[bytes, ...]:
    """Return the nonces of incarnations other than `incarnation`: first the nonces of processes
    that asked here, then those that members announced; in each group, newer ones come first."""
    asked = [nonce for other, (nonce, _) in box.asked.items() if other != incarnation]
    told = [nonce for _, nonce in box.told]
    own = {nonce for other, (nonce, _) in box.asked.items() if other == incarnation}
    found = dict.fromkeys([*reversed(asked), *reversed(told)])
    return tuple(nonce for nonce in found if nonce not in own)[:CHALLENGES_MAX]


def _proofs_for(peer: PeerId, box: _Box, incarnation: int) -> tuple[IdentityProof, ...]:
    """Return the proofs of incarnations other than `incarnation`. Those that `peer` itself sent to
    this node come first."""
    newest_first = [(key[0], proof) for key, (proof, _) in reversed(box.proofs.items())]
    own = [proof for source, proof in newest_first if source == peer]
    proofs = own + [proof for source, proof in newest_first if source != peer]
    return tuple(proof for proof in proofs if proof.incarnation != incarnation)[:PROOFS_MAX]


def _make_room(kept: dict[tuple[PeerId, bytes], _Value], key: tuple[PeerId, bytes]) -> None:
    """Drop the oldest entry of this author if the author has the maximum number."""
    of_author = [each for each in kept if each[0] == key[0] and each != key]
    if len(of_author) >= OF_AUTHOR_MAX:
        del kept[of_author[0]]


def _put(
    kept: dict[_Key, tuple[_Value, float]], key: _Key, value: _Value, now: float, most: int
) -> None:
    """Keep `value` as the newest value. If there are now too many, drop the oldest."""
    kept.pop(key, None)
    kept[key] = value, now
    if len(kept) > most:
        del kept[next(iter(kept))]


def _forget(kept: dict[_Key, tuple[_Value, float]], before: float) -> None:
    for key in [key for key, (_, at) in kept.items() if at < before]:
        del kept[key]
