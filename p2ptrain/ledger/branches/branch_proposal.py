"""Propose and sign a branch: an entry with which the voters that are left continue after the quorum
is gone. Only used in runs that branch (SPEC.md B2, B3).

    quorum seen ──► quorum gone ──branch_after_s, without a break──► due
                       ▲ a quorum again: wait from the start        │
                       └────────────────────────────────────────────┤
    first-ranked voter here is due: it sends ProposeBranch; the other voters sign once they are due
    all voters of the Branch have signed: it is certified, and appended to the chain
    a certified Branch arrives, without a quorum here: append it if it names this node, or once due
    a voter does not sign within branch_after_s: leave it out of the next proposal
    a voter is absent when the proposal is repeated: ask it again, with a new deadline, on return
    no branch within 2 * branch_after_s: the second-ranked voter proposes, without the first

A voter is "here" if it is up and was last heard on this line (the run, or the same branch). A voter
gets branch_after_s to sign, because an honest one may have seen a quorum later than we did; a
silent or lying one gets no more. A signature does not bind its voter: several branches may start
from one entry, and heal later (`rival_chains`). Each voter of a branch must, by its own clock, have
seen no quorum for branch_after_s, so no voter leaves a healthy majority.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import assert_never

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.apply import why_invalid
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Sign, Verify
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import (
    Branch,
    Certificate,
    Certified,
    Entry,
    LineId,
    branch_message,
)
from p2ptrain.ledger.messages.effects import Effect, Note, Send
from p2ptrain.ledger.messages.messages import BranchMessage, ProposeBranch, RefuseBranch, SignBranch
from p2ptrain.ledger.paxos.timers import Repeater, earliest


@dataclass(frozen=True, slots=True)
class Presence:
    """The members that are here: up, and on this line. Usually includes this node."""

    voters: tuple[PeerId, ...]
    learners: tuple[PeerId, ...]

    @staticmethod
    def of(state: LedgerState, here: Container[PeerId]) -> Presence:
        return Presence(
            tuple(peer for peer in state.voters if peer in here),
            tuple(peer for peer in state.learners if peer in here),
        )


class BranchProposer:
    """This node's part in making branches.

    - `alone_since`: when this node last lost sight of a quorum; None while it sees one.
    - `_offered`: a Branch that others have signed, and that could be the next entry.
    - `_entry`, `_signatures`: the Branch that this node proposes, and who has signed it.
    - `_asked_at`: when each of the other voters was first asked to sign.
    - `_turn_at`: when it is this node's turn to propose a branch.
    """

    def __init__(self, rules: Rules, me: PeerId, sign: Sign, verify: Verify, now: float) -> None:
        self.alone_since: float | None = now
        self._rules = rules
        self._me = me
        self._sign = sign
        self._verify = verify
        self._offered: Certified | None = None
        self._entry: Entry | None = None
        self._signatures: dict[PeerId, bytes] = {}
        self._asked_at: dict[PeerId, float] = {}
        self._turn_at: float | None = None
        self._resend = Repeater()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def due_at(self) -> float | None:
        return None if self.alone_since is None else self.alone_since + self._rules.branch_after_s

    def is_due(self, now: float) -> bool:
        return self.due_at is not None and now >= self.due_at

    def next_deadline(self, now: float) -> float | None:
        """Return the time at which there is something to do even if no message arrives."""
        ahead = [at for at in (self.due_at, self._turn_at) if at is not None and now < at]
        return earliest(*ahead, self._resend.due_at)

    def note_presence(self, state: LedgerState, presence: Presence, now: float) -> None:
        """Record whether a quorum is here, with enough members to average. A quorum with too few
        members does not count: it could wait for ever for members that continue on a branch.
        """
        members = len(presence.voters) + len(presence.learners)
        enough = members >= self._rules.participants_min
        if enough and quorum.reached(self._rules.quorum, state.voters, presence.voters):
            self.alone_since = None
            self._give_up()
        elif self.alone_since is None:
            self.alone_since = now

    def entered(self, before: LedgerState, state: LedgerState, now: float) -> None:
        """Record that an entry was appended. If it began a branch on which this node votes, the
        time without a quorum starts anew.
        """
        self._offered = None
        self._give_up()
        if state.line != before.line and self._me in state.voters:
            self.alone_since = now

    # ── branches that others made ────────────────────────────────────────────────────────────────

    def offer(self, certified: Certified) -> None:
        """Remember a Branch with valid signatures that could be the next entry."""
        if self._offered is None:
            self._offered = certified

    def adoptable(self, now: float) -> Certified | None:
        """Return the Branch of other voters to follow now, or None. A voter that the Branch names
        follows it unless a quorum has come back; others, after branch_after_s without a quorum.
        """
        if self._offered is None or self.alone_since is None:
            return None
        named = self._me in self._offered.certificate.voters
        return self._offered if named or self.is_due(now) else None

    # ── a branch of our own ──────────────────────────────────────────────────────────────────────

    def propose(self, state: LedgerState, presence: Presence, now: float) -> list[Effect]:
        """Ask the other voters here to sign a branch, if it is this node's turn. See `outcome`."""
        voters = self._voters(presence, now)
        if not voters:
            self._give_up()
            return []
        branch = Branch(state.step, voters, presence.learners)
        entry = Entry(state.height + 1, state.head, branch)
        if why_invalid(self._rules, state, branch):
            self._give_up()
            return []
        if entry != self._entry:
            self._entry = entry
            fresh = {peer for peer in voters if peer not in self._asked_at} | set(self._signatures)
            self._asked_at |= dict.fromkeys(fresh, now)
            self._signatures = {self._me: self._sign(branch_message(state.line, entry))}
            self._resend.start(now)
            return [self._account(voters, now), *self._to_silent(branch)]
        if not self._resend.fires(now):
            return []
        self._forget_absent(presence)
        return self._to_silent(branch)

    def _forget_absent(self, presence: Presence) -> None:
        """Forget the times at which absent voters were asked, so that they get a new deadline when
        they come back. Only do this when the proposal is repeated. By then the other voters have
        had time to sign without them, so a voter that comes and goes does not delay the branch.
        """
        here = presence.voters
        self._asked_at = {peer: at for peer, at in self._asked_at.items() if peer in here}

    def _voters(self, presence: Presence, now: float) -> tuple[PeerId, ...]:
        """Return the voters of the branch that this node should propose: those that are here, not
        ranked above it, and not silent. Return none if it is not this node's turn yet: each
        higher-ranked voter here first gets 2 * branch_after_s to propose.
        """
        self._turn_at, due_at, here = None, self.due_at, presence.voters
        if due_at is None or self._me not in here:
            return ()
        rank, patience_s = here.index(self._me), self._rules.branch_after_s
        self._turn_at = due_at + 2 * patience_s * rank
        if now < self._turn_at:
            return ()
        asked_at = {p: self._asked_at.get(p, now) for p in here[rank:] if p not in self._signatures}
        silent = {peer for peer, at in asked_at.items() if now >= at + patience_s}
        return tuple(peer for peer in here[rank:] if peer not in silent)

    def outcome(self) -> Certified | None:
        """Return the branch that this node proposed if all its voters have signed it, else None."""
        entry = self._entry
        if entry is None or not isinstance(entry.value, Branch):
            return None
        if self._signatures.keys() != set(entry.value.voters):
            return None
        votes = tuple(sorted(self._signatures.items()))
        return Certified(entry, Certificate(entry.height, 0, entry.digest, votes))

    def receive(
        self, sender: PeerId, message: BranchMessage, state: LedgerState, now: float
    ) -> list[Effect]:
        match message:
            case ProposeBranch(entry):
                return self._answer(sender, entry, state, now)
            case SignBranch():
                self._count(sender, message, state.line)
                return []
            case RefuseBranch(_, reason):
                return [Note(f"{sender} refuses to branch off with this node: {reason}")]
            case _:
                assert_never(message)

    def _answer(self, sender: PeerId, entry: Entry, state: LedgerState, now: float) -> list[Effect]:
        fault = self._fault(sender, entry, state, now)
        if fault:
            return [Send(sender, RefuseBranch(entry.height, fault))]
        signature = self._sign(branch_message(state.line, entry))
        said = Note(f"{sender} proposes to branch off, and this node has not seen a quorum either")
        return [said, Send(sender, SignBranch(entry.height, entry.digest, signature))]

    def _fault(self, sender: PeerId, entry: Entry, state: LedgerState, now: float) -> str:
        value = entry.value
        if not isinstance(value, Branch):
            return "the entry is not a branch"
        if (entry.height, entry.parent) != (state.height + 1, state.head):
            return f"this node is at height {state.height} of a different chain"
        if value.voters[0] != sender or self._me not in value.voters:
            return (
                "only the first-ranked remaining voter may propose a branch, and it may ask only "
                "the other remaining voters"
            )
        fault = why_invalid(self._rules, state, value)
        if not fault and self.alone_since is None:
            return "this node sees a quorum"
        if not fault and not self.is_due(now):
            assert self.due_at is not None
            return (
                f"this node saw a quorum recently; it can branch off in {self.due_at - now:.0f} s"
            )
        return fault

    def _count(self, sender: PeerId, message: SignBranch, line: LineId) -> None:
        entry = self._entry
        if entry is None or entry.digest != message.entry or not isinstance(entry.value, Branch):
            return
        named = sender in entry.value.voters
        if named and self._verify(sender, branch_message(line, entry), message.signature):
            self._signatures[sender] = message.signature

    def _give_up(self) -> None:
        self._entry = None
        self._asked_at.clear()
        self._resend.stop()

    def _to_silent(self, branch: Branch) -> list[Effect]:
        assert self._entry is not None
        asked = [peer for peer in branch.voters if peer not in self._signatures]
        return [Send(peer, ProposeBranch(self._entry)) for peer in asked]

    def _account(self, voters: tuple[PeerId, ...], now: float) -> Note:
        assert self.alone_since is not None
        names = ", ".join(voters)
        return Note(
            f"no quorum for {now - self.alone_since:.0f} s: branching off with {names} as voters"
        )


def may_branch(state: LedgerState, *, outranked: bool) -> bool:
    """Return whether to start a branch. After the end of a run, branch only if another chain
    outranks ours. A Heal moves us to that chain. It needs a quorum, which only a branch restores.
    """
    return state.phase is not Phase.HEALED and (state.phase is not Phase.ENDED or outranked)
