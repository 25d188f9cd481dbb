"""An amendment is a signed change of the run's terms. A node stores amendments before they take
effect, requests missing ones until they arrive, and accepts only those of the organiser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from p2ptrain.archive.amendments import Amendments
from p2ptrain.archive.home import Home
from p2ptrain.encoding import pack
from p2ptrain.errors import LocalProtocolError, PeerUnreachable, RemoteProtocolError
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, Terms
from p2ptrain.ledger.messages.peer_reports import KnownAmendments
from p2ptrain.node.control.control_socket import COMMANDS
from p2ptrain.node.gossip import amendment_gossip
from p2ptrain.node.gossip.amendment_gossip import in_words, keep_amended, take_amendments
from p2ptrain.peers.hello_messages import HelloReply, encode_reply
from p2ptrain.peers.protocol_names import amendments_topic
from p2ptrain.run import Amendment, Leg, Run, SignedAmendment, save_amendments
from p2ptrain.run.files import AMENDMENTS_MAX
from p2ptrain.store import digest_of
from p2ptrain.sync import SyncSpec
from p2ptrain.testing.published import policy, publish
from tests.node.rig import ANN, BOB, NewRig, Rig, rig, settled

ALONE = policy(participants_min=1)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def run(home: Home) -> Run:
    return publish(home, steps=99)


def signed(
    run: Run, home: Home, number: int = 1, step: int = 3, **changes: object
) -> SignedAmendment:
    """Return amendment `number`, which applies from outer step `step` on, signed by the owner of
    `home`: the organiser. By default it changes H and the codec."""
    changes = changes or {"inner_steps": 4, "codec": "fp16"}
    wanted = Amendment(run.id, number, step, **changes)  # type: ignore[arg-type]
    return SignedAmendment.publish(load_or_create(home.identity), wanted, run)


def listed(*amendments: SignedAmendment) -> bytes:
    """Return these amendments as nodes send them."""
    return pack([each.to_bytes() for each in amendments])


def test_amendment_that_arrives_twice_is_stored_once(home: Home, run: Run) -> None:
    here, one = Amendments.of(home, run), signed(run, home)
    assert (here.held, here.to_bytes()) == ((), b"")
    assert here.adopt_new(listed(one))
    assert not here.adopt_new(listed(one))
    assert Amendments.of(home, run).held == here.held == (one,)
    assert here.terms == {one.terms}


def test_amendments_from_the_command_and_from_gossip_are_both_kept(home: Home, run: Run) -> None:
    here, one, other = Amendments.of(home, run), signed(run, home), signed(run, home, 2, 5)
    save_amendments(home.amendments, [one])
    assert here.adopt_new(listed(other))
    assert Amendments.of(home, run).held == here.held == (one, other)
    assert not here.reload()


def test_amendment_on_disk_that_the_node_has_not_loaded_counts_as_new(home: Home, run: Run) -> None:
    here, one = Amendments.of(home, run), signed(run, home)
    save_amendments(home.amendments, [one])
    assert here.adopt_new(listed(one))
    assert here.held == (one,)
    assert not here.adopt_new(listed(one))


def test_too_long_list_of_amendments_is_refused_before_it_is_verified(home: Home, run: Run) -> None:
    with pytest.raises(RemoteProtocolError, match="129 amendments exceed the limit of 128"):
        Amendments.of(home, run).adopt_new(pack([b""] * (AMENDMENTS_MAX + 1)))


def test_oldest_amendments_that_are_not_agreed_make_room_for_new_ones(home: Home, run: Run) -> None:
    here, agreed = Amendments.of(home, run), signed(run, home, 1, 2)
    here.adopt_new(listed(agreed))
    for number in range(2, AMENDMENTS_MAX + 3):
        here.adopt_new(listed(signed(run, home, number, 9)), (agreed.terms,))
    assert len(here.held) == AMENDMENTS_MAX
    assert here.held[0] == agreed
    assert here.held[-1].amendment.number == AMENDMENTS_MAX + 2


def test_amendment_applies_only_if_the_members_have_agreed_on_it(home: Home, run: Run) -> None:
    here = Amendments.of(home, run)
    one, other = signed(run, home), signed(run, home, 2, 5, lr=0.01)
    here.adopt_new(listed(one, other))
    assert here.leg((), 9) == Leg(run.manifest)
    legs = [here.leg((one.terms, other.terms), step) for step in (2, 3, 4, 5)]
    first = Leg(run.manifest).amended(one.amendment)
    assert legs == [Leg(run.manifest), first, first, first.amended(other.amendment)]
    assert here.leg((other.terms,), 5) == Leg(run.manifest).amended(other.amendment)


def test_terms_of_a_step_are_unknown_while_an_agreed_amendment_is_missing(
    home: Home, run: Run
) -> None:
    here, one, other = Amendments.of(home, run), signed(run, home), signed(run, home, 2, 5)
    agreed = (one.terms, other.terms)
    here.adopt_new(listed(one))
    assert [here.missing(agreed, step) for step in (2, 4, 5)] == [None, None, other.terms]
    with pytest.raises(LocalProtocolError):
        here.leg(agreed, 5)
    assert here.nearest(agreed, 5) == here.leg(agreed, 4)
    here.adopt_new(listed(other))
    assert here.leg(agreed, 5).number == 2


@pytest.mark.parametrize("lie", [{"step": 4}, {"blocks": 9}, {"blocks": None}, {"number": 7}])
def test_ledger_entry_that_misstates_an_amendment_is_refused(
    lie: dict[str, object], home: Home, run: Run
) -> None:
    here, one = Amendments.of(home, run), signed(run, home)
    here.adopt_new(listed(one))
    with pytest.raises(RemoteProtocolError) as caught:
        here.leg((replace(one.terms, **lie),), 9)  # type: ignore[arg-type]
    assert caught.value.code == "AMEND-DIFFERS"


# ── in a node ────────────────────────────────────────────────────────────────────────────────────


def of(r: Rig, *args: object, **changes: object) -> SignedAmendment:
    """Return an amendment of the run of `r`, as `signed` does."""
    return signed(r.run, r.context.home, *args, **changes)  # type: ignore[arg-type]


def naming(r: Rig, terms: Terms) -> Roster:
    """Return the next roster of `r`, which agrees on the amendment with these terms."""
    state = r.context.ledger.snapshot
    return Roster(state.step, 0, state.voters, (), (Participant(r.context.me, 32, 2),), terms=terms)


async def test_received_amendment_is_stored_and_passed_to_ledger_and_peers(tmp_path: Path) -> None:
    async with rig(tmp_path, steps=99) as r:
        one = of(r)
        await take_amendments(r.context, ANN.peer, listed(one))
        await take_amendments(r.context, BOB.peer, listed(one))
        assert r.heard() == [KnownAmendments(frozenset({one.terms}))]
        assert r.network.published == [(amendments_topic(r.run.id), listed(one))]
        forged = SignedAmendment.publish(
            Identity.from_seed(b"x" * 32), Amendment(r.run.id, 2, 9, lr=0.1), r.run
        )
        with pytest.raises(RemoteProtocolError):
            await take_amendments(r.context, ANN.peer, listed(forged))
        assert r.context.amendments.held == (one,)


async def test_reload_command_loads_amendments_from_the_home(tmp_path: Path) -> None:
    """`p2ptrain run amend` writes the amendment into the home (the node's folder), and then sends
    this command to the node."""
    async with rig(tmp_path, steps=99) as r:
        save_amendments(r.context.home.amendments, [of(r)])
        assert await COMMANDS["reload-amendments"](r.context) == {
            "newer": True,
            "step": 0,
            "agreed": [],
        }
        assert await COMMANDS["reload-amendments"](r.context) == {
            "newer": False,
            "step": 0,
            "agreed": [],
        }
        assert r.heard() == [KnownAmendments(frozenset({of(r).terms}))]


async def test_agreed_amendment_is_requested_until_a_peer_sends_it(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, steps=99, rules=ALONE)
    one, told = of(r, 1, 1), list[bytes]()

    async def hello(peer: PeerId, payload: bytes) -> bytes:
        if peer == ANN.peer:
            raise PeerUnreachable("gone")
        return encode_reply(HelloReply(b"", b"", told[0] if told else b"", True, {}))

    r.network.answer = hello
    r.network.peers = {ANN.peer, BOB.peer}
    r.decide(naming(r, one.terms), Commit(0, 0, digest_of(b"u")))
    assert r.context.lacks_terms(1)
    assert not r.context.lacks_terms(0)
    nursery.start_soon(keep_amended, r.context)
    await settled(lambda: len(r.network.requested) > 3)
    assert r.context.alerts.warnings["amendment"] == amendment_gossip.MISSING
    told.append(listed(one))
    with trio.fail_after(30):
        await r.context.until_known(1)
    await settled(lambda: "amendment" not in r.context.alerts)
    assert r.context.outer_step(1).manifest.codec.name == "fp16"


@pytest.mark.parametrize(("fragments", "first_step"), [(1, 9), (2, 17)])
async def test_stricter_influence_bound_starts_late_enough_for_earlier_work(
    tmp_path: Path, fragments: int, first_step: int
) -> None:
    """The lower learning rate applies from outer step 1 on. Members may still offer work from
    before, so the stricter bound on a member's influence only applies eight outer steps later. With
    two fragments, each outer step has half as many inner steps, so this takes twice as many."""
    sync = SyncSpec(fragments=fragments)
    async with rig(tmp_path, steps=99, inner_steps=4, rules=ALONE, sync=sync) as r:
        one = of(r, 1, 1, lr=0.001)
        r.context.amendments.adopt_new(listed(one))
        r.decide(naming(r, one.terms))
        before = r.run.manifest.influence_max
        earlier = [r.context.outer_step(step).influence_max for step in (0, 1, first_step - 1)]
        assert earlier == [before] * 3
        assert r.context.outer_step(first_step).influence_max == pytest.approx(before / 100)


async def test_status_shows_current_future_and_late_amendments(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, steps=99, rules=ALONE) as r:
        one, next_one, late = of(r, 1, 2), of(r, 2, 9, lr=0.01), of(r, 3, 1, lr=0.02)
        r.context.amendments.adopt_new(listed(one, next_one, late))
        r.decide(naming(r, one.terms))
        assert in_words(r.context) == (
            "1: inner steps 4, codec fp16 from outer step 2 on; "
            "2: from outer step 9 on, not agreed yet; "
            "not agreed: amendment 3 must take effect after outer step 2"
        )
