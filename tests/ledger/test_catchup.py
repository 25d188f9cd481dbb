"""A ledger that lacks entries requests them page by page, and appends only certified entries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.bounded_table import PEERS_MAX
from p2ptrain.ledger.chain.values import Certified, Commit, Participant, Roster, Value
from p2ptrain.ledger.history.catchup import (
    ANSWER_S,
    QUESTIONS_MIN,
    SETTLE_S,
    SHOW_S,
    Catchup,
    page_from,
)
from p2ptrain.ledger.messages.effects import Accuse, AskEntries, Decided, Note
from p2ptrain.ledger.messages.events import PeerHeight, Received, Tick
from p2ptrain.ledger.messages.messages import (
    PAGE_BYTES_MAX,
    PAGE_ENTRIES_MAX,
    Entries,
    EntriesRequest,
    Outcome,
    Prepare,
    Pruned,
)
from p2ptrain.ledger.messages.peer_reports import ReduceDone
from p2ptrain.ledger.messages.wire import encode
from p2ptrain.testing.ledgers import (
    LedgerGroup,
    Unicast,
    certify,
    chain_of,
    digest,
    peers,
    small_rules,
)

A, B, C, D = peers("a b c d")


def history(steps: int) -> list[Certified]:
    rules = small_rules(outer_steps=1000)
    values: list[Value] = []
    for step in range(steps):
        values.append(Roster(step, 0, (A, B, C), (), (Participant(A, 200, 2),)))
        values.append(Commit(step, 0, digest(f"u{step}")))
    return chain_of(rules, values)[0]


CHAIN = history(100)


def old_and_new() -> LedgerGroup:
    """Return a group in which `a` has 200 entries and `d` has none."""
    some = LedgerGroup(small_rules(outer_steps=1000), names=peers("a d"))
    some.disks[A].chain.extend(CHAIN)
    some.start("a")
    return some


def test_a_newcomer_gets_the_whole_chain_page_by_page() -> None:
    some = old_and_new()
    pages: list[int] = []

    def watch(unicast: Unicast) -> bool:
        if isinstance(unicast.message, Entries):
            pages.append(len(unicast.message.certified))
        return True

    some.send_events("d", PeerHeight(A, 200), Tick())
    some.wait(1, watch)
    assert some["d"].state == some["a"].state
    assert some.disks[D].chain == CHAIN
    assert pages == [64, 64, 64, 8]


def test_single_missing_entry_is_awaited_before_it_is_requested() -> None:
    some = old_and_new()
    some.send_events("d", PeerHeight(A, 1), Tick())
    assert some.mail == []
    assert some["d"].next_deadline() == SETTLE_S
    some.send_events("d", PeerHeight(A, 2), Tick())
    assert some.mail == []
    some.wait(SETTLE_S)
    assert some["d"].state.height == 200


def test_unanswered_request_is_sent_to_a_different_peer() -> None:
    catchup = Catchup()
    catchup.note_height(A, 9, 0, now=0.0)
    catchup.note_height(B, 7, 0, now=0.0)
    asked = [catchup.whom_to_ask(0, set(), now=ANSWER_S * n) for n in range(4)]
    assert asked == [A, B, A, B]
    assert catchup.whom_to_ask(0, {A}, now=ANSWER_S * 4) == B


def test_silent_peers_do_not_block_the_others() -> None:
    """Peers are asked in turn, so even two silent peers that claim the longest chains do not keep
    us from asking the others.
    """
    catchup = Catchup()
    for peer, height in ((A, 2**53), (B, 2**53), (C, 9), (D, 9)):
        catchup.note_height(peer, height, 0, now=0.0)
    asked = [catchup.whom_to_ask(0, set(), now=ANSWER_S * n) for n in range(8)]
    assert asked == [A, B, C, D, A, B, C, D]


def test_number_of_remembered_strangers_with_bad_entries_is_bounded() -> None:
    some = old_and_new()
    bad = replace(CHAIN[0], certificate=replace(CHAIN[0].certificate, votes=()))
    for n in range(PEERS_MAX + 10):
        some.send_events("d", Received(PeerId(f"x{n}"), Outcome(bad)))
    some.wait(SETTLE_S)
    assert some.send_events("d", PeerHeight(PeerId("late"), 200), Tick()) == []
    assert some.send_events("d", PeerHeight(PeerId("x0"), 200), Tick()) == [
        AskEntries(PeerId("x0"), 1)
    ]


def test_member_is_asked_even_if_strangers_filled_the_table_first() -> None:
    catchup = Catchup(members=frozenset({A}))
    for n in range(PEERS_MAX):
        catchup.note_height(PeerId(f"x{n}"), 0, 0, now=0.0)
    catchup.note_height(B, 9, 0, now=0.0)
    catchup.note_height(A, 9, 0, now=0.0)
    assert (catchup.whom_to_ask(0, set(), now=0.0), len(catchup.heights)) == (A, PEERS_MAX)


def test_every_second_request_is_sent_to_a_member() -> None:
    catchup = Catchup(members=frozenset({A, B}))
    for n in range(300):
        catchup.note_height(PeerId(f"x{n}"), 2**53, 0, now=0.0)
    for peer in (A, B):
        catchup.note_height(peer, 9, 0, now=0.0)
    asked = [catchup.whom_to_ask(0, set(), now=ANSWER_S * n) for n in range(6)]
    assert (asked[::2], len(set(asked[1::2]))) == ([A, B, A], 3)


def test_memory_of_asked_peers_is_bounded() -> None:
    catchup = Catchup(members=frozenset({A}))
    for n in range(PEERS_MAX + 1):
        peer = PeerId(f"x{n}")
        catchup.note_height(peer, 9, 0, now=0.0)
        assert catchup.whom_to_ask(0, set(), now=ANSWER_S * n) == peer
        catchup.pruned(peer, Pruned(1, 5, digest("c")), 0, now=ANSWER_S * n)
        del catchup.heights[peer]
        catchup.ask_at = None
    known = (catchup.asked, catchup.floors, catchup.unproven)
    assert [len(each) for each in known] == [PEERS_MAX] * 3
    assert all(PeerId("x0") not in each for each in known)


def test_complete_ledger_does_not_ask_for_entries() -> None:
    catchup = Catchup()
    catchup.note_height(A, 9, 0, now=0.0)
    assert catchup.whom_to_ask(9, set(), now=0.0) is None
    assert catchup.ask_at is None


def test_peer_with_invalid_entries_is_reported_and_not_believed() -> None:
    some = old_and_new()
    effects = some.send_events("d", PeerHeight(A, 200), Tick())
    assert AskEntries(A, 1) in effects
    some.mail = []
    forged = replace(CHAIN[0], certificate=replace(CHAIN[0].certificate, votes=()))
    effects = some.send_events("d", Received(A, Entries(200, (forged,))))
    assert (
        Note(
            "a sent an invalid entry: the certificate of entry 1 is not valid: "
            "0 of 3 votes are not a quorum"
        )
        in effects
    )
    assert some["d"].state.height == 0
    some.wait(100)
    assert some["d"].state.height == 0


def test_peer_without_new_entries_is_not_asked_again_at_once() -> None:
    some = old_and_new()
    assert AskEntries(B, 1) in some.send_events("d", PeerHeight(B, 2**53), Tick())
    for page in ((), (), CHAIN[5:6]):
        effects = some.send_events("d", Received(B, Entries(2**53, tuple(page))))
        assert not [each for each in effects if isinstance(each, AskEntries)]
    assert some["d"].next_deadline() == ANSWER_S


def asked_for(catchup: Catchup, own_height: int, since: float, seconds: float) -> float:
    """Send requests for this many seconds. Return the time at the end."""
    now = since
    while now < since + seconds:
        assert catchup.whom_to_ask(own_height, set(), now) is not None
        now += ANSWER_S
    return now


def test_claim_is_believed_for_a_limited_time_without_entries() -> None:
    catchup = Catchup()
    catchup.note_height(A, 2**53, 5, now=0.0)
    now = asked_for(catchup, 5, 0.0, SHOW_S)
    assert catchup.is_believed(A, 5, SHOW_S - 0.1)
    assert not catchup.is_believed(A, 5, now)
    catchup.note_height(A, 0, 5, now)
    catchup.note_answer(A, 0, 5, now, shown=False)
    assert not catchup.is_believed(A, 6, now)
    assert catchup.is_believed(B, 5, now)


def test_peer_that_sends_entries_is_believed_again() -> None:
    catchup = Catchup()
    catchup.note_height(A, 200, 5, now=0.0)
    now = asked_for(catchup, 5, 0.0, SHOW_S)
    catchup.note_growth(A, 69, now)
    assert catchup.is_believed(A, 69, now)


def test_claim_that_other_peers_confirm_is_believed_again() -> None:
    """Peer `a` claims each new height before the entry arrives, and then `b` sends the entry. So
    `a` is right each time, although it never sends an entry itself.
    """
    catchup = Catchup()
    for height in range(6, 6 + 2 * QUESTIONS_MIN):
        now = SHOW_S * height
        catchup.note_height(A, height, height - 1, now)
        assert catchup.whom_to_ask(height - 1, set(), now + SETTLE_S) == A
        catchup.note_growth(B, height, now + SETTLE_S)
        assert catchup.is_believed(A, height, now + SETTLE_S)
    assert catchup.is_believed(A, height - 1, now + SETTLE_S)


def test_a_few_unanswered_requests_do_not_discredit_a_peer() -> None:
    catchup = Catchup()
    catchup.note_height(A, 9, 5, now=0.0)
    asked_for(catchup, 5, 0.0, ANSWER_S * (QUESTIONS_MIN - 1))
    assert catchup.is_believed(A, 5, 10 * SHOW_S)


def test_claim_of_pruned_entries_is_not_believed_for_ever() -> None:
    catchup = Catchup()
    catchup.note_height(A, 2**53, 5, now=0.0)
    assert catchup.whom_to_ask(5, set(), 0.0) == A
    catchup.pruned(A, Pruned(2**53, 2**52, digest("none")), 5, 0.1)
    assert catchup.is_believed(A, 5, SHOW_S - 0.1)
    assert not catchup.is_believed(A, 5, SHOW_S)


def test_ledger_says_which_claimed_heights_it_believes() -> None:
    some = old_and_new()
    some.send_events("d", PeerHeight(A, 200), PeerHeight(B, 2**53), Tick())
    some.wait(2 * SHOW_S)
    assert some["d"].state.height == 200
    assert some["d"].believes(A, some.now)
    assert not some["d"].believes(B, some.now)


def test_page_with_a_bad_entry_is_used_up_to_that_entry() -> None:
    some = old_and_new()
    page = [*CHAIN[:4], replace(CHAIN[4], certificate=CHAIN[5].certificate), CHAIN[5]]
    effects = some.send_events("d", Received(A, Entries(6, tuple(page))))
    decided = [effect.certified.entry.height for effect in effects if isinstance(effect, Decided)]
    assert decided == [1, 2, 3, 4]


def test_entries_that_are_known_or_far_ahead_change_nothing() -> None:
    some = old_and_new()
    assert some.send_events("a", Received(D, Entries(0, tuple(CHAIN[:3])))) == []
    some.send_events("d", Received(A, Outcome(CHAIN[5])))
    assert some["d"].state.height == 0
    assert some["d"].next_deadline() is not None


def test_different_entry_at_a_decided_height_is_reported_as_a_fork() -> None:
    some = old_and_new()
    rules = some.rules
    other = certify(rules, chain_of(rules, [])[1], Roster(0, 0, (A, B, C), (D,)))
    effects = some.send_events("a", Received(D, Outcome(other)))
    assert effects[-1] == Note("d sent a different entry 1 than this node has: a fork or a forgery")
    accused = [effect.evidence.peer for effect in effects if isinstance(effect, Accuse)]
    assert accused == [A, B, C]


def test_forged_fork_does_not_accuse_any_peer() -> None:
    some = old_and_new()
    other = certify(some.rules, chain_of(some.rules, [])[1], Roster(0, 0, (A, B, C), (D,)))
    forged = replace(other.certificate, votes=((A, b"forged"), *other.certificate.votes[1:]))
    effects = some.send_events("a", Received(D, Outcome(replace(other, certificate=forged))))
    assert effects == [Note("d sent a different entry 1 than this node has: a fork or a forgery")]


def test_peer_behind_a_decided_height_gets_missing_entries() -> None:
    some = old_and_new()
    some.send_events("a", Received(B, Prepare(199, 1)))
    assert [unicast.message for unicast in some.mail] == [Entries(200, tuple(CHAIN[198:]))]


@pytest.mark.parametrize(
    ("from_height", "first", "count"), [(0, 1, 64), (1, 1, 64), (150, 150, 51)]
)
def test_page_starts_at_the_requested_height(from_height: int, first: int, count: int) -> None:
    page = page_from(CHAIN, from_height)
    assert isinstance(page, Entries)
    certified = page.certified
    assert (certified[0].entry.height, len(certified)) == (first, count)


def test_page_past_the_end_is_empty_and_gives_the_height() -> None:
    assert page_from(CHAIN, 201) == Entries(200, ())


def test_page_of_large_entries_is_bounded_but_not_empty() -> None:
    names = tuple(PeerId(f"12D3KooW{index:044d}") for index in range(800))
    rules = small_rules(" ".join(names), outer_steps=1000)
    joins = [Roster(0, 0, names, tuple(peers("x y z")[:n])) for n in (1, 2, 3)]
    chain = chain_of(rules, joins)[0]
    page = page_from(chain, 1)
    assert isinstance(page, Entries)
    assert 1 <= len(page.certified) < 3
    assert len(encode(page)) < 2 * PAGE_BYTES_MAX
    assert PAGE_ENTRIES_MAX == 64


def test_message_about_the_next_height_waits_for_its_entry() -> None:
    """The proposal arrives before the outcome. The proposal is kept, and answered once the outcome
    has arrived.
    """
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    kept: list[Unicast] = []

    def hold_back(unicast: Unicast) -> bool:
        if unicast.receiver == A and isinstance(unicast.message, Outcome):
            kept.append(unicast)
            return False
        return True

    some.deliver(hold_back)
    assert some.heights() == {"a": 0, "b": 1, "c": 1}
    some.send_events("a", Received(C, Prepare(2, 3)))
    some.hold_update(digest("u"), "a b c")
    some.send_events("b", *(ReduceDone(peer, 0, 0, digest("u")) for peer in (B, C)))
    some.send_events("c", *(ReduceDone(peer, 0, 0, digest("u")) for peer in (B, C)))
    some.deliver()
    some.send_events("a", Received(kept[0].sender, kept[0].message))
    some.wait(SETTLE_S)
    assert set(some.heights().values()) == {2}


def test_every_ledger_answers_requests_for_entries() -> None:
    some = old_and_new()
    some.send_events("a", Received(D, EntriesRequest(200)))
    assert [unicast.message for unicast in some.mail] == [Entries(200, (CHAIN[-1],))]
