"""Give joiners the state of our trainer's inner optimizer, where the run's manifest says so.

The trainer writes it down at every outer step anyway. Only when somebody asks is it cut into
chunks: the asker is told to come again, and finds a signed offer then, which stands for a while for
others as well. The chunks travel like all others, behind the ring.
"""

from __future__ import annotations

import trio

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError, StoreError
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.node.optimizer_sharing.optimizer_offer import Offer, put_newest
from p2ptrain.node.state.context import Parts
from p2ptrain.peers.protocol_names import INNER_PROTOCOL

OFFER_S = 60.0
"""So long an offer is given out. Nobody can have us write a state down more often by asking."""

NOTHING_S = 5.0
"""So long it stands that there is none: a trainer may be about to write its first."""

KEPT_S = 3600.0
"""So long its chunks are kept for those who fetch them: 8 bytes a parameter."""

KEPT_MAX = 3
"""States at a time, or whoever asks every minute would fill our disk. The oldest makes room once it
is too old for anybody to begin with; until then the newest stands on."""

ASK_BYTES_MAX = 128
NOTHING, LATER = b"", b"later"


def ask_of(run: RunId) -> bytes:
    """The request for a state."""
    return pack({"run": run})


def keeps_state_here(parts: Parts) -> bool:
    """Whether our trainer has its optimizer's state on this machine's disk."""
    return parts.config.keep_inner and not parts.config.ranks_host


async def donate(parts: Parts) -> None:
    """Answer those who ask, for ever. Who keeps no state has none to give."""
    if not parts.manifest.inner.donors_max:
        return
    asked = trio.Event()
    offer, made_s = NOTHING, -OFFER_S
    making, kept = False, list[Offer]()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        told = fields(unpack(payload, bytes_max=ASK_BYTES_MAX), run=str)
        if told["run"] != parts.run:
            raise RemoteProtocolError("a state of another run was asked for", peer=peer)
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
    """Whether another state may be kept beside these, the oldest first."""
    wanted = still_offered(parts)
    kept[:] = [each for each in kept if each.digest in wanted]
    step, fragments = parts.ledger.state.step, parts.manifest.sync.fragments
    if len(kept) >= KEPT_MAX and kept[0].is_too_old(step, fragments):
        parts.offered.pop(kept.pop(0).digest, None)
    return len(kept) < KEPT_MAX


async def _make(parts: Parts) -> Offer | None:
    """An offer of the newest state, whose chunks are in the store."""
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


def still_offered(parts: Parts) -> tuple[Digest, ...]:
    """The blobs that somebody may be fetching from here."""
    for digest, until_s in list(parts.offered.items()):
        if parts.now() >= until_s:
            del parts.offered[digest]
    return tuple(parts.offered)
