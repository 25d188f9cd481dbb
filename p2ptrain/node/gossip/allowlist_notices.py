"""Notices of an allowlist that is too long for gossip: whoever lacks it asks somebody who has it.

A notice is a peer's bare word, and a question may take long. So each is put in a task of its own,
beside the lists that gossip does carry: nobody delays its own removal by announcing lists that it
cannot show. Who could not is not asked again for a while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from p2ptrain.encoding import fields, unpack
from p2ptrain.errors import PeerError, ProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.node.joining.find_run import ask
from p2ptrain.node.state.context import Parts
from p2ptrain.peers.hello_messages import HelloRequest

NOTICE_BYTES_MAX = 64

ASKED_MAX = 16
"""Peers that are asked, or about to be."""

NEXT_S = 1.0
"""Each has so long for its answer before the next one is asked, too: usually the first has what all
of them announce.
"""

SILENT_S = 60.0
"""Who did not answer is asked again: it may have been busy. Some fifty who never do keep all places
taken.
"""

LIED_S = 600.0
KNOWN_MAX = 1024

Question = Callable[[], Awaitable[bool]]
"""Asks one peer; whether we have a newer list then. Raises StoreError: it cannot be kept."""


@dataclass(slots=True)
class Notices:
    """Whom to ask. It does not know how. `now` may never go back."""

    asked: set[PeerId] = field(default_factory=set)
    resting: dict[PeerId, float] = field(default_factory=dict)
    """Until when those are not asked who showed nothing."""

    def turn(self, peer: PeerId, now: float) -> int | None:
        """How many are asked before `peer`, if it is to be asked now; it is, until `done`."""
        rests = now < self.resting.get(peer, now)
        if rests or peer in self.asked or len(self.asked) >= ASKED_MAX:
            return None
        self.asked.add(peer)
        return len(self.asked) - 1

    def done(self, peer: PeerId) -> None:
        self.asked.discard(peer)

    def leave_alone(self, peer: PeerId, until: float) -> None:
        """It showed nothing."""
        self.resting.pop(peer, None)
        self.resting[peer] = until
        if len(self.resting) > KNOWN_MAX:
            del self.resting[next(iter(self.resting))]


def heed(parts: Parts, notices: Notices, peer: PeerId, notice: bytes) -> Question | None:
    """What to do about a notice, in a task of its own; None if that is nothing.

    Raises RemoteProtocolError: it is no notice.
    """
    sequence = fields(unpack(notice, bytes_max=NOTICE_BYTES_MAX), sequence=int)["sequence"]
    assert isinstance(sequence, int)
    before = notices.turn(peer, parts.now()) if _lacks(parts, sequence) else None
    return None if before is None else partial(_ask, parts, notices, peer, sequence, before)


async def _ask(parts: Parts, notices: Notices, peer: PeerId, sequence: int, before: int) -> bool:
    try:
        await trio.sleep(NEXT_S * before)
        return _lacks(parts, sequence) and await _is_shown(parts, notices, peer, sequence)
    finally:
        notices.done(peer)


async def _is_shown(parts: Parts, notices: Notices, peer: PeerId, sequence: int) -> bool:
    newer, rest_s, reason = False, LIED_S, "it showed another list than it had announced"
    try:
        shown = (await ask(parts.network, peer, HelloRequest(parts.run, b""))).allowlist
        newer = bool(shown) and parts.admission.consider(shown)
    except PeerError as exc:
        rest_s, reason = SILENT_S, exc.what
    except (ProtocolError, RunMismatch) as exc:
        reason = exc.what
    if _lacks(parts, sequence):
        notices.leave_alone(peer, parts.now() + rest_s)
        parts.complain("list-not-shown", peer, sequence=sequence, reason=reason)
    return newer


def _lacks(parts: Parts, sequence: int) -> bool:
    held = parts.admission.allowlist
    return held is None or held.allowlist.sequence < sequence
