"""Send joiners the state of our trainer's inner optimizer, if the run's manifest asks for that.

The trainer writes the state at every outer step anyway. It is split into chunks only on request:
the first joiner is told to ask again, and then gets a signed offer. The offer is valid for a while,
for other joiners too. The chunks are sent like all others, with lower priority than the ring.
"""

from __future__ import annotations

import trio

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError, StoreError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.node.optimizer_sharing.optimizer_offer import Offer, put_newest
from p2ptrain.node.outer_state.retention import still_offered
from p2ptrain.node.state.context import Parts
from p2ptrain.peers.protocol_names import INNER_PROTOCOL

OFFER_S = 60.0
"""Seconds for which an offer is handed out. Requests cannot make us store a state more often."""

NOTHING_S = 5.0
"""Seconds for which the answer is "nothing". It is short, since a trainer may be about to write its
first state."""

KEPT_S = 3600.0
"""Seconds for which the chunks are kept for joiners. They take 8 bytes per parameter."""

KEPT_MAX = 3
"""Maximum number of states kept at a time; otherwise a request every minute could fill our disk.
The oldest is dropped once it is too old for all joiners. Until then, the newest offer remains in
use."""

ASK_BYTES_MAX = 128
NOTHING, LATER = b"", b"later"


def ask_of(run: RunId) -> bytes:
    """Return the request for a state."""
    return pack({"run": run})


def keeps_state_here(parts: Parts) -> bool:
    """Return whether our trainer writes its optimizer's state to this machine's disk."""
    return parts.config.keep_inner and not parts.config.ranks_host


async def donate(parts: Parts) -> None:
    """Answer requests until cancelled. A node that does not keep a state answers `NOTHING`."""
    if not parts.manifest.inner.donors_max:
        return
    asked = trio.Event()
    offer, made_s = NOTHING, -OFFER_S
    making, kept = False, list[Offer]()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        told = fields(unpack(payload, bytes_max=ASK_BYTES_MAX), run=str)
        if told["run"] != parts.run:
            raise RemoteProtocolError("the request is for a state of a different run", peer=peer)
        if not (parts.trains and keeps_state_here(parts)):
            return NOTHING
        is_over = parts.now() >= made_s + (OFFER_S if offer else NOTHING_S)
        if making or (is_over and _has_room(parts, kept)):
            asked.set()
            return LATER
        return offer

    parts.network.handle(INNER_PROTOCOL, answer, bytes_max=ASK_BYTES_MAX)
    while True:
        await asked.wait()
        making = True
        made = await _make(parts)
        offer = NOTHING if made is None else made.signed(parts.identity)
        if made is not None:
            kept = [*(each for each in kept if each.digest != made.digest), made]
        making, made_s, asked = False, parts.now(), trio.Event()


def _has_room(parts: Parts, kept: list[Offer]) -> bool:
    """Return whether one more state may be kept. Prune `kept`, which lists the oldest state
    first."""
    wanted = still_offered(parts)
    kept[:] = [each for each in kept if each.digest in wanted]
    step, fragments = parts.ledger.state.step, parts.manifest.sync.fragments
    if len(kept) >= KEPT_MAX and kept[0].is_too_old(step, fragments):
        parts.offered.pop(kept.pop(0).digest, None)
    return len(kept) < KEPT_MAX


async def _make(parts: Parts) -> Offer | None:
    """Store the newest state and return an offer of it; None if there is none."""
    started_s, warm_steps = parts.now(), parts.manifest.inner.join_warmup_steps
    try:
        made = await trio.to_thread.run_sync(
            put_newest, parts.home.inner, parts.store, parts.run, parts.layout, warm_steps
        )
    except StoreError as exc:
        parts.journal.write("inner-state-not-offered", code=exc.code, reason=exc.what)
        return None
    if made is None:
        return None
    parts.offered[made.digest] = parts.now() + KEPT_S
    parts.journal.write(
        "inner-state-offered",
        step=made.step,
        count=made.count,
        digest=made.digest,
        seconds=parts.now() - started_s,
    )
    return made
