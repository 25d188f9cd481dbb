"""Defects in how voters decide an entry: promises, counting of votes, memory, and proofs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from p2ptrain.ids import PeerId
from p2ptrain.ledger import core
from p2ptrain.ledger.chain import apply as apply_module
from p2ptrain.ledger.chain import quorum, verify
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certificate, Entry, LineId, Vote, vote_message
from p2ptrain.ledger.messages.effects import Effect, Persist
from p2ptrain.ledger.messages.events import Event
from p2ptrain.ledger.messages.messages import PromiseProof
from p2ptrain.ledger.paxos import electorate, instance, proposer
from p2ptrain.ledger.paxos.acceptor import Acceptor, Acceptors, restored_acceptors
from p2ptrain.ledger.paxos.electorate import Electorate
from p2ptrain.ledger.paxos.instance import Instance, Stage
from p2ptrain.ledger.paxos.proposer import Proposer
from p2ptrain.ledger.policy.policy import Policy
from p2ptrain.simulation.disk import SimDisk
from tests.simulation.defects.planting import Patch


def half_is_a_quorum(patch: Patch) -> None:
    def is_enough(policy: object, voters: int, present: int, *, first_present: bool) -> bool:
        return 2 * present >= voters

    patch(quorum, "is_enough", is_enough)


def promise_not_persisted(patch: Patch) -> None:
    def append_record(disk: SimDisk, record: bytes) -> None:
        if b'"accepted":null' not in record:
            disk.records.append(record)

    patch(SimDisk, "append_record", append_record)


def vote_not_persisted(patch: Patch) -> None:
    def append_record(disk: SimDisk, record: bytes) -> None:
        if b'"accepted":null' in record:
            disk.records.append(record)

    patch(SimDisk, "append_record", append_record)


def lower_round_accepted(patch: Patch) -> None:
    def promise(acceptor: Acceptor, round: int) -> bytes:
        return acceptor._record(round, None)

    patch(Acceptor, "promise", promise)


def accepted_value_not_adopted(patch: Patch) -> None:
    for module in (electorate, instance, proposer):
        patch(module, "forced_by", lambda proofs: None)


def round_0_proposed_anew(patch: Patch) -> None:
    """After a restart, the proposer of round 0 ignores the entry that it has already accepted."""
    lead = Instance._lead

    def forgetful(self: Instance, policy: Policy, now: float) -> object:
        if self.stage is Stage.IDLE and self.round == 0:
            self.acceptor.accepted = None
        return lead(self, policy, now)

    patch(Instance, "_lead", forgetful)


def stale_voters_count(patch: Patch) -> None:
    real = Electorate.after

    def of_founders(state: Any, rules: Rules, *rest: Any, **options: Any) -> Electorate:
        return replace(real(state, rules, *rest, **options), voters=rules.founders)

    patch(Electorate, "after", staticmethod(of_founders))
    _check_no_certificate(patch)


def learners_count(patch: Patch) -> None:
    def next_instance(self: core.Ledger) -> Instance:
        agreed = self.state
        self.state = replace(agreed, voters=agreed.members, learners=())
        try:
            return original(self)
        finally:
            self.state = agreed

    original = core.Ledger._next_instance
    patch(core.Ledger, "_next_instance", next_instance)
    _check_no_certificate(patch)


def certificate_not_checked(patch: Patch) -> None:
    _check_no_certificate(patch)


def certificate_of_another_height(patch: Patch) -> None:
    """Votes are checked only against the entry and height that the certificate itself names."""

    def fault(
        rules: Rules, at: LedgerState, entry: object, held: Certificate, check: Verify
    ) -> str:
        said = vote_message(at.line, held.height, held.round, held.entry)
        return "" if all(check(voter, said, it) for voter, it in held.votes) else "forged"

    patch(verify, "_certificate_fault", fault)


def any_vote_counts(patch: Patch) -> None:
    def add_vote(self: Proposer, sender: PeerId, vote: Vote) -> str:
        if self.proposal is not None and sender in self._electorate.names:
            self._votes[sender] = vote.signature
        return ""

    patch(Proposer, "add_vote", add_vote)


def promises_not_shown(patch: Patch) -> None:
    patch(Electorate, "proofs_fault", lambda self, round, entry, proofs: "")


def proposer_not_checked(patch: Patch) -> None:
    """A proposal gets votes even if it is not signed by its proposer."""
    patch(Instance, "_proposal_fault", lambda self, message: "")


def claims_not_checked(patch: Patch) -> None:
    """A voter can claim to have accepted an entry that was never proposed."""
    patch(Electorate, "claim_fault", lambda self, round, claim: "")


def proposer_need_not_vote(patch: Patch) -> None:
    """A certificate is valid without the vote of the entry's proposer."""

    def fault(rules: Rules, at: LedgerState, entry: Entry, held: Certificate, check: Verify) -> str:
        found = original(rules, at, entry, held, check)
        return "" if "lacks the vote" in found else found

    original = verify._certificate_fault
    patch(verify, "_certificate_fault", fault)


def accepted_forgotten(patch: Patch) -> None:
    """A restarted voter remembers its promises, but not its accepted entries."""

    def recalled(records: Iterable[bytes], *, decided: Mapping[LineId, int]) -> Acceptors:
        acceptors = restored_acceptors(records, decided=decided)
        for acceptor in acceptors.values():
            acceptor.accepted = None
        return acceptors

    patch(core, "restored_acceptors", recalled)


def spoken_before_written(patch: Patch) -> None:
    def handle(self: core.Ledger, event: Event, now: float) -> list[Effect]:
        return sorted(original(self, event, now), key=lambda effect: isinstance(effect, Persist))

    original = core.Ledger.handle
    patch(core.Ledger, "handle", handle)


def answered_before_written(patch: Patch) -> None:
    """Waiting messages are answered before the decided entry is written to disk."""

    def move_on(self: core.Ledger, *entered: Any) -> list[Effect]:
        decided, *answers = original(self, *entered)
        return [*answers, decided]

    original = core.Ledger._move_on
    patch(core.Ledger, "_move_on", move_on)


def strangers_may_promise(patch: Patch) -> None:
    """Promises of peers without a vote are counted too."""

    def fault(self: Electorate, round: int, entry: Entry, proofs: Sequence[PromiseProof]) -> str:
        wide = replace(self)
        object.__setattr__(wide, "names", self.names.union(it.voter for it in proofs))
        return original(wide, round, entry, proofs)

    original = Electorate.proofs_fault
    patch(Electorate, "proofs_fault", fault)


def claims_of_any_round(patch: Patch) -> None:
    """A promise can claim an entry from the promised round or from a later round."""

    def fault(self: Electorate, round: int, proof: PromiseProof) -> str:
        return original(self, max(round, 1 + (proof.accepted_round or 0)), proof)

    original = Electorate.claim_fault
    patch(Electorate, "claim_fault", fault)


def shown_claims_not_checked(patch: Patch) -> None:
    """The claim in a promise is checked when the promise arrives, but not when a proposal contains
    it.
    """

    def fault(self: Electorate, round: int, proof: PromiseProof) -> str:
        said = self._promise_message(round, (proof.accepted_round, proof.accepted))
        return "" if self.verify(proof.voter, said, proof.signature) else "forged"

    patch(Electorate, "_proof_fault", fault)


def _check_no_certificate(patch: Patch) -> None:
    patch(
        core,
        "check_certified",
        lambda rules, at, it, check: apply_module.apply(rules, at, it.entry),
    )
