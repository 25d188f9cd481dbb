"""Check a chunk of a past average: fetch this chunk of all contributions, compute the same part of
the update again, and compare.

If the bytes differ, somebody lied. With the schedule "direct", all peers receive a part of the
update from its owner, so the owner has to explain the difference. Either it made this mean, or
another participant sent it a wrong sum. With the other schedules, any peer that forwarded a sum or
a mean may have replaced it, so nobody is named. Nodes do not sign sums yet.

*Whose word is it?* The ledger names the claims, a claim names its contribution, and a contribution
names its chunks, each by digest. So any peer may deliver them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import outcome
import trio

from p2ptrain.archive.contribution_format import ContributionFormat
from p2ptrain.archive.own_claims import KEPT_STEPS
from p2ptrain.archive.past_average import PastAverage, past_average
from p2ptrain.errors import (
    ConfigError,
    P2PTrainError,
    RemoteProtocolError,
    StoreError,
    TryLater,
    counted,
)
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.names import label
from p2ptrain.node.averages.documents import document_of
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Context
from p2ptrain.proofs.average import NotAveraged, recompute
from p2ptrain.ring.schedules import owner_of

MISSING_S = 5.0
"""Seconds after which a chunk that nobody sends counts as missing, at the next failed try. It is so
short that the fetch does not warn the user: checks are tried again."""

FETCH_S = 20.0
"""Deadline in seconds for one try. It is enough for the longest chunk at half a Mbit per second."""

AT_ONCE = 4
"""Number of contributions that are fetched at the same time, so that checks leave the network to
others."""

LOST = "the contribution is no longer stored anywhere, or its owner does not send it"


@dataclass(frozen=True, slots=True)
class CheckedChunk:
    """The result for chunk number `chunk` of `chunks` of the average of outer step `step`.

    `missing` says which contributions could not be fetched, and why; then nothing was compared.
    `suspects` are the peers that have to explain wrong bytes, as far as they are known.
    """

    step: int
    chunk: int
    chunks: int
    participants: int
    missing: tuple[tuple[PeerId, str], ...] = ()
    wrong: str = ""
    suspects: tuple[PeerId, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.missing and not self.wrong

    @property
    def words(self) -> str:
        where = f"chunk {self.chunk + 1} of {self.chunks} of outer step {self.step}"
        if self.wrong:
            return f"{where}: {self.wrong}"
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
    compare = partial(compared, average, start, stop, given, update)
    wrong, suspects = await trio.to_thread.run_sync(compare)
    return result(wrong=wrong, suspects=suspects)


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
    await _fetched(context, claim.contribution)
    read = partial(format.checked_manifest, context.store, claim.contribution)
    manifest = await trio.to_thread.run_sync(read)
    chunk = manifest.chunks[number]
    await _fetched(context, chunk)
    data = await trio.to_thread.run_sync(context.store.get_chunk, chunk)
    if len(data) != manifest.chunk_size(number):
        raise RemoteProtocolError("its contribution has a chunk of a wrong length")
    return data


async def _fetched(context: Context, digest: Digest) -> None:
    """Fetch a chunk, if it is not here. Raises StoreError: nobody sends it."""
    late = fetch.after(context, MISSING_S)
    try:
        await fetch.fetch_loose(context, [digest], unwanted=late, patient=False, try_s=FETCH_S)
    except StoreError as exc:
        if exc.code != fetch.NO_SOURCE:
            raise
        kept = f"contributions are kept for {counted(KEPT_STEPS, 'outer step')}"
        raise StoreError(f"{LOST}; {kept}", code=fetch.NO_SOURCE) from exc


def compared(
    average: PastAverage, start: int, stop: int, given: list[bytes], update: bytes
) -> tuple[str, tuple[PeerId, ...]]:
    """Compare the elements [start, stop) of the update with what the contributions make them.
    Return what is wrong ("" if nothing is) and who has to explain it."""
    terms, peers = average.terms, [each.peer for each in average.participants]
    try:
        expected = recompute(terms, start, stop, given)
    except NotAveraged as exc:
        return f"{label(peers[exc.number])}: {exc.what}", (peers[exc.number],)
    encoded, owners = terms.codec.encoded_bytes, list[PeerId]()
    for part, low, high in terms.runs(start, stop):
        cut = slice(encoded(low - start), encoded(high - start))
        if expected[cut] != update[cut]:
            owners.append(peers[owner_of(terms.schedule, terms.peers, part)])
    if not owners:
        return "", ()
    what = "the update does not follow from the contributions"
    if terms.schedule != "direct":
        return f"{what}; in a {terms.schedule}, nobody can say yet which participant lied", ()
    names = ", ".join(map(label, owners))
    return f"{what}; the mean was made by {names}, or from a wrong sum sent to it", tuple(owners)
