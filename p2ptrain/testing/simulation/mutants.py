"""Deliberate defects of the ledger. A simulator that does not find them proves nothing.

Each mutant patches the production code the way a plausible mistake would have written it, and names
the checker that has to object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from p2ptrain.ledger import accept, core, electorate, gathering, instance, leases, quorum, state
from p2ptrain.ledger.accept import Answer, Verdict
from p2ptrain.ledger.acceptor import Acceptor
from p2ptrain.ledger.instance import Instance, Stage
from p2ptrain.ledger.leading import Leading
from p2ptrain.ledger.leases import Leases
from p2ptrain.testing.simulation.disk import Disk

Patch = Callable[[object, str, object], None]
"""patch(owner, name, replacement), undone at the end."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`caught_by`: the checkers of which one has to object. `profile`: a world that brings it
    out.
    """

    name: str
    plant: Callable[[Patch], None]
    caught_by: tuple[str, ...]
    profile: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as undo:
            self.plant(lambda owner, name, new: _patch(undo, owner, name, new))
            yield


def _patch(undo: ExitStack, owner: object, name: str, new: object) -> None:
    undo.enter_context(mock.patch.object(owner, name, new))


def _half_is_a_quorum(patch: Patch) -> None:
    def is_enough(policy: object, voters: int, present: int, *, first_present: bool) -> bool:
        return 2 * present >= voters

    patch(quorum, "is_enough", is_enough)


def _promise_not_persisted(patch: Patch) -> None:
    def append_record(disk: Disk, record: bytes) -> None:
        if b'"entry":null' not in record:
            disk.records.append(record)

    patch(Disk, "append_record", append_record)


def _vote_not_persisted(patch: Patch) -> None:
    def append_record(disk: Disk, record: bytes) -> None:
        if b'"entry":null' in record:
            disk.records.append(record)

    patch(Disk, "append_record", append_record)


def _lower_round_accepted(patch: Patch) -> None:
    def promise(acceptor: Acceptor, round: int) -> bytes:
        promised, acceptor.promised = acceptor.promised, round
        record = acceptor._promise_record()
        acceptor.promised = promised
        return record

    patch(Acceptor, "promise", promise)


def _accepted_value_not_adopted(patch: Patch) -> None:
    count = Leading.count_promise

    def count_promise(self: Leading, voter: object, promise: object) -> None:
        count(self, voter, promise)  # type: ignore[arg-type]
        self._best = None

    patch(Leading, "count_promise", count_promise)
    patch(instance, "forced_by", lambda proofs: None)
    patch(electorate, "forced_by", lambda proofs: None)


def _lease_returned_twice(patch: Patch) -> None:
    def give_back(book: Leases, members: list[str]) -> Leases:
        returned = [b for m in members for b in book.held.get(m, ())]  # type: ignore[call-overload]
        held = {peer: lease for peer, lease in book.held.items() if peer not in members}
        return Leases(held, (*book.returned, *returned, *returned), book.next_block)

    patch(leases, "give_back", give_back)


def _stale_voters_count(patch: Patch) -> None:
    def next_instance(self: core.Ledger) -> Instance:
        height = self.state.height + 1
        return Instance(
            electorate.Electorate(
                self.rules,
                height,
                self.state.head,
                self.rules.founders,
                self.me,
                self._sign,
                self._verify,
            ),
            self._acceptors.pop(height, Acceptor(height)),
        )

    patch(core.Ledger, "_next_instance", next_instance)
    patch(core, "check_certified", lambda rules, at, it, v: state.apply(rules, at, it.entry))


def _commit_without_bytes(patch: Patch) -> None:
    yes = Verdict(Answer.YES, "why not")
    patch(accept, "_judge_commit", lambda view, commit, *, forced: yes)


def _newcomers_vote_at_once(patch: Patch) -> None:
    def next_members(at: state.LedgerState, view: object, *, drop_down: bool) -> object:
        members = original(at, view, drop_down=drop_down)  # type: ignore[arg-type]
        return None if members is None else (members[0] + members[1], ())

    original = gathering.next_members
    patch(gathering, "next_members", next_members)
    patch(state, "_membership_fault", lambda at, roster: "")


def _round_0_proposed_anew(patch: Patch) -> None:
    """Round 0 is proposed anew after a restart, whatever was accepted before."""
    lead = Instance._lead

    def forgetful(self: Instance, counsel: instance.Counsel, now: float) -> object:
        if self.stage is Stage.IDLE and self.round == 0:
            self.acceptor.accepted = None
        return lead(self, counsel, now)

    patch(Instance, "_lead", forgetful)


MUTANTS = (
    Mutant(
        "half-is-a-quorum",
        _half_is_a_quorum,
        ("CertificatesVerify", "OneEntryPerHeight"),
        "partitions",
    ),
    Mutant("promise-not-persisted", _promise_not_persisted, ("VotesAreKept",), "torn"),
    Mutant("vote-not-persisted", _vote_not_persisted, ("VotesAreKept",), "torn"),
    Mutant("lower-round-accepted", _lower_round_accepted, ("VotesAreKept",), "lossy"),
    Mutant(
        "accepted-value-not-adopted", _accepted_value_not_adopted, ("OneEntryPerHeight",), "torn"
    ),
    Mutant("lease-returned-twice", _lease_returned_twice, ("BlocksAreCommittedOnce",), "churn"),
    Mutant("stale-voters-count", _stale_voters_count, ("CertificatesVerify",), "churn"),
    Mutant("commit-without-bytes", _commit_without_bytes, ("CommitsAreHeld",), "crashes"),
    Mutant("newcomers-vote-at-once", _newcomers_vote_at_once, ("NewcomersAreFew",), "churn"),
    Mutant("round-0-proposed-anew", _round_0_proposed_anew, ("VotesAreKept",), "torn"),
)
