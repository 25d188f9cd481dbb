"""Read from the chain who contributed to a finished average, with which weights, and how.

From these facts and the contributions, anybody can compute the update again
(`p2ptrain.proofs.average`). This module does not fetch anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2ptrain.archive.contribution_weights import weights_at
from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.archive.step_index import StepIndex
from p2ptrain.errors import TryLater
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.proofs.average import AverageTerms
from p2ptrain.proofs.checkpoints import drawn
from p2ptrain.store import BlobReader


@dataclass(frozen=True, slots=True)
class PastAverage:
    """The average of outer step `outer_step.step`, whose participants have claims. `beacon` is the
    digest of the Commit entry, which nobody knew when the claims were made. `roster` is the digest
    of the Roster entry that opened the reduce, which the participants' signatures name.
    """

    outer_step: OuterStep
    participants: tuple[Participant, ...]
    terms: AverageTerms
    update: Digest
    beacon: Digest
    roster: Digest

    @property
    def step(self) -> int:
        return self.outer_step.step

    def drawn_chunk(self, me: PeerId, chunks: int) -> int:
        """Return the number of the chunk that `me` checks. Each peer draws a different one."""
        return drawn("chunk of an average", self.beacon, me) % chunks

    def update_part(self, blobs: BlobReader, start: int, stop: int) -> bytes:
        """Return the update's bytes for the elements [start, stop), which are whole blocks. Raises
        StoreError: they are not stored.
        """
        manifest, encoded = blobs.manifest(self.update), self.terms.codec.encoded_bytes
        first, end, length = encoded(start), encoded(stop), manifest.chunk_bytes
        numbers = range(first // length, -(-end // length))
        found = b"".join(blobs.get_chunk(manifest.chunks[number]) for number in numbers)
        skipped = numbers.start * length
        return found[first - skipped : end - skipped]


def past_average(
    history: StepIndex, since: Mapping[PeerId, int], outer_step: OuterStep, fragments: int
) -> PastAverage:
    """Return the average of an outer step that was committed with claims. `since` says in which
    outer step each member was admitted.

    Raises TryLater: nobody can know the weights of the participants any more.
    """
    step = outer_step.step
    closing, participants = history.closing(step), history.participants(step)
    value = closing.entry.value
    assert isinstance(value, Commit), "a skipped outer step has no average"
    terms = AverageTerms(
        history.reduce_of(step).schedule,
        _weights(history, since, outer_step, participants, fragments),
        outer_step.update.numel,
        outer_step.codec,
    )
    # A Commit follows the roster that opened the reduce.
    about = closing.entry.digest, closing.entry.parent
    return PastAverage(outer_step, participants, terms, value.update, *about)


def _weights(
    history: StepIndex,
    since: Mapping[PeerId, int],
    outer_step: OuterStep,
    participants: tuple[Participant, ...],
    fragments: int,
) -> tuple[int, ...]:
    if fragments == 1:
        return tuple(each.tokens for each in participants)
    step = outer_step.step
    if any(since.get(each.peer, step + 1) > step for each in participants):
        raise TryLater(
            f"a participant of outer step {step} has left since, so its weight is unknown",
            code="AVERAGE-UNKNOWN",
        )
    return weights_at(history, since, step, participants, fragments)
