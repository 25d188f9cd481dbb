"""Move to a branch if our quorum is gone, or to a chain that outranks ours. Only used in runs that
branch.

A *line* is the run itself, or what follows a Branch entry. Heartbeats say which line each peer is
on. To the rest of the ledger, a peer on a different line appears to be down, and its reports are
dropped, since they are about another chain. `branch_proposal` decides when to branch, and
`rival_chains` examines the chains of peers on other lines. This module connects both to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.branches.branch_proposal import BranchProposer, Presence, may_branch
from p2ptrain.ledger.branches.rival_chains import Place, Rivals
from p2ptrain.ledger.chain.bounded_table import make_room
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Sign, Verify
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.ledger.history.catchup import Catchup
from p2ptrain.ledger.messages.effects import Announce, Effect, Note, Rejoin, Send
from p2ptrain.ledger.messages.events import Event, PeerHeight, Tick
from p2ptrain.ledger.messages.messages import BranchMessage, Outcome, ProposeBranch, RefuseBranch
from p2ptrain.ledger.messages.peer_reports import (
    Joining,
    PeerDown,
    PeerUp,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
)
from p2ptrain.ledger.paxos.timers import earliest
from p2ptrain.ledger.policy.reports import Reports

At = Callable[[int], Certified | None]
"""at(height) returns the entry of our own chain at that height; None if it is not kept."""

NO_VOTE = "this process must not use its vote"
"""Sent to a peer that asks for a signature, so that its user learns why there is none."""

_REPORTS = Ready | ReduceDone | ReduceFailed | SnapshotTaken | Joining


@dataclass(frozen=True, slots=True)
class BranchStep:
    """The result of `BranchSync.step`: `certified` is a Branch to append to our chain, if any. A
    `Rejoin` among the effects ends this ledger.
    """

    effects: tuple[Effect, ...] = ()
    certified: Certified | None = None


class BranchSync:
    """The part of a ledger that knows about branches. Call `step` at `wake_at`, or earlier."""

    def __init__(
        self,
        rules: Rules,
        me: PeerId,
        sign: Sign,
        verify: Verify,
        reports: Reports,
        catchup: Catchup,
        now: float,
    ) -> None:
        self.rivals = Rivals(rules, verify)
        self.wake_at: float | None = None
        self._branch_proposer = BranchProposer(rules, me, sign, verify, now)
        self._me = me
        self._reports = reports
        self._catchup = catchup
        self._places: dict[PeerId, Place] = {}
        self._red: set[PeerId] = set()

    # ── the lines of peers ───────────────────────────────────────────────────────────────────────

    def is_elsewhere(self, peer: PeerId, state: LedgerState) -> bool:
        """Return whether `peer` was last heard on a line other than ours."""
        place = self._places.get(peer)
        return place is not None and place[0] != state.line

    def filter_event(self, event: Event, state: LedgerState) -> tuple[Event, bool]:
        """Return the event that the rest of the ledger should handle instead (a Tick if `event` is
        about another line), and whether the line of a peer, or its chain there, has changed.
        """
        match event:
            case PeerHeight(peer, height, line) if line is not None and peer != self._me:
                news = self._place(peer, (line, height), state)
                return (Tick() if self.is_elsewhere(peer, state) else event), news
            case PeerDown(peer):
                self._red.add(peer)
            case PeerUp(peer):
                self._red.discard(peer)
                elsewhere = self.is_elsewhere(peer, state)
                return (Tick() if elsewhere else event), elsewhere
            case _ if isinstance(event, _REPORTS) and self.is_elsewhere(event.peer, state):
                return Tick(), False
        return event, False

    def _place(self, peer: PeerId, place: Place, state: LedgerState) -> bool:
        """Record the line and height of `peer`. Return True if its line has changed, or if its line
        is not ours and its height has changed.
        """
        before = self._places.get(peer)
        if not make_room(self._places, peer, state.since):
            return False
        self._places[peer] = place
        if before is not None and before[0] == place[0]:
            return place != before and self.is_elsewhere(peer, state)
        self._reports.forget_reports(peer)
        self._mark(peer, state)
        return True

    def _mark(self, peer: PeerId, state: LedgerState) -> None:
        """Let the rest of the ledger consider `peer` up only if it is up and on our line."""
        if self.is_elsewhere(peer, state):
            self._catchup.heights.pop(peer, None)
        gone = peer in self._red or self.is_elsewhere(peer, state)
        self._reports.note(PeerDown(peer) if gone else PeerUp(peer))

    def _presence(self, state: LedgerState, *, silent: bool) -> Presence:
        line, down = state.line, self._reports.down
        here = {p for p, place in self._places.items() if place[0] == line and p not in down}
        return Presence.of(state, here if silent else here | {self._me})

    # ── reactions ────────────────────────────────────────────────────────────────────────────────

    def entered(self, before: LedgerState, state: LedgerState, now: float) -> None:
        self._branch_proposer.entered(before, state, now)
        self.rivals.entered(before, state)
        if state.line == before.line:
            return
        self._catchup.forget_claims()
        for peer, (line, height) in self._places.items():
            self._mark(peer, state)
            if line == state.line:
                self._catchup.note_height(peer, height, state.height, now)

    def step(self, state: LedgerState, now: float, *, silent: bool) -> BranchStep:
        """Do what is due now. If the result contains an entry, append it and call `step` again."""
        presence = self._presence(state, silent=silent)
        self._branch_proposer.note_presence(state, presence, now)
        won = self.rivals.winner
        self._reports.outranked_by = None if won is None else won.first_difference
        follows = state.phase is Phase.HEALED or silent or self._me not in state.voters
        if won is not None and follows:
            words = (
                "following the chain that outranks this node's, starting at height "
                f"{won.height + 1}"
            )
            return BranchStep((Note(words), Rejoin(won.height, won.entries)))
        branched = self._branch(state, presence, now, outranked=won is not None)
        if branched.certified is None:
            asked = self._ask(state, now)
            self.wake_at = earliest(self._branch_proposer.next_deadline(now), self.rivals.ask_at)
            return BranchStep((*branched.effects, *asked))
        return branched

    def _branch(
        self, state: LedgerState, presence: Presence, now: float, *, outranked: bool
    ) -> BranchStep:
        offered = self._branch_proposer.adoptable(now)
        if offered is not None:
            return BranchStep((Note("following a branch that others made"),), offered)
        if not may_branch(state, outranked=outranked):
            return BranchStep()
        effects = self._branch_proposer.propose(state, presence, now)
        made = self._branch_proposer.outcome()
        told = () if made is None else (Announce(Outcome(made)),)
        return BranchStep((*effects, *told), made)

    def _ask(self, state: LedgerState, now: float) -> list[Effect]:
        if self.rivals.base is None and self._branch_proposer.alone_since is None:
            self.rivals.ask_at = None
            return []
        others = {peer: it for peer, it in self._places.items() if it[0] != state.line}
        return self.rivals.ask(others, state, self._red, now)

    def offer(self, certified: Certified) -> None:
        self._branch_proposer.offer(certified)

    def receive(
        self,
        sender: PeerId,
        message: BranchMessage,
        state: LedgerState,
        now: float,
        *,
        silent: bool,
    ) -> list[Effect]:
        if silent:
            said = Note(f"{sender} sent a message about a branch, but this process does not vote")
            if not isinstance(message, ProposeBranch):
                return [said]
            return [said, Send(sender, RefuseBranch(message.entry.height, NO_VOTE))]
        self._branch_proposer.note_presence(state, self._presence(state, silent=silent), now)
        return self._branch_proposer.receive(sender, message, state, now)

    def filter_page(
        self,
        sender: PeerId,
        height: int,
        page: Sequence[Certified],
        state: LedgerState,
        at: At,
        now: float,
    ) -> tuple[list[Effect], Sequence[Certified]]:
        """Examine a page of entries that `sender` sent, whose chain has `height` entries. Return
        effects, and those entries that may continue our own chain.
        """
        if self.rivals.expects(sender, page):
            effects = self.rivals.receive_entries(height, page, state, at, now)
            return effects, self.rivals.continuation(state)
        if not self.is_elsewhere(sender, state):
            return [], page
        after = [each for each in page if each.entry.height > state.height]
        continues = bool(after) and after[0].entry.parent == state.head
        return [], after if continues else ()

    def words(self, state: LedgerState, now: float) -> str:
        """Say how long the quorum has been gone, and when to branch off; empty if it is here."""
        since, due_at = self._branch_proposer.alone_since, self._branch_proposer.due_at
        if since is None or due_at is None or state.phase in (Phase.ENDED, Phase.HEALED):
            return ""
        left = f"in {due_at - now:.0f} s" if now < due_at else "now"
        return f"no quorum for {now - since:.0f} s; the connected voters branch off {left}"
