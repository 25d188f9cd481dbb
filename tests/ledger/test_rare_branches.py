"""Rare code paths of the ledger."""

from __future__ import annotations

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ledger.chain.canonical import canonical
from p2ptrain.ledger.history.catchup import Catchup
from p2ptrain.ledger.messages.events import Received, Tick
from p2ptrain.ledger.messages.messages import Prepare, Promise, Propose
from p2ptrain.ledger.messages.peer_reports import Leaving, PeerDown, PeerUp, ReduceDone
from p2ptrain.ledger.messages.wire import decode
from p2ptrain.ledger.policy.policy import what_to_propose
from p2ptrain.testing.ledgers import LedgerGroup, digest, peers, small_rules

A, B, C, D = peers("a b c d")
U = digest("u")


def test_unsolicited_entries_do_not_trigger_a_request() -> None:
    catchup = Catchup(heights={A: 9})
    catchup.note_growth(B, 4, now=1.0)
    assert catchup.ask_at is None


def test_prepare_for_round_0_is_ignored() -> None:
    some = LedgerGroup(small_rules())
    some.send_events("a", Received(B, Prepare(1, 0)))
    assert some.notes == [(A, "b prepares round 0: the first round does not need promises")]


def test_late_proposal_of_an_earlier_round_does_not_block_the_next_one() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.mail.clear()
    some.send_events("a", PeerDown(B))
    some.send_events("c", PeerDown(B))
    some.send_events(
        "a", *(Received(C, unicast.message) for unicast in some.mail if unicast.receiver == A)
    )
    some.deliver(lambda unicast: unicast.receiver in (A, C))
    assert some["a"].state.height == 1


def test_repeated_promise_counts_once() -> None:
    some = LedgerGroup(small_rules("a b c d e"))
    some.ready("a b c d e")
    some.mail.clear()
    some.send_events("c", PeerDown(B))
    promise = some.electorate("a").promise(1, None)
    assert isinstance(promise, Promise)
    some.send_events("c", Received(A, promise), Received(A, promise))
    assert some["c"].state.height == 0
    assert not any(isinstance(letter.message, Propose) for letter in some.mail)


def test_leader_without_the_update_or_a_value_to_propose_waits() -> None:
    """The leader `d` has accepted a Commit, and has lost the update in a crash. A quorum promises
    without naming an accepted entry, so `d` need not propose the Commit. But after its restart, `d`
    has no reports from which it could propose anything else.
    """
    some = LedgerGroup(small_rules("a b c d e"))
    some.ready("a b c d e")
    some.deliver()
    some.hold_update(U, "c d")
    results = [ReduceDone(peer, 0, 0, U) for peer in (A, C, D)]
    for name in "cd":
        some.send_events(name, *results)
    some.deliver(lambda unicast: unicast.receiver == D)
    some.crash("c")
    some.crash("d")
    some.start("d")
    some.send_events("d", PeerDown(C))
    some.deliver()
    assert [some.acceptor(name).promised for name in "abde"] == [1] * 4
    assert some.round("d") == 1
    assert set(some.heights().values()) == {1}
    some.hold_update(U, "a b d e")
    some.send_to_all(*results)
    some.wait(10)
    assert some.heights() == {"a": 2, "b": 2, "d": 2, "e": 2}
    assert some["a"].updates[0].update == U


def test_update_that_is_no_longer_needed_is_not_fetched_again() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver()
    some.send_events("c", ReduceDone(A, 0, 0, U), ReduceDone(B, 0, 0, U))
    assert len(some.fetches) == 1
    some.send_events("c", PeerDown(A), PeerDown(B))
    some.wait(3, lambda unicast: False)
    assert len(some.fetches) == 1
    assert some["c"].next_deadline() is None


def test_roster_without_a_voter_is_not_proposed() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver()
    for name in "abc":
        some.send_events(name, *(Leaving(peer) for peer in (A, B, C)))
        ledger = some[name]
        wish = what_to_propose(ledger.rules, ledger.state, ledger.reports, some.now)
        assert wish.value is None
    some.send_to_all(PeerUp(A), Tick())
    assert set(some.heights().values()) == {1}


def test_claim_of_an_accepted_value_has_three_parts() -> None:
    plain = {"kind": "promise", "height": 1, "round": 1, "accepted": [0], "signature": "eA=="}
    with pytest.raises(RemoteProtocolError, match="the accepted entry must have 3 parts"):
        decode(canonical(plain))


@pytest.mark.parametrize("proof", [["a", None], ["a", [0, U], "eA=="]])
def test_promise_proof_and_its_claim_have_three_parts(proof: list[object]) -> None:
    entry = {"height": 1, "parent": U, "value": {"kind": "skip", "step": 0}}
    plain = {"kind": "propose", "round": 1, "entry": entry, "signature": "", "promises": [proof]}
    with pytest.raises(RemoteProtocolError, match="must have 3 parts"):
        decode(canonical(plain))


def test_update_that_is_held_is_not_fetched_again() -> None:
    """The node stops repeating the fetch once the update has arrived."""
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver()
    some.hold_update(U, "c")
    some.made(U, "b c")
    some.deliver(lambda unicast: unicast.receiver == A)
    fetches = len(some.fetches)
    assert fetches > 0
    some.hold_update(U, "a b")
    some.wait(5)
    assert set(some.heights().values()) == {2}
    assert len(some.fetches) == fetches
