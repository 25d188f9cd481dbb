"""Answer people who watch the run, if the run's manifest lets them.

An answer consists of entries of the ledger and of signed records. It contains no address, and a
question changes nothing in this node. All askers together may cost the node little: there is an
allowance for each peer, for each address, and for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from p2ptrain.errors import NotAuthorised, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Skip
from p2ptrain.ledger.messages.wire import encode
from p2ptrain.node.state.context import Context
from p2ptrain.peers.outside.telemetry import PEERS_MAX, TelemetryRecord
from p2ptrain.peers.outside.watch_messages import (
    RECORDS_MAX,
    REQUEST_BYTES_MAX,
    WatchReply,
    decode_request,
    encode_reply,
)
from p2ptrain.peers.protocol_names import WATCH_PROTOCOL
from p2ptrain.rate_limit import Allowance

PEER_BURST, PEER_PER_S = 64, 2.0
SITE_BURST, SITE_PER_S = 128, 4.0
ALL_BURST, ALL_PER_S = 256, 8.0
"""Rate limits for the questions of one peer, of all peers at one address, and of everybody. Making
a page of 64 entries takes about 5 ms, so everybody together costs at most 4 % of a core. An
observer that follows the run asks every three seconds. One that begins reads 64 entries with each
question."""

NOT_PUBLIC = "this run does not show its progress to peers that are not admitted"
LATER = "too many questions: ask another peer, or try again in a minute"


@dataclass(slots=True)
class WatchLimits:
    """The allowances for questions."""

    by_peer: Allowance = field(default_factory=lambda: Allowance(PEER_BURST, PEER_PER_S))
    by_site: Allowance = field(default_factory=lambda: Allowance(SITE_BURST, SITE_PER_S))
    all: Allowance = field(default_factory=lambda: Allowance(ALL_BURST, ALL_PER_S))

    def asks(self, peer: PeerId, site: str, now: float) -> None:
        """Count a question. Raises TryLater if there were too many."""
        allowed = self.by_peer.consume(peer, 1, now) and self.by_site.consume(site, 1, now)
        if not (allowed and self.all.consume("", 1, now)):
            raise TryLater(LATER)


SamplesAfter = Callable[[int], tuple[bytes, ...]]
"""Returns the signed samples of the outer steps above the given one, oldest first."""


def _no_samples(step: int) -> tuple[bytes, ...]:
    return ()


async def answer_watchers(
    context: Context,
    samples_after: SamplesAfter = _no_samples,
    limits: WatchLimits | None = None,
) -> None:
    """Answer observers, and sign a record after each outer step, until cancelled."""
    allowed = limits or WatchLimits()
    records = dict[int, tuple[TelemetryRecord, bytes]]()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        if not (context.manifest.public.telemetry or context.admission.admits(peer)):
            raise NotAuthorised(NOT_PUBLIC)
        allowed.asks(peer, context.network.site_of(peer), context.now())
        request = decode_request(payload)
        if request.run != context.run:
            raise NotAuthorised("this node serves a different run")
        known = [signed for step, (_, signed) in records.items() if step > request.records_after]
        page = encode(context.ledger.core.page(request.from_height))
        return encode_reply(WatchReply(page, tuple(known), samples_after(request.samples_after)))

    context.network.handle(WATCH_PROTOCOL, answer, bytes_max=REQUEST_BYTES_MAX, anyone=True)
    while True:
        if (record := record_of(context)) is not None:
            known = records.get(record.step)
            if known is None or known[0] != record:
                records[record.step] = record, record.to_bytes(context.identity)
            while len(records) > RECORDS_MAX:
                del records[next(iter(records))]
        await context.changes.wait()


def record_of(context: Context) -> TelemetryRecord | None:
    """Return what this node knows about the newest ended outer step. None if there is none among
    the entries that this node has."""
    state, kept = context.ledger.snapshot, context.ledger.kept
    if state.step <= kept.start.step:
        return None
    history, step = context.ledger.history, state.step - 1
    closing, participants = history.closing(step), history.participants(step)
    held_out, progress = context.trainer.validation.newest, context.trainer.progress
    named = participants if context.manifest.public.names else ()
    return TelemetryRecord(
        run=context.run,
        step=state.step,
        height=closing.entry.height,
        head=closing.entry.digest,
        tokens=state.tokens,
        participants=len(participants),
        members=len(state.members),
        loss=progress.loss if progress and not isinstance(closing.entry.value, Skip) else None,
        held_out=held_out.loss if held_out else None,
        held_out_step=held_out.step if held_out else 0,
        peers=tuple(each.peer for each in named[:PEERS_MAX]),
    )
