"""Send joiners the state of our trainer's inner optimizer, if the run's manifest asks for that.

The trainer writes this state to a file regularly anyway. The node splits the file into chunks only
when a joiner asks: the joiner is told to ask again, and then gets a signed offer. For OFFER_S,
other joiners get the same offer. The chunks are served like the chunks of a snapshot, with lower
priority than a reduce.
"""

from __future__ import annotations

import trio

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError, StoreError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.optimizer_sharing.optimizer_offer import OptimizerOffer, put_newest
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import INNER_ASK_BYTES_MAX, INNER_PROTOCOL

OFFER_S = 60.0
"""Seconds for which joiners get the same offer: requests cannot make us store states more often."""

NOTHING_S = 5.0
"""Seconds for which the answer remains `NOTHING` after no state was found. The time is short: the
trainer may be about to write its first state."""

KEPT_S = 3600.0
"""Seconds for which the chunks are kept for joiners. They take 8 bytes per parameter."""

KEPT_MAX = 3
"""Maximum number of states kept at a time; otherwise a request every minute could fill our disk.
Room for a new state arises when the oldest one expires (KEPT_S) or is too old for every joiner.
Until then, joiners get the newest existing offer."""

NOTHING, LATER = b"", b"later"
"""The replies "I have no state to offer" and "I am storing a state, ask again"."""


def ask_of(run: RunId) -> bytes:
    """Return the request for a state."""
    return pack({"run": run})


def keeps_state_here(context: Context) -> bool:
    """Return whether our trainer writes its optimizer's state to this machine's disk."""
    return context.config.keep_inner and not context.config.ranks_host


async def donate(
    context: Context, *, offer_s: float = OFFER_S, nothing_s: float = NOTHING_S
) -> None:
    """Answer joiners' requests until cancelled."""
    if not context.manifest.inner.donors_max:
        return
    asked = trio.Event()
    offer, made_s = NOTHING, -offer_s
    making, kept = False, list[OptimizerOffer]()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        told = fields(unpack(payload, bytes_max=INNER_ASK_BYTES_MAX), run=str)
        if told["run"] != context.run:
            raise RemoteProtocolError("the request is for a state of a different run", peer=peer)
        if not (context.trains and keeps_state_here(context)):
            return NOTHING
        is_over = context.now() >= made_s + (offer_s if offer else nothing_s)
        if making or (is_over and _has_room(context, kept)):
            asked.set()
            return LATER
        return offer

    forwarding.handle(context, INNER_PROTOCOL, answer, bytes_max=INNER_ASK_BYTES_MAX)
    while True:
        await asked.wait()
        making = True
        made = await _make(context)
        offer = NOTHING if made is None else made.signed(context.identity)
        if made is not None:
            kept = [*(each for each in kept if each.digest != made.digest), made]
        making, made_s, asked = False, context.now(), trio.Event()


def _has_room(context: Context, kept: list[OptimizerOffer]) -> bool:
    """Return whether one more state may be kept. Remove from `kept` (oldest first) the states that
    have expired, and the oldest one if it is too old for every joiner."""
    wanted = context.sharing.kept(context.now())
    kept[:] = [each for each in kept if each.digest in wanted]
    step, fragments = context.ledger.snapshot.step, context.manifest.sync.fragments
    if len(kept) >= KEPT_MAX and kept[0].is_too_old(step, fragments):
        context.sharing.withdraw(kept.pop(0).digest)
    return len(kept) < KEPT_MAX


async def _make(context: Context) -> OptimizerOffer | None:
    """Store the trainer's newest state as a blob, and return an offer of it. Return None if there
    is no state to offer, or if it cannot be stored."""
    started_s, warm_steps = context.now(), context.manifest.inner.join_warmup_steps
    try:
        made = await trio.to_thread.run_sync(
            put_newest, context.home.inner, context.store, context.run, context.layout, warm_steps
        )
    except StoreError as exc:
        context.journal.write("inner-state-not-offered", code=exc.code, reason=exc.what)
        return None
    if made is None:
        return None
    context.sharing.offer(made.digest, now_s=context.now(), keep_s=KEPT_S)
    context.journal.write(
        "inner-state-offered",
        step=made.step,
        count=made.count,
        digest=made.digest,
        seconds=context.now() - started_s,
    )
    return made
