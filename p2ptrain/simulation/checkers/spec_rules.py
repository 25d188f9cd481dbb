"""Invariants of every simulated world: each checker watches one rule of the ledger's SPEC.md.

The checkers share no code with the ledger except for the values and `apply`. They count quorums in
the simplest way, take promises from the messages, and follow blocks from lease to update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Branch, Commit, Entry, LineId, Roster, Skip
from p2ptrain.ledger.messages.messages import Accept, Message, Promise, Propose
from p2ptrain.ledger.messages.peer_reports import SnapshotTaken
from p2ptrain.simulation.amending import AmendmentsAreHeld, TermsAreForeseen
from p2ptrain.simulation.checkers.accountability import LiarsAreExposed, Place
from p2ptrain.simulation.checkers.branches import HealsGoUp, NobodyIsDrawnAway
from p2ptrain.simulation.checkers.commits import CommitsAreHeld, CommitsAreMade
from p2ptrain.simulation.checkers.fairness import LeavesHaveCauses, NobodyIsStarved, NobodyIsUsurped
from p2ptrain.simulation.checkers.lines import Lines
from p2ptrain.simulation.checkers.proposals import (
    ProposalsAreEntitled,
    ProposalsAreSigned,
    is_quorum,
)
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.disk import SimDisk, verify
from p2ptrain.simulation.liars.spoiling import (
    ExclusionsAreShared,
    Spoiler,
    SpoilersCostLittle,
    SpoilersCostLittleTime,
)
from p2ptrain.simulation.profiles import Profile
from p2ptrain.simulation.rings import update_of


@dataclass(slots=True)
class OneEntryPerHeight(Watch):
    """S1: all nodes append the same entry at each height of a line. A branch is not an entry of the
    line that it leaves."""

    entries: dict[tuple[LineId, int], Digest] = field(default_factory=dict)
    exposure: LiarsAreExposed | None = None

    def on_decision(self, decision: Decision) -> None:
        entry = decision.certified.entry
        if isinstance(entry.value, Branch):
            return
        line = decision.before.line
        self.entries.setdefault((line, entry.height), entry.digest)
        self._compare(decision.node, line, entry.height, entry.digest)

    def on_state(self, peer: PeerId, state: LedgerState) -> None:
        """Check the head of a state. A node that began at a base did not decide earlier entries."""
        self._compare(peer, state.line, state.height, state.head)

    def _compare(self, peer: PeerId, line: LineId, height: int, digest: Digest) -> None:
        known = self.entries.get((line, height), digest)
        if known == digest:
            return
        if self.exposure is None or not self.exposure.excuses(height, {known, digest}):
            self.object(f"{peer} has {digest[:8]} at height {height}, not {known[:8]}")


@dataclass(slots=True)
class CertificatesVerify(Watch):
    """S4: a quorum of the previous state's voters has signed exactly this entry of this run."""

    rules: Rules

    def on_decision(self, decision: Decision) -> None:
        entry, certificate = decision.certified.entry, decision.certified.certificate
        if isinstance(entry.value, Branch):
            self._check_branch(decision, entry, entry.value)
            return
        voters = decision.before.voters
        signed = f'["{decision.before.line}",{entry.height},{certificate.round},"{entry.digest}"]'
        message = b"p2ptrain-vote/1\n" + signed.encode()
        good = [v for v, s in certificate.votes if v in voters and verify(v, message, s)]
        if not is_quorum(self.rules, voters, good):
            self.object(f"entry {entry.height} has only {len(good)} valid votes of {len(voters)}")
        elif voters[(entry.height + certificate.round) % len(voters)] not in good:
            self.object(f"entry {entry.height} is certified without its proposer's vote")

    def _check_branch(self, decision: Decision, entry: Entry, branch: Branch) -> None:
        """Check that all voters of a branch signed it, and are not a quorum of the old line."""
        before, votes = decision.before, decision.certified.certificate.votes
        signed = f'["{before.line}",{entry.height},"{entry.parent}","{entry.digest}"]'
        message = b"p2ptrain-branch/1\n" + signed.encode()
        good = {voter for voter, signature in votes if verify(voter, message, signature)}
        if good != set(branch.voters) or not good < set(before.voters):
            self.object(f"branch {entry.height} is not signed by all of its voters")
        if is_quorum(self.rules, before.voters, good):
            self.object(f"branch {entry.height} is made by a quorum")


@dataclass(slots=True)
class VotesAreKept(Watch):
    """S2: voters do not contradict their earlier messages, even after a crash. R6: a voter does not
    send messages about a height until all entries below that height are on its disk.

    A promise (p, a) states that, among the rounds below p, its voter last voted in round a. So a
    vote in a round between a and p is a violation, whichever was sent first. Repeats are allowed.
    """

    lines: Lines
    votes: dict[Place, dict[int, Digest]] = field(default_factory=dict)
    promises: dict[Place, set[tuple[int, int]]] = field(default_factory=dict)
    liars: frozenset[PeerId] = frozenset()

    def on_vote(self, voter: PeerId, message: Message, disk: SimDisk) -> None:
        if voter in self.liars:
            return
        match message:
            case Accept(vote):
                place = (voter, vote.line, vote.height)
                self._on_accept(place, vote.round, vote.entry)
                self._check_disk(place, disk, vote.round, promise=False)
            case Propose(round, entry):
                place = (voter, self.lines.of_proposal(message), entry.height)
                self._on_accept(place, round, entry.digest)
                self._check_disk(place, disk, round, promise=False)
            case Promise(height, round):
                line = self.lines.of_promise(voter, message)
                if line is None:
                    where = f"at height {height} on an unknown line"
                    return self.object(f"{voter} promised round {round} {where}")
                self._on_promise((voter, line, height), message)
                self._check_disk((voter, line, height), disk, round, promise=True)

    def _check_disk(self, place: Place, disk: SimDisk, round: int, *, promise: bool) -> None:
        """Check that the vote or promise, and all entries below its height, are on disk."""
        voter, line, height = place
        if disk.height < height - 1:
            self.object(
                f"{voter} sent a message about height {height}, but its disk ends at {disk.height}"
            )
        tail = f'"height":{height},"line":"{line}","round":{round}}}'.encode()
        if not any(
            record.endswith(tail) and record.startswith(b'{"accepted":null') == promise
            for record in reversed(disk.records)
        ):
            what = f"a message for height {height}, round {round}"
            self.object(f"{voter} sent {what}, before storing it")

    def _on_accept(self, place: Place, round: int, entry: Digest) -> None:
        voter, _, height = place
        known = self.votes.setdefault(place, {}).setdefault(round, entry)
        if known != entry:
            self.object(f"{voter} voted twice at height {height}, round {round}")
        for promised, last in self.promises.get(place, ()):
            if last < round < promised:
                self.object(
                    f"{voter} voted in round {round} at height {height}, "
                    f"but had promised round {promised}"
                )

    def _on_promise(self, place: Place, promise: Promise) -> None:
        last = -1 if promise.accepted is None else promise.accepted.round
        self.promises.setdefault(place, set()).add((promise.round, last))
        for round in self.votes.get(place, {}):
            if last < round < promise.round:
                where = f"round {round} at height {promise.height}"
                self.object(f"{place[0]}'s promise omits its vote of {where}")


@dataclass(slots=True)
class EqualHeadsAgree(Watch):
    """S5: nodes with equal heads have equal derived states, and equal θ after the same step."""

    states: dict[Digest, LedgerState] = field(default_factory=dict)
    thetas: dict[tuple[int, Digest | None], Digest] = field(default_factory=dict)

    def on_decision(self, decision: Decision) -> None:
        self.states.setdefault(decision.after.head, decision.after)

    def on_state(self, peer: PeerId, state: LedgerState) -> None:
        """Check the state of `peer` after it appended an entry, or restarted from its disk."""
        if self.states.setdefault(state.head, state) != state:
            self.object(f"{peer} derived a different state at height {state.height}")

    def on_applied(self, peer: PeerId, step: int, theta: Digest, end: Digest | None = None) -> None:
        if self.thetas.setdefault((step, end), theta) != theta:
            self.object(f"{peer} has a different θ after step {step}")


@dataclass(slots=True)
class BlocksAreCommittedOnce(Watch):
    """S6: along each chain, every block is in exactly one place: leased, returned or committed.
    Each committed block was trained on by the member whose lease held it. `committed` maps the head
    of each chain to its committed blocks."""

    committed: dict[Digest, frozenset[int]] = field(default_factory=dict)
    strangers: frozenset[PeerId] = frozenset()
    """Peers that may claim an update without training. If there are any, honest peers are checked
    only if the committed update is the result of the reduce. An invented update contains nobody's
    work; CommitsAreMade judges it."""

    def on_decision(self, decision: Decision) -> None:
        head, roster = decision.after.head, decision.before.roster
        if head in self.committed:
            return
        self.committed[head] = self.committed.get(decision.before.head, frozenset())
        if isinstance(decision.value, Commit) and roster is not None:
            self._commit(decision, roster)
        self._check_accounts(decision.after)

    def _commit(self, decision: Decision, roster: Roster) -> None:
        assert isinstance(decision.value, Commit)
        made = decision.value.update == update_of(decision.before.head)
        for each in roster.participants:
            blocks = decision.before.leases[each.peer][: each.blocks]
            believed = each.peer in self.strangers or (bool(self.strangers) and not made)
            if not believed and decision.trained.get(each.peer) != blocks:
                said = f"commits blocks that {each.peer} did not train on"
                self.object(f"step {roster.step} {said}")
            committed = self.committed[decision.after.head]
            again = committed.intersection(blocks)
            if again:
                self.object(f"block {min(again)} is committed a second time")
            self.committed[decision.after.head] = committed.union(blocks)

    def _check_accounts(self, state: LedgerState) -> None:
        book = state.lease_book
        out = [block for lease in book.held.values() for block in lease]
        every = sorted([*out, *book.returned, *self.committed.get(state.head, ())])
        if every != list(range(book.next_block)):
            self.object(f"at height {state.height} a block is lost or in two places")


@dataclass(slots=True)
class NewcomersAreFew(Watch):
    """S7: a roster never has more new voters than kept ones, and a new voter has contributed to a
    committed update before."""

    contributed: set[PeerId] = field(default_factory=set)
    founders: frozenset[PeerId] = frozenset()
    """The founders of an open run, which do not have to contribute."""

    def on_decision(self, decision: Decision) -> None:
        value, before = decision.value, decision.before
        if isinstance(value, Commit) and before.roster is not None:
            self.contributed.update(before.roster.peers)
        if not isinstance(value, Roster):
            return
        new = set(value.voters) - set(before.voters)
        if len(new) > len(value.voters) - len(new):
            self.object(f"roster {decision.after.height} has too many new voters")
        if not new <= self.contributed | self.founders:
            self.object(f"roster {decision.after.height} has a new voter that has not contributed")


@dataclass(slots=True)
class StepsGoOn(Watch):
    """Each Commit or Skip ends one outer step. The run ends after the planned number of steps, or
    before the first outer step that an agreed amendment does not allow."""

    rules: Rules

    def on_decision(self, decision: Decision) -> None:
        before, after = decision.before, decision.after
        ends = isinstance(decision.value, Commit | Skip)
        if after.step != before.step + ends:
            self.object(f"entry {after.height} leads from step {before.step} to {after.step}")
        healed = after.phase is Phase.HEALED
        ends_at = [each.step for each in after.terms if each.stops]
        is_over = after.step >= min([self.rules.outer_steps, *ends_at])
        if not healed and (after.phase is Phase.ENDED) != is_over:
            self.object(f"the run is in phase {after.phase} after {after.step} steps")


@dataclass(slots=True)
class SnapshotsAreTrue(Watch):
    """If processes never stop (`orderly`) and the honest voters are a quorum, a Commit with a
    snapshot names the θ that all nodes had at that step."""

    rules: Rules
    liars: frozenset[PeerId] = frozenset()
    orderly: bool = True
    thetas: dict[int, Digest] = field(default_factory=dict)

    def on_applied(self, peer: PeerId, step: int, theta: Digest, end: Digest | None = None) -> None:
        self.thetas.setdefault(step, theta)

    def on_decision(self, decision: Decision) -> None:
        value = decision.value
        if not isinstance(value, Commit) or value.snapshot is None or not self.orderly:
            return
        voters = decision.before.voters
        if not is_quorum(self.rules, voters, set(voters) - self.liars):
            return
        if value.snapshot.digest != self.thetas.get(value.snapshot.step):
            self.object(f"entry {decision.after.height} names a snapshot that is not θ")


@dataclass(slots=True)
class SnapshotsAreVouched(Watch):
    """S8: a quorum has written the snapshot that a Commit names, where liars count as writers. With
    liars, later rounds are exempt: a liar may have claimed that the entry was already accepted."""

    rules: Rules
    liars: frozenset[PeerId] = frozenset()

    def on_decision(self, decision: Decision) -> None:
        value, round = decision.value, decision.certified.certificate.round
        if not isinstance(value, Commit) or value.snapshot is None or (self.liars and round > 0):
            return
        step, digest = value.snapshot.step, value.snapshot.digest
        voters = set(decision.before.voters)
        wrote = {
            voter
            for voter in voters - self.liars
            if SnapshotTaken(voter, step, digest) in decision.disks[voter].written
        }
        if not is_quorum(self.rules, decision.before.voters, wrote | (voters & self.liars)):
            self.object(
                f"entry {decision.after.height}: only {len(wrote)} voters wrote its snapshot"
            )


@dataclass(slots=True)
class StatesAreNamed(Watch):
    """S8: if a Commit names a state, it is the state before that Commit."""

    def on_decision(self, decision: Decision) -> None:
        value = decision.value
        named = value.state if isinstance(value, Commit) else None
        if named is not None and named != decision.before.digest:
            self.object(f"entry {decision.after.height} does not name the state before it")


def all_checkers(
    rules: Rules,
    liars: frozenset[PeerId],
    troubles: Troubles,
    profile: Profile,
    lines: Lines,
    spoilers: Mapping[PeerId, Spoiler],
) -> list[Watch]:
    """Return the checkers for a world with this profile. The world adds its spoilers to `spoilers`
    when they start."""
    exposure = LiarsAreExposed(lines=lines, rules=rules, liars=liars)
    seeds = frozenset(rules.founders[: profile.seeds_among_peers])
    strangers = liars if profile.open or profile.claims else frozenset()
    checkers: list[Watch] = [
        exposure,
        OneEntryPerHeight(exposure=exposure),
        ProposalsAreSigned(lines=lines, rules=rules, liars=liars),
        ProposalsAreEntitled(lines=lines, rules=rules, liars=liars),
        CertificatesVerify(rules=rules),
        CommitsAreHeld(liars=liars),
        CommitsAreMade(rules=rules, liars=liars, spoilers=spoilers),
        VotesAreKept(lines=lines, liars=liars),
        EqualHeadsAgree(),
        BlocksAreCommittedOnce(strangers=strangers),
        NewcomersAreFew(founders=frozenset(rules.founders if profile.open else ())),
        StepsGoOn(rules=rules),
        SnapshotsAreTrue(rules=rules, liars=liars, orderly=profile.keeps_processes),
        SnapshotsAreVouched(rules=rules, liars=liars),
        StatesAreNamed(),
        AmendmentsAreHeld(liars=liars),
        TermsAreForeseen(rules=rules),
        LeavesHaveCauses(troubles=troubles, orderly=profile.is_orderly),
    ]
    if profile.spoilers:
        checkers += [SpoilersCostLittle(), SpoilersCostLittleTime(spoilers)]
        checkers.append(ExclusionsAreShared(spoilers))
    if liars and not profile.open and not profile.claims:  # The latter has crashes as well.
        checkers.append(NobodyIsUsurped(troubles, liars))
    if rules.branches:
        checkers += [NobodyIsDrawnAway(rules, troubles), HealsGoUp()]
    elif not profile.spoilers and not profile.open:
        # With branches, members on other branches do not take part. Spoilers can get honest members
        # left out, and Sybils can get honest learners left out.
        idle = seeds | (liars if profile.claims else frozenset())
        checkers.append(NobodyIsStarved(troubles, profile.is_orderly, idle))
    return checkers
