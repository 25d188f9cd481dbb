"""Defects in the memory of failed attempts and in the exclusions that it causes (SPEC.md S13)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from p2ptrain.ids import PeerId
from p2ptrain.ledger.paxos import turns
from p2ptrain.ledger.policy import accept, blame, policy
from p2ptrain.ledger.policy.blame import Failure, FailureMemory
from tests.simulation.defects.planting import Patch


def past_steps_forgotten(patch: Patch) -> None:
    """Failures of earlier outer steps are forgotten."""

    def sitting_out(
        self: FailureMemory,
        able: Set[PeerId],
        most: int,
        under_way: Failure | None = None,
        *,
        untraced: bool = False,
    ) -> frozenset[PeerId]:
        recent = [it for it in self.failures if it.commits == self.commits]
        kept, self.failures = self.failures, deque(recent)
        chosen = original(self, able, most, under_way, untraced=untraced)
        self.failures = kept
        return chosen

    original = FailureMemory.sitting_out
    patch(FailureMemory, "sitting_out", sitting_out)


def accuser_not_doubted(patch: Patch) -> None:
    """An accused peer counts as guilty, and its accuser is never suspected."""

    def failure(
        self: FailureMemory, peers: tuple[PeerId, ...], reports: Mapping[PeerId, Iterable[PeerId]]
    ) -> Failure | None:
        found = original(self, peers, reports)
        if found is None or not found.accused:
            return found
        return replace(found, doubts={frozenset((peer,)): 1.0 for peer in sorted(found.accused)})

    original = FailureMemory.failure
    patch(FailureMemory, "failure", failure)


def attempts_of_a_step_add_up(patch: Patch) -> None:
    """Two failures in one outer step count twice in later steps, even if they have one cause."""
    patch(FailureMemory, "_merge_attempts", lambda self: None)


def nothing_is_forgiven(patch: Patch) -> None:
    patch(blame, "half_life_after", lambda lost_steps: 1e9)


def expensive_failures_forgiven_soon(patch: Patch) -> None:
    patch(blame, "half_life_after", lambda lost_steps: float(blame.HALF_LIFE))


def tardy_turns_are_whole(patch: Patch) -> None:
    """The round of a proposer that recently let its turn pass is not shortened."""
    patch(turns, "TARDY_PART", 1.0)


def no_turns_among_equals(patch: Patch) -> None:
    """Equally suspected peers do not take turns: the same peer is left out every time."""

    def opened(
        self: FailureMemory,
        peers: tuple[PeerId, ...],
        members: Iterable[PeerId],
        ready: Iterable[PeerId],
    ) -> None:
        original(self, peers, members, ready)
        self.missed = {}

    original = FailureMemory.opened
    patch(FailureMemory, "opened", opened)


def proposer_brings_itself_back(patch: Patch) -> None:
    patch(accept, "_self_serving", lambda rules, at, view, roster, proposer: "")


def lone_participant_never_times_out(patch: Patch) -> None:
    for module in (accept, policy):
        patch(module, "alone_too_long", lambda rules, at, view, now: False)
