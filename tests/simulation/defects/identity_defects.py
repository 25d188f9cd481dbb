"""Deliberate defects in the rules about identities. Each defect is a plausible mistake. If the
simulator did not find these defects, it would prove nothing. Each `Mutant` names the checkers that
must find its defect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from p2ptrain.archive import start_count
from p2ptrain.ids import PeerId
from p2ptrain.peers import duplicate_watch
from p2ptrain.peers.duplicate_watch import Duplicate, DuplicateWatch
from p2ptrain.peers.identity_mailboxes import IdentityMailboxes
from p2ptrain.peers.identity_messages import IdentityNotice, IdentityProof, IdentityReply
from p2ptrain.peers.incarnations import Incarnations
from p2ptrain.peers.replayed_heartbeats import ReplayedHeartbeats
from p2ptrain.store import Disk
from tests.simulation.defects.planting import Mutant, Patch

_LIES = ("NobodyIsStoppedByLies",)
_COPIES = ("CopiesStopVoting",)


def proof_not_verified(patch: Patch) -> None:
    patch(duplicate_watch, "is_genuine", lambda *arguments: True)


def any_nonce_counts(patch: Patch) -> None:
    """A proof for an old nonce, or for the nonce of another process, counts as a proof for this
    process.
    """
    judge = DuplicateWatch._judge

    def accept_any(self: DuplicateWatch, member: PeerId, proof: IdentityProof, now: float) -> None:
        self._nonces[proof.nonce] = now
        judge(self, member, proof, now)

    patch(DuplicateWatch, "_judge", accept_any)


def hearsay_is_evidence(patch: Patch) -> None:
    """A member's claim that it hears another process counts as a proof, as it did before SPEC.md
    had a rule about proofs.
    """
    hear_reply = DuplicateWatch.note_reply

    def believe(self: DuplicateWatch, member: PeerId, reply: IdentityReply, now: float) -> None:
        hear_reply(self, member, reply, now)
        if reply.suspected and self.duplicate is None:
            self.duplicate = Duplicate(0, member, ends_us=True)

    patch(DuplicateWatch, "note_reply", believe)


def starting_process_stops_a_running_one(patch: Patch) -> None:
    judge = DuplicateWatch._judge

    def judge_all(self: DuplicateWatch, member: PeerId, proof: IdentityProof, now: float) -> None:
        was, self.starting = self.starting, True
        judge(self, member, proof, now)
        self.starting = was

    patch(DuplicateWatch, "_judge", judge_all)


def older_process_ends_too(patch: Patch) -> None:
    judge = DuplicateWatch._judge

    def judge_ends(self: DuplicateWatch, member: PeerId, proof: IdentityProof, now: float) -> None:
        judge(self, member, proof, now)
        if self.duplicate is not None:
            found = self.duplicate
            self.duplicate = Duplicate(found.incarnation, found.carried_by, ends_us=True)

    patch(DuplicateWatch, "_judge", judge_ends)


def proofs_not_given(patch: Patch) -> None:
    """A challenged process sends questions itself, but does not answer the challenge."""
    patch(DuplicateWatch, "note_challenges", lambda self, member, nonces, now: self.ask_soon(now))


def strangers_are_asked(patch: Patch) -> None:
    """Any connected peers are asked, those with the lowest ids first, as in earlier versions."""

    def connected_first(
        connected: Collection[PeerId],
        admitted: Callable[[PeerId], bool],
        voters: Collection[PeerId],
        members: Collection[PeerId],
    ) -> tuple[set[PeerId], set[PeerId]]:
        return set(sorted(connected)[:16]), set()

    patch(duplicate_watch, "peers_to_ask", connected_first)


def challenges_not_announced(patch: Patch) -> None:
    announce = IdentityMailboxes._announce

    def announce_proofs(
        self: IdentityMailboxes, box: object, notice: IdentityNotice, incarnation: int, now: float
    ) -> None:
        if notice.proof is not None:
            announce(self, box, notice, incarnation, now)  # type: ignore[arg-type]

    patch(IdentityMailboxes, "_announce", announce_proofs)


def proofs_not_announced(patch: Patch) -> None:
    announce = IdentityMailboxes._announce

    def announce_challenges(
        self: IdentityMailboxes, box: object, notice: IdentityNotice, incarnation: int, now: float
    ) -> None:
        if notice.proof is None:
            announce(self, box, notice, incarnation, now)  # type: ignore[arg-type]

    patch(IdentityMailboxes, "_announce", announce_challenges)


def starts_not_synced(patch: Patch) -> None:
    """The start count is written to the file without fsync."""

    def count(path: Path, at_least: int = 0, disk: Disk | None = None) -> int:
        assert disk is not None
        counted = max(start_count.read_start_count(path, disk), at_least) + 1
        disk.write(path, memoryview(f"{counted}\n".encode()))
        return counted

    patch(start_count, "count_start", count)


def marks_ignored(patch: Patch) -> None:
    """A home that was restored from a backup continues with its old start count."""
    patch(DuplicateWatch, "_hear_mark", lambda self, mark, now: None)


def marks_not_verified(patch: Patch) -> None:
    patch(duplicate_watch, "is_genuine_mark", lambda *arguments: True)


def counts_on_beside_a_duplicate(patch: Patch) -> None:
    """Two processes with one identity keep raising their incarnation numbers above each other's,
    and neither process ends.
    """
    patch(
        DuplicateWatch,
        "incarnation_to_exceed",
        lambda self, now: self._newest * (self._behind_s <= now),
    )


def old_heartbeats_are_taken(patch: Patch) -> None:
    """If the incarnation in a heartbeat differs from the known one, the heartbeat counts as newer,
    even if it is older. Earlier versions had this defect."""

    def note_decoded(
        self: Incarnations, peer: PeerId, incarnation: int, serial: int, now: float
    ) -> bool:
        known = self._touched(peer, incarnation, now)
        if incarnation == known.incarnation and serial <= known.taken:
            return False
        known.taken = serial
        return True

    patch(Incarnations, "note_decoded", note_decoded)
    patch(Incarnations, "is_stale", lambda self, peer, incarnation: False)


def forwarder_is_named_at_once(patch: Patch) -> None:
    patch(ReplayedHeartbeats, "note_replay", lambda *arguments: True)


IDENTITY_MUTANTS = tuple(
    Mutant(name, plant, caught_by, "identities")
    for name, plant, caught_by in (
        ("proof-not-verified", proof_not_verified, _LIES),
        ("any-nonce-counts", any_nonce_counts, _LIES),
        ("hearsay-is-evidence", hearsay_is_evidence, _LIES),
        ("starting-stops-running", starting_process_stops_a_running_one, _LIES),
        ("older-ends-too", older_process_ends_too, ("OneCopyEnds",)),
        ("proofs-not-given", proofs_not_given, _COPIES),
        ("strangers-are-asked", strangers_are_asked, _COPIES),
        ("challenges-not-announced", challenges_not_announced, _COPIES),
        ("proofs-not-announced", proofs_not_announced, _COPIES),
        ("starts-not-synced", starts_not_synced, ("CountsAreDurable",)),
        ("marks-ignored", marks_ignored, ("EverybodyIsHeard",)),
        ("marks-not-verified", marks_not_verified, ("CountsAreEarned",)),
        ("counts-on-beside-duplicate", counts_on_beside_a_duplicate, ("OneCopyEnds", *_COPIES)),
        ("old-heartbeats-taken", old_heartbeats_are_taken, ("HeartbeatsGoForward",)),
        ("named-at-once", forwarder_is_named_at_once, ("CulpritsReplayed",)),
    )
)
"""The mutants include at least one defect for each of the rules E4 to E7 in SPEC.md."""
