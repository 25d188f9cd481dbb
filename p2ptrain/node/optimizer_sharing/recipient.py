"""Begin with members' inner optimizers where the run's manifest says so, and we have none.

Before its first trainer a joiner asks the members, those first who have contributed most. What one
offers, or the mean of what several do, is fetched, checked and put where our own state would lie;
the trainer knows no difference. Fewer than are wanted will do. If nothing can be had in time the
trainer starts with a fresh optimizer and warms up, and that is said aloud: it is what the option
means, and not an accident that nobody hears of.
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
"""Five heartbeats: who has heard nobody by then has nobody to ask."""

ANSWER_S = 90.0
"""From then on until somebody has made an offer, and from each on until the next one has: a donor
has to write 8 bytes a parameter first."""

LATER_MAX = 15
"""So often a member may put us off, half a minute, before others are asked as well."""

AGAIN_S = 2.0
ASK_S = 5.0
ASKED_MAX = 4
"""Each time; those who had nothing come last."""

USELESS_MAX = 3
"""Members whose state, or offer, turned out to be none: more are not worth the time."""

FETCH_S = 60.0
BYTES_PER_S_MIN = 500_000
"""A state that would take longer than this rate is not waited for: the run goes on meanwhile."""

FRESH = "the inner optimizer begins with nothing of a member's, which costs this peer a warm-up"


class _Useless(Exception):
    """What a member offered cannot be used; `why`, in words."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class _Gift:
    """What a member gave: its signed offer, and how long it took to have it."""

    offer: Offer
    proof: bytes
    seconds: float


async def take_inner_state(parts: Parts) -> None:
    """For a trainer that is about to be started. At most minutes, by the deadlines above."""
    if not parts.manifest.inner.donors_max:
        return
    if not keeps_state_here(parts):
        return _start_fresh(parts, "no inner state is kept on this machine, by its own settings")
    await _know_the_run(parts)
    state = parts.ledger.state
    own = await trio.to_thread.run_sync(newest, parts.home.inner, parts.layout, state.step)
    if own is not None or state.step == 0 or state.phase is Phase.ENDED:
        return
    if not len(parts.peers):
        return _start_fresh(parts, "nobody is heard who could give the state of its own")
    parts.enter_unless_training(StandingBy("for a member to give its inner optimizer's state"))
    inner = parts.manifest.inner
    with Donated(parts.home.inner, parts.store, parts.layout, inner) as donated:
        gifts, why = await _ask_around(parts, donated)
        if gifts:
            why = await _begin_with(parts, donated, gifts)
    if why:
        _start_fresh(parts, why)


async def _ask_around(parts: Parts, donated: Donated) -> tuple[dict[PeerId, _Gift], str]:
    """Until as many have given as are wanted, or too many what cannot be used, or for long. Returns
    what was given, or why nothing was.

    Who says that it makes an offer is waited for, so that only one has that work. Once there is
    something to begin with, nobody else is waited for.
    """
    gifts, useless, put_off = dict[PeerId, _Gift](), dict[PeerId, str](), Counter[PeerId]()
    ends_s = parts.now() + ANSWER_S
    while parts.now() < ends_s and len(useless) < USELESS_MAX:
        around = [peer for peer in donors(parts) if peer not in useless and peer not in gifts]
        around.sort(key=lambda peer: put_off[peer] >= LATER_MAX)
        if gifts and all(put_off[peer] >= LATER_MAX for peer in around):
            break
        for peer in around[:ASKED_MAX]:
            reply = await _ask(parts, peer)
            put_off[peer] += 1 if reply == LATER else LATER_MAX
            if reply == LATER and put_off[peer] < LATER_MAX:
                break
            if reply in (LATER, NOTHING):
                continue
            try:
                if (offer := _read(parts, peer, reply)) is None:
                    continue
                gifts[peer] = await _take(parts, peer, offer, reply, donated)
                if len(gifts) == parts.manifest.inner.donors_max:
                    return gifts, ""
            except _Useless as exc:
                useless[peer] = exc.why
                parts.journal.write("donor-refused", peer=peer, reason=exc.why)
            ends_s = parts.now() + ANSWER_S  # A fetch has its own deadline.
        await trio.sleep(AGAIN_S)
    said = "; ".join(f"{label(peer)}: {why}" for peer, why in useless.items())
    return gifts, said or f"no member gave the state of its own within {ANSWER_S:.0f} s"


async def _know_the_run(parts: Parts) -> None:
    """Return once the ledger here is what others have, if there is anybody."""
    with trio.move_on_after(HEAR_S):
        while not len(parts.peers):
            await parts.changes.wait()
    with trio.move_on_after(ANSWER_S):
        while len(parts.peers) and not parts.ledger_is_current():
            await parts.changes.wait()


def donors(parts: Parts) -> Sequence[PeerId]:
    """Members that train and are heard, those first whose work the run has taken most of."""
    state = parts.ledger.state
    heard = [
        view.peer
        for view in parts.peers
        if state.is_member(view.peer) and view.heartbeat.trains and not parts.is_down(view.peer)
    ]
    tokens = state.tokens_by_peer
    return sorted(set(heard) - {parts.me}, key=lambda peer: (-tokens.get(peer, 0), peer))


async def _ask(parts: Parts, peer: PeerId) -> bytes:
    """What `peer` answers; nothing if it does not."""
    try:
        return await parts.network.request(
            peer, INNER_PROTOCOL, ask_of(parts.run), deadline_s=ASK_S, bytes_max=OFFER_BYTES_MAX
        )
    except (PeerError, RemoteProtocolError) as exc:
        parts.complain("donor-silent", peer, reason=exc.what)
        return NOTHING


def _read(parts: Parts, peer: PeerId, reply: bytes) -> Offer | None:
    """What `peer` offers; None if it is of a step too old or too new, which time may mend.

    Raises _Useless.
    """
    try:
        offer = Offer.read(reply, peer)
    except RemoteProtocolError as exc:
        raise _Useless(exc.what) from exc
    if not offer.is_for(parts.run, parts.layout):
        raise _Useless("it offers a state of another run or model")
    step = parts.ledger.state.step
    if not offer.is_current(step, parts.manifest.sync.fragments):
        told = f"its state is of outer step {offer.step}, where {step} is the newest"
        parts.complain("donor-not-current", peer, reason=told)
        return None
    return offer


async def _take(parts: Parts, peer: PeerId, offer: Offer, proof: bytes, donated: Donated) -> _Gift:
    """Fetch what was offered and add it to what we begin with.

    Raises _Useless: it could not be had, or is none.
    """
    started_s = parts.now()
    limit_s = FETCH_S + 2 * vector_bytes(parts.layout) / BYTES_PER_S_MIN
    parts.offered[offer.digest] = started_s + limit_s  # Not to be collected meanwhile.
    try:
        with trio.fail_after(limit_s):
            await _fetch(parts, peer, offer)
            await trio.to_thread.run_sync(donated.add, offer)
    except (RemoteProtocolError, StoreError) as exc:
        raise _Useless(exc.what) from exc
    except trio.TooSlowError as exc:
        raise _Useless(f"its state did not come within {limit_s:.0f} s") from exc
    except OSError as exc:
        raise _Useless(f"its state cannot be written down here: {exc.strerror}") from exc
    finally:
        parts.offered.pop(offer.digest, None)
    return _Gift(offer, proof, parts.now() - started_s)


async def _begin_with(parts: Parts, donated: Donated, gifts: dict[PeerId, _Gift]) -> str:
    """Put what was given into its place, and say whose it is. Returns why not, if it cannot."""
    try:
        await trio.to_thread.run_sync(donated.publish)
    except OSError as exc:
        return f"what members gave cannot be put into its place: {exc.strerror}"
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
    """The manifest first and alone: what it announces is not fetched before it has the right size,
    or a member could fill our disk.
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
