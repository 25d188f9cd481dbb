"""Before the organiser signs a new allowlist, its node asks its neighbours for the newest one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from p2ptrain.errors import PeerLost
from p2ptrain.identity import load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.allowlist_survey import newest_allowlist
from p2ptrain.peers.hello_messages import HelloReply, encode_reply
from p2ptrain.run import Allowlist, SignedAllowlist, load_allowlist
from tests.node.rig import ANN, BOB, CAI, Rig, rig

STRANGER = PeerId("12D3KooWStranger")


def showing(
    r: Rig, lists: dict[PeerId, bytes | None]
) -> Callable[[PeerId, bytes], Awaitable[bytes]]:
    """Connect neighbours, and return their answer function: each sends its list in `lists`, or
    closes the connection if that is None."""

    async def answer(peer: PeerId, question: bytes) -> bytes:
        shown = lists[peer]
        if shown is None:
            raise PeerLost("it hung up", peer=peer)
        return encode_reply(HelloReply(r.run.to_bytes(), shown, b"", True, {}))

    r.network.peers = {*lists, STRANGER}
    return answer


def listing(r: Rig, sequence: int, *peers: PeerId) -> bytes:
    organiser = load_or_create(r.context.home.identity)
    made = Allowlist.of(r.run.id, sequence, [organiser.peer, *peers])
    return SignedAllowlist.publish(organiser, made).to_bytes()


async def test_newest_allowlist_of_the_neighbours_is_stored_in_the_home(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        old, new = listing(r, 1, ANN.peer), listing(r, 6, ANN.peer, BOB.peer, CAI.peer)
        r.network.answer = showing(r, {ANN.peer: old, BOB.peer: new, CAI.peer: None})
        told = await newest_allowlist(r.context)
        state = r.context.ledger.snapshot
        assert told == {"sequence": 6, "heard": 2, "others": [], "voters": list(state.voters)}
        kept = load_allowlist(r.context.home.allowlist, r.run)
        assert kept is not None
        assert kept.allowlist.sequence == 6
        assert r.network.refreshed == 1
        assert STRANGER not in [peer for peer, _ in r.network.requested]


async def test_neighbour_that_sends_an_invalid_allowlist_is_not_counted(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.network.answer = showing(r, {ANN.peer: b"", BOB.peer: b"a forgery", CAI.peer: None})
        told = await newest_allowlist(r.context)
        assert (told["sequence"], told["heard"]) == (1, 0)
        assert len(r.said("bad-hello")) == 2


async def test_silent_neighbour_delays_the_answer_only_until_the_deadline(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        shown = showing(r, {ANN.peer: listing(r, 2, ANN.peer), BOB.peer: None})

        async def answer(peer: PeerId, question: bytes) -> bytes:
            if peer == BOB.peer:
                await trio.sleep_forever()
            return await shown(peer, question)

        r.network.answer = answer
        assert (await newest_allowlist(r.context, answer_s=0.01))["sequence"] == 2
