"""Decide when to ask which peer for missing entries, and answer such questions.

A decided entry usually arrives by itself; asking at once for the newest would double the traffic.
So this node waits a moment for one missing entry, and asks at once for more. One question is open
at a time. The peer that was asked longest ago is asked next, so a peer that is silent or lies about
its height costs one question and does not keep an honest peer from being asked. Every other
question goes to a member: names are free in an open run, and each would cost a question. A node
that waits until it has as many entries as others also asks this module whose claimed height may be
believed: only entries prove a height.
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
"""Seconds to wait for an announced entry: gossip needs a round trip or two."""

ANSWER_S = 1.5
"""Seconds after which an unanswered question is put to another peer."""

SHOW_S = 30.0
"""Seconds for which a claim is believed without entries, counted from the first unanswered
question. An honest peer on a badly overloaded machine takes ten seconds to answer.
"""

QUESTIONS_MIN = 3
"""Unanswered questions that it takes to disbelieve a claim. Fewer than that may all have been lost.
"""


@dataclass(frozen=True, slots=True)
class UnprovenClaim:
    """An unproven claim. A peer claimed up to `height` entries and has shown none that we lacked
    since `since`, when the first of `questions` questions was put to it.
    """

    since: float
    questions: int
    height: int


@dataclass(slots=True)
class Catchup:
    """The questions of this node to others about missing entries.

    - `heights`: the chain length that each peer claims. A false claim costs a question each 1.5 s,
      nothing else.
    - `floors`: the answers of peers that do not keep the entries they were asked for.
    - `ask_at`: the time of the next question; None if nothing is missing.
    - `asked`: for each peer, the number of this node's last question to it. Peers that are no
      longer in `heights` are kept here, too, so that no peer gets an earlier turn by coming and
      going.
    - `questions`: how many questions this node has put.
    - `unproven`: the claims of peers that have not shown entries when asked. A claim stays here
      until those entries arrive or its peer shows more, so claiming less for a moment does not
      restore belief.
    - `members`: the members, for whose claims there is always room.
    """

    heights: dict[PeerId, int] = field(default_factory=dict)
    floors: dict[PeerId, Pruned] = field(default_factory=dict)
    ask_at: float | None = None
    asked: dict[PeerId, int] = field(default_factory=dict)
    questions: int = 0
    unproven: dict[PeerId, UnprovenClaim] = field(default_factory=dict)
    members: frozenset[PeerId] = frozenset()

    def note_height(self, peer: PeerId, height: int, own_height: int, now: float) -> None:
        known = self.heights.get(peer)
        if not make_room(self.heights, peer, self.members):
            return
        if known is None or height > known:
            self.heights[peer] = max(height, 0)
        if height > own_height and self.ask_at is None:
            self.ask_at = now if height > own_height + 1 else now + SETTLE_S

    def note_answer(
        self, peer: PeerId, height: int, own_height: int, now: float, *, shown: bool
    ) -> None:
        """Note the height that `peer` itself states, and whether it shows entries. Its chain may
        have become shorter, since branches are abandoned.
        """
        if not shown and peer in self.heights:
            self.heights[peer] = height
        self.note_height(peer, height, own_height, now)

    def disproved(self, peer: PeerId, height: int) -> None:
        """Note that `peer` could not show the entries that it claimed."""
        if peer in self.heights:
            self.heights[peer] = height

    def pruned(self, peer: PeerId, answer: Pruned, own_height: int, now: float) -> None:
        """Note that `peer` does not keep the entries it was asked for: ask another peer at once.

        Nothing in the answer can be checked. So it counts only from a peer that this node asked,
        and it says nothing about the length of a chain.
        """
        turn = self.asked.get(peer)
        if turn is None:
            return
        self.floors[peer] = answer
        useless = not self._keeps(peer, own_height + 1)
        if useless and turn == self.questions and self.ask_at is not None:
            self.ask_at = now

    def out_of_reach(self, own_height: int) -> Mapping[PeerId, Pruned]:
        """Return the Pruned answers of the peers that are ahead, if none of them keeps the next
        entry.
        """
        ahead = [peer for peer, height in self.heights.items() if height > own_height]
        if any(self._keeps(peer, own_height + 1) for peer in ahead):
            return {}
        return {peer: self.floors[peer] for peer in ahead}

    def _keeps(self, peer: PeerId, height: int) -> bool:
        """Return whether `peer` may have the entry at `height`, according to its answers."""
        answer = self.floors.get(peer)
        return answer is None or answer.up_to < height

    def forget_claims(self) -> None:
        """Forget all claims, which are about another line than ours is now."""
        self.heights.clear()
        self.unproven.clear()

    def is_believed(self, peer: PeerId, own_height: int, now: float) -> bool:
        """Return whether to believe the height that `peer` claims beyond our chain, given what it
        has shown.
        """
        doubt = self.unproven.get(peer)
        if doubt is None or doubt.height <= own_height or now < doubt.since + SHOW_S:
            return True
        return doubt.questions < QUESTIONS_MIN and self._keeps(peer, own_height + 1)

    def note_growth(self, peer: PeerId, own_height: int, now: float) -> None:
        """Note that entries came from `peer`. Ask again at once unless the rest will soon come by
        itself.
        """
        self.unproven.pop(peer, None)
        most = max(self.heights.values(), default=0)
        if most <= own_height:
            self.ask_at = None
        elif self.ask_at is not None:
            self.ask_at = now if most > own_height + 1 else now + SETTLE_S

    def whom_to_ask(self, own_height: int, down: AbstractSet[PeerId], now: float) -> PeerId | None:
        """Return the peer to ask now, if any: of those that are up, the one asked longest ago.

        Every other time, prefer a member that is ahead.
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
        """Remember when `peer` was asked. If there are too many peers, forget everything about the
        one asked longest ago.
        """
        self.asked.pop(peer, None)
        self.asked[peer] = self.questions
        if len(self.asked) > PEERS_MAX:
            eldest = next(iter(self.asked))
            for known in (self.asked, self.floors, self.unproven):
                known.pop(eldest, None)

    def _doubt(self, peer: PeerId, own_height: int, now: float) -> None:
        """Count a question to `peer` until it shows entries."""
        doubt = self.unproven.get(peer)
        if doubt is None or doubt.height <= own_height:
            doubt = UnprovenClaim(now, 0, 0)
        height = max(doubt.height, self.heights[peer])
        self.unproven[peer] = UnprovenClaim(doubt.since, doubt.questions + 1, height)


def page_from(chain: Sequence[Certified], from_height: int) -> Entries | Pruned:
    """Return the entries from `from_height` on that fit one answer. `chain` may begin at any
    height.
    """
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
