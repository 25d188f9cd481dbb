"""Show the signed sums that this node keeps, ask other participants for theirs, and follow them to
the participant that made a segment wrong.

*Whose word is it?* Each statement carries its peer's signature, so nothing else has to be believed.
A peer that shows nothing can only harm itself: see `p2ptrain.proofs.sum_tracing`.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from p2ptrain.errors import P2PTrainError, RemoteProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import SUMS_PROTOCOL
from p2ptrain.proofs.signed_sums import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SumsRequest,
    decode_request,
    decode_runs,
    encode_runs,
)
from p2ptrain.proofs.sum_tracing import Kind, Trace, proves
from p2ptrain.rate_limit import Allowance
from p2ptrain.ring import SignedRun

PEER_BURST, PEER_PER_S = 64, 1.0
"""Rate limit for requests of one peer. A member asks only after it has found a wrong average."""

ASK_S = 8.0
"""Deadline in seconds for a question. The longest answer has 1 MiB."""

TRIES = 3
AGAIN_S = 1.0
"""Number of times that a peer is asked before it counts as withholding, and the seconds between two
tries. A peer may be busy for a moment, or be starting again."""


TRACE_S = 60.0
"""Deadline in seconds for all questions. In a ring, each participant is asked in turn. A peer that
has not been asked by then is not named."""

WORDS: dict[Kind, str] = {"lied": "lied", "withheld": "withholds what it has to show"}


@dataclass(frozen=True, slots=True)
class Named:
    """A participant that is answerable for a wrong chunk. If it `lied`, its own signatures prove
    that. If it `withheld` something, it may have lost it."""

    peer: PeerId
    kind: Kind
    what: str

    @property
    def words(self) -> str:
        return f"{label(self.peer)} {WORDS[self.kind]}: {self.what}"


def serve_sums(context: Context) -> None:
    """From now on, show admitted peers what was signed to this node in the newest reduces."""
    allowed = Allowance(PEER_BURST, PEER_PER_S)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        asked = decode_request(payload)
        if not allowed.consume(peer, 1, context.now()):
            raise TryLater("too many requests for signed sums: try again in a minute")
        return encode_runs(own_sums(context, asked))

    forwarding.handle(context, SUMS_PROTOCOL, answer, bytes_max=REQUEST_BYTES_MAX)


def own_sums(context: Context, asked: SumsRequest) -> tuple[SignedRun, ...]:
    kept = context.reduce.sums
    return () if kept is None else kept.shown(asked.roster, asked.start, asked.stop)


async def sums_of(
    context: Context, peer: PeerId, asked: SumsRequest, *, tries: int = TRIES
) -> tuple[SignedRun, ...]:
    """Return what `peer` shows; () if it does not answer."""
    if peer == context.me:
        return own_sums(context, asked)
    for number in range(tries):
        if number:
            await trio.sleep(AGAIN_S)
        try:
            reply = await forwarding.request(
                context,
                peer,
                SUMS_PROTOCOL,
                asked.encode(),
                deadline_s=ASK_S,
                bytes_max=REPLY_BYTES_MAX,
            )
            if shown := decode_runs(reply):
                return shown
        except RemoteProtocolError:
            return ()
        except P2PTrainError:
            continue
    return ()


async def follow(context: Context, trace: Trace) -> tuple[Named, ...]:
    """Ask the participants what was signed, and return those that are answerable."""
    with trio.move_on_after(TRACE_S):
        await _ask(context, trace)
    lies = [each for each in trace.found if each.kind == "lied"]
    assert all(proves(trace, each) for each in lies)
    return tuple(Named(trace.peers[each.number], each.kind, each.what) for each in trace.found)


async def _ask(context: Context, trace: Trace) -> None:
    """Ask participants until the search has ended. The owner of the part is the last one that is
    asked for its mean: every other participant has it too."""
    asked = SumsRequest(trace.roster, trace.place.start, trace.place.stop)
    owner = trace.peers[trace.owner]
    others = [each for each in trace.peers if each not in (owner, context.me)]
    context.draw.shuffle(others)
    for peer in (context.me, *others, owner):
        if not trace.is_begun:
            trace.take_mean(await sums_of(context, peer, asked, tries=1))
    while trace.due:
        number = trace.due[0]
        trace.take_inputs(number, await sums_of(context, trace.peers[number], asked))
