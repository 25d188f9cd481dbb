"""A chain from a peer is accepted only up to its first invalid entry or certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.values import Certificate, Certified, Commit, Entry, Participant, Roster
from p2ptrain.ledger.chain.verify import check_certified, replay
from p2ptrain.simulation.disk import signature_of, verify
from p2ptrain.testing.ledgers import certify, chain_of, digest, peers, small_rules

A, B, C = peers("a b c")
RULES = small_rules()
OPENING = Roster(0, 0, (A, B, C), (), (Participant(A, 200, 2), Participant(B, 200, 2)))
CHAIN, END = chain_of(RULES, [OPENING, Commit(0, 0, digest("u"))])


def with_votes(certified: Certified, names: str) -> Certified:
    kept = tuple(pair for pair in certified.certificate.votes if pair[0] in names.split())
    return replace(certified, certificate=replace(certified.certificate, votes=kept))


def test_valid_chain_is_replayed_to_the_same_state() -> None:
    assert replay(RULES, CHAIN, verify) == END


def test_votes_of_a_quorum_are_enough() -> None:
    assert check_certified(RULES, genesis(RULES), with_votes(CHAIN[0], "b c"), verify).height == 1


def _forged_signature(certified: Certified) -> Certified:
    votes = tuple((voter, b"x" * 16) for voter, _ in certified.certificate.votes)
    return replace(certified, certificate=replace(certified.certificate, votes=votes))


def _with_a_stranger(certified: Certified) -> Certified:
    certificate = certified.certificate
    votes = (*certificate.votes[:2], (PeerId("z"), b"x"))
    return replace(certified, certificate=replace(certificate, votes=votes))


def _of_another_round(certified: Certified) -> Certified:
    return replace(certified, certificate=replace(certified.certificate, round=1))


def _over_another_entry(certified: Certified) -> Certified:
    entry = replace_value(certified.entry, Commit(0, 0, digest("other")))
    return replace(certified, entry=entry)


def _signed_for_another_height(certified: Certified) -> Certified:
    entry = certified.entry
    message = f'p2ptrain-vote/1\n["{RULES.run}",9,0,"{entry.digest}"]'.encode()
    votes = tuple((v, signature_of(v, message)) for v, _ in certified.certificate.votes)
    return Certified(entry, Certificate(entry.height, 0, entry.digest, votes))


def _signed_for_another_run(certified: Certified) -> Certified:
    other = certify(
        RULES, replace(genesis(RULES), line=digest("another run")), certified.entry.value
    )
    entry = certified.entry
    return Certified(entry, Certificate(entry.height, 0, entry.digest, other.certificate.votes))


def replace_value(entry: Entry, value: Commit) -> Entry:
    return Entry(entry.height, entry.parent, value)


BAD: dict[str, tuple[Callable[[Certified], Certified], str]] = {
    "a minority": (lambda it: with_votes(it, "a"), "1 of 3 votes are not a quorum"),
    "no votes": (lambda it: with_votes(it, ""), "0 of 3 votes are not a quorum"),
    "a forged signature": (_forged_signature, "the signature of a is not valid"),
    "a stranger": (_with_a_stranger, "z is not a voter"),
    "another round": (_of_another_round, "the signature of a is not valid"),
    "another entry": (_over_another_entry, "it is for a different entry"),
    "another height": (_signed_for_another_height, "the signature of a is not valid"),
    "another run": (_signed_for_another_run, "the signature of a is not valid"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("height", [1, 2])
def test_invalid_certificate_is_reported_with_its_height(name: str, height: int) -> None:
    spoil, fault = BAD[name]
    chain = [*CHAIN[: height - 1], spoil(CHAIN[height - 1]), *CHAIN[height:]]
    with pytest.raises(RemoteProtocolError) as caught:
        replay(RULES, chain, verify)
    assert caught.value.what == f"the certificate of entry {height} is not valid: {fault}"


def test_certificate_without_its_proposers_vote_is_refused() -> None:
    """Without this rule, two entries could be certified in one round without evidence against its
    proposer.
    """
    for height, missing in ((1, "b"), (2, "c")):
        others = " ".join({"a", "b", "c"} - {missing})
        chain = [*CHAIN[: height - 1], with_votes(CHAIN[height - 1], others)]
        with pytest.raises(RemoteProtocolError, match=f"lacks the vote of its proposer, {missing}"):
            replay(RULES, chain, verify)


def test_gap_in_a_chain_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="does not follow height 0"):
        replay(RULES, CHAIN[1:], verify)


def test_certified_entry_that_breaks_the_rules_is_refused() -> None:
    bad = certify(RULES, genesis(RULES), Commit(0, 0, digest("u")))
    with pytest.raises(RemoteProtocolError, match="entry 1 is not valid"):
        replay(RULES, [bad], verify)
