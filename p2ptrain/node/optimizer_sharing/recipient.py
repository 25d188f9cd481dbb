"""Fetch inner optimizer states from members, if the run asks for this and this node has no state.

Before its first trainer starts, a joiner asks the members, largest contributors first. It fetches
one or several states, checks them, and stores their mean where its trainer looks for its own state.
Fewer states than the run asks for are accepted. If none arrives in time, the trainer starts with an
empty optimizer and warms up, and the user is warned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import trio

from p2ptrain.errors import PeerError, RemoteProtocolError, StoreError, counted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.names import label
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.optimizer_sharing.averaged_state import AveragedState
from p2ptrain.node.optimizer_sharing.donor import LATER, NOTHING, ask_of, keeps_state_here
from p2ptrain.node.optimizer_sharing.optimizer_offer import OFFER_BYTES_MAX, OptimizerOffer
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import StandingBy
from p2ptrain.peers.protocol_names import INNER_PROTOCOL
from p2ptrain.trainer.formats.inner_format import newest, vector_bytes

LATER_MAX = 15
"""Number of times that a member may answer `LATER` before others are asked too. At one request
every 2 s, this is half a minute."""

ASK_S = 5.0
ASKED_MAX = 4
"""Maximum number of members asked in a round. Members that had no state are asked last."""

USELESS_MAX = 3
"""Number of members with an unusable state or offer after which no more members are asked."""

FETCH_S = 60.0
BYTES_PER_S_MIN = 500_000
"""A fetch may take FETCH_S plus the time that its bytes take at this rate. A slower fetch is
abandoned, since the run continues without this node in the meantime."""

FRESH = "the inner optimizer starts empty, which costs this peer a warm-up"


class _UnusableState(Exception):
    """The state that a member offered cannot be used. The text of the exception says why."""


@dataclass(frozen=True, slots=True)
class _MemberOffer:
    """A member's offer, decoded and as signed bytes (`proof`)."""

    peer: PeerId
    offer: OptimizerOffer
    proof: bytes
    seconds: float = 0.0
    """The duration of the fetch, once the offered state has been fetched."""


async def take_inner_state(context: Context) -> None:
    """Fetch states, if needed, for a trainer that is about to start. Deadlines limit the duration
    to minutes."""
    if not context.manifest.inner.donors_max:
        return
    if not keeps_state_here(context):
        return _start_fresh(context, "this node does not keep the optimizer's state on its disk")
    await _know_the_run(context)
    state = context.ledger.snapshot
    own = await trio.to_thread.run_sync(newest, context.home.inner, context.layout, state.step)
    if own is not None or state.step == 0 or state.phase is Phase.ENDED:
        return
    if not len(context.peers.table):
        return _start_fresh(context, "there is no connected member that could send its state")
    context.state.set_state_unless_training(
        StandingBy("for a member to send its inner optimizer state")
    )
    inner = context.manifest.inner
    mean = AveragedState(context.home.inner, context.store, context.layout, inner)
    with closing(mean) as donated:
        gifts, why = await _ask_around(context, donated)
        if gifts:
            why = await _begin_with(context, donated, gifts)
    if why:
        _start_fresh(context, why)


async def _ask_around(
    context: Context, donated: AveragedState
) -> tuple[dict[PeerId, _MemberOffer], str]:
    """Ask members until enough states were received, until USELESS_MAX members sent an unusable
    one, or until time is up. Return the received states, and the reason if there are too few.

    Give a member that answers `LATER` some time before asking others, so that no more members store
    a state than needed. Stop asking when one state has been received, and all remaining members
    have had this time.
    """
    gifts, useless, put_off = dict[PeerId, _MemberOffer](), dict[PeerId, str](), Counter[PeerId]()
    ends_s = context.now() + context.timing.donor_answer_s
    while context.now() < ends_s and len(useless) < USELESS_MAX:
        around = [peer for peer in donors(context) if peer not in useless and peer not in gifts]
        around.sort(key=lambda peer: put_off[peer] >= LATER_MAX)
        if gifts and all(put_off[peer] >= LATER_MAX for peer in around):
            break
        missing = context.manifest.inner.donors_max - len(gifts)
        offered = await _offers(context, around[:ASKED_MAX], missing, put_off, useless)
        gifts |= await _take_all(context, offered, donated, useless)
        if len(gifts) == context.manifest.inner.donors_max:
            return gifts, ""
        if offered:
            ends_s = context.now() + context.timing.donor_answer_s  # A fetch has its own deadline.
        await trio.sleep(context.timing.donor_again_s)
    said = "; ".join(f"{label(peer)}: {why}" for peer, why in useless.items())
    late = f"no member sent its state within {context.timing.donor_answer_s:.0f} s"
    return gifts, said or late


async def _offers(
    context: Context,
    around: Sequence[PeerId],
    missing: int,
    put_off: Counter[PeerId],
    useless: dict[PeerId, str],
) -> list[_MemberOffer]:
    """Ask these members in turn until `missing` of them offer a state or answer `LATER`. Return the
    offers. `put_off` counts each member's `LATER` answers; any other answer counts as LATER_MAX."""
    offered, waiting = list[_MemberOffer](), 0
    for peer in around:
        if len(offered) + waiting == missing:
            break
        reply = await _request_offer(context, peer)
        put_off[peer] += 1 if reply == LATER else LATER_MAX
        if reply == LATER and put_off[peer] < LATER_MAX:
            waiting += 1
        if reply in (LATER, NOTHING):
            continue
        try:
            if (offer := _decode_offer(context, peer, reply)) is not None:
                offered.append(_MemberOffer(peer, offer, reply))
        except _UnusableState as exc:
            _refuse(context, peer, exc, useless)
    return offered


async def _take_all(
    context: Context,
    offered: Sequence[_MemberOffer],
    donated: AveragedState,
    useless: dict[PeerId, str],
) -> dict[PeerId, _MemberOffer]:
    """Fetch these states at the same time, since each comes over a different member's uplink.
    Return the valid ones, in the order of the offers."""
    adding, gifts = trio.Lock(), dict[PeerId, _MemberOffer]()

    async def add_one(each: _MemberOffer) -> None:
        try:
            gifts[each.peer] = await _fetch_and_add(context, each, donated, adding, len(offered))
        except _UnusableState as exc:
            _refuse(context, each.peer, exc, useless)

    async with trio.open_nursery() as nursery:
        for each in offered:
            nursery.start_soon(add_one, each)
    return {each.peer: gifts[each.peer] for each in offered if each.peer in gifts}


def _refuse(
    context: Context, peer: PeerId, reason: _UnusableState, useless: dict[PeerId, str]
) -> None:
    useless[peer] = str(reason)
    context.journal.write("donor-refused", peer=peer, reason=useless[peer])


async def _know_the_run(context: Context) -> None:
    """Wait until some peer is heard, and then until our ledger is as long as those of the peers.
    Both waits are bounded."""
    with trio.move_on_after(context.timing.hear_first_s):
        while not len(context.peers.table):
            await context.changes.wait()
    with trio.move_on_after(context.timing.donor_answer_s):
        while len(context.peers.table) and not context.peers.ledger_is_current():
            await context.changes.wait()


def donors(context: Context) -> Sequence[PeerId]:
    """Return the members that are up and train, except this node, largest contributors first."""
    state = context.ledger.snapshot
    heard = [
        record.peer
        for record in context.peers.table
        if state.is_member(record.peer)
        and record.heartbeat.trains
        and not context.peers.is_down(record.peer)
    ]
    tokens = state.tokens_by_peer
    return sorted(set(heard) - {context.me}, key=lambda peer: (-tokens.get(peer, 0), peer))


async def _request_offer(context: Context, peer: PeerId) -> bytes:
    """Ask `peer` for an offer. Return its reply, or `NOTHING` if it does not answer."""
    try:
        return await forwarding.request(
            context,
            peer,
            INNER_PROTOCOL,
            ask_of(context.run),
            deadline_s=ASK_S,
            bytes_max=OFFER_BYTES_MAX,
        )
    except (PeerError, RemoteProtocolError) as exc:
        context.peers.report_misbehaviour("donor-silent", peer, reason=exc.what)
        return NOTHING


def _decode_offer(context: Context, peer: PeerId, reply: bytes) -> OptimizerOffer | None:
    """Decode the offer of `peer`. Return None if the offered state is too old or too new: `peer`
    may have a better one later.
    Raises _UnusableState."""
    try:
        offer = OptimizerOffer.decode(reply, peer)
    except RemoteProtocolError as exc:
        raise _UnusableState(exc.what) from exc
    if (offer.run, offer.layout) != (context.run, context.layout.digest):
        raise _UnusableState("it offers a state of a different run or model")
    step = context.ledger.snapshot.step
    if not offer.is_current(step, context.manifest.sync.fragments):
        told = f"its state is from outer step {offer.step}, but the run is at outer step {step}"
        context.peers.report_misbehaviour("donor-not-current", peer, reason=told)
        return None
    return offer


async def _fetch_and_add(
    context: Context, offered: _MemberOffer, donated: AveragedState, adding: trio.Lock, fetches: int
) -> _MemberOffer:
    """Fetch an offered state, add it to the mean, and return the offer with the fetch's duration.

    `fetches` states are fetched at the same time and share our connection, so the time limit grows
    with them. `adding` is held while a state is added: `AveragedState` adds one at a time.

    Raises _UnusableState: the state could not be fetched, or is not valid.
    """
    peer, offer, started_s = offered.peer, offered.offer, context.now()
    limit_s = FETCH_S + fetches * 2 * vector_bytes(context.layout) / BYTES_PER_S_MIN
    # Garbage collection keeps the blobs that we offer. So an offer protects this one from now on.
    context.sharing.offer(offer.digest, now_s=started_s, keep_s=limit_s)
    try:
        with trio.fail_after(limit_s):
            await _fetch(context, peer, offer)
            async with adding:
                await trio.to_thread.run_sync(donated.add, offer)
    except (RemoteProtocolError, StoreError) as exc:
        raise _UnusableState(exc.what) from exc
    except trio.TooSlowError as exc:
        raise _UnusableState(f"its state did not arrive within {limit_s:.0f} s") from exc
    except OSError as exc:
        raise _UnusableState(f"its state cannot be written to this disk: {exc.strerror}") from exc
    finally:
        context.sharing.withdraw(offer.digest)
    return replace(offered, seconds=context.now() - started_s)


async def _begin_with(
    context: Context, donated: AveragedState, gifts: dict[PeerId, _MemberOffer]
) -> str:
    """Publish the mean of the states for the trainer, and record who sent them. Return an error in
    words, or ""."""
    try:
        await trio.to_thread.run_sync(donated.publish)
    except OSError as exc:
        return f"the members' states cannot be moved into place: {exc.strerror}"
    told = [
        f"{label(peer)} (outer step {gift.offer.step}, after {gift.offer.count:,} inner steps)"
        for peer, gift in gifts.items()
    ]
    mean = f"the mean of the states of {len(told)} members: " if len(told) > 1 else "from "
    wanted = context.manifest.inner.donors_max
    fewer = f"; this run asks for the mean of {wanted} states" if len(told) < wanted else ""
    context.sharing.inner_from = mean + ", ".join(told) + fewer
    for peer, gift in gifts.items():
        context.journal.write(
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


async def _fetch(context: Context, peer: PeerId, offer: OptimizerOffer) -> None:
    """Fetch the blob's manifest, and then its chunks if the manifest states the right size. Without
    this check, a member could fill our disk."""
    gone = partial(context.peers.is_down, peer)
    await fetch.fetch_loose(context, [offer.digest], unwanted=gone)
    manifest = await trio.to_thread.run_sync(context.store.manifest, offer.digest)
    offer.check_manifest(manifest, context.layout)
    await fetch.fetch(context, offer.digest, unwanted=gone)


def _start_fresh(context: Context, why: str) -> None:
    """Warn the user that no state was received, and say why."""
    steps = context.manifest.inner.join_warmup_steps
    said = f"{why}: {FRESH}" + (f" of {counted(steps, 'inner step')}" if steps else "")
    context.alerts.show("donor", Caution("JOIN-FRESH", said))
    context.journal.write("inner-state-fresh", reason=why)
    context.changes.notify_all()
