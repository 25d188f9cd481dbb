"""Check the rules about claims (S15 and C1 to C5 in SPEC.md). The checkers read signed statements
and decided rosters. They share no code with the ledger except for the values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Roster
from p2ptrain.ledger.messages.claim_statement import ClaimStatement
from p2ptrain.ledger.messages.events import Event, Received
from p2ptrain.ledger.messages.messages import Message, Propose, ShowClaim
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.simulation.checkers.watching import Decision, Known, Watch
from p2ptrain.simulation.disk import SimDisk, verify
from p2ptrain.simulation.liars.claim_liar import ClaimLiar, ClaimTrick


@dataclass(slots=True)
class ClaimsAreBound(Watch):
    """S15: each participant of a roster has a claim, and all rosters of an outer step that name the
    participant name the same claim."""

    bound: dict[tuple[int, PeerId], Digest] = field(default_factory=dict)

    def on_decision(self, decision: Decision) -> None:
        value = decision.value
        for part in value.participants if isinstance(value, Roster) else ():
            if part.claim is None:
                self.object(f"{part.peer} takes part in step {decision.before.step} unclaimed")
                continue
            claim = self.bound.setdefault((decision.before.step, part.peer), part.claim)
            if claim != part.claim:
                self.object(f"{part.peer} changed its claim in step {decision.before.step}")


@dataclass(slots=True)
class ClaimsAreMade(Watch):
    """C2, C4: a roster names only claims that the participant signed for this outer step, with the
    same numbers. An honest participant had stored the claim durably. A liar can get misquoted
    claims accepted in a later round, when a voter must not refuse them any more (S11)."""

    line: Digest
    liars: frozenset[PeerId] = frozenset()
    signed: set[tuple[PeerId, int, int, int, Digest]] = field(default_factory=set)

    def on_report(self, receiver: PeerId, report: Ready, known: Known) -> None:
        said = report.claim
        if said is not None and is_genuine(self.line, report):
            self.signed.add((report.peer, said.step, said.tokens, said.blocks, said.claim))

    def on_decision(self, decision: Decision) -> None:
        value, round = decision.value, decision.certified.certificate.round
        if not isinstance(value, Roster) or not decision.is_first or (self.liars and round > 0):
            return
        if not decision.certified.certificate.voters - self.liars:
            return  # The liar is the first-ranked of two voters, and so a quorum by itself.
        for part in value.participants:
            named = part.claim
            if decision.before.claims.get(part.peer) == named is not None:
                continue  # The roster that named it first was checked.
            if part.peer in self.liars:
                content = (part.peer, value.step, part.tokens, part.blocks, named)
                made = content in self.signed
            else:
                claim = None if named is None else decision.disks[part.peer].claims.get(named)
                numbers = (value.step, part.tokens, part.blocks)
                made = claim is not None and (claim.step, claim.tokens, claim.blocks) == numbers
            if not made:
                self.object(f"roster {decision.after.height} misquotes the claim of {part.peer}")


@dataclass(slots=True)
class NewestClaimsCount(Watch):
    """C2: an honest peer opens an outer step with the newest claims that it has received since its
    start. `replaced` are claims that it knows to be older than another one for the same step. The
    first proposal after a start is exempt, since it may repeat an earlier one (R4). Of a proposal
    that is sent several times, only the first time counts."""

    line: Digest
    liars: frozenset[PeerId] = frozenset()
    newest: dict[tuple[PeerId, PeerId], ClaimStatement] = field(default_factory=dict)
    replaced: set[tuple[PeerId, PeerId, Digest]] = field(default_factory=set)
    exempt: dict[PeerId, int | None] = field(default_factory=dict)
    proposed: set[tuple[PeerId, Digest]] = field(default_factory=set)

    def on_boot(self, peer: PeerId) -> None:
        self.exempt[peer] = None
        self.newest = {key: it for key, it in self.newest.items() if key[0] != peer}
        self.replaced = {it for it in self.replaced if it[0] != peer}

    def on_report(self, receiver: PeerId, report: Ready, known: Known) -> None:
        said, key = report.claim, (receiver, report.peer)
        if said is None or not known.handled or not is_genuine(self.line, report):
            return
        last = self.newest.get(key)
        if last is None or last.step != said.step:
            if not known.shown and (last is None or last.step < said.step):
                self.newest[key] = said
            return
        if said.serial != last.serial:
            older, newer = sorted((last, said), key=lambda it: it.serial)
            self.replaced.add((*key, older.claim))
            self.newest[key] = newer

    def on_vote(self, voter: PeerId, message: Message, disk: SimDisk) -> None:
        if voter in self.liars or not isinstance(message, Propose) or message.round > 0:
            return
        value = message.entry.value
        if not isinstance(value, Roster) or value.attempt > 0:
            return
        if (voter, message.entry.digest) in self.proposed:
            return
        self.proposed.add((voter, message.entry.digest))
        if self.exempt.get(voter, 0) in (None, message.height):
            self.exempt[voter] = message.height
            return
        for part in value.participants:
            if part.claim is not None and (voter, part.peer, part.claim) in self.replaced:
                self.object(f"{voter} proposes an old claim of {part.peer}")


CLAIMS_COMPARED = 8
"""Number of claims of one peer that a node is required to remember."""


@dataclass(slots=True)
class ContradictionsAreEvidence(Watch):
    """C5: a node that has received two contradictory claims of a member has evidence against it. No
    node has evidence against an honest peer."""

    line: Digest
    liars: frozenset[PeerId] = frozenset()
    heard: dict[tuple[PeerId, PeerId], list[ClaimStatement]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def on_boot(self, peer: PeerId) -> None:
        for key in [key for key in self.heard if key[0] == peer]:
            del self.heard[key]

    def on_report(self, receiver: PeerId, report: Ready, known: Known) -> None:
        said, peer = report.claim, report.peer
        if not known.handled:
            return
        accused = {evidence.peer for evidence in known.disk.evidence}
        if innocent := accused - self.liars:
            self.object(f"{receiver} has evidence against {min(innocent)}, which is honest")
        if said is None or not is_genuine(self.line, report) or not known.state.is_member(peer):
            return
        said_before = self.heard[receiver, peer]
        if said not in said_before:
            said_before.append(said)
            del said_before[:-CLAIMS_COMPARED]
        if peer not in accused and any(_contradict(said, each) for each in said_before):
            self.object(f"{receiver} received contradictory claims of {peer} and has no evidence")


@dataclass(slots=True)
class SplitClaimsAreFound(Watch):
    """C4: a peer that shows different claims with one serial number to different peers is found
    after a few outer steps: voters show the proposer what they received. Commits with fewer than
    two honest voters do not count, since no two voters could compare. Rosters that the liar itself
    proposed do not count either: it keeps to itself what voters show it.
    """

    claim_liars: Mapping[PeerId, ClaimLiar]
    liars: frozenset[PeerId] = frozenset()
    took_part: int = 0
    proposer: PeerId | None = None
    """The proposer of the newest roster with participants."""

    def on_decision(self, decision: Decision) -> None:
        roster = decision.before.roster
        if decision.is_first and isinstance(decision.value, Roster) and decision.value.participants:
            turn = decision.after.height + decision.certified.certificate.round
            self.proposer = decision.before.voters[turn % len(decision.before.voters)]
        if not decision.is_first or not isinstance(decision.value, Commit) or roster is None:
            return
        if len(set(decision.before.voters) - self.liars) < 2:
            return
        for peer, node in self.claim_liars.items():
            tricks = node.tricks - _CLUMSY
            splits = ClaimTrick.SPLIT in tricks and tricks == node.tricks
            if splits and peer in roster.peers and peer != self.proposer:
                self.took_part += 1
                if self.took_part > SPLIT_COMMITS_MAX:
                    self.object(f"{peer} took part in {self.took_part} commits with split claims")


_CLUMSY = {ClaimTrick.UNSIGNED, ClaimTrick.UNCLAIMED, ClaimTrick.SERIALS}
"""With these tricks, the split claims that voters know need not contradict each other."""

SPLIT_COMMITS_MAX = 4
"""Maximum number of commits with a participant that shows different claims to different peers. Each
voter must have learned the other claim, and crashes can make it forget."""


def show_report(
    checkers: Iterable[Watch],
    receiver: PeerId,
    event: Event,
    state: LedgerState,
    disk: SimDisk,
    *,
    handled: bool,
) -> None:
    """Show the checkers a report about a claim that `receiver` handles. It arrived directly, or a
    voter showed it. Other events are ignored.
    """
    shown, report = False, event
    if isinstance(event, Received) and isinstance(event.message, ShowClaim):
        shown, report = True, Ready.of(event.message.peer, event.message.statement)
    if isinstance(report, Ready) and report.peer != receiver:
        for checker in checkers:
            checker.on_report(receiver, report, Known(state, disk, shown, handled))


def is_genuine(line: Digest, report: Ready) -> bool:
    """Return whether the peer signed its claim, and the report repeats the claim's numbers."""
    said = report.claim
    if said is None or (report.tokens, report.blocks) != (said.tokens, said.blocks):
        return False
    numbers = f"{said.step},{said.serial},{said.tokens},{said.blocks}"
    message = f'p2ptrain-claim/1\n["{line}",{numbers},"{said.claim}"]'.encode()
    return said.step == report.step and verify(report.peer, message, said.signature)


def _contradict(one: ClaimStatement, other: ClaimStatement) -> bool:
    """Return whether the statements differ, although they have a serial number or a claim in
    common."""
    differ = one.plain()[:-1] != other.plain()[:-1]
    return differ and (one.serial == other.serial or one.claim == other.claim)


def checkers_of_claims(
    rules: Rules, liars: frozenset[PeerId], claim_liars: Mapping[PeerId, ClaimLiar]
) -> list[Watch]:
    line = Digest(rules.run)
    return [
        ClaimsAreBound(),
        ClaimsAreMade(line, liars),
        NewestClaimsCount(line, liars),
        ContradictionsAreEvidence(line, liars),
        SplitClaimsAreFound(claim_liars, liars),
    ]
