"""When a peer announces an allowlist that is too long for gossip, request the list from that peer.

An announcement (notice) is an unproven claim, and a request may take a long time. So each request
runs in its own task, and lists that arrive by gossip are applied meanwhile. Otherwise a peer could
delay its own removal by announcing lists that it does not have. A peer that did not send the
announced list is not asked again for a while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import PeerError, ProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.node.state.context import Context
from p2ptrain.peers.hello_messages import HelloRequest
from p2ptrain.run import SignedAllowlist

NOTICE_BYTES_MAX = 64

DIGEST_BYTES = 8
"""Bytes of a list's digest in a notice, if the run has several organisers. They may sign two lists
with the same number, and the smaller digest wins."""

ASKED_MAX = 16
"""Maximum number of peers that are being asked or are waiting to be asked."""

SILENT_S = 60.0
"""Seconds for which a peer that did not answer is not asked again; it may have been busy. About
fifty peers that never answer could keep all ASKED_MAX slots occupied. Lists would then spread only
by gossip."""

LIED_S = 600.0
"""Seconds for which a peer that answered without the announced list is not asked again."""

KNOWN_MAX = 1024

Announced = tuple[int, bytes]
"""The number of an announced list, and the beginning of its digest."""

Question = Callable[[], Awaitable[bool]]
"""A function that asks one peer for its list and returns whether we now have a newer list. Raises
StoreError: the list cannot be stored."""


@dataclass(slots=True)
class AllowlistNotices:
    """Decides which peers may be asked for a list now. `now` must never decrease."""

    next_s: float = 1.0
    """Seconds that one peer may take before the next one is asked too. Usually the first peer sends
    the list that all of them announced, so the others need not be asked."""
    asked: set[PeerId] = field(default_factory=set)
    resting: dict[PeerId, float] = field(default_factory=dict)
    """For each peer that did not send its list, the time from which it may be asked again."""

    def turn(self, peer: PeerId, now: float) -> int | None:
        """Return how many peers are already being asked, and mark `peer` as being asked until
        `note_answered` is called. Return None if `peer` must not be asked now."""
        rests = now < self.resting.get(peer, now)
        if rests or peer in self.asked or len(self.asked) >= ASKED_MAX:
            return None
        self.asked.add(peer)
        return len(self.asked) - 1

    def note_answered(self, peer: PeerId) -> None:
        self.asked.discard(peer)

    def leave_alone(self, peer: PeerId, until: float) -> None:
        """Do not ask `peer` before `until`, since it did not send its list."""
        self.resting.pop(peer, None)
        self.resting[peer] = until
        if len(self.resting) > KNOWN_MAX:
            del self.resting[next(iter(self.resting))]


def question_about(
    context: Context, notices: AllowlistNotices, peer: PeerId, notice: bytes
) -> Question | None:
    """Return a function that requests the list announced in `notice`, to be run in its own task.
    Return None if the list is not needed, or if `peer` must not be asked now.

    Raises RemoteProtocolError: the payload is not a notice."""
    announced = _announced(notice)
    before = notices.turn(peer, context.now()) if _lacks(context, announced) else None
    return None if before is None else partial(_ask, context, notices, peer, announced, before)


def notice_of(context: Context, allowlist: SignedAllowlist) -> bytes:
    """Return the notice of `allowlist`."""
    notice: dict[str, object] = {"sequence": allowlist.allowlist.sequence}
    if len(context.admission.organisers) > 1:
        notice["digest"] = bytes.fromhex(allowlist.signed.digest)[:DIGEST_BYTES]
    return pack(notice)


def _announced(notice: bytes) -> Announced:
    value = unpack(notice, bytes_max=NOTICE_BYTES_MAX)
    if isinstance(value, dict):
        value.setdefault("digest", b"\xff" * DIGEST_BYTES)  # No digest is larger.
    told = fields(value, sequence=int, digest=bytes)
    sequence, digest = told["sequence"], told["digest"]
    assert isinstance(sequence, int)
    assert isinstance(digest, bytes)
    return sequence, digest


async def _ask(
    context: Context, notices: AllowlistNotices, peer: PeerId, announced: Announced, before: int
) -> bool:
    try:
        await trio.sleep(notices.next_s * before)
        return _lacks(context, announced) and await _is_shown(context, notices, peer, announced)
    finally:
        notices.note_answered(peer)


async def _is_shown(
    context: Context, notices: AllowlistNotices, peer: PeerId, announced: Announced
) -> bool:
    newer, rest_s = False, LIED_S
    reason = "it did not send the allowlist that it had announced"
    try:
        shown = (await send_hello(context.network, peer, HelloRequest(context.run, b""))).allowlist
        newer = bool(shown) and context.admission.adopt_if_newer(shown)
    except PeerError as exc:
        rest_s, reason = SILENT_S, exc.what
    except (ProtocolError, RunMismatch) as exc:
        reason = exc.what
    if _lacks(context, announced):
        notices.leave_alone(peer, context.now() + rest_s)
        sequence = announced[0]
        context.peers.report_misbehaviour("list-not-shown", peer, sequence=sequence, reason=reason)
    return newer


def _lacks(context: Context, announced: Announced) -> bool:
    held = context.admission.allowlist
    if held is None:
        return True
    sequence, digest = announced
    mine = bytes.fromhex(held.signed.digest)[:DIGEST_BYTES]
    return held.allowlist.sequence < sequence or (
        held.allowlist.sequence == sequence and digest < mine
    )
