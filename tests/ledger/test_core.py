"""The interface of a ledger: its status in words, the records that a restart needs, and how it
handles unusual input.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.bounded_table import PEERS_MAX
from p2ptrain.ledger.chain.decode_values import certified_from_plain, entry_from_plain
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Entry, Roster, Skip, Vote
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.history.kept_chain import CommittedUpdate
from p2ptrain.ledger.messages.effects import AskEntries, Decided, Persist, Send
from p2ptrain.ledger.messages.events import PeerHeight, Received, Tick
from p2ptrain.ledger.messages.messages import Accept, Accepted, Entries, Prepare, Promise, Refused
from p2ptrain.ledger.messages.peer_reports import Leaving, Ready, ReduceFailed
from p2ptrain.ledger.paxos.acceptor import Acceptor, restored_acceptors
from p2ptrain.ledger.queries import LedgerStatus
from p2ptrain.simulation.disk import signer, verify
from p2ptrain.testing.ledgers import (
    LedgerGroup,
    accepted,
    certify,
    chain_of,
    digest,
    peers,
    small_rules,
)

LINE = small_rules().run

A, B, C, D = peers("a b c d")
U = digest("u")


def test_status_shows_the_agreed_state_and_the_awaited_peers() -> None:
    some = LedgerGroup(small_rules())
    some.send_events("a", Ready(A, 0, 200, 2))
    assert some["a"].status(0.0) == LedgerStatus(
        height=0,
        head=Digest(some.rules.run),
        step=0,
        phase=Phase.GATHER,
        attempt=0,
        round=0,
        proposer=B,
        reason="members are still training",
        waiting_for=(B, C),
        branch="",
    )


def test_status_says_whether_there_is_something_to_vote_on() -> None:
    some = LedgerGroup(small_rules())
    said = list[bool]()
    for peer in (A, B, C):
        some.send_events("a", Ready(peer, 0, 200, 2))
        said.append(some["a"].status(0.0).proposes)
    assert said == [False, False, True]


def test_status_follows_the_run_to_its_end() -> None:
    some = LedgerGroup(small_rules(outer_steps=1))
    said = [some["a"].status(0.0).reason]
    some.ready("a b c")
    some.deliver()
    said.append(some["a"].status(0.0).reason)
    some.hold_update(U, "a b c")
    some.made(U, "a b c")
    some.deliver()
    said.append(some["a"].status(0.0).reason)
    assert said == ["members are still training", "an exchange is in progress", "the run has ended"]


def test_nothing_is_proposed_while_all_voters_are_leaving() -> None:
    some = LedgerGroup(small_rules("a b"))
    some.send_events("a", Leaving(A), Leaving(B), Ready(A, 0, 200, 2), Ready(B, 0, 200, 2))
    assert some.mail == []
    assert some["a"].status(0.0).reason == "1 more participant needed"


def test_rewritten_log_of_votes_contains_everything_for_a_restart() -> None:
    some = LedgerGroup(small_rules())
    for step in range(3):
        some.ready("a b c")
        some.deliver()
        some.hold_update(digest(f"u{step}"), "a b c")
        some.made(digest(f"u{step}"), "a b c")
        some.deliver()
    assert some["a"].records() == some.disks[A].records[-1:], (
        "the last vote is kept, although its height is decided"
    )
    assert len(some.disks[A].records) == 6
    some.send_events("a", Received(C, Prepare(7, 1)))
    assert restored_acceptors(some["a"].records(), decided={LINE: 6}) == {
        (LINE, 7): Acceptor(LINE, 7, 1)
    }


def test_voter_that_lost_entries_does_not_vote_until_it_has_them() -> None:
    """Before this voter has the lost entries again, its vote could form a quorum with another voter
    that is behind. The two could decide a height a second time.
    """
    some = LedgerGroup(small_rules())
    for step in range(2):
        some.ready("a b c")
        some.deliver()
        some.hold_update(digest(f"u{step}"), "a b c")
        some.made(digest(f"u{step}"), "a b c")
        some.deliver()
    disk, decided = some.disks[A], some.disks[A].chain[:]
    disk.records[:], disk.chain[:] = some["a"].records(), decided[:1]
    some.start("a")
    refused = some.send_events("a", Received(C, Prepare(2, 3)))
    assert not any(isinstance(effect, Persist | Send) for effect in refused)
    some.send_events("a", Received(B, Entries(4, tuple(decided[1:]))))
    assert some["a"].state.height == 4
    promised = some.send_events("a", Received(C, Prepare(5, 3)))
    assert [type(effect) for effect in promised] == [Persist, Send]


def test_records_of_heights_lost_from_the_chain_are_kept() -> None:
    """The chain has lost its last entries. The promises for heights beyond its end are still
    binding.
    """
    rules = small_rules()
    chain = chain_of(rules, [Roster(0, 0, (A, B, C), (D,))])[0]
    later = Acceptor(LINE, 2)
    records = [later.promise(4)]
    ledger = Ledger(rules, A, signer(A), verify, (), records)
    assert ledger.records() == records
    ledger.handle(Received(B, Entries(1, tuple(chain))), 0.0)
    assert ledger.state.height == 1
    effects = ledger.handle(Received(B, Prepare(2, 2)), 0.0)
    refusals = [it.message for it in effects if hasattr(it, "message")]
    assert refusals == [Refused(2, 2, 4, "this node has promised a later round")]


def test_update_that_was_voted_for_is_listed_until_decided() -> None:
    """The node's store must keep the update, although no decided entry names it yet."""
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver()
    assert [some[name].voted_for() for name in "abc"] == [(), (), ()]
    some.hold_update(U, "a b c")
    some.made(U, "a b c")
    some.deliver(lambda unicast: unicast.receiver == B)
    assert [some[name].voted_for() for name in "abc"] == [(), (U,), (U,)]
    assert some.start("b").voted_for() == (U,)
    some.wait(5)
    assert [some[name].updates[0].update for name in "abc"] == [U, U, U]
    assert [some[name].voted_for() for name in "abc"] == [(), (), ()]


def test_committed_updates_are_listed_by_step_with_their_height() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver()
    some.hold_update(U, "a b c")
    some.made(U, "a b c")
    some.deliver()
    assert some["c"].updates == {0: CommittedUpdate(0, 2, U)}
    again = some.start("c")
    assert (again.updates, again.state) == (some["a"].updates, some["a"].state)


def test_repeated_reports_cause_no_messages() -> None:
    some = LedgerGroup(small_rules())
    first = some.send_events("b", Ready(A, 0, 200, 2), ReduceFailed(A, 0, 0))
    again = some.send_events("b", Ready(A, 0, 200, 2), ReduceFailed(A, 0, 0), PeerHeight(A, 0))
    assert (first, again) == ([], [])


def test_only_a_voters_last_message_about_later_heights_is_kept() -> None:
    some = LedgerGroup(small_rules())
    first = certify(some.rules, some["a"].state, Roster(0, 0, (A, B, C), (D,)))
    some.send_events("a", Received(D, Prepare(2, 2)))
    some.send_events("a", Received(B, Prepare(2, 2)), Received(B, Prepare(2, 5)))
    some.send_events("a", Received(C, Entries(1, (first,))))
    promise = some.electorate("a").promise(5, None)
    assert [(it.receiver, it.message) for it in some.mail] == [(B, promise)]
    assert some.notes == []


def test_waiting_message_is_answered_after_the_entry_is_durable() -> None:
    """If the promise were sent before the previous entry is durable, a crash could lose that entry
    but not the promise (SPEC.md R6).
    """
    some = LedgerGroup(small_rules())
    first = certify(some.rules, some["a"].state, Roster(0, 0, (A, B, C), (D,)))
    assert some.send_events("a", Received(B, Prepare(2, 2))) == []
    effects = some.send_events("a", Received(C, Entries(1, (first,))))
    assert [type(it) for it in effects[:3]] == [Decided, Persist, Send]
    assert effects[2] == Send(B, some.electorate("a").promise(2, None))


def test_late_answers_about_decided_heights_are_ignored() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    accepted = some.acceptor("b").accepted
    assert accepted is not None
    vote = some.electorate("a").vote(0, accepted.entry)
    some.deliver()
    assert some.send_events("b", Received(A, Accept(vote))) == []


def test_refusal_that_names_a_round_too_far_ahead_is_ignored() -> None:
    some = LedgerGroup(small_rules())
    some.send_events(
        "a", Received(B, Refused(1, 5, 6, "no")), Received(B, Refused(1, 0, 1 << 40, "no"))
    )
    assert (some.notes, some.round("a")) == ([], 0)


def test_number_of_peers_whose_heights_are_remembered_is_bounded() -> None:
    some = LedgerGroup(small_rules())
    for n in range(PEERS_MAX):
        some.send_events("a", PeerHeight(PeerId(f"p{n}"), 0))
    assert some.send_events("a", PeerHeight(PeerId("late"), 9), Tick()) == []
    assert some.send_events("a", PeerHeight(PeerId("p1"), 9), Tick()) == [
        AskEntries(PeerId("p1"), 1)
    ]


def test_status_and_tick_do_not_change_the_state() -> None:
    some = LedgerGroup(small_rules())
    some.send_to_all(Tick())
    before = [ledger.state for ledger in some.ledgers.values()]
    for ledger in some.ledgers.values():
        ledger.status(99.0)
        ledger.handle(Tick(), 99.0)
    assert [ledger.state for ledger in some.ledgers.values()] == before


# ── electorates ──────────────────────────────────────────────────────────────────────────


def test_votes_and_promises_are_valid_only_for_their_height_and_sender() -> None:
    electorate = LedgerGroup(small_rules()).electorate("a")
    entry = Entry(1, digest("a run"), Skip(0))
    vote = electorate.vote(0, entry)
    assert electorate.vote_fault(A, vote) == ""
    assert electorate.vote_fault(A, replace(vote, height=2)) == "it is for height 2"
    assert electorate.vote_fault(B, vote) == "its sender is not a voter of this height"
    promise = electorate.promise(2, accepted(small_rules(), 1, entry))
    assert electorate.promise_fault(A, promise) == ""
    assert electorate.promise_fault(D, promise) == "its sender is not a voter of this height"
    elsewhere = "the entry that it reports as accepted is not valid at this height"
    for round, other in ((2, entry), (1, Entry(1, digest("x"), Skip(0)))):
        false = Promise(1, 2, accepted(small_rules(), round, other), promise.signature)
        assert electorate.promise_fault(A, false) == elsewhere
    invented = Promise(1, 2, Accepted(1, entry, b"invented"), promise.signature)
    unproposed = "a claims to have accepted an entry that was never proposed"
    assert electorate.promise_fault(A, invented) == unproposed


def test_vote_signs_its_line_height_round_and_entry() -> None:
    vote = Vote(small_rules().run, 1, 0, digest("e"), A, b"")
    assert vote.message == f'p2ptrain-vote/1\n["{vote.line}",1,0,"{digest("e")}"]'.encode()


# ── entries received from peers
# ───────────────────────────────────────────────────────────────────────

GOOD = json.dumps(certify(small_rules(), chain_of(small_rules(), [])[1], Skip(0)).plain())


@pytest.mark.parametrize(
    ("place", "junk"),
    [
        (("entry", "value"), {"kind": "hymn"}),
        (("entry", "value"), None),
        (("entry", "height"), 0),
        (("entry", "parent"), "short"),
        (("certificate", "entry"), 7),
        (("certificate", "votes"), [["a"]]),
        (("certificate", "votes"), [["b", ""], ["a", ""]]),
        (("certificate", "votes"), [["ä", ""]]),
        (("certificate", "votes"), [["", ""]]),
        (("certificate", "votes"), [["a", "not base64!"]]),
        (("certificate", "votes"), [["a", "A" * 1000]]),
    ],
    ids=str,
)
def test_malformed_entry_raises_remote_protocol_error(place: tuple[str, str], junk: object) -> None:
    plain = json.loads(GOOD)
    assert certified_from_plain(json.loads(GOOD)).entry == entry_from_plain(plain["entry"])
    plain[place[0]][place[1]] = junk
    with pytest.raises(RemoteProtocolError):
        certified_from_plain(plain)
