"""Connected strangers that are silent, or that answer with useless data, do not delay a node.

Each test is an attack of docs/decisions/001-whose-word-is-it.md: twenty strangers are connected,
and one honest peer, whose id sorts after theirs. A silent stranger never answers, so a node that
waited for its answer would exceed the test's time limit.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.dataplane import Credentials, Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import NetworkUnreachable, NotAuthorised, RemoteProtocolError
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, Terms
from p2ptrain.ledger.history.base import encode_base
from p2ptrain.net import Accept
from p2ptrain.node.gossip import connections
from p2ptrain.node.gossip.amendment_gossip import keep_amended
from p2ptrain.node.gossip.connections import bootstrap_again, stay_connected
from p2ptrain.node.gossip.revocation import notice_revocation
from p2ptrain.node.joining.await_approval import be_admitted
from p2ptrain.node.joining.startup_status import StartupStatus
from p2ptrain.node.joining.trusted_checkpoint import begin_at_checkpoint
from p2ptrain.node.outer_state import fetch
from p2ptrain.peers.hello_messages import HelloReply, encode_reply
from p2ptrain.peers.protocol_names import DECISION_PROTOCOL
from p2ptrain.run import (
    Allowlist,
    Amendment,
    Denial,
    Run,
    SignedAllowlist,
    SignedAmendment,
    SignedDenial,
    save_run,
)
from p2ptrain.store import digest_of
from p2ptrain.testing.published import policy, publish
from tests.node.consensus.test_pruning import Place
from tests.node.rig import (
    ANN,
    BOB,
    CAI,
    PaperNetwork,
    Rig,
    heartbeat,
    opening,
    rig,
    settled,
    somebody,
)
from tests.node.swarm import Diary

FIRST_S = 8.0
"""Time limit in seconds for a test. It is shorter than the deadline of any question, so a node that
waits for the answer of one stranger fails the test."""

_SORTED = sorted(somebody(number).peer for number in range(2000, 2200))
STRANGERS = _SORTED[:20]
FRIEND = next(each for each in map(somebody, range(2000, 2200)) if each.peer == _SORTED[-1])
"""The honest peer. All strangers sort before it."""

Answer = Callable[[PeerId, bytes], Awaitable[bytes]]


async def silence(peer: PeerId, payload: bytes) -> bytes:
    await trio.sleep_forever()
    raise AssertionError


async def rubbish(peer: PeerId, payload: bytes) -> bytes:
    return b"rubbish"


async def nothing(peer: PeerId, payload: bytes) -> bytes:
    return encode_reply(HelloReply(b"", b"", b"", True, {ANN.peer: ("/ip4/192.0.2.1/tcp/1",)}))


attacks = pytest.mark.parametrize("attack", [silence, rubbish, nothing])


def beset(network: PaperNetwork, attack: Answer, friend: Answer) -> None:
    """Connect twenty strangers that answer with `attack`, and the honest peer, which answers with
    `friend`."""

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        return await (friend if peer == FRIEND.peer else attack)(peer, payload)

    network.peers, network.answer = {*STRANGERS, FRIEND.peer}, answer


# ── before a node is admitted ────────────────────────────────────────────────────────────────────


class Volunteer:
    """A peer that waits for admission: its home contains the run, but it is not on the run's
    allowlist yet. The honest peer is a founder of the run."""

    def __init__(self, folder: Path) -> None:
        self.organiser = load_or_create(Home(folder / "organiser").identity)
        founders = (self.organiser.peer, FRIEND.peer)
        self.run: Run = publish(Home(folder / "organiser"), founders=founders)
        self.home = Home(folder / "volunteer")
        self.network = PaperNetwork()
        self.dialled: list[Sequence[str]] = []
        self.network.connect_any = self._connect_any  # type: ignore[attr-defined]
        save_run(self.home.manifest, self.run)
        self.me = load_or_create(self.home.identity)
        self.admission = Admission(self.home)
        self.admission.set_run(self.run)

    async def _connect_any(
        self, given: Sequence[str], *, or_else: Sequence[str], deadline_s: float, accept: Accept
    ) -> PeerId:
        self.dialled.append([*given, *or_else])
        raise NetworkUnreachable("nobody answers")

    async def approved(self, peer: PeerId, payload: bytes) -> bytes:
        newer = Allowlist.of(self.run.id, 2, [self.organiser.peer, FRIEND.peer, self.me.peer])
        signed = SignedAllowlist.publish(self.organiser, newer).to_bytes()
        told = {BOB.peer: ("/ip4/192.0.2.7/tcp/1",)}
        return encode_reply(HelloReply(self.run.to_bytes(), signed, b"", True, told))

    async def told(self, teller: PeerId, payload: bytes) -> None:
        """Receive a message of the decision protocol from `teller`, once this peer waits."""
        await settled(lambda: DECISION_PROTOCOL in self.network.handlers)
        await self.network.handlers[DECISION_PROTOCOL](teller, payload)

    def denied(self, organiser: Identity, days: float = 30) -> bytes:
        now = int(time.time())
        until = now + int(86_400 * days)
        denial = Denial(self.run.id, self.me.peer, now - 10 * 86_400, until, "no GPU")
        return SignedDenial.publish(organiser, denial).to_bytes()

    async def waits(
        self, bootstrap: Sequence[str] = (), look_s: float = 15.0, waiting: bool = True
    ) -> None:
        config = NodeConfig(self.home.root, bootstrap=tuple(bootstrap), wait_for_approval=waiting)
        with Diary(self.home.journal) as diary:
            await be_admitted(
                self.network,  # type: ignore[arg-type]
                config,
                self.me,
                self.run,
                self.admission,
                list(bootstrap),
                StartupStatus(self.me.peer, diary),
                lambda _: None,
                draw=Random(7),
                look_s=look_s,
            )


@attacks
async def test_strangers_do_not_delay_an_approved_volunteer(tmp_path: Path, attack: Answer) -> None:
    volunteer = Volunteer(tmp_path)
    beset(volunteer.network, attack, volunteer.approved)
    with trio.fail_after(FIRST_S):
        await volunteer.waits()
    assert volunteer.admission.admits(volunteer.me.peer)


async def test_volunteer_asks_only_the_peer_that_says_ask_again(tmp_path: Path) -> None:
    volunteer, asked = Volunteer(tmp_path), list[PeerId]()

    async def unapproved(peer: PeerId, payload: bytes) -> bytes:
        return encode_reply(HelloReply(volunteer.run.to_bytes(), b"", b"", False, {}))

    beset(volunteer.network, nothing, unapproved)
    with trio.fail_after(FIRST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(volunteer.waits, look_s=600.0))
            await settled(lambda: len(volunteer.network.requested) == 21)
            await volunteer.told(STRANGERS[3], b"")
            await settled(lambda: len(volunteer.network.requested) == 22)
            asked = [peer for peer, _ in volunteer.network.requested[21:]]
            beset(volunteer.network, nothing, volunteer.approved)
            await volunteer.told(FRIEND.peer, b"")
    assert asked == [STRANGERS[3]]
    assert [peer for peer, _ in volunteer.network.requested[22:]] == [FRIEND.peer]
    assert volunteer.admission.admits(volunteer.me.peer)


@pytest.mark.parametrize("waiting", [True, False])
async def test_denial_ends_a_waiting_volunteer_with_its_reason(
    tmp_path: Path, waiting: bool
) -> None:
    volunteer = Volunteer(tmp_path)
    beset(volunteer.network, nothing, nothing)

    async def tell() -> None:
        with pytest.raises(RemoteProtocolError):
            await volunteer.told(FRIEND.peer, volunteer.denied(FRIEND))
        await volunteer.told(FRIEND.peer, volunteer.denied(volunteer.organiser, days=-1))
        await volunteer.told(STRANGERS[0], volunteer.denied(volunteer.organiser))

    with trio.fail_after(FIRST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            with pytest.raises(NotAuthorised) as caught:
                await volunteer.waits(look_s=600.0, waiting=waiting)
    assert caught.value.code == "AUTH-DENIED"
    assert "reason    no GPU" in caught.value.evidence
    assert "until 20" in caught.value.what


async def test_outdated_denial_does_not_stop_a_volunteer_that_was_admitted_since(
    tmp_path: Path,
) -> None:
    volunteer = Volunteer(tmp_path)
    release = trio.Event()

    async def approved_later(peer: PeerId, payload: bytes) -> bytes:
        if not release.is_set():
            return encode_reply(HelloReply(volunteer.run.to_bytes(), b"", b"", False, {}))
        return await volunteer.approved(peer, payload)

    beset(volunteer.network, nothing, approved_later)
    with trio.fail_after(FIRST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(volunteer.waits, look_s=600.0))
            await settled(lambda: len(volunteer.network.requested) == 21)
            release.set()
            await volunteer.told(STRANGERS[0], volunteer.denied(volunteer.organiser))
    assert volunteer.admission.admits(volunteer.me.peer)


async def test_volunteer_learns_addresses_only_from_members(tmp_path: Path) -> None:
    volunteer = Volunteer(tmp_path)
    beset(volunteer.network, nothing, volunteer.approved)
    volunteer.network.peers.remove(FRIEND.peer)
    with trio.move_on_after(0.1):
        await volunteer.waits()
    assert volunteer.network.hearsay == {}
    volunteer.network.peers.add(FRIEND.peer)
    await volunteer.waits()
    assert volunteer.network.hearsay == {BOB.peer: ["/ip4/192.0.2.7/tcp/1"]}
    assert volunteer.network.addresses_by_peer == {}, (
        "addresses of Bob that Bob did not send are kept apart"
    )


async def test_volunteer_dials_bootstrap_peers_despite_a_stranger(tmp_path: Path) -> None:
    volunteer = Volunteer(tmp_path)
    beset(volunteer.network, rubbish, volunteer.approved)
    volunteer.network.peers = set(STRANGERS)
    ways = [f"/ip4/192.0.2.1/tcp/1/p2p/{peer}" for peer in (STRANGERS[0], FRIEND.peer)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(volunteer.waits, ways, look_s=0.01))
        await settled(lambda: len(volunteer.dialled) > 2)
        assert volunteer.dialled[0] == [ways[1]], "the stranger's own address is left out"
        volunteer.network.peers.add(FRIEND.peer)


@attacks
async def test_strangers_do_not_delay_a_newcomer_with_a_trusted_checkpoint(
    tmp_path: Path, attack: Answer
) -> None:
    place, home, network = Place(tmp_path), Home(tmp_path / "newcomer"), PaperNetwork()
    base = place.origin(16).base

    async def honest(peer: PeerId, payload: bytes) -> bytes:
        return encode_base(base)

    beset(network, attack, honest)
    config = NodeConfig(home.root, trust_checkpoint=str(base.checkpoint))
    with Diary(home.journal) as diary, trio.fail_after(FIRST_S):
        await begin_at_checkpoint(
            network,  # type: ignore[arg-type]
            config,
            home,
            place.run,
            diary,
            lambda _: None,
            rank=lambda peer: int(peer in STRANGERS),
            draw=Random(7),
        )
    assert home.ledger.exists()


# ── in a running node ────────────────────────────────────────────────────────────────────────────


@attacks
async def test_strangers_do_not_prevent_a_removed_node_from_learning_of_it(
    tmp_path: Path, attack: Answer
) -> None:
    async with rig(tmp_path, allowed=[FRIEND.peer, CAI.peer]) as r:
        organiser = load_or_create(r.context.home.identity)
        newer = Allowlist.of(r.run.id, 2, [FRIEND.peer])
        shown = SignedAllowlist.publish(organiser, newer).to_bytes()
        r.surround(identity=CAI)

        async def honest(peer: PeerId, payload: bytes) -> bytes:
            return encode_reply(HelloReply(b"", shown, b"", True, {}))

        beset(r.network, attack, honest)
        with trio.fail_after(FIRST_S), pytest.raises(Exception, match="no longer on the allowlist"):
            await notice_revocation(r.context)


def agreed_amendment(r: Rig) -> SignedAmendment:
    """Make the members agree on an amendment that this node lacks."""
    organiser = load_or_create(r.context.home.identity)
    made = SignedAmendment.publish(organiser, Amendment(r.run.id, 1, 1, inner_steps=4), r.run)
    terms: Terms = made.terms
    state, part = r.context.ledger.snapshot, Participant(r.context.me, 32, 2)
    opened = Roster(state.step, 0, state.voters, (), (part,), terms=terms)
    r.decide(opened, Commit(0, 0, digest_of(b"u")))
    return made


@attacks
async def test_strangers_are_not_asked_for_an_agreed_amendment(
    tmp_path: Path, attack: Answer
) -> None:
    rules = policy(participants_min=1)
    async with rig(tmp_path, allowed=[FRIEND.peer], steps=99, rules=rules) as r:
        made = agreed_amendment(r)

        async def honest(peer: PeerId, payload: bytes) -> bytes:
            return encode_reply(HelloReply(b"", b"", pack([made.to_bytes()]), True, {}))

        beset(r.network, attack, honest)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_amended, r.context)
            with trio.fail_after(FIRST_S):
                await r.context.until_known(1)
            nursery.cancel_scope.cancel()
        assert {peer for peer, _ in r.network.requested} == {FRIEND.peer}


async def test_node_keeps_asking_after_an_amendment_other_than_the_agreed_one(
    tmp_path: Path,
) -> None:
    """Bob sends a genuine amendment that the node does not have, but not the agreed one. The node
    stores and publishes it, and waits before it asks Bob again."""
    rules = policy(participants_min=1)
    async with rig(tmp_path, allowed=[FRIEND.peer, BOB.peer], steps=99, rules=rules) as r:
        r.wait_for(amendment_ask_s=1000.0)
        made, organiser = agreed_amendment(r), load_or_create(r.context.home.identity)
        other = SignedAmendment.publish(organiser, Amendment(r.run.id, 2, 9, lr=0.1), r.run)

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            shown = made if peer == FRIEND.peer else other
            return encode_reply(HelloReply(b"", b"", pack([shown.to_bytes()]), True, {}))

        r.network.peers, r.network.answer = {BOB.peer}, answer
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_amended, r.context)
            await settled(lambda: r.context.amendments.held == (other,))
            await settled(lambda: len(r.network.published) > 0)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            assert len(r.network.requested) == 1
            nursery.cancel_scope.cancel()
        r.network.peers = {BOB.peer, FRIEND.peer}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_amended, r.context)
            await settled(lambda: r.context.amendments.held == (made, other))
            nursery.cancel_scope.cancel()


# ── whether the run can be reached ───────────────────────────────────────────────────────────────


def bootstrapped(r: Rig, *peers: PeerId) -> list[Sequence[str]]:
    """Configure bootstrap addresses of `peers`, which never answer. Return the list to which the
    node's dials are added."""
    dialled: list[Sequence[str]] = []

    async def connect_any(ways: Sequence[str], *, deadline_s: float) -> PeerId:
        dialled.append(ways)
        raise NetworkUnreachable("nobody answers")

    r.network.connect_any = connect_any  # type: ignore[attr-defined]
    ways = tuple(f"/ip4/192.0.2.1/tcp/1/p2p/{peer}" for peer in peers)
    r.configure(bootstrap=ways)
    return dialled


@pytest.mark.parametrize("admission", ["open", "allowlist"])
async def test_connected_stranger_does_not_prevent_dials_of_bootstrap_addresses(
    tmp_path: Path, admission: str
) -> None:
    """In an open run, every peer is admitted. But only members count here, so a stranger remains a
    stranger."""
    async with rig(tmp_path, admission=admission) as r, trio.open_nursery() as nursery:
        dialled = bootstrapped(r, STRANGERS[0], FRIEND.peer)
        r.network.peers = set(STRANGERS)
        nursery.start_soon(bootstrap_again, r.context)
        await settled(lambda: len(dialled) > 1)
        assert [len(ways) for ways in dialled[:2]] == [1, 1]
        assert FRIEND.peer in dialled[0][0], "the stranger must not be dialled first"
        nursery.cancel_scope.cancel()


async def test_bootstrap_addresses_are_dialled_only_while_no_quorum_is_heard(
    tmp_path: Path,
) -> None:
    """While the node does not hear from a quorum, it dials its bootstrap addresses, although a
    member is connected. Otherwise one lying member could isolate the node."""
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        dialled = bootstrapped(r, FRIEND.peer)
        r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
        r.network.peers = {ANN.peer}
        assert connections.ways_back(r.context) == []
        r.context.state.isolated = "2 of 3 voters cannot be heard"
        nursery.start_soon(bootstrap_again, r.context)
        await settled(lambda: len(dialled) > 0)
        nursery.cancel_scope.cancel()


async def test_connected_stranger_does_not_hide_the_loss_of_all_other_peers(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        r.wait_for(connection_retry_s=1000.0, others_turn_s=0.0)
        dialled = r.network.dialled
        for peer in (ANN.peer, BOB.peer):
            r.network.remember(peer, ["/ip4/192.0.2.1/tcp/1"])
        r.network.peers = set(STRANGERS)
        nursery.start_soon(stay_connected, r.context)
        await settled(lambda: len(dialled) == 2)
        r.network.peers = {*STRANGERS, ANN.peer}
        await settled(lambda: len(dialled) == 3)
        assert dialled[2] == BOB.peer
        nursery.cancel_scope.cancel()


async def test_ledger_heights_of_strangers_are_ignored_if_a_member_is_heard(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, admission="open") as r:
        context, now = r.context, r.context.now()
        r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer,)))
        high, here = heartbeat(r.run.id, height=10**6), heartbeat(r.run.id, height=1)
        context.peers.table.note_heartbeat(STRANGERS[0], high, now)
        assert not context.peers.ledger_is_current(), (
            "the node does not hear from any member, so it believes the stranger"
        )
        context.peers.table.note_heartbeat(ANN.peer, here, now)
        assert context.peers.ledger_is_current()
        context.peers.table.note_heartbeat(ANN.peer, replace(high, serial=2), now)
        assert not context.peers.ledger_is_current()


# ── bulk data ────────────────────────────────────────────────────────────────────────────────────


def offering(r: Rig, peer: Identity) -> None:
    """Make the node hear a heartbeat of `peer` that announces a data plane."""
    place = Endpoint(peer.peer, "127.0.0.1", 1, Credentials.create(peer).certificate_der)
    beat = heartbeat(r.run.id, endpoint=pack(place.to_wire()))
    r.context.peers.table.note_heartbeat(peer.peer, beat, r.context.now())
    r.context.peers.detector.note_arrival(peer.peer, r.context.now())


async def test_only_sixteen_strangers_become_sources_beside_a_member(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, admission="open") as r:
        r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
        offering(r, ANN)
        used, tried = set[PeerId](), set[PeerId]()
        for number in range(40):
            offering(r, somebody(3000 + number))
            fit = fetch.usable_sources(r.context, {}, used)
            assert fit[0].peer == ANN.peer
            tried.update(each.peer for each in fit)
        assert len(tried) == 1 + fetch.OTHERS_MAX
        assert (
            len(fetch.usable_sources(r.context, {ANN.peer: r.context.now()}, set()))
            == fetch.OTHERS_MAX
        )
    async with rig(tmp_path / "listed", allowed=[each.peer for each in (ANN, BOB)]) as r:
        offering(r, ANN)
        offering(r, BOB)
        assert len(fetch.usable_sources(r.context, {}, set())) == 2, (
            "the organiser vouches for admitted peers"
        )
