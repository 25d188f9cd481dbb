"""Many voters are asked by gossip, few by unicast, and it makes no difference to what is agreed."""

from __future__ import annotations

import pytest

from p2ptrain.ledger import queries
from p2ptrain.ledger.messages.effects import Accuse, Announce, Effect, Send
from p2ptrain.ledger.messages.events import Received
from p2ptrain.ledger.messages.messages import Entries, Outcome, Prepare, Propose
from p2ptrain.ledger.messages.peer_reports import Joining, PeerDown
from p2ptrain.ledger.paxos import proposer as leading
from p2ptrain.ledger.paxos.proposer import UNICASTS_MAX
from p2ptrain.simulation import simulate
from p2ptrain.testing.ledgers import Group, Letter, peers, small_rules
from tests.exploration.harness.search import Bound, explore
from tests.ledger.transcript_player.forging import twin_of

A, B, C, D = peers("a b c d")


@pytest.fixture
def gossip(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if more than one voter were many."""
    monkeypatch.setattr(leading, "UNICASTS_MAX", 1)
    monkeypatch.setattr(queries, "UNICASTS_MAX", 1)


def crowd(voters: int) -> Group:
    names = " ".join(f"v{index:03}" for index in range(voters))
    some = Group(small_rules(names))
    some.ready(names)
    return some


@pytest.mark.parametrize("others", [UNICASTS_MAX, UNICASTS_MAX + 1])
def test_what_many_must_hear_is_announced(others: int) -> None:
    some = crowd(others + 1)
    proposer = some["v000"]._instance.electorate.proposer(0)
    said = [type(effect) for effect in some[proposer]._instance._proposer.to_silent()]
    assert said == ([Send] * others if others == UNICASTS_MAX else [Announce])
    some.deliver()
    assert set(some.heights().values()) == {1}


def test_what_few_have_missed_is_told_them_by_letter() -> None:
    some = crowd(UNICASTS_MAX + 9)
    proposer = some["v000"]._instance.electorate.proposer(0)
    deaf = [name for name in some.names if name != proposer][:UNICASTS_MAX]
    some.deliver(lambda letter: letter.receiver not in deaf)
    assert some[proposer].state.height == 0
    asked: set[str] = set()

    def overhear(letter: Letter) -> bool:
        if isinstance(letter.message, Propose):
            asked.add(letter.receiver)
        return True

    some.wait(0.6, overhear)
    assert some[proposer].state.height == 1
    assert asked == set(deaf)


def test_announcements_that_reach_learners_are_none_of_their_business(gossip: None) -> None:
    some = Group(small_rules(), peers("a b c d"))
    some.tell_all(Joining(D))
    some.deliver()
    some.ready("a b c d")
    proposals = [it for it in some.mail if isinstance(it.message, Propose)]
    assert {it.receiver for it in proposals} == {A, B, D}
    said = len(some.notes)
    (mine,) = (it for it in proposals if it.receiver == D)
    assert some.tell("d", Received(mine.sender, mine.message)) == []
    assert len(some.notes) == said


def test_a_proposer_that_is_behind_is_told_so_by_all_and_asks_one(gossip: None) -> None:
    some = Group(small_rules())
    some.ready("a b c")
    some.deliver(lambda letter: C not in (letter.sender, letter.receiver))
    effects = some.tell("a", Received(C, Prepare(1, 1)))
    assert effects == [Send(C, Entries(1, ()))]
    some.wait(2)
    assert some["c"].state.height == 1


def test_a_twin_that_comes_late_is_evidence_still() -> None:
    some = Group(small_rules())
    some.ready("a b c")
    first = some.mail[0].message
    assert isinstance(first, Propose)
    some.deliver()
    late = twin_of(first, B, some.rules.run)
    effects: list[Effect] = some.tell("c", Received(B, late))
    assert [it.evidence.peer for it in effects if isinstance(it, Accuse)] == [B]


def test_a_round_whose_announcement_is_lost_is_led_by_the_next(gossip: None) -> None:
    some = Group(small_rules("a b c d e"))
    some.ready("a b c d e")
    some.deliver(lambda letter: False)
    some.crash("b")
    some.tell_all(PeerDown(B))
    assert any(isinstance(letter.message, Prepare) for letter in some.mail)
    some.deliver(lambda letter: not isinstance(letter.message, Outcome))
    assert some["c"].chain[0].certificate.round == 1


@pytest.mark.parametrize(("profile", "seeds"), [("chaos", 6), ("liars", 15)])
def test_gossip_and_unicast_lead_to_the_same_ledger(gossip: None, profile: str, seeds: int) -> None:
    reports = [simulate(seed, peers=5, steps=8, profile=profile) for seed in range(seeds)]
    assert [it for it in reports if not it.good] == []


def test_no_order_of_announcements_leads_to_a_fork(gossip: None) -> None:
    found = explore(Bound(timeouts=1, crashes=0))
    assert (found.fault, found.finished) == ("", True)
