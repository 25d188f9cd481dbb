"""A ledger sends proposals to many voters by gossip, and to few voters by unicast. Both ways lead
to agreement.
"""

from __future__ import annotations

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.effects import Accuse, Announce, Effect, Send
from p2ptrain.ledger.messages.events import Received
from p2ptrain.ledger.messages.messages import Entries, Outcome, Prepare, Propose
from p2ptrain.ledger.messages.peer_reports import Joining, PeerDown
from p2ptrain.ledger.paxos import proposer as leading
from p2ptrain.ledger.paxos.proposer import UNICASTS_MAX
from p2ptrain.simulation import simulate
from p2ptrain.testing.ledgers import LedgerGroup, Unicast, peers, small_rules
from tests.exploration.harness.search import Bound, explore
from tests.ledger.transcript_player.forging import twin_of

A, B, C, D = peers("a b c d")


@pytest.fixture
def gossip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ledgers use gossip as soon as there is more than one other voter."""
    monkeypatch.setattr(leading, "UNICASTS_MAX", 1)


def crowd(voters: int) -> LedgerGroup:
    """Return a group with this number of voters."""
    return LedgerGroup(small_rules(" ".join(f"v{index:03}" for index in range(voters))))


@pytest.mark.parametrize("others", [UNICASTS_MAX, UNICASTS_MAX + 1])
def test_messages_to_many_voters_are_announced(others: int) -> None:
    said: list[type[Effect]] = []

    def watch(name: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send | Announce) and isinstance(effect.message, Propose):
            said.append(type(effect))

    some = crowd(others + 1)
    some.watch = watch
    some.ready(" ".join(some.names))
    assert said == ([Send] * others if others == UNICASTS_MAX else [Announce])
    some.deliver()
    assert set(some.heights().values()) == {1}


def test_voters_that_missed_an_announcement_get_a_unicast() -> None:
    some = crowd(UNICASTS_MAX + 9)
    some.ready(" ".join(some.names))
    proposer = some.electorate("v000").proposer(0)
    deaf = [name for name in some.names if name != proposer][:UNICASTS_MAX]
    some.deliver(lambda unicast: unicast.receiver not in deaf)
    assert some[proposer].state.height == 0
    asked: set[str] = set()

    def overhear(unicast: Unicast) -> bool:
        if isinstance(unicast.message, Propose):
            asked.add(unicast.receiver)
        return True

    some.wait(0.6, overhear)
    assert some[proposer].state.height == 1
    assert asked == set(deaf)


def test_learners_ignore_announced_proposals(gossip: None) -> None:
    some = LedgerGroup(small_rules(), peers("a b c d"))
    some.send_to_all(Joining(D))
    some.deliver()
    some.ready("a b c d")
    proposals = [it for it in some.mail if isinstance(it.message, Propose)]
    assert {it.receiver for it in proposals} == {A, B, D}
    said = len(some.notes)
    (mine,) = (it for it in proposals if it.receiver == D)
    assert some.send_events("d", Received(mine.sender, mine.message)) == []
    assert len(some.notes) == said


def test_proposer_that_is_behind_is_told_so_and_asks_one_peer_for_entries(gossip: None) -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver(lambda unicast: C not in (unicast.sender, unicast.receiver))
    effects = some.send_events("a", Received(C, Prepare(1, 1)))
    assert effects == [Send(C, Entries(1, ()))]
    some.wait(2)
    assert some["c"].state.height == 1


def test_second_proposal_of_a_round_is_evidence_even_if_it_arrives_late() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    first = some.mail[0].message
    assert isinstance(first, Propose)
    some.deliver()
    late = twin_of(first, B, some.rules.run)
    effects: list[Effect] = some.send_events("c", Received(B, late))
    assert [it.evidence.peer for it in effects if isinstance(it, Accuse)] == [B]


def test_announcement_lost_in_a_crash_costs_one_round(gossip: None) -> None:
    some = LedgerGroup(small_rules("a b c d e"))
    some.ready("a b c d e")
    some.deliver(lambda unicast: False)
    some.crash("b")
    some.send_to_all(PeerDown(B))
    assert any(isinstance(unicast.message, Prepare) for unicast in some.mail)
    some.deliver(lambda unicast: not isinstance(unicast.message, Outcome))
    assert some["c"].chain[0].certificate.round == 1


@pytest.mark.parametrize(("profile", "seeds"), [("chaos", 6), ("liars", 15)])
def test_simulations_pass_with_gossip_instead_of_unicast(
    gossip: None, profile: str, seeds: int
) -> None:
    reports = [simulate(seed, peers=5, steps=8, profile=profile) for seed in range(seeds)]
    assert [it for it in reports if not it.good] == []


def test_no_order_of_announcements_leads_to_a_fork(gossip: None) -> None:
    found = explore(Bound(timeouts=1, crashes=0))
    assert (found.fault, found.finished) == ("", True)
