"""Ask peers on other lines for their chains, verify them, and compare them with ours. Only used in
runs that branch.

A *line* is the run itself, or what follows a Branch entry. A chain that outranks ours
(`chain/branch_rank.py`) can only have diverged from ours at one of our own Branch entries. At any
other height, two quorums of the same voters would have decided different entries, which is
impossible. So we ask a peer on another line for its entries, page by page, starting at our first
Branch, and verify them from the state before that Branch. Only one chain is examined at a time. A
node without a Branch in its chain asks only if its quorum is gone: then other members may have
branched off from its chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.bounded_table import put_newest
from p2ptrain.ledger.chain.branch_rank import rank_of
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Certified, Entry, LineId
from p2ptrain.ledger.chain.verify import check_certified
from p2ptrain.ledger.messages.effects import AskEntries, Effect, Note

ASK_EVERY_S = 2.0
"""If the peer that was asked last sends nothing more of its chain for this many seconds, the peer
that was asked longest ago is asked. This equals the heartbeat interval: branches heal soon, and
the questions cause little traffic compared with a reduce. Every second question goes to a peer that
was a member before the chains diverged, because in an open run one person can appear as many peers.
"""

Place = tuple[LineId, int]
"""A peer's line and height, according to its heartbeat."""


@dataclass(slots=True)
class Rival:
    """The entries of its chain that `peer` has sent so far, all verified. `base` is the state
    before the first of them, and `state` the state after the last one.
    """

    peer: PeerId
    base: LedgerState
    state: LedgerState
    entries: list[Certified] = field(default_factory=list)

    def first_difference(self, at: Callable[[int], Certified | None]) -> int | None:
        """Return the index of the first entry that differs from ours at its height, or None."""
        for index, certified in enumerate(self.entries):
            ours = at(certified.entry.height)
            if ours is None:
                return None
            if ours.entry.digest != certified.entry.digest:
                return index
        return None


@dataclass(frozen=True, slots=True)
class Winner:
    """A chain that outranks ours. `height` is the last common height, `entries` are the entries
    after it, and `state` is the state at its end.
    """

    height: int
    entries: tuple[Certified, ...]
    state: LedgerState

    @property
    def first_difference(self) -> Entry:
        return self.entries[0].entry


class Rivals:
    """The search for a chain that outranks ours.

    - `winner`: such a chain, once one is found. It remains valid until our own chain outranks it:
      if the winner has grown meanwhile, it ranks even higher.
    - `base`: the state before our chain's first Branch; None if it has none.
    - `ask_at`: when to ask the next peer; None if there is nobody to ask.
    """

    def __init__(self, rules: Rules, verify: Verify) -> None:
        self.base: LedgerState | None = None
        self.winner: Winner | None = None
        self.ask_at: float | None = None
        self._rules = rules
        self._verify = verify
        self._rival: Rival | None = None
        self._asked: PeerId | None = None
        self._asked_at = 0.0
        self._turns: dict[PeerId, int] = {}
        self._questions = 0
        self._asked_of: Place | None = None
        self._seen: dict[PeerId, Place] = {}

    def entered(self, before: LedgerState, state: LedgerState) -> None:
        """Record that our chain has a new entry. If it is a Branch, chains that were examined
        earlier may now outrank ours, so all peers may be asked again.
        """
        if state.line != before.line:
            if self.base is None:
                self.base = before
            self._rival = None
            self._seen.clear()
        if self.winner is not None and rank_of(self.winner.state) <= rank_of(state):
            self.winner = None

    def ask(
        self, places: dict[PeerId, Place], own: LedgerState, down: AbstractSet[PeerId], now: float
    ) -> list[Effect]:
        """Return a question to a peer on another line, if it is time for one. `places` are the
        lines and heights of the peers that may be asked.
        """
        self.ask_at = None
        fresh = {p: it for p, it in places.items() if p not in down and self._seen.get(p) != it}
        if self.winner is not None or not fresh:
            return []
        if now < self._asked_at + ASK_EVERY_S and self._asked is not None:
            self.ask_at = self._asked_at + ASK_EVERY_S
            return []
        base = own if self.base is None else self.base
        first = base.since if self._questions % 2 == 0 else ()
        peer = min(fresh, key=lambda each: (each not in first, self._turns.get(each, 0), each))
        self._questions += 1
        put_newest(self._turns, peer, self._questions)
        self._asked, self._asked_at, self._asked_of = peer, now, fresh[peer]
        self._rival = None
        self.ask_at = now + ASK_EVERY_S
        return [AskEntries(peer, base.height + 1)]

    def expects(self, peer: PeerId, page: Sequence[Certified]) -> bool:
        """Return whether `page` is the answer to our last question."""
        if peer != self._asked or self.base is None or not page:
            return False
        last = self.base if self._rival is None else self._rival.state
        return page[0].entry.height == last.height + 1

    def receive_entries(
        self,
        height: int,
        page: Sequence[Certified],
        own: LedgerState,
        at: Callable[[int], Certified | None],
        now: float,
    ) -> list[Effect]:
        """Verify a page from the peer that we asked (`height`: its height), and ask for more."""
        assert self.base is not None
        assert self._asked is not None
        rival = self._rival or Rival(self._asked, self.base, self.base)
        try:
            for certified in page:
                rival.state = check_certified(self._rules, rival.state, certified, self._verify)
                rival.entries.append(certified)
        except RemoteProtocolError as exc:
            self._rival = None
            self._done()
            return [Note(f"{rival.peer} sent an invalid chain: {exc.what}")]
        self._rival = rival
        self._judge(rival, own, at)
        if self.winner is not None:
            return [Note(self._words(rival, own))]
        if rival.state.height >= height:
            self._done()
            return []
        self._asked_at = now
        return [AskEntries(rival.peer, rival.state.height + 1)]

    def _done(self) -> None:
        """Stop asking this peer until its line or height changes."""
        assert self._asked is not None
        assert self._asked_of is not None
        put_newest(self._seen, self._asked, self._asked_of)

    def continuation(self, own: LedgerState) -> tuple[Certified, ...]:
        """Return the entries after our own last one, if the chain just received contains it."""
        if self._rival is None:
            return ()
        heads = [certified.entry.digest for certified in self._rival.entries]
        return tuple(self._rival.entries[heads.index(own.head) + 1 :]) if own.head in heads else ()

    def _judge(self, rival: Rival, own: LedgerState, at: Callable[[int], Certified | None]) -> None:
        index = rival.first_difference(at)
        healed = rival.state.phase is Phase.HEALED
        if index is None or healed or rank_of(rival.state) <= rank_of(own):
            return
        entries = tuple(rival.entries[index:])
        self.winner = Winner(entries[0].entry.height - 1, entries, rival.state)

    def _words(self, rival: Rival, own: LedgerState) -> str:
        assert self.winner is not None
        return (
            f"{rival.peer} sent a chain that differs from this node's after height "
            f"{self.winner.height} and outranks it: {len(rival.state.voters)} voters and "
            f"{rival.state.tokens:,} tokens against {len(own.voters)} and {own.tokens:,}"
        )
