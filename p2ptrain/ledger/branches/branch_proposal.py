"""Propose and sign a branch after the quorum of a line is gone: when, and with which voters. Only
for runs that branch.

    quorum seen ──► quorum gone ──branch_after_s, without a break──► due
                       ▲ a quorum again: from the start             │
                       └────────────────────────────────────────────┤
    due, first-ranked of those who are here: ProposeBranch ──► the others, who are due as well, sign
    all of its voters have signed: the Branch is certified, and is appended
    due, or named by it: append a Branch that others certified
    no signature within branch_after_s of the question: left out of the next proposal
    away when the proposal is repeated: asked afresh after coming back
    no branch within twice that time: the second-ranked proposes, without the first

A voter is here if it is up and was last heard on this line. One that is up but does not vote, or
lies, is awaited for as long as an honest one that may have seen a quorum more recently than we did,
and no longer. A signature binds nobody: several branches of one entry may come to be, and heal
later (`rival_chains`). Each voter of a branch must have seen no quorum for long by its own clock,
so nobody leaves a healthy majority.
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
from p2ptrain.ledger.messages.messages import ProposeBranch, RefuseBranch, SignBranch
from p2ptrain.ledger.paxos.timers import Repeater, earliest

BranchMessage = ProposeBranch | SignBranch | RefuseBranch


@dataclass(frozen=True, slots=True)
class Presence:
    """The members of a state that are here, this node among them."""

    voters: tuple[PeerId, ...]
    learners: tuple[PeerId, ...]

    @staticmethod
    def of(state: LedgerState, here: Container[PeerId]) -> Presence:
        return Presence(
            tuple(peer for peer in state.voters if peer in here),
            tuple(peer for peer in state.learners if peer in here),
        )


class BranchProposer:
    """The part of this node in making branches.

    - `alone_since`: the time since which no quorum was here; None while a quorum is here.
    - `_asked_at`: for each voter, the time since which it was asked to sign without an answer.
    - `_turn_at`: the time when this node may propose a branch.
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
        """Return when there is something to do even if no message arrives."""
        ahead = [at for at in (self.due_at, self._turn_at) if at is not None and now < at]
        return earliest(*ahead, self._resend.due_at)

    def note_presence(self, state: LedgerState, presence: Presence, now: float) -> None:
        """Note whether a quorum is here that has enough members to average. A quorum with too few
        members does not count: it makes no progress, possibly for ever, while its former members go
        on in a branch.
        """
        members = len(presence.voters) + len(presence.learners)
        enough = members >= self._rules.participants_min
        if enough and quorum.reached(self._rules.quorum, state.voters, presence.voters):
            self.alone_since = None
            self._give_up()
        elif self.alone_since is None:
            self.alone_since = now

    def entered(self, before: LedgerState, state: LedgerState, now: float) -> None:
        """Note that a new entry holds. If it begins a new line on which this node votes, the time
        without a quorum counts from now.
        """
        self._offered = None
        self._give_up()
        if state.line != before.line and self._me in state.voters:
            self.alone_since = now

    # ── branches that others made ────────────────────────────────────────────────────────────────

    def offer(self, certified: Certified) -> None:
        """Take a Branch that could come next and whose signatures are valid."""
        if self._offered is None:
            self._offered = certified

    def adoptable(self, now: float) -> Certified | None:
        """Return the Branch to follow now, or None. A voter that signed it follows unless a quorum
        came back. A voter that it does not name follows only after branch_after_s without a quorum.
        """
        if self._offered is None or self.alone_since is None:
            return None
        named = self._me in self._offered.certificate.voters
        return self._offered if named or self.is_due(now) else None

    # ── a branch of our own ──────────────────────────────────────────────────────────────────────

    def propose(self, state: LedgerState, presence: Presence, now: float) -> list[Effect]:
        """Ask the other voters who are here to sign a branch, if it is this node's turn. See
        `outcome`.
        """
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
        """Forget when absent voters were asked, so that they are asked afresh when they come back.
        This runs when a proposal is repeated: by then the others had time to sign without them, so
        a voter that comes and goes delays nobody.
        """
        here = presence.voters
        self._asked_at = {peer: at for peer, at in self._asked_at.items() if peer in here}

    def _voters(self, presence: Presence, now: float) -> tuple[PeerId, ...]:
        """Return the voters to go on with: those who are here and not silent. Return nobody if it
        is not this node's turn: higher-ranked voters first get the time to propose, and to leave
        silent ones out themselves.
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
        """Return the branch that this node proposed once all its voters have signed it, else
        None.
        """
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
                return [Note(f"{sender} does not branch off with this node: {reason}")]
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
            return f"this node is at height {state.height} of another chain"
        if value.voters[0] != sender or self._me not in value.voters:
            return (
                "only the first-ranked remaining voter may ask, and only the other remaining voters"
            )
        fault = why_invalid(self._rules, state, value)
        if not fault and self.alone_since is None:
            return "this node sees a quorum"
        if not fault and not self.is_due(now):
            assert self.due_at is not None
            return (
                "this node saw a quorum recently; it does not branch off for another "
                f"{self.due_at - now:.0f} s"
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
    """Return whether a branch makes sense now. A run that has ended is left only for a chain that
    outranks it.
    """
    return state.phase is not Phase.HEALED and (state.phase is not Phase.ENDED or outranked)
