"""Defects in the rules about branches: which peers follow a branch, which signatures count, and to
which chain a branch heals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from p2ptrain.ledger import core
from p2ptrain.ledger.branches.branch_proposal import BranchProposer
from p2ptrain.ledger.branches.rival_chains import Rival, Rivals, Winner
from p2ptrain.ledger.chain import apply as apply_module
from p2ptrain.ledger.chain.branch_rank import rank_of
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Branch, Certificate, Certified, Entry
from p2ptrain.ledger.paxos.electorate import Electorate
from tests.simulation.defects.planting import Patch


def heals_towards_fewer(patch: Patch) -> None:
    def judge(self: Rivals, rival: Rival, own: LedgerState, at: Any) -> None:
        index = rival.first_difference(at)
        if index is not None and rank_of(rival.state) < rank_of(own):
            entries = tuple(rival.entries[index:])
            self.winner = Winner(entries[0].entry.height - 1, entries, rival.state)

    patch(Rivals, "_judge", judge)


def unnamed_follow_at_once(patch: Patch) -> None:
    patch(BranchProposer, "adoptable", lambda self, now: self._offered)


def lines_not_told_apart(patch: Patch) -> None:
    """Signatures from before a branch also count after it."""

    real = Electorate.after

    def of_the_run(state: Any, rules: Rules, *rest: Any, **options: Any) -> Electorate:
        return replace(real(state, rules, *rest, **options), line=rules.run)

    patch(Electorate, "after", staticmethod(of_the_run))
    _check_no_certificate(patch)


def branch_signed_by_one(patch: Patch) -> None:
    def outcome(self: BranchProposer) -> Certified | None:
        entry = self._entry
        if entry is None:
            return None
        votes = tuple(sorted(self._signatures.items()))
        return Certified(entry, Certificate(entry.height, 0, entry.digest, votes))

    patch(BranchProposer, "outcome", outcome)
    _check_no_certificate(patch)


def lease_kept_by_who_is_gone(patch: Patch) -> None:
    def after_branch(before: LedgerState, entry: Entry, branch: Branch) -> LedgerState:
        after = original(before, entry, branch)
        book = replace(after.lease_book, returned=before.lease_book.returned)
        return replace(after, lease_book=book)

    original = apply_module._after_branch
    patch(apply_module, "_after_branch", after_branch)


def _check_no_certificate(patch: Patch) -> None:
    patch(
        core,
        "check_certified",
        lambda rules, at, it, check: apply_module.apply(rules, at, it.entry),
    )
