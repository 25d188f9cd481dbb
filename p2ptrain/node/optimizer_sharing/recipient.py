"""Fetch inner optimizer states from members if the run asks for it and this node has none.

Before its first trainer starts, a joiner asks the members, largest contributors first. It fetches
one state, or the mean of several, checks it and stores it in the place of its own state; the
trainer does not notice a difference. Fewer states than wanted are accepted. If none arrives in
time, the trainer starts with a fresh optimizer and warms up, and the user is warned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from p2ptrain.errors import PeerError, RemoteProtocolError, StoreError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.names import label
from p2ptrain.node.optimizer_sharing.averaged_state import Donated
from p2ptrain.node.optimizer_sharing.donor import LATER, NOTHING, ask_of, keeps_state_here
from p2ptrain.node.optimizer_sharing.optimizer_offer import OFFER_BYTES_MAX, Offer
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import StandingBy
from p2ptrain.peers.protocol_names import INNER_PROTOCOL
from p2ptrain.trainer.formats.inner_format import newest, vector_bytes

HEAR_S = 10.0
"""Five heartbeats: a node that has not heard a peer by then has no peer to ask."""

ANSWER_S = 90.0
"""Seconds to wait for the first offer, and for each further one: a donor must first write 8 bytes
per parameter."""

LATER_MAX = 15
"""Number of times that a member may answer "later" before others are asked too: half a minute."""

AGAIN_S = 2.0
ASK_S = 5.0
ASKED_MAX = 4
"""Maximum number of members asked each time. Those that had nothing are asked last."""

USELESS_MAX = 3
"""Number of members with an unusable state or offer after which no more are asked."""

FETCH_S = 60.0
BYTES_PER_S_MIN = 500_000
"""Minimum rate of a fetch. A slower one is abandoned, since the run continues in the meantime."""

FRESH = "the inner optimizer starts empty, which costs this peer a warm-up"


class _Useless(Exception):
    """The state that a member offered cannot be used; `why` says why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class _Offered:
    """A member's offer, decoded and as signed bytes."""

    peer: PeerId
    offer: Offer
    proof: bytes


@dataclass(frozen=True, slots=True)
class _Gift:
    """A state received from a member: its signed offer, and how many seconds the fetch took."""

    offer: Offer
    proof: bytes
    seconds: float


async def take_inner_state(parts: Parts) -> None:
    """Fetch a state for a trainer that is about to start. The deadlines above limit this to
    minutes."""
    if not parts.manifest.inner.donors_max:
        return
    if not keeps_state_here(parts):
        return _start_fresh(parts, "this node is configured not to keep the inner state on disk")
    await _know_the_run(parts)
    state = parts.ledger.state
    own = await trio.to_thread.run_sync(newest, parts.home.inner, parts.layout, state.step)
    if own is not None or state.step == 0 or state.phase is Phase.ENDED:
        return
    if not len(parts.peers):
        return _start_fresh(parts, "there is no connected member that could send its state")
    parts.enter_unless_training(StandingBy("for a member to send its inner optimizer state"))
    inner = parts.manifest.inner
    with Donated(parts.home.inner, parts.store, parts.layout, inner) as donated:
        gifts, why = await _ask_around(parts, donated)
        if gifts:
            why = await _begin_with(parts, donated, gifts)
    if why:
        _start_fresh(parts, why)


async def _ask_around(parts: Parts, donated: Donated) -> tuple[dict[PeerId, _Gift], str]:
    """Ask members until enough have sent a state, too many sent an unusable one, or time is up.
    Return the received states, and the reason if there are too few.

    Wait for members that answer "later", so that no more members store their states than needed.
    Once at least one state has been received, do not wait any longer.
    """
    gifts, useless, put_off = dict[PeerId, _Gift](), dict[PeerId, str](), Counter[PeerId]()
    ends_s = parts.now() + ANSWER_S
    while parts.now() < ends_s and len(useless) < USELESS_MAX:
        around = [peer for peer in donors(parts) if peer not in useless and peer not in gifts]
        around.sort(key=lambda peer: put_off[peer] >= LATER_MAX)
        if gifts and all(put_off[peer] >= LATER_MAX for peer in around):
            break
        missing = parts.manifest.inner.donors_max - len(gifts)
        offered = await _offers(parts, around[:ASKED_MAX], missing, put_off, useless)
        gifts |= await _take_all(parts, offered, donated, useless)
        if len(gifts) == parts.manifest.inner.donors_max:
            return gifts, ""
        if offered:
            ends_s = parts.now() + ANSWER_S  # A fetch has its own deadline.
        await trio.sleep(AGAIN_S)
    said = "; ".join(f"{label(peer)}: {why}" for peer, why in useless.items())
    return gifts, said or f"no member sent its state within {ANSWER_S:.0f} s"


async def _offers(
    parts: Parts,
    around: Sequence[PeerId],
    missing: int,
    put_off: Counter[PeerId],
    useless: dict[PeerId, str],
) -> list[_Offered]:
    """Ask these members until `missing` of them offer a state or answer "later". Return the
    offers."""
    offered, waiting = list[_Offered](), 0
    for peer in around:
        if len(offered) + waiting == missing:
            break
        reply = await _ask(parts, peer)
        put_off[peer] += 1 if reply == LATER else LATER_MAX
        if reply == LATER and put_off[peer] < LATER_MAX:
            waiting += 1
        if reply in (LATER, NOTHING):
            continue
        try:
            offer = _read(parts, peer, reply)
        except _Useless as exc:
            _refuse(parts, peer, exc, useless)
            continue
        if offer is not None:
            offered.append(_Offered(peer, offer, reply))
    return offered


async def _take_all(
    parts: Parts, offered: Sequence[_Offered], donated: Donated, useless: dict[PeerId, str]
) -> dict[PeerId, _Gift]:
    """Fetch these states at the same time, since each comes over a different member's uplink.
    Return those that are valid, in the order of the offers."""
    adding, gifts = trio.Lock(), dict[PeerId, _Gift]()

    async def take(each: _Offered) -> None:
        try:
            gifts[each.peer] = await _take(parts, each, donated, adding, len(offered))
        except _Useless as exc:
            _refuse(parts, each.peer, exc, useless)

    async with trio.open_nursery() as nursery:
        for each in offered:
            nursery.start_soon(take, each)
    return {each.peer: gifts[each.peer] for each in offered if each.peer in gifts}


def _refuse(parts: Parts, peer: PeerId, reason: _Useless, useless: dict[PeerId, str]) -> None:
    useless[peer] = reason.why
    parts.journal.write("donor-refused", peer=peer, reason=reason.why)


async def _know_the_run(parts: Parts) -> None:
    """Return once our ledger is as long as those of the peers, if any peer is heard."""
    with trio.move_on_after(HEAR_S):
        while not len(parts.peers):
            await parts.changes.wait()
    with trio.move_on_after(ANSWER_S):
        while len(parts.peers) and not parts.ledger_is_current():
            await parts.changes.wait()


def donors(parts: Parts) -> Sequence[PeerId]:
    """Return the members that we hear and that train, largest contributors first."""
    state = parts.ledger.state
    heard = [
        view.peer
        for view in parts.peers
        if state.is_member(view.peer) and view.heartbeat.trains and not parts.is_down(view.peer)
    ]
    tokens = state.tokens_by_peer
    return sorted(set(heard) - {parts.me}, key=lambda peer: (-tokens.get(peer, 0), peer))


async def _ask(parts: Parts, peer: PeerId) -> bytes:
    """Return the reply of `peer`; `NOTHING` if it does not answer."""
    try:
        return await parts.network.request(
            peer, INNER_PROTOCOL, ask_of(parts.run), deadline_s=ASK_S, bytes_max=OFFER_BYTES_MAX
        )
    except (PeerError, RemoteProtocolError) as exc:
        parts.complain("donor-silent", peer, reason=exc.what)
        return NOTHING


def _read(parts: Parts, peer: PeerId, reply: bytes) -> Offer | None:
    """Decode the offer of `peer`. Return None if its step is too old or too new, which may change.

    Raises _Useless.
    """
    try:
        offer = Offer.read(reply, peer)
    except RemoteProtocolError as exc:
        raise _Useless(exc.what) from exc
    if not offer.is_for(parts.run, parts.layout):
        raise _Useless("it offers a state of a different run or model")
    step = parts.ledger.state.step
    if not offer.is_current(step, parts.manifest.sync.fragments):
        told = f"its state is from outer step {offer.step}, but the run is at outer step {step}"
        parts.complain("donor-not-current", peer, reason=told)
        return None
    return offer


async def _take(
    parts: Parts, offered: _Offered, donated: Donated, adding: trio.Lock, fetches: int
) -> _Gift:
    """Fetch an offered state and add it to the mean. `fetches` is the number of states that share
    our connection in the meantime. `adding` keeps them from being added at the same time.

    Raises:
        _Useless: the state could not be fetched, or is not valid.
    """
    peer, offer, started_s = offered.peer, offered.offer, parts.now()
    limit_s = FETCH_S + fetches * 2 * vector_bytes(parts.layout) / BYTES_PER_S_MIN
    parts.offered[offer.digest] = started_s + limit_s  # Protects it from garbage collection.
    try:
        with trio.fail_after(limit_s):
            await _fetch(parts, peer, offer)
            async with adding:
                await trio.to_thread.run_sync(donated.add, offer)
    except (RemoteProtocolError, StoreError) as exc:
        raise _Useless(exc.what) from exc
    except trio.TooSlowError as exc:
        raise _Useless(f"its state did not arrive within {limit_s:.0f} s") from exc
    except OSError as exc:
        raise _Useless(f"its state cannot be written to this disk: {exc.strerror}") from exc
    finally:
        parts.offered.pop(offer.digest, None)
    return _Gift(offer, offered.proof, parts.now() - started_s)


async def _begin_with(parts: Parts, donated: Donated, gifts: dict[PeerId, _Gift]) -> str:
    """Publish the mean of the states, and report their owners. Return an error in words, or ""."""
    try:
        await trio.to_thread.run_sync(donated.publish)
    except OSError as exc:
        return f"the members' states cannot be moved into place: {exc.strerror}"
    told = [
        f"{label(peer)} at outer step {gift.offer.step}, {gift.offer.count:,} inner steps old"
        for peer, gift in gifts.items()
    ]
    mean = f"the mean of those of {len(told)} members: " if len(told) > 1 else "that of "
    wanted = parts.manifest.inner.donors_max
    fewer = f" (the run wants the mean of {wanted})" if len(told) < wanted else ""
    parts.standing.inner_from = mean + "; ".join(told) + fewer
    for peer, gift in gifts.items():
        parts.journal.write(
            "inner-state-taken",
            peer=peer,
            among=len(gifts),
            step=gift.offer.step,
            count=gift.offer.count,
            digest=gift.offer.digest,
            offer=gift.proof,
            seconds=gift.seconds,
        )
    return ""


async def _fetch(parts: Parts, peer: PeerId, offer: Offer) -> None:
    """Fetch the manifest first. Fetch the rest only if the manifest states the right size;
    otherwise a member could fill our disk.
    """

    def gone() -> bool:
        return parts.is_down(peer)

    await fetch.fetch_loose(parts, [offer.digest], unwanted=gone)
    manifest = await trio.to_thread.run_sync(parts.store.manifest, offer.digest)
    offer.check_manifest(manifest, parts.layout)
    await fetch.fetch(parts, offer.digest, unwanted=gone)


def _start_fresh(parts: Parts, why: str) -> None:
    steps = parts.manifest.inner.join_warmup_steps
    said = f"{why}: {FRESH}" + (f" of {steps} inner steps" if steps else "")
    parts.standing.warnings["donor"] = Caution("JOIN-FRESH", said)
    parts.journal.write("inner-state-fresh", reason=why)
    parts.changes.ring()
