"""Check a chunk of a past average: fetch this chunk of all contributions, compute the same part of
the update again, and compare.

If the bytes differ, somebody lied. The participants have signed their sums, so this node looks for
the first sum that does not follow from its inputs (`tracing`), and names its sender.

*Whose word is it?* The ledger names the claims, a claim names its contribution, and a contribution
names its chunks, each by digest. So any peer may deliver them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import outcome
import trio

from p2ptrain.archive.contribution_format import ContributionFormat
from p2ptrain.archive.past_average import PastAverage, past_average
from p2ptrain.errors import (
    ConfigError,
    P2PTrainError,
    StoreError,
    TryLater,
    counted,
)
from p2ptrain.ids import PeerId
from p2ptrain.kernels import BadScale
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.names import label
from p2ptrain.node.averages.contribution_chunks import chunk_of
from p2ptrain.node.averages.documents import document_of
from p2ptrain.node.averages.signed_sums import Named
from p2ptrain.node.averages.tracing import name_liars
from p2ptrain.node.state.context import Context
from p2ptrain.proofs.average import NotAveraged, first_difference, recompute

AT_ONCE = 4
"""Number of contributions that are fetched at the same time, so that checks leave the network to
others."""


@dataclass(frozen=True, slots=True)
class CheckedChunk:
    """The result for chunk number `chunk` of `chunks` of the average of outer step `step`.

    `missing` says which contributions could not be fetched, and why; then nothing was compared.
    `named` are the participants that are answerable for wrong bytes, as far as they are known.
    """

    step: int
    chunk: int
    chunks: int
    participants: int
    missing: tuple[tuple[PeerId, str], ...] = ()
    wrong: str = ""
    named: tuple[Named, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.missing and not self.wrong

    @property
    def words(self) -> str:
        where = f"chunk {self.chunk + 1} of {self.chunks} of outer step {self.step}"
        if self.wrong:
            told = "; ".join(each.words for each in self.named) or "nobody can say who lied"
            return f"{where}: {self.wrong}; {told}"
        if self.missing:
            told = "; ".join(f"{label(peer)}: {why}" for peer, why in self.missing)
            return f"{where} cannot be checked: {told}"
        given = counted(self.participants, "contribution")
        return f"{where} follows from {given}"


async def check_chunk(context: Context, step: int, number: int | None = None) -> CheckedChunk:
    """Check a chunk of the average of outer step `step`: the chunk that this node has drawn, or
    `number` modulo the number of chunks.

    Raises:
        ConfigError: the step has no average with claims.
        TryLater: this node does not know enough about the step, or does not have its update.
    """
    average = average_of(context, step)
    formats = [
        ContributionFormat(average.outer_step.update, each.peer, context.store.chunk_bytes)
        for each in average.participants
    ]
    chunks = formats[0].chunks
    chunk = average.drawn_chunk(context.me, chunks) if number is None else number % chunks
    result = partial(CheckedChunk, step, chunk, chunks, len(formats))
    found: list[bytes | None] = [None] * len(formats)
    missing: list[tuple[PeerId, str]] = []
    turns = trio.CapacityLimiter(AT_ONCE)

    async def get(index: int, participant: Participant) -> None:
        async with turns:
            fetched = partial(_chunk_of, context, step, participant, formats[index], chunk)
            got = await outcome.acapture(fetched)
        if isinstance(got, outcome.Value):
            found[index] = got.value
        elif isinstance(got.error, P2PTrainError):
            missing.append((participant.peer, got.error.what))
        else:
            raise got.error

    async with trio.open_nursery() as nursery:
        for index, participant in enumerate(average.participants):
            nursery.start_soon(get, index, participant)
    given = [each for each in found if each is not None]
    if missing:
        return result(missing=tuple(sorted(missing)))
    start, stop = formats[0].elements(chunk)
    try:
        update = await trio.to_thread.run_sync(average.update_part, context.store, start, stop)
    except StoreError as exc:
        raise TryLater(f"this node no longer has the update of outer step {step}") from exc
    compare: Callable[[], Compared] = partial(compared, average, start, stop, given, update)
    compared_now = await trio.to_thread.run_sync(compare)
    named = compared_now.named
    if compared_now.element is not None:
        named = await name_liars(context, average, formats, compared_now.element)
    for each in named:
        if each.kind == "lied" and each.peer != context.me:
            context.reduce.note_liar(each.peer, step)
    return result(wrong=compared_now.wrong, named=named)


def average_of(context: Context, step: int) -> PastAverage:
    """Return what the chain says about the average of outer step `step`. Raises as `check_chunk`
    does."""
    state, first = context.ledger.snapshot, context.ledger.kept.start.step
    if not context.ledger.rules.claims:
        raise ConfigError("the contributions of this run are not claims, so nothing can be checked")
    if not first <= step < state.step:
        steps = f"{first} to {state.step - 1}" if first < state.step else "none yet"
        raise ConfigError(f"outer step {step} is not among the finished ones, {steps}")
    history = context.ledger.history
    if not isinstance(history.closing(step).entry.value, Commit):
        raise ConfigError(f"outer step {step} was skipped, so it has no average")
    if (outer_step := context.known_outer_step(step)) is None:
        raise TryLater(f"this node does not know the terms of outer step {step} yet")
    return past_average(history, state.since, outer_step, len(context.fragments))


async def _chunk_of(
    context: Context, step: int, participant: Participant, format: ContributionFormat, number: int
) -> bytes:
    """Return a chunk of the participant's contribution. Raises P2PTrainError: it is not available,
    or the participant has claimed something that is not a contribution."""
    claim = await document_of(context, step, participant)
    return await chunk_of(context, claim.contribution, format, number)


@dataclass(frozen=True, slots=True)
class Compared:
    """The fault in words ("" if there is none), and the first wrong element, or the peer whose
    contribution cannot be averaged."""

    wrong: str = ""
    element: int | None = None
    named: tuple[Named, ...] = ()


def compared(
    average: PastAverage, start: int, stop: int, given: list[bytes], update: bytes
) -> Compared:
    """Compare the elements [start, stop) of the update with what the contributions make them."""
    terms, peers = average.terms, [each.peer for each in average.participants]
    try:
        expected = recompute(terms, start, stop, given)
    except NotAveraged as exc:
        liars = tuple(peers[number] for number in _oversized(average, stop - start, given))
        what = "it claimed a contribution that the run does not allow"
        return Compared(exc.what, named=tuple(Named(peer, "lied", what) for peer in liars))
    if expected == update:
        return Compared()
    element = first_difference(terms, start, expected, update)
    return Compared("the update does not follow from the contributions", element)


def _oversized(average: PastAverage, numel: int, given: list[bytes]) -> Iterator[int]:
    """Yield the numbers of the participants whose contributions are malformed or beyond the bound
    on influence. The sums of all others are never out of range. The peer at which a sum would have
    been out of range has done nothing wrong: it may have received something else."""
    for number, payload in enumerate(given):
        try:
            peak = average.terms.codec.peak(payload, numel)
        except (BadScale, ValueError):
            yield number
            continue
        if not peak <= average.outer_step.influence_max:
            yield number
