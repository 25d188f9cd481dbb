"""A participant that lies in the reduce: our own `Reduce` with its `run` method replaced.

The kind of lie depends on the outer step and attempt. In one of eight cases the participant works
honestly. If it always lied, the honest nodes would soon exclude it permanently.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from p2ptrain.errors import P2PTrainError, ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.node.reduce import reduce_task
from p2ptrain.ring.blame import Blame
from p2ptrain.ring.reduce import Links
from p2ptrain.ring.request import ReduceRequest
from p2ptrain.ring.wire import Header, Kind, encode_blame
from tests.siege.ground import Tally

LIE_S = 180.0
"""Duration of a lie in seconds. An honest node gives up an attempt earlier."""

COUNTED = "lies in the reduce"


Suspects = tuple[PeerId, ...]


def lie_in_reduces(tally: Tally) -> None:
    """From now on, replace every reduce of this process by one that lies."""
    real: Any = vars(reduce_task)["Reduce"]

    class LyingReduce(real):  # type: ignore[misc]
        def __init__(self, request: ReduceRequest, links: Links, *args: Any, **named: Any) -> None:
            super().__init__(request, links, *args, **named)
            self.request = request
            self.links = links
            self.over = threading.Event()

        def abort(self, reason: str, suspects: Suspects = ()) -> None:
            super().abort(reason, suspects)
            self.over.set()

        def run(self) -> Any:
            request = self.request
            name, lie = LIES[(request.step + request.attempt) % len(LIES)]
            tally.did(f"reduce: {name}")
            if lie is None:
                return super().run()
            tally.did(COUNTED)
            try:
                suspects = lie(self)
            finally:
                for sockets in self.links.values():
                    for sock in sockets:
                        sock.shutdown()
            raise ReduceAborted(request.step, request.attempt, suspects, "a lie")

    vars(reduce_task)["Reduce"] = LyingReduce


def _others(reduce: Any) -> Suspects:
    request = reduce.request
    return tuple(peer for peer in request.peers if peer != request.peers[request.me])


def silent(reduce: Any) -> Suspects:
    reduce.over.wait(LIE_S)
    return ()


def a_byte_each_second(reduce: Any) -> Suspects:
    words = _first_segment(reduce, scale=1.0)
    never, at = threading.Event(), 0
    while not reduce.over.is_set() and at < len(words):
        for sock in _sockets(reduce):
            with suppress(P2PTrainError):
                sock.send_some(memoryview(words[at : at + 1]))
        at += 1
        never.wait(1.0)
    return ()


def accuses_one(reduce: Any) -> Suspects:
    return _others(reduce)[:1]


def accuses_all(reduce: Any) -> Suspects:
    return _others(reduce)


def aborts_and_accuses(reduce: Any) -> Suspects:
    """Send each neighbour an abort that blames another peer."""
    request, accused = reduce.request, _others(reduce)[-1:]
    body = encode_blame(Blame(accused, "a lie"))
    header = Header(Kind.ABORT, 0, 0, 0, len(body), request.step, request.attempt, request.tag())
    for sock in _sockets(reduce):
        with suppress(P2PTrainError):
            sock.send_all(header.encode() + body)
    return accused


def bad_scale(reduce: Any) -> Suspects:
    return _sends(reduce, float("nan"))


def too_much_influence(reduce: Any) -> Suspects:
    return _sends(reduce, 1e30)


def _sends(reduce: Any, scale: float) -> Suspects:
    words = _first_segment(reduce, scale)
    for sock in _sockets(reduce):
        with suppress(P2PTrainError):
            sock.send_all(words)
    reduce.over.wait(LIE_S)
    return ()


def _sockets(reduce: Any) -> list[Any]:
    return [sock for sockets in reduce.links.values() for sock in sockets[:1]]


def _first_segment(reduce: Any, scale: float) -> bytes:
    """Return the first segment that this peer must send, with `scale` for its first block."""
    request, plan = reduce.request, reduce.request.plan()
    for part, route in enumerate(plan.routes):
        if not (route.sums_from or route.owned):
            segment = plan.lanes[0][part][0]
            tag = request.tag()
            header = Header(Kind.SUM, 0, part, 0, segment.bytes, request.step, request.attempt, tag)
            return header.encode() + struct.pack("<f", scale) + bytes(segment.bytes - 4)
    return bytes(200)


LIES: tuple[tuple[str, Callable[[Any], Suspects] | None], ...] = (
    ("silent", silent),
    ("accuses one", accuses_one),
    ("bad scale", bad_scale),
    ("a byte each second", a_byte_each_second),
    ("accuses all", accuses_all),
    ("too much influence", too_much_influence),
    ("aborts and accuses", aborts_and_accuses),
    ("honest", None),
)
