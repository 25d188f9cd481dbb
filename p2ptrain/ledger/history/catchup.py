"""When to ask whom for entries that this node lacks, and what to answer.

A decided entry usually arrives by itself; asking at once for the newest would double the traffic.
So one missing entry gets a moment, more are asked for immediately, and one question is open at a
time. The peer that was asked longest ago is asked next: a peer that is silent or lies about its
height costs a question, and keeps nobody that would answer from being asked. Every other question
goes to a member: names are free in an open run, and each would cost a question. A node that waits
until it has what others have asks here whose height may be believed: only entries prove a height.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.bounded_table import PEERS_MAX, make_room
from p2ptrain.ledger.chain.canonical import canonical
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.ledger.messages.messages import PAGE_BYTES_MAX, PAGE_ENTRIES_MAX, Entries, Pruned

SETTLE_S = 0.3
"""An announced entry should be here by then: gossip needs a round trip or two."""

ANSWER_S = 1.5
"""A question without an answer after this time is put to somebody else."""

SHOW_S = 30.0
"""So long after the first question in vain a claim is believed without entries: who is honest, but
on a machine that is far too busy, takes ten seconds to answer.
"""

QUESTIONS_MIN = 3
"""Fewer may have been lost, each of them."""


@dataclass(frozen=True, slots=True)
class Unshown:
    """A peer claimed up to `height` entries, and has shown none that we lacked since `since`, when
    the first of so many `questions` was put to it.
    """

    since: float
    questions: int
    height: int


@dataclass(slots=True)
class Catchup:
    """`heights` are what peers claim; a false claim costs a question each 1.5 s, nothing else.
    `unshown`: of whom entries were asked in vain. It forgets what was claimed only when that has
    come, or its peer shows more: nobody is believed again for claiming less for a moment.
    `floors` are the answers of those who do not keep what was asked for. `asked`: which of this
    node's `questions` was the last to each peer; kept for peers that are not in `heights` any more,
    too, so that nobody gets a better turn by coming and going. `members`: whose claims are kept
    whoever else claims.
    """

    heights: dict[PeerId, int] = field(default_factory=dict)
    floors: dict[PeerId, Pruned] = field(default_factory=dict)
    ask_at: float | None = None
    asked: dict[PeerId, int] = field(default_factory=dict)
    questions: int = 0
    unshown: dict[PeerId, Unshown] = field(default_factory=dict)
    members: frozenset[PeerId] = frozenset()

    def heard(self, peer: PeerId, height: int, own_height: int, now: float) -> None:
        known = self.heights.get(peer)
        if not make_room(self.heights, peer, self.members):
            return
        if known is None or height > known:
            self.heights[peer] = max(height, 0)
        if height > own_height and self.ask_at is None:
            self.ask_at = now if height > own_height + 1 else now + SETTLE_S

    def told(self, peer: PeerId, height: int, own_height: int, now: float, *, shown: bool) -> None:
        """`peer` itself says how long its chain is, and shows entries or none. It may have become
        shorter: branches are left.
        """
        if not shown and peer in self.heights:
            self.heights[peer] = height
        self.heard(peer, height, own_height, now)

    def disproved(self, peer: PeerId, height: int) -> None:
        """`peer` could not show the entries that it claimed."""
        if peer in self.heights:
            self.heights[peer] = height

    def pruned(self, peer: PeerId, answer: Pruned, own_height: int, now: float) -> None:
        """`peer` does not keep what was asked for: ask somebody else at once.

        Nothing in it can be checked, so it says something to who asked only, and nothing of how
        long a chain is.
        """
        turn = self.asked.get(peer)
        if turn is None:
            return
        self.floors[peer] = answer
        useless = not self._keeps(peer, own_height + 1)
        if useless and turn == self.questions and self.ask_at is not None:
            self.ask_at = now

    def out_of_reach(self, own_height: int) -> Mapping[PeerId, Pruned]:
        """The answers of those who are ahead, if none of them keeps the next entry."""
        ahead = [peer for peer, height in self.heights.items() if height > own_height]
        if any(self._keeps(peer, own_height + 1) for peer in ahead):
            return {}
        return {peer: self.floors[peer] for peer in ahead}

    def _keeps(self, peer: PeerId, height: int) -> bool:
        """Whether `peer` may have the entry at `height`, for all that it said."""
        answer = self.floors.get(peer)
        return answer is None or answer.up_to < height

    def forget_claims(self) -> None:
        """What was claimed is about another line than ours is now."""
        self.heights.clear()
        self.unshown.clear()

    def is_believed(self, peer: PeerId, own_height: int, now: float) -> bool:
        """Whether `peer` may have what it claims beyond our chain, for all that it has shown."""
        doubt = self.unshown.get(peer)
        if doubt is None or doubt.height <= own_height or now < doubt.since + SHOW_S:
            return True
        return doubt.questions < QUESTIONS_MIN and self._keeps(peer, own_height + 1)

    def grown(self, peer: PeerId, own_height: int, now: float) -> None:
        """Entries came from `peer`. Ask on at once if the rest is not about to come by itself."""
        self.unshown.pop(peer, None)
        most = max(self.heights.values(), default=0)
        if most <= own_height:
            self.ask_at = None
        elif self.ask_at is not None:
            self.ask_at = now if most > own_height + 1 else now + SETTLE_S

    def whom_to_ask(self, own_height: int, down: AbstractSet[PeerId], now: float) -> PeerId | None:
        """Return the peer to ask now, if any: of those that are up, the one asked longest ago.

        For every other question it is a member, if one is ahead.
        """
        if self.ask_at is None or now < self.ask_at:
            return None
        wanted = own_height + 1
        ahead = [peer for peer, height in self.heights.items() if height >= wanted]
        ahead = [peer for peer in ahead if self._keeps(peer, wanted)]
        if not ahead:
            self.ask_at = None
            return None
        self.ask_at = now + ANSWER_S
        turns, heights = self.asked, self.heights
        members = self.members if self.questions % 2 == 0 else frozenset()
        peer = min(
            ahead,
            key=lambda p: (p in down, p not in members, turns.get(p, 0), -heights[p], p),
        )
        self.questions += 1
        self._note_turn(peer)
        self._doubt(peer, own_height, now)
        return peer

    def _note_turn(self, peer: PeerId) -> None:
        """Of whoever was asked longest ago nothing is known any more, once there are too many."""
        self.asked.pop(peer, None)
        self.asked[peer] = self.questions
        if len(self.asked) > PEERS_MAX:
            eldest = next(iter(self.asked))
            for known in (self.asked, self.floors, self.unshown):
                known.pop(eldest, None)

    def _doubt(self, peer: PeerId, own_height: int, now: float) -> None:
        """Count a question to `peer`, until it shows something."""
        doubt = self.unshown.get(peer)
        if doubt is None or doubt.height <= own_height:
            doubt = Unshown(now, 0, 0)
        height = max(doubt.height, self.heights[peer])
        self.unshown[peer] = Unshown(doubt.since, doubt.questions + 1, height)


def page_from(chain: Sequence[Certified], from_height: int) -> Entries | Pruned:
    """The entries from `from_height` on that fit one answer; `chain` may begin anywhere."""
    first = chain[0].entry if chain else None
    lacking = first.height - 1 if first is not None else 0
    start = max(1, from_height) - 1 - lacking
    if first is not None and start < 0:
        return Pruned(lacking + len(chain), lacking, first.digest)
    page: list[Certified] = []
    size = 0
    for certified in chain[start : start + PAGE_ENTRIES_MAX]:
        size += len(canonical(certified.plain()))
        if page and size > PAGE_BYTES_MAX:
            break
        page.append(certified)
    return Entries(lacking + len(chain), tuple(page))
