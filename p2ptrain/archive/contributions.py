"""Count what each peer has contributed to a run, from the entries of a verified ledger.

Only committed tokens count: those in the roster of a committed outer step. A peer cannot change
these numbers alone, and anybody with the ledger gets the same ones. This module knows nothing about
time: the ledger has no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Entry


@dataclass(slots=True)
class Contribution:
    """The contribution of one peer. Outer steps count from 1, as in the log of a node: step 1 is
    the first."""

    tokens: int = 0
    steps: int = 0
    """Number of committed outer steps in which the peer took part."""
    first_step: int = 0
    """0 if the entries that contain it were pruned."""
    last_step: int = 0
    reached_tokens: dict[int, int] = field(default_factory=dict)
    """The outer step after which the peer had this many tokens, for each power of ten."""
    reached_steps: dict[int, int] = field(default_factory=dict)
    """The outer step that was the peer's 10th, its 100th, and so on."""

    def add(self, step: int, tokens: int) -> None:
        """Note that the peer took part in outer step `step` with `tokens` tokens."""
        before, self.tokens = self.tokens, self.tokens + tokens
        self.steps += 1
        self.first_step, self.last_step = self.first_step or step, step
        scale = 10 ** len(str(before))
        while scale <= self.tokens:
            self.reached_tokens[scale] = step
            scale *= 10
        if self.steps >= 10 and str(self.steps).strip("0") == "1":
            self.reached_steps[self.steps] = step


@dataclass(slots=True)
class Contributions:
    """The contributions of all peers in the outer steps after `begins` up to `end`."""

    begins: int
    """The outer step that the count begins after: 0 for the whole run."""
    pruned: int = 0
    """The outer step before which the entries were pruned here; 0 if none were."""
    end: int = 0
    tokens: int = 0
    steps: int = 0
    """Number of committed outer steps."""
    head: str = ""
    height: int = 0
    by_peer: dict[PeerId, Contribution] = field(default_factory=dict)

    def share(self, peer: PeerId) -> float:
        """Return the fraction of all counted tokens that `peer` has contributed."""
        mine = self.by_peer.get(peer)
        return mine.tokens / self.tokens if mine and self.tokens else 0.0

    def ranked(self) -> list[tuple[PeerId, Contribution]]:
        """Return the peers with the most tokens first."""
        return sorted(self.by_peer.items(), key=lambda item: (-item[1].tokens, item[0]))


def contributions(
    begins: LedgerState,
    links: Iterable[tuple[LedgerState, LedgerState, Entry]],
    *,
    after: int = 0,
    until: int | None = None,
) -> Contributions:
    """Count the contributions in a chain, in outer steps after step `after`. With `until`, stop at
    the entry of that height.

    `links` has (state before, state after, entry) for all entries in order, starting at `begins`.
    The tokens of pruned entries are known from `begins`, but not the steps: they count only if
    `after` is 0.
    """
    found = Contributions(after, pruned=begins.step)
    if not after:
        found.tokens = begins.tokens
        for peer, tokens in begins.tokens_by_peer.items():
            found.by_peer[peer] = Contribution(tokens)
    found.end, found.head, found.height = begins.step, begins.head, begins.height
    for before, then, entry in links:
        if until is not None and then.height > until:
            break
        found.end, found.head, found.height = then.step, then.head, then.height
        if isinstance(entry.value, Commit) and then.step > after:
            assert before.roster is not None, "a Commit follows the roster of its participants"
            found.steps += 1
            for part in before.roster.participants:
                found.tokens += part.tokens
                found.by_peer.setdefault(part.peer, Contribution()).add(then.step, part.tokens)
    return found
