"""A peer that joins (the joiner) adopts the inner optimizer states of members (the donors), or
reports that it got none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from numpy.typing import NDArray

from p2ptrain.encoding import pack
from p2ptrain.errors import PeerUnreachable, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.names import label
from p2ptrain.node.control.status import status
from p2ptrain.node.optimizer_sharing import donor, recipient
from p2ptrain.node.optimizer_sharing.averaged_state import AveragedState
from p2ptrain.node.optimizer_sharing.donor import (
    KEPT_MAX,
    LATER,
    NOTHING,
    NOTHING_S,
    OFFER_S,
    ask_of,
    donate,
)
from p2ptrain.node.optimizer_sharing.optimizer_offer import (
    AGE_STEPS_MAX,
    KIND,
    OptimizerOffer,
    put_newest,
)
from p2ptrain.node.optimizer_sharing.recipient import LATER_MAX, donors, take_inner_state
from p2ptrain.node.outer_state.retention import collect
from p2ptrain.node.state.context import Context
from p2ptrain.observe.status import status_lines
from p2ptrain.peers.protocol_names import INNER_PROTOCOL
from p2ptrain.run.envelope import Signed
from p2ptrain.trainer.formats.inner_bounds import check
from p2ptrain.trainer.formats.inner_format import HEADER_BYTES, WARM, newest, path_of, steps_in
from tests.node.rig import (
    ANN,
    BOB,
    CAI,
    QUICK,
    Neighbour,
    NewRig,
    Rig,
    heartbeat,
    rig,
    settled,
)
from tests.node.training.test_training import know_data
from tests.node.training.test_validating import TWO, commit
from tests.process_limits import no_file_grows
from tests.trainer.inner_states import trained, write_state

HASTE = replace(QUICK, donor_again_s=0.01, donor_answer_s=0.3, hear_first_s=0.1)
OPTION: dict[str, Any] = {"rules": TWO, "steps": 99, "join_optimizer": "donor", "timing": HASTE}
SEVERAL = OPTION | {"join_optimizer": "donors"}


def keep_state(
    r: Rig, step: int, *, spoilt: int | None = None, warmed: int = WARM, steps: int = 30
) -> Path:
    """Write the state of an inner optimizer to the home (the node's folder) of `r`, as the trainer
    of `r` would. `spoilt`: the vector in which one number is not finite."""
    vectors = trained(r.context.layout, r.context.manifest.inner, steps)
    if spoilt is not None:
        vectors[spoilt][0] = np.nan
    return write_state(r.context.home.inner, r.context.layout, step, vectors, steps, warmed)


def hear_of(r: Rig, *peers: PeerId, **changes: object) -> None:
    """Let `r` receive a heartbeat of each of these peers."""
    for peer in peers:
        r.context.peers.table.note_heartbeat(peer, heartbeat(r.run.id, **changes), r.context.now())
        r.context.peers.detector.note_arrival(peer, r.context.now())


def answering(r: Rig, answers: dict[PeerId, bytes]) -> None:
    """Make each member answer requests for a state with these bytes. A member that is not in
    `answers` does not answer."""

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        assert payload == ask_of(r.run.id)
        if peer not in answers:
            raise PeerUnreachable("it does not answer", peer=peer)
        return answers[peer]

    r.network.answer = answer


def asked(r: Rig) -> list[PeerId]:
    """Return the peers that `r` has sent requests to, in order."""
    return [peer for peer, _ in r.network.requested]


def states_in(r: Rig) -> list[int]:
    """Return the outer steps of the states on the disk of `r`. No unfinished file may be left."""
    folder = r.context.home.inner
    assert not any((folder / unfinished).exists() for unfinished in ("donated", "donating"))
    return steps_in(folder)


async def test_joiner_adopts_a_donors_bytes_and_names_the_donor(tmp_path: Path) -> None:
    async with (
        rig(tmp_path / "joiner", admission="open", **OPTION) as r,
        rig(tmp_path / "donor", **OPTION, welcoming=True) as other,
        trio.open_nursery() as nursery,
    ):
        other.surround(run=r.run)  # Both nodes are in the same run, and admit each other.
        them = other.context.me
        commit(r, r.context.me, them)
        Neighbour(r, other)
        theirs = keep_state(other, 1)
        nursery.start_soon(donate, other.context)
        await settled(lambda: INNER_PROTOCOL in other.network.handlers)

        async def over_the_wire(peer: PeerId, payload: bytes) -> bytes:
            assert peer == them
            return await other.network.handlers[INNER_PROTOCOL](r.context.me, payload)

        r.network.answer = over_the_wire
        r.wait_for(donor_answer_s=20.0)
        await take_inner_state(r.context)
        nursery.cancel_scope.cancel()
    ours = path_of(r.context.home.inner, 1)
    assert ours.read_bytes() == theirs.read_bytes()
    assert states_in(r) == [1]
    (taken,) = r.said("inner-state-taken")
    assert (taken["peer"], taken["among"], taken["step"], taken["count"]) == (them, 1, 1, 30)
    proof = taken["offer"]
    assert isinstance(proof, bytes)
    assert OptimizerOffer.decode(proof, them).digest == taken["digest"]
    assert [each["digest"] for each in other.said("inner-state-offered")] == [taken["digest"]]
    assert "donor" not in r.context.alerts
    assert r.context.sharing.inner_from == (
        f"from {label(them)} (outer step 1, after 30 inner steps)"
    )


def offer_of(r: Rig, **changes: object) -> OptimizerOffer:
    """Store the state that is on the disk of `r` as a blob, delete the state itself, and return an
    offer of the blob. So `r` can adopt the state without a transfer."""
    offer = put_newest(r.context.home.inner, r.context.store, r.run.id, r.context.layout)
    assert offer is not None
    for step in steps_in(r.context.home.inner):
        path_of(r.context.home.inner, step).unlink()
    return replace(offer, **changes)  # type: ignore[arg-type]


@contextmanager
def fresh(r: Rig, why: str) -> Iterator[None]:
    """Check that the node does not adopt a state in the `with` block, and that it reports why."""
    yield
    assert states_in(r) == []
    assert why in r.context.alerts.warnings["donor"].what
    assert "the inner optimizer starts empty" in r.context.alerts.warnings["donor"].what
    (told,) = r.said("inner-state-fresh")
    assert why in str(told["reason"])
    assert (r.said("inner-state-taken"), r.context.sharing.inner_from) == ([], "")


def signed(offer: OptimizerOffer, **changes: object) -> bytes:
    """Return the offer with these changes, which may be invalid, signed by Ann."""
    wire = {name: getattr(offer, name) for name in ("run", "layout", "step", "count", "digest")}
    return Signed.by(ANN, KIND, pack(wire | changes)).to_bytes()


LIES: dict[str, tuple[Callable[[OptimizerOffer], bytes], str]] = {
    "not msgpack": (lambda offer: b"\xc1", "not msgpack"),
    "too long": (lambda offer: bytes(3000), "too long: it has 3000 bytes"),
    "signed by another peer": (
        lambda offer: offer.signed(BOB),
        "a different peer signed the offer",
    ),
    "altered after signing": (
        lambda offer: offer.signed(ANN).replace(offer.digest[:8].encode(), b"00000000"),
        "signature of this inner-state is wrong",
    ),
    "document of another kind": (
        lambda offer: Signed.by(ANN, "manifest", b"").to_bytes(),
        "expected a document of kind inner-state",
    ),
    "for another run": (
        lambda offer: replace(offer, run=RunId("e" * 64)).signed(ANN),
        "a different run",
    ),
    "for another model": (
        lambda offer: replace(offer, layout=Digest("e" * 64)).signed(ANN),
        "a different run or model",
    ),
    "false outer step": (
        lambda offer: replace(offer, step=0).signed(ANN),
        "is not the offered state",
    ),
    "false number of inner steps": (
        lambda offer: replace(offer, count=31).signed(ANN),
        "is not the offered state",
    ),
    "no inner steps": (lambda offer: signed(offer, count=0), "does not name a state"),
    "negative outer step": (lambda offer: signed(offer, step=-1), "out of range"),
    "malformed digest": (lambda offer: signed(offer, digest="short"), "does not name a state"),
    "count is a string": (
        lambda offer: signed(offer, count="many"),
        "count has the wrong type str",
    ),
    "unknown field": (lambda offer: signed(offer, more=1), "unknown: more"),
}
"""Invalid replies of a donor, made from a valid offer, and words of the reported reason."""


@pytest.mark.parametrize("lie", LIES)
async def test_offer_that_an_honest_donor_would_not_make_is_refused(
    lie: str, tmp_path: Path
) -> None:
    make, why = LIES[lie]
    async with rig(tmp_path, **OPTION) as r:
        commit(r, r.context.me, ANN.peer)
        keep_state(r, 1)
        hear_of(r, ANN.peer)
        answering(r, {ANN.peer: make(offer_of(r))})
        with fresh(r, why):
            await take_inner_state(r.context)
        assert [each["peer"] for each in r.said("donor-refused")] == [ANN.peer]
        assert asked(r) == [ANN.peer]  # A peer that sent an invalid offer is not asked again.


async def test_blob_that_is_not_a_state_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    async with rig(tmp_path, **OPTION) as r:
        context = r.context
        commit(r, context.me, ANN.peer)
        keep_state(r, 1)
        offer = offer_of(r)
        meta = dict(context.store.manifest(offer.digest).meta)
        long = context.store.put_blob(KIND, [bytes(8 * context.layout.numel + 1)], meta)
        # The blob `huge` is a thousand times too large. The store has only its manifest. The test
        # checks that the node does not request any other chunk of this blob.
        whole = context.store.manifest(long)
        missing = tuple(Digest(f"{index:064x}") for index in range(1, 1 + 1000 * len(whole.chunks)))
        huge = replace(whole, size=whole.chunk_bytes * len(missing), chunks=missing)
        names = [context.manifest.genesis, long, context.store.put_chunk(huge.to_wire())]
        for name in (*names, context.store.put_chunk(b"no blob at all")):
            context.alerts.warnings.clear()
            r.diary.records.clear()
            hear_of(r, ANN.peer)
            answering(r, {ANN.peer: replace(offer, digest=name).signed(ANN)})
            with fresh(r, "offered" if name in names else "manifest"):
                await take_inner_state(context)
        assert r.said("fetch-delayed") == []


@pytest.mark.parametrize("spoilt", [0, 1])
async def test_state_that_training_cannot_produce_is_refused(spoilt: int, tmp_path: Path) -> None:
    async with rig(tmp_path, **OPTION) as r:
        commit(r, r.context.me, ANN.peer)
        keep_state(r, 1, spoilt=spoilt)
        hear_of(r, ANN.peer)
        answering(r, {ANN.peer: offer_of(r).signed(ANN)})
        with fresh(r, f"{label(ANN.peer)}: it contains a number that is not finite"):
            await take_inner_state(r.context)


async def test_partial_state_is_removed_if_the_disk_is_full(tmp_path: Path) -> None:
    async with rig(tmp_path, **OPTION) as r:
        keep_state(r, 1)
        offer = offer_of(r)
        context, inner = r.context, r.context.manifest.inner
        mean = AveragedState(context.home.inner, context.store, context.layout, inner)
        with closing(mean) as donated, no_file_grows(), pytest.raises(OSError, match="too large"):
            donated.add(offer)
        assert (donated.offers, states_in(r)) == ([], [])


async def test_next_member_is_asked_after_an_invalid_offer(tmp_path: Path) -> None:
    async with rig(tmp_path, **OPTION) as r:
        commit(r, r.context.me, ANN.peer, BOB.peer)
        commit(r, ANN.peer)
        keep_state(r, 2)
        hear_of(r, ANN.peer, BOB.peer)
        answering(r, {ANN.peer: b"\xc1", BOB.peer: offer_of(r).signed(BOB)})
        await take_inner_state(r.context)
        assert states_in(r) == [2]
        assert asked(r) == [ANN.peer, BOB.peer]
        assert r.context.sharing.inner_from.startswith(f"from {label(BOB.peer)}")
        shown = status_lines(await status(r.context))
        assert f"optimizer {r.context.sharing.inner_from}" in shown


def vectors_in(file: Path) -> NDArray[np.float32]:
    return np.frombuffer(file.read_bytes()[HEADER_BYTES:], "<f4")


async def test_joiner_adopts_the_mean_of_several_states_and_names_them(tmp_path: Path) -> None:
    async with rig(tmp_path, allowed=[ANN.peer, BOB.peer, CAI.peer], **SEVERAL) as r:
        for participants in ((ANN, BOB, CAI), (ANN, BOB), (ANN,)):
            commit(r, r.context.me, *(each.peer for each in participants))
        hear_of(r, ANN.peer, BOB.peer, CAI.peer)
        given: list[NDArray[np.float32]] = []
        offers: dict[PeerId, bytes] = {}
        for who, step, steps in ((ANN, 1, 20), (BOB, 3, 30), (CAI, 2, 41)):
            given.append(vectors_in(keep_state(r, step, steps=steps)))
            offers[who.peer] = offer_of(r).signed(who)
        answering(r, offers)
        await take_inner_state(r.context)
        assert states_in(r) == [3]
        ours = path_of(r.context.home.inner, 3)
        mean = np.mean(given, axis=0, dtype=np.float64)
        np.testing.assert_allclose(vectors_in(ours), mean, rtol=1e-5, atol=1e-12)
        header = newest(r.context.home.inner, r.context.layout, 3)
        assert header is not None
        assert (header.count, header.warmed) == (30, WARM)
        with ours.open("rb") as file:
            check(file.fileno(), r.context.layout, r.context.manifest.inner)
        taken = r.said("inner-state-taken")
        assert [(each["among"], each["count"]) for each in taken] == [(3, n) for n in (20, 30, 41)]
        assert r.context.sharing.inner_from == (
            "the mean of the states of 3 members: "
            f"{label(ANN.peer)} (outer step 1, after 20 inner steps), "
            f"{label(BOB.peer)} (outer step 3, after 30 inner steps), "
            f"{label(CAI.peer)} (outer step 2, after 41 inner steps)"
        )


async def test_states_of_several_members_are_fetched_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node first asks all members, which need some time to make an offer. Then it fetches all
    states at once, since each comes over the uplink of a different member."""
    several = (ANN, BOB, CAI)
    async with rig(tmp_path, allowed=[each.peer for each in several], **SEVERAL) as r:
        commit(r, r.context.me, *(each.peer for each in several))
        hear_of(r, *(each.peer for each in several))
        offers = dict[PeerId, bytes]()
        for who in several:
            keep_state(r, 1, steps=20 + len(offers))
            offers[who.peer] = offer_of(r).signed(who)
        under_way, all_under_way = set[PeerId](), trio.Event()

        async def fetched(context: Context, peer: PeerId, offer: OptimizerOffer) -> None:
            under_way.add(peer)
            if len(under_way) == len(several):
                all_under_way.set()
            await all_under_way.wait()

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            return offers[peer] if asked(r).count(peer) > 1 else LATER

        monkeypatch.setattr(recipient, "_fetch", fetched)
        r.network.answer = answer
        with trio.fail_after(30):
            await take_inner_state(r.context)
        assert sorted(asked(r)) == sorted(2 * list(offers))
        assert len(r.said("inner-state-taken")) == len(several)


@pytest.mark.parametrize("answer", [None, NOTHING, LATER, b"\xc1", "unusable state"])
async def test_mean_leaves_out_a_member_that_sends_no_usable_state(
    answer: bytes | str | None, tmp_path: Path
) -> None:
    async with rig(tmp_path, allowed=[ANN.peer, BOB.peer, CAI.peer], **SEVERAL) as r:
        r.wait_for(donor_answer_s=60.0, donor_again_s=0.01)
        commit(r, r.context.me, ANN.peer, BOB.peer, CAI.peer)
        commit(r, r.context.me, BOB.peer)
        hear_of(r, ANN.peer, BOB.peer, CAI.peer)
        answers = {}
        if answer == "unusable state":
            keep_state(r, 1, spoilt=1)
            answers[BOB.peer] = offer_of(r).signed(BOB)
        elif isinstance(answer, bytes):
            answers[BOB.peer] = answer
        kept = {}
        for who in (ANN, CAI):
            kept[who] = keep_state(r, 2, steps=20 if who is ANN else 30).read_bytes()
            answers[who.peer] = offer_of(r).signed(who)
        answering(r, answers)
        with trio.fail_after(30):
            await take_inner_state(r.context)
        assert states_in(r) == [2]
        assert {each["peer"] for each in r.said("inner-state-taken")} == {ANN.peer, CAI.peer}
        assert r.context.sharing.inner_from.startswith("the mean of the states of 2 members: ")
        assert r.context.sharing.inner_from.endswith("; this run asks for the mean of 3 states")
        assert "donor" not in r.context.alerts


async def test_first_state_is_used_if_the_disk_fails_at_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, allowed=[ANN.peer, BOB.peer], **SEVERAL) as r:
        commit(r, r.context.me, ANN.peer, BOB.peer)
        hear_of(r, ANN.peer, BOB.peer)
        given, offers = {}, {}
        for who, steps in ((ANN, 20), (BOB, 30)):
            given[who.peer] = vectors_in(keep_state(r, 1, steps=steps))
            offers[who.peer] = offer_of(r).signed(who)
        answering(r, offers)

        def fails(*files: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("p2ptrain.node.optimizer_sharing.averaged_state._fold", fails)
        await take_inner_state(r.context)
        (taken,) = r.said("inner-state-taken")
        (refused,) = r.said("donor-refused")
        assert {taken["peer"], refused["peer"]} == {ANN.peer, BOB.peer}
        assert "Input/output error" in str(refused["reason"])
        assert states_in(r) == [1]
        ours = vectors_in(path_of(r.context.home.inner, 1))
        assert ours.tobytes() == given[PeerId(str(taken["peer"]))].tobytes()


async def test_next_member_is_asked_if_a_donor_always_answers_later(tmp_path: Path) -> None:
    async with rig(tmp_path, **OPTION) as r:
        r.wait_for(donor_answer_s=60.0, donor_again_s=0.01)
        commit(r, r.context.me, ANN.peer, BOB.peer)
        commit(r, ANN.peer)
        keep_state(r, 2)
        hear_of(r, ANN.peer, BOB.peer)
        answering(r, {ANN.peer: LATER, BOB.peer: offer_of(r).signed(BOB)})
        await take_inner_state(r.context)
        assert asked(r) == [*LATER_MAX * [ANN.peer], BOB.peer]
        assert states_in(r) == [2]


@pytest.mark.parametrize("answer", [None, NOTHING, LATER])
async def test_joiner_that_gets_no_state_in_time_warns_of_an_empty_optimizer(
    answer: bytes | None, tmp_path: Path
) -> None:
    async with rig(tmp_path, **OPTION) as r:
        commit(r, r.context.me, ANN.peer)
        hear_of(r, ANN.peer)
        answering(r, {} if answer is None else {ANN.peer: answer})
        with fresh(r, "no member sent its state within 0 s"):
            await take_inner_state(r.context)
        assert set(asked(r)) == {ANN.peer}


async def test_joiner_that_does_not_hear_any_member_does_not_wait(tmp_path: Path) -> None:
    async with rig(tmp_path, **OPTION) as r:
        commit(r, r.context.me)
        with fresh(r, "there is no connected member"):
            await take_inner_state(r.context)
        assert asked(r) == []


async def test_states_that_are_too_old_or_too_new_are_not_adopted(tmp_path: Path) -> None:
    async with rig(tmp_path, **OPTION) as r:
        r.wait_for(donor_answer_s=100.0)
        for _ in range(AGE_STEPS_MAX + 2):
            step = commit(r, r.context.me, ANN.peer)
        for of in (step - AGE_STEPS_MAX - 1, step + 1):
            keep_state(r, of)
            hear_of(r, ANN.peer)
            answering(r, {ANN.peer: offer_of(r).signed(ANN)})
            before = len(asked(r))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_inner_state, r.context)
                await settled(lambda before=before: len(asked(r)) > before + 2)  # type: ignore[misc]
                nursery.cancel_scope.cancel()
            assert states_in(r) == []
        assert {each["peer"] for each in r.said("donor-not-current")} == {ANN.peer}
        assert r.said("donor-refused") == []


def test_age_limit_in_outer_steps_grows_with_the_number_of_fragments() -> None:
    """A trainer writes its state each time all fragments have been averaged: with 24 fragments,
    every 24 outer steps."""
    offer = OptimizerOffer(RunId("a" * 64), Digest("b" * 64), 0, 1, Digest("c" * 64))
    for fragments in (1, 2, 24):
        oldest = AGE_STEPS_MAX * fragments
        assert [offer.is_current(oldest + more, fragments) for more in (0, 1)] == [True, False]
    assert offer.is_current(21, 24)


async def test_members_with_the_most_contributions_are_asked_first(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, allowed=[ANN.peer, BOB.peer, CAI.peer], **OPTION) as r:
        commit(r, r.context.me, ANN.peer, BOB.peer, CAI.peer)
        commit(r, r.context.me, BOB.peer, CAI.peer)
        commit(r, r.context.me, BOB.peer)
        hear_of(r, ANN.peer, BOB.peer)
        hear_of(r, CAI.peer, trains=False)
        hear_of(r, Identity.from_seed(b"\x09" * 32).peer)  # This peer is not a member.
        assert donors(r.context) == [BOB.peer, ANN.peer]
        r.context.peers.detector.hint_lost(BOB.peer, r.context.now() - 2.0)
        assert donors(r.context) == [ANN.peer]


async def test_node_that_needs_or_keeps_no_state_does_not_ask_for_one(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path / "own", **OPTION) as r:
        hear_of(r, ANN.peer)
        await take_inner_state(r.context)  # The run has just begun.
        commit(r, r.context.me, ANN.peer)
        keep_state(r, 1)
        await take_inner_state(r.context)
        assert (asked(r), states_in(r), r.context.alerts.warnings) == ([], [1], {})
    async with rig(tmp_path / "fresh", **(OPTION | {"join_optimizer": "fresh"})) as r:
        commit(r, r.context.me, ANN.peer)
        hear_of(r, ANN.peer)
        await take_inner_state(r.context)
        assert (asked(r), r.context.alerts.warnings) == ([], {})
    async with rig(tmp_path / "off", **OPTION) as r:
        r.configure(keep_inner=False)
        with fresh(r, "this node does not keep the optimizer's state on its disk"):
            await take_inner_state(r.context)
    async with rig(tmp_path / "ranks elsewhere", **OPTION) as r:
        r.configure(ranks_host="10.0.0.1")
        with fresh(r, "this node does not keep the optimizer's state on its disk"):
            await take_inner_state(r.context)


Ask = Callable[[], Awaitable[bytes]]


async def asking(
    r: Rig, nursery: trio.Nursery, *, offer_s: float = OFFER_S, nothing_s: float = NOTHING_S
) -> Ask:
    """Start the donor's task in `r`. Return a function with which Ann asks `r` for a state."""
    nursery.start_soon(partial(donate, r.context, offer_s=offer_s, nothing_s=nothing_s))
    await settled(lambda: INNER_PROTOCOL in r.network.handlers)

    async def ask() -> bytes:
        reply = await r.network.handlers[INNER_PROTOCOL](ANN.peer, ask_of(r.context.run))
        await trio.testing.wait_all_tasks_blocked(0.05)
        return reply

    return ask


async def test_donor_makes_offers_on_request_and_at_a_limited_rate(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **OPTION)
    ask = await asking(r, nursery)
    keep_state(r, 1)
    assert await ask() == LATER
    await settled(lambda: bool(r.said("inner-state-offered")))
    first = await ask()
    assert OptimizerOffer.decode(first, r.context.me).step == 1
    keep_state(r, 2)
    assert [await ask() for _ in range(5)] == [first] * 5
    assert len(r.said("inner-state-offered")) == 1


async def test_state_is_not_offered_while_its_optimizer_is_warming_up(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """A joiner that adopts a state does not warm up: it uses the full learning rate from its first
    inner step on. So the state must come from an optimizer that has warmed up."""
    r = await new_rig(tmp_path, **OPTION, join_warmup_steps=20)
    ask = await asking(r, nursery, nothing_s=0.0)
    keep_state(r, 1, warmed=19)
    assert await ask() == LATER
    assert r.said("inner-state-offered") == []
    keep_state(r, 2, warmed=20)
    assert await ask() == LATER
    await settled(lambda: bool(r.said("inner-state-offered")))


async def test_newer_state_is_offered_once_the_last_offer_has_expired(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **OPTION)
    ask = await asking(r, nursery, offer_s=0.0)
    for step in (1, 2):
        keep_state(r, step)
        assert await ask() == LATER
        await settled(lambda step=step: len(r.said("inner-state-offered")) == step)  # type: ignore[misc]
    assert [each["step"] for each in r.said("inner-state-offered")] == [1, 2]
    assert len(r.context.sharing.kept(r.context.now())) == 2


async def test_repeated_requests_do_not_fill_the_donors_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **OPTION)
    ask = await asking(r, nursery, offer_s=0.0)
    for step in range(1, KEPT_MAX + 1):
        keep_state(r, step)
        assert await ask() == LATER
        await settled(lambda step=step: len(r.said("inner-state-offered")) == step)  # type: ignore[misc]
    keep_state(r, KEPT_MAX + 1)
    with trio.fail_after(30):
        while (reply := await ask()) == LATER:
            pass
    assert OptimizerOffer.decode(reply, r.context.me).step == KEPT_MAX
    assert (
        len(r.said("inner-state-offered"))
        == len(r.context.sharing.kept(r.context.now()))
        == KEPT_MAX
    )
    # Once the oldest offered state is too old for every peer, it is dropped to make room.
    oldest = r.context.sharing.kept(r.context.now())[0]
    monkeypatch.setattr(OptimizerOffer, "is_too_old", lambda offer, *_: offer.digest == oldest)
    assert await ask() == LATER
    await settled(lambda: len(r.said("inner-state-offered")) == KEPT_MAX + 1)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert len(r.context.sharing.kept(r.context.now())) == KEPT_MAX
    assert oldest not in r.context.sharing.kept(r.context.now())


@pytest.mark.parametrize("damage", ["no file", "truncated", "flipped bit", "no header"])
async def test_donor_without_an_undamaged_state_offers_nothing(
    damage: str, tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **OPTION)
    ask = await asking(r, nursery)
    if damage != "no file":
        file = keep_state(r, 1)
        data = bytearray(file.read_bytes())
        match damage:
            case "truncated":
                del data[-100:]
            case "flipped bit":
                data[-100] ^= 1
            case "no header":
                data[:4096] = bytes(4096)
        file.write_bytes(data)
    assert await ask() == LATER
    with trio.fail_after(30):
        while (reply := await ask()) == LATER:
            pass
    assert (reply, r.said("inner-state-offered"), r.context.sharing.kept(r.context.now())) == (
        NOTHING,
        [],
        (),
    )


async def test_nodes_donate_only_if_the_run_asks_for_it_and_they_keep_states(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    async with rig(tmp_path / "fresh", join_optimizer="fresh") as r:
        await donate(r.context)
        assert INNER_PROTOCOL not in r.network.handlers
    r = await new_rig(tmp_path / "donor", **OPTION)
    r.configure(keep_inner=False)
    ask = await asking(r, nursery)
    handler = r.network.handlers[INNER_PROTOCOL]
    for nonsense in (ask_of(RunId("e" * 64)), b"\xc1", pack({"run": 1}), pack([])):
        with pytest.raises(RemoteProtocolError):
            await handler(ANN.peer, nonsense)
    keep_state(r, 1)
    assert [await ask() for _ in range(2)] == [NOTHING, NOTHING]


async def test_offered_state_is_kept_in_the_store_while_the_offer_is_valid(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **OPTION)
    know_data(r)
    ask = await asking(r, nursery)
    keep_state(r, 1)
    await ask()
    await settled(lambda: bool(r.said("inner-state-offered")))
    offer = OptimizerOffer.decode(await ask(), r.context.me)
    for _ in range(2):  # A new chunk survives one collection.
        await collect(r.context)
    assert r.context.store.holds_blob(offer.digest)
    assert OFFER_S < donor.KEPT_S
    r.context.sharing.offered[offer.digest] = r.context.now() - 1.0
    await collect(r.context)
    assert not r.context.store.holds_blob(offer.digest)
