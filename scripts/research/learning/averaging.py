"""A reduce among peers of one process: the ring's plan, work and kernels, without sockets.

Every peer has its own `LaneProgress`, as in a node. Segments are copied directly from sender to
receiver. So the result has the same bytes as a real ring of these peers, with the rounding and the
residual of every hop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import Codec
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import SharedVerdict
from p2ptrain.ring.lane_progress import LaneProgress, OutgoingSegment
from p2ptrain.ring.request import ReduceRequest
from p2ptrain.ring.source import Difference
from p2ptrain.ring.wire import Header

Floats = NDArray[np.float32]

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
    first = ReduceRequest(
        RUN,
        step=0,
        attempt=0,
        peers=tuple(PeerId(f"peer-{number}") for number in range(len(contributions))),
        me=0,
        weights=tuple(each.weight for each in contributions),
        numel=contributions[0].anchor.size,
        codec=codec,
        streams=1,
        segment_bytes=WHOLE_PARTS,
    )
    payloads = [bytearray(codec.encoded_bytes(first.numel)) for _ in contributions]
    arithmetics = [
        Arithmetic(
            replace(first, me=me),
            Difference(each.anchor, each.local),
            payload,
            each.owes,
            each.loses,
        )
        for me, (each, payload) in enumerate(zip(contributions, payloads, strict=True))
    ]
    if len(contributions) == 1:
        arithmetics[0].alone()
    else:
        _exchange(
            first, [_work(replace(first, me=me), each) for me, each in enumerate(arithmetics)]
        )
    assert all(payload == payloads[0] for payload in payloads), "peers hold different bytes"
    return bytes(payloads[0])


def _work(request: ReduceRequest, arithmetic: Arithmetic) -> LaneProgress:
    verdict = SharedVerdict(lambda: None)
    return LaneProgress(
        Attempt(request, request.plan(), request.tag(), arithmetic, verdict, None), 0
    )


def _exchange(request: ReduceRequest, works: Sequence[LaneProgress]) -> None:
    """Deliver segments until all peers have finished."""
    due = deque((sender, send) for sender, work in enumerate(works) for send in work.at_start())
    while due:
        sender, send = due.popleft()
        due.extend((send.to, each) for each in _deliver(request, works, sender, send))
    assert all(work.finished for work in works), "a segment has not arrived"


def _deliver(
    request: ReduceRequest, works: Sequence[LaneProgress], sender: int, send: OutgoingSegment
) -> list[OutgoingSegment]:
    body = works[sender].body(send)
    header = Header(
        send.kind, 0, send.part, send.index, len(body), request.step, request.attempt, request.tag()
    )
    arrival = works[send.to].claim(header, sender)
    place = works[send.to].place(arrival)
    assert place is not None, "in a ring, segments never arrive too early"
    place[:] = body
    works[sender].gone(send)
    return works[send.to].arrived(arrival)
