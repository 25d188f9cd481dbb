"""The gate (the part of the harness that stops a node at a chosen point) notices a node's reports,
both in full heartbeats and in deltas, which contain only changes.
"""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import trio

from p2ptrain.ids import PeerId, RunId
from p2ptrain.peers.heartbeat import ReadyReport, ReduceReport
from p2ptrain.peers.heartbeat_delta import FULL_AT_FIRST, HeartbeatSender
from p2ptrain.peers.protocol_names import heartbeat_topic
from tests.chaos.harness.gate import Gate
from tests.chaos.harness.stand_ins import Wires
from tests.node.rig import heartbeat

RUN = RunId("0" * 64)


class Published:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def publish(self, topic: str, payload: bytes) -> None:
        self.sizes.append(len(payload))


def test_gate_notices_reports_in_heartbeat_deltas() -> None:
    state = SimpleNamespace(height=0, voters=(PeerId("a"), PeerId("b")))
    core = SimpleNamespace(state=state, me=PeerId("b"))
    context: Any = SimpleNamespace(run=RUN, ledger=SimpleNamespace(core=core))
    ours, theirs = socket.socketpair()
    network, saying = Published(), HeartbeatSender()
    beats = [heartbeat(RUN, serial=serial, endpoint=bytes(600)) for serial in range(FULL_AT_FIRST)]
    beats += [
        heartbeat(RUN, serial=5, endpoint=bytes(600), ready=ReadyReport(0, 16, 1)),
        heartbeat(RUN, serial=6, endpoint=bytes(600), reduce=ReduceReport(0, 0, None, ())),
    ]
    with ours, theirs:
        wires = Wires(network, Gate(theirs), context)
        for beat in beats:
            trio.run(wires.publish, heartbeat_topic(RUN), saying.encode_next(beat))
        told = ours.recv(1 << 12).decode().split("\n")[:-1]
        ours.shutdown(socket.SHUT_RDWR)
    assert 2 * max(network.sizes[-2:]) <= min(network.sizes[:-2]), "the last two are deltas"
    assert told == [
        f"passed {side}:{deed} proposer"
        for deed in ("send-ready", "send-done")
        for side in ("before", "after")
    ]
