"""The node of a measurement: its real control socket and status, without training or network.

It is a member of a run with many members, whose heartbeats arrive every two seconds as in a real
run. For each line of its standard input, it prints the seconds of processor time that it has used.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from p2ptrain.ids import PeerId
from p2ptrain.node.control.control_socket import serve_commands
from p2ptrain.node.joining.startup_status import StartupStatus
from p2ptrain.observe.states import Training
from p2ptrain.testing.published import policy
from tests.node.rig import Rig, heartbeat, opening, rig, somebody

BEAT_S = 2.0
INNER_STEPS = 100


async def run(folder: Path, peers: int) -> None:
    others = [somebody(number).peer for number in range(1000, 1000 + peers - 1)]
    opened = rig(
        folder,
        allowed=others,
        rules=policy(participants_min=1),
        clock=time.monotonic,
        welcoming=True,
    )
    async with opened as r, trio.open_nursery() as nursery:
        r.decide(replace(opening(r.context.ledger.snapshot), learners=tuple(sorted(others))))
        reception = StartupStatus(r.context.me, r.context.journal)
        async with reception.with_context(r.context):
            nursery.start_soon(serve_commands, r.context.home.control, reception)
            nursery.start_soon(hear, r, others)
            sys.stdout.write(f"{r.context.home.root}\n{r.run.id}\n")
            sys.stdout.flush()
            await answer()
        nursery.cancel_scope.cancel()


async def hear(r: Rig, others: Sequence[PeerId]) -> None:
    """Receive heartbeats: in each, the peer has done some more inner steps."""
    beats = 0
    while True:
        for number, peer in enumerate(others):
            inner = (3 * beats + 7 * number) % INNER_STEPS
            beat = heartbeat(
                r.run.id,
                serial=beats + 1,
                inner_step=inner,
                state=f"training (inner {inner}/{INNER_STEPS})",
                tokens_per_s=20_000 + 37 * inner,
            )
            r.context.peers.table.note_heartbeat(peer, beat, r.context.now())
            r.context.peers.detector.note_arrival(peer, r.context.now())
        r.context.state.set_state(Training(3 * beats % INNER_STEPS, INNER_STEPS))
        beats += 1
        await trio.sleep(BEAT_S)


async def answer() -> None:
    """Print the processor time for each line of standard input, until it ends."""
    async with trio.lowlevel.FdStream(sys.stdin.fileno()) as questions:
        while await questions.receive_some(100):
            sys.stdout.write(f"{time.process_time():.6f}\n")
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", type=int, default=24)
    given = parser.parse_args()
    trio.run(partial(run, given.folder, given.peers))


if __name__ == "__main__":
    main()
