"""A reduce among peers of one process: the ring's plan, work and kernels, without sockets.

Every peer has its own `LaneProgress`, as in a node. Segments are copied directly from sender to
receiver. So the result has the same bytes as a real reduce of these peers, with the rounding and
the residual of every hop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import Codec
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import SharedVerdict
from p2ptrain.ring.lane_progress import IncomingSegment, LaneProgress, OutgoingSegment
from p2ptrain.ring.request import ReduceRequest
from p2ptrain.ring.schedules import Schedule
from p2ptrain.ring.source import Difference, Source
from p2ptrain.ring.wire import Header

Floats = NDArray[np.float32]
Forward = Callable[[int, OutgoingSegment, bytes], bytes]
"""Called with the number of a sender, what it sends, and the bytes. Returns the bytes that
arrive."""

RUN = RunId("00" * 32)
WHOLE_PARTS = 2**30
"""A segment size larger than any part. The bytes of a ring do not depend on its segments."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One peer's vectors. It contributes `weight` · (`anchor` − `local`) and its residual `owes`.

    The new residual of its rounding is written to `loses`. Without error feedback both are None.
    """

    weight: int
    anchor: Floats
    local: Floats
    owes: Floats | None = None
    loses: Floats | None = None


def average(contributions: Sequence[Contribution], codec: Codec) -> bytes:
    """Return the update: the quantised weighted mean that a ring of peers in this order makes.

    Raises ring.blame.Blamed if a contribution cannot be averaged.
    """
    residuals = [(each.owes, each.loses) for each in contributions]
    sources = [Difference(each.anchor, each.local) for each in contributions]
    return average_of(sources, [each.weight for each in contributions], codec, residuals=residuals)


def average_of(
    sources: Sequence[Source],
    weights: Sequence[int],
    codec: Codec,
    schedule: Schedule = "ring",
    *,
    residuals: Sequence[tuple[Floats | None, Floats | None]] = (),
    segment_bytes: int = WHOLE_PARTS,
    forward: Forward = lambda sender, send, body: body,
) -> bytes:
    """Return the update that peers with these sources and weights make. `forward` sees all bytes
    that are sent, and may replace them.

    Raises ring.blame.Blamed if a source cannot be averaged, or if a segment is refused.
    """
    first = ReduceRequest(
        RUN,
        step=0,
        attempt=0,
        peers=tuple(PeerId(f"peer-{number}") for number in range(len(sources))),
        me=0,
        weights=tuple(weights),
        numel=sources[0].numel,
        codec=codec,
        schedule=schedule,
        streams=1,
        segment_bytes=segment_bytes,
    )
    payloads = [bytearray(codec.encoded_bytes(first.numel)) for _ in sources]
    kept = residuals or [(None, None)] * len(sources)
    arithmetics = [
        Arithmetic(replace(first, me=me), source, payload, *residual)
        for me, (source, payload, residual) in enumerate(zip(sources, payloads, kept, strict=True))
    ]
    if len(sources) == 1:
        arithmetics[0].alone()
    else:
        works = [_work(replace(first, me=me), each) for me, each in enumerate(arithmetics)]
        _exchange(first, works, forward)
    assert all(payload == payloads[0] for payload in payloads), "peers hold different bytes"
    return bytes(payloads[0])


def _work(request: ReduceRequest, arithmetic: Arithmetic) -> LaneProgress:
    verdict = SharedVerdict(lambda: None)
    return LaneProgress(
        Attempt(request, request.plan(), request.tag(), arithmetic, verdict, None), 0
    )


def _exchange(request: ReduceRequest, works: Sequence[LaneProgress], forward: Forward) -> None:
    """Deliver segments until all peers have finished. A segment that arrives too early is delivered
    again later.
    """
    due = deque((sender, send) for sender, work in enumerate(works) for send in work.at_start())
    held_up = 0
    while due:
        assert held_up <= len(due), "every segment waits for another"
        sender, send = due.popleft()
        arrived = _deliver(request, works, sender, send, forward)
        held_up = held_up + 1 if arrived is None else 0
        due.extend([(sender, send)] if arrived is None else [(send.to, each) for each in arrived])
    assert all(work.finished for work in works), "a segment has not arrived"


def _deliver(
    request: ReduceRequest,
    works: Sequence[LaneProgress],
    sender: int,
    send: OutgoingSegment,
    forward: Forward,
) -> list[OutgoingSegment] | None:
    """Deliver one segment. Return what its receiver may now send; None if it arrives too early."""
    size = send.segment.bytes
    header = Header(
        send.kind, 0, send.part, send.index, size, request.step, request.attempt, request.tag()
    )
    arrival = IncomingSegment(sender, send.kind, send.segment)
    place = works[send.to].place(arrival)
    if place is None:
        return None
    assert works[send.to].claim(header, sender) == arrival
    place[:] = forward(sender, send, bytes(works[sender].body(send)))
    works[sender].gone(send)
    return works[send.to].arrived(arrival)
