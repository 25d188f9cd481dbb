"""Handle notices of an allowlist that is too long for gossip: ask the announcing peer for the list.

A notice is an unproven claim, and a question may take long. So each question runs in a task of its
own and does not delay lists that come by gossip. A peer cannot delay its own removal by announcing
lists that it does not have. A peer that did not show its list is not asked again for a while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from p2ptrain.encoding import fields, unpack
from p2ptrain.errors import PeerError, ProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.node.state.context import Context
from p2ptrain.peers.hello_messages import HelloRequest

NOTICE_BYTES_MAX = 64

ASKED_MAX = 16
"""The most peers that are being asked, or about to be."""

SILENT_S = 60.0
"""How long a peer that did not answer is left alone; it may have been busy. Some fifty peers that
never answer could keep all places taken.
"""

LIED_S = 600.0
KNOWN_MAX = 1024

Question = Callable[[], Awaitable[bool]]
"""Asks one peer. Returns whether we now have a newer list. Raises StoreError: it cannot be kept."""


@dataclass(slots=True)
class AllowlistNotices:
    """The peers to ask. It does not know how they are asked. `now` must never decrease."""

    next_s: float = 1.0
    """How long one peer may take before the next one is asked too: usually the first shows the list
    that all of them announce."""
    asked: set[PeerId] = field(default_factory=set)
    resting: dict[PeerId, float] = field(default_factory=dict)
    """Until when each peer that showed no list is left alone."""

    def turn(self, peer: PeerId, now: float) -> int | None:
        """Return how many peers are asked before `peer`, and count it as asked until
        `note_answered`. Return None if it must not be asked now.
        """
        rests = now < self.resting.get(peer, now)
        if rests or peer in self.asked or len(self.asked) >= ASKED_MAX:
            return None
        self.asked.add(peer)
        return len(self.asked) - 1

    def note_answered(self, peer: PeerId) -> None:
        self.asked.discard(peer)

    def leave_alone(self, peer: PeerId, until: float) -> None:
        """Do not ask `peer` before `until`: it showed nothing."""
        self.resting.pop(peer, None)
        self.resting[peer] = until
        if len(self.resting) > KNOWN_MAX:
            del self.resting[next(iter(self.resting))]


def question_about(
    context: Context, notices: AllowlistNotices, peer: PeerId, notice: bytes
) -> Question | None:
    """Return the question that a notice calls for, to be run in a task of its own; None if there is
    none.

    Raises RemoteProtocolError: the payload is not a notice.
    """
    sequence = fields(unpack(notice, bytes_max=NOTICE_BYTES_MAX), sequence=int)["sequence"]
    assert isinstance(sequence, int)
    before = notices.turn(peer, context.now()) if _lacks(context, sequence) else None
    return None if before is None else partial(_ask, context, notices, peer, sequence, before)


async def _ask(
    context: Context, notices: AllowlistNotices, peer: PeerId, sequence: int, before: int
) -> bool:
    try:
        await trio.sleep(notices.next_s * before)
        return _lacks(context, sequence) and await _is_shown(context, notices, peer, sequence)
    finally:
        notices.note_answered(peer)


async def _is_shown(
    context: Context, notices: AllowlistNotices, peer: PeerId, sequence: int
) -> bool:
    newer, rest_s, reason = (
        False,
        LIED_S,
        "it sent another allowlist than the one it had announced",
    )
    try:
        shown = (await send_hello(context.network, peer, HelloRequest(context.run, b""))).allowlist
        newer = bool(shown) and context.admission.adopt_if_newer(shown)
    except PeerError as exc:
        rest_s, reason = SILENT_S, exc.what
    except (ProtocolError, RunMismatch) as exc:
        reason = exc.what
    if _lacks(context, sequence):
        notices.leave_alone(peer, context.now() + rest_s)
        context.peers.report_misbehaviour("list-not-shown", peer, sequence=sequence, reason=reason)
    return newer


def _lacks(context: Context, sequence: int) -> bool:
    held = context.admission.allowlist
    return held is None or held.allowlist.sequence < sequence
