"""Claims and statements may come from anybody. Peers that withhold or contradict them are named."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import Digest
from p2ptrain.kernels import WIDTH
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.names import label
from p2ptrain.proofs.claims import Claim, encode_claim
from p2ptrain.proofs.sketch_collection import Decision, SketchBook
from p2ptrain.proofs.sketches import seed_of
from p2ptrain.proofs.stated_sketch import StatedSketch
from p2ptrain.store import digest_of

PEERS = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 6)]
ME, OTHERS = PEERS[0], PEERS[1:]
ROSTER, LINE = digest_of(b"roster"), digest_of(b"run")
DEADLINE_S = 10.0


def claim_of(who: Identity) -> Claim:
    return Claim(who.peer, LINE, 3, 1, None, 64, 2, digest_of(who.peer.encode()))


def statement_of(who: Identity, value: int = 1, roster: Digest = ROSTER) -> bytes:
    sums = [np.full(WIDTH, value, np.int64)] * 2
    return StatedSketch.of(roster, who.peer, sums).signed(who.sign)


def book(*complete: Identity, documents: tuple[Identity, ...] = ()) -> SketchBook:
    """A book with everything of the peers in `complete`, and the documents of `documents`."""
    parts = tuple(Participant(who.peer, 64, 2, claim_of(who).digest) for who in PEERS)
    made = SketchBook(ME.peer, ROSTER, 3, parts, 2)
    for who in (*complete, *documents):
        made.take_document(encode_claim(claim_of(who)))
    for who in complete:
        made.take_statement(statement_of(who), verify)
    return made


def names(*peers: Identity) -> str:
    return ", ".join(label(who.peer) for who in peers)


def test_contributions_are_judged_once_everything_is_here() -> None:
    made = book(*PEERS)
    assert made.decision(0.0, DEADLINE_S) == Decision("judge")
    assert [each.peer for each in made.stated] == [who.peer for who in PEERS]
    assert made.seed == seed_of(ROSTER, [claim_of(who).contribution for who in PEERS])


def test_late_peers_are_suspected_after_the_deadline_only() -> None:
    made = book(*PEERS[:3], documents=tuple(PEERS[3:]))
    late = tuple(who.peer for who in PEERS[3:])
    assert made.decision(9.9, DEADLINE_S) == Decision("wait", late)
    assert made.incomplete() == late
    words = f"no sketches came from {names(*PEERS[3:])}"
    assert made.decision(10.0, DEADLINE_S) == Decision("fault", late, words)


def test_peer_without_a_document_delays_all_and_is_suspected_alone() -> None:
    made = book(documents=tuple(PEERS[:4]))
    assert made.seed is None
    words = f"no claims came from {names(PEERS[4])}"
    assert made.decision(10.0, DEADLINE_S) == Decision("fault", (PEERS[4].peer,), words)


def test_peer_that_is_cut_off_judges_nobody() -> None:
    made = book(*PEERS[:2], documents=tuple(PEERS[2:]))
    assert made.decision(10.0, DEADLINE_S).outcome == "unknown"
    made = book(*OTHERS, documents=(ME,))
    assert made.decision(10.0, DEADLINE_S).outcome == "unknown"


def test_two_statements_of_one_peer_prove_that_it_lies() -> None:
    made = book(*PEERS[:3])
    made.take_statement(statement_of(PEERS[1]), verify)
    assert made.decision(0.0, DEADLINE_S).outcome == "wait"
    made.take_statement(statement_of(PEERS[1], value=2), verify)
    words = f"{label(PEERS[1].peer)}: it has signed two different sketches"
    assert made.decision(0.0, DEADLINE_S) == Decision("fault", (PEERS[1].peer,), words)


def test_what_a_peer_shows_about_others_is_not_held_against_them() -> None:
    made = book(ME)
    forged = bytearray(statement_of(PEERS[1]))
    forged[-1] ^= 1
    stranger = Identity.from_seed(bytes([9]) * 32)
    wrong = [bytes(forged), statement_of(stranger), statement_of(PEERS[1], 1, digest_of(b"old"))]
    for data in wrong:
        with pytest.raises(RemoteProtocolError):
            made.take_statement(data, verify)
    with pytest.raises(RemoteProtocolError):
        made.take_document(encode_claim(claim_of(stranger)))
    assert made.decision(0.0, DEADLINE_S).outcome == "wait"
    assert made.statements.keys() == {ME.peer}


def test_claim_that_contradicts_the_roster_is_its_peers_fault() -> None:
    lie = Claim(PEERS[1].peer, LINE, 3, 1, None, 96, 3, digest_of(b"bytes"))
    parts = tuple(Participant(who.peer, 64, 2, lie.digest) for who in PEERS)
    made = SketchBook(ME.peer, ROSTER, 3, parts, 2)
    made.take_document(encode_claim(lie))
    assert made.decision(0.0, DEADLINE_S).suspects == (PEERS[1].peer,)


def test_each_pair_has_one_that_begins_and_the_work_is_shared_out() -> None:
    parts = tuple(Participant(who.peer, 64, 2, claim_of(who).digest) for who in PEERS)
    books = {who.peer: SketchBook(who.peer, ROSTER, 3, parts, 2) for who in PEERS}
    begun = [
        [other for other in books if other != me and made.begins_with(other)]
        for me, made in books.items()
    ]
    assert all(
        books[one].begins_with(other) != books[other].begins_with(one)
        for one in books
        for other in books
        if one != other
    )
    assert [len(each) for each in begun] == [2] * 5


def test_peer_shows_its_own_claim_and_statement_unasked() -> None:
    made = book(ME)
    who = PEERS[1]
    for _ in range(2):
        made.take_own_of(who.peer, encode_claim(claim_of(who)), statement_of(who), verify)
    assert not made.lacks(who.peer)
    made.take_own_of(who.peer, b"", statement_of(who, value=2), verify)
    assert made.decision(0.0, DEADLINE_S).suspects == (who.peer,)


def test_what_a_peer_shows_unasked_about_others_is_refused() -> None:
    made, liar, other = book(ME), PEERS[1].peer, PEERS[2]
    for document, statement in ((encode_claim(claim_of(other)), b""), (b"", statement_of(other))):
        with pytest.raises(RemoteProtocolError, match="somebody else"):
            made.take_own_of(liar, document, statement, verify)
    assert made.documents.keys() == made.statements.keys() == {ME.peer}
    assert made.decision(0.0, DEADLINE_S).outcome == "wait"
