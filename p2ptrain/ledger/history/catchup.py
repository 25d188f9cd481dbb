"""Decide when to ask which peer for missing entries, and answer such requests.

A decided entry usually arrives without a request; asking for the newest entry immediately would
double the traffic. So this node waits a moment if it lacks one entry, and asks immediately if it
lacks more. One request is open at a time. The peer that was asked longest ago is asked next, so a
peer that is silent or lies about its height costs only one request. Every second request goes to a
member: in an open run, one person can appear as many peers, and each of them would cost a request.

Some peers claim heights that they do not have, and only entries prove a height. A node may wait
until it has as many entries as its peers, so this module also decides which claims to believe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.bounded_table import make_room, put_newest
from p2ptrain.ledger.chain.canonical import canonical
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.ledger.messages.messages import PAGE_BYTES_MAX, PAGE_ENTRIES_MAX, Entries, Pruned

SETTLE_S = 0.3
"""Seconds to wait for the newest entry before asking for it. Gossip needs one or two round trips.
"""

ANSWER_S = 1.5
"""Seconds after which the next peer is asked if a request is unanswered."""

SHOW_S = 30.0
"""Seconds for which a claim is believed without entries, counted from the first unanswered request.
An honest peer on a badly overloaded machine takes ten seconds to answer.
"""

QUESTIONS_MIN = 3
"""Number of unanswered requests after which a claim is not believed. One or two may get lost."""


@dataclass(frozen=True, slots=True)
class UnprovenClaim:
    """A peer's unproven claim to have up to `height` entries. The peer was sent `questions`
    requests, the first at time `since`, and has not sent a new entry since then.
    """

    since: float
    questions: int
    height: int


@dataclass(slots=True)
class Catchup:
    """This node's requests for missing entries.

    - `heights`: the chain length that each peer claims. A false claim only costs one request per
      ANSWER_S.
    - `floors`: the answers of peers that do not keep the entries they were asked for.
    - `ask_at`: the time of the next request; None if nothing is missing.
    - `asked`: for each peer, the serial number of this node's last request to it. A peer that is no
      longer in `heights` remains here, so that no peer gets an earlier turn by coming and going.
    - `questions`: the number of requests that this node has made.
    - `unproven`: the claims of peers that did not send entries when asked. A claim stays here until
      its peer sends a new entry, or this node has all entries that the peer claimed. So a peer is
      not believed again just because it claims less for a moment.
    - `members`: the members. There is always room for their claims.
    """

    heights: dict[PeerId, int] = field(default_factory=dict)
    floors: dict[PeerId, Pruned] = field(default_factory=dict)
    ask_at: float | None = None
    asked: dict[PeerId, int] = field(default_factory=dict)
    questions: int = 0
    unproven: dict[PeerId, UnprovenClaim] = field(default_factory=dict)
    members: frozenset[PeerId] = frozenset()

    def note_height(self, peer: PeerId, height: int, own_height: int, now: float) -> None:
        """Record that `peer` claims to have `height` entries."""
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
        """Record the height that `peer` states in an answer. `shown`: the answer contains entries.
        If it does not, the peer may have left a branch, so its chain may have become shorter.
        """
        if not shown and peer in self.heights:
            self.heights[peer] = height
        self.note_height(peer, height, own_height, now)

    def disproved(self, peer: PeerId, height: int) -> None:
        """Record that `peer` does not have the entries beyond `height` that it claimed."""
        if peer in self.heights:
            self.heights[peer] = height

    def pruned(self, peer: PeerId, answer: Pruned, own_height: int, now: float) -> None:
        """Record that `peer` has pruned the entries it was asked for. If it was the last peer that
        was asked, ask the next one immediately.

        The answer cannot be checked. So it is ignored if this node did not ask the peer, and it
        does not change what this node knows about the length of the peer's chain.
        """
        turn = self.asked.get(peer)
        if turn is None:
            return
        self.floors[peer] = answer
        useless = not self._keeps(peer, own_height + 1)
        if useless and turn == self.questions and self.ask_at is not None:
            self.ask_at = now

    def out_of_reach(self, own_height: int) -> Mapping[PeerId, Pruned]:
        """Return the answers of the peers that are ahead, if none of them keeps the next entry."""
        ahead = [peer for peer, height in self.heights.items() if height > own_height]
        if any(self._keeps(peer, own_height + 1) for peer in ahead):
            return {}
        return {peer: self.floors[peer] for peer in ahead}

    def _keeps(self, peer: PeerId, height: int) -> bool:
        """Return whether `peer` may still keep the entry at `height`, according to its answers."""
        answer = self.floors.get(peer)
        return answer is None or answer.up_to < height

    def forget_claims(self) -> None:
        """Forget all claims, because they are about a line (a run or branch) that we have left."""
        self.heights.clear()
        self.unproven.clear()

    def is_believed(self, peer: PeerId, own_height: int, now: float) -> bool:
        """Return whether to believe that `peer` has more entries than this node, as it claims.
        Believe the claim for SHOW_S after the first unanswered request. After that, believe it only
        if fewer than QUESTIONS_MIN requests are unanswered and the peer keeps the next entry.
        """
        doubt = self.unproven.get(peer)
        if doubt is None or doubt.height <= own_height or now < doubt.since + SHOW_S:
            return True
        return doubt.questions < QUESTIONS_MIN and self._keeps(peer, own_height + 1)

    def note_growth(self, peer: PeerId, own_height: int, now: float) -> None:
        """Record that `peer` sent new entries. If more are missing, ask again immediately. A single
        missing entry should soon arrive without a request.
        """
        self.unproven.pop(peer, None)
        most = max(self.heights.values(), default=0)
        if most <= own_height:
            self.ask_at = None
        elif self.ask_at is not None:
            self.ask_at = now if most > own_height + 1 else now + SETTLE_S

    def whom_to_ask(self, own_height: int, down: AbstractSet[PeerId], now: float) -> PeerId | None:
        """Return the peer to ask now, or None. Of the peers ahead, it is the one asked longest ago.

        Prefer peers that are up and, every second time, members.
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
            ahead, key=lambda p: (p in down, p not in members, turns.get(p, 0), -heights[p], p)
        )
        self.questions += 1
        self._note_turn(peer)
        self._doubt(peer, own_height, now)
        return peer

    def _note_turn(self, peer: PeerId) -> None:
        """Record that `peer` is asked now. If the table is full, drop the one asked longest ago."""
        eldest = put_newest(self.asked, peer, self.questions)
        if eldest is not None:
            self.floors.pop(eldest, None)
            self.unproven.pop(eldest, None)

    def _doubt(self, peer: PeerId, own_height: int, now: float) -> None:
        """Count a request to `peer` as unanswered, until it sends new entries."""
        doubt = self.unproven.get(peer)
        if doubt is None or doubt.height <= own_height:
            doubt = UnprovenClaim(now, 0, 0)
        height = max(doubt.height, self.heights[peer])
        self.unproven[peer] = UnprovenClaim(doubt.since, doubt.questions + 1, height)


def page_from(chain: Sequence[Certified], from_height: int) -> Entries | Pruned:
    """Return the entries from `from_height` on that fit in one answer, or a Pruned answer."""
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
