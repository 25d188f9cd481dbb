"""The lying member: `python -m tests.siege.liar GROUND COUNTS [ATTACK…]`.

GROUND is the file that describes the attacked nodes. The number of actions of each attack is
written to the file COUNTS. Without ATTACK, all attacks run.

The liar is a real node, a founder and a voter, that takes part in the run as far as it is allowed.
Its heartbeats, reduces and answers contain lies, and all attacks of `membership` run at the same
time. If the node ends, it is started again.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.identity import Identity
from p2ptrain.node.gossip import gossip
from p2ptrain.node.main import run_node
from p2ptrain.node.state.context import Context
from p2ptrain.testing.fake_trainer import FakeTrainers, TrainerRemote
from tests.siege import membership, reducing
from tests.siege.ground import Ground, Tally, again_and_again, keep_tally, pause, tell_faults

INNER_STEP_S = 0.1
"""Seconds per inner step of the liar. All attackers together get only 0.3 of a core. The liar is
ready in time because its inner steps are shorter than those of honest nodes."""

SETTLE_S = 1.0
"""Seconds until the node has registered its handlers. Then lying handlers replace some of them."""

AGAIN_S = 2.0

ADDRESS = "127.0.0.21"


def lie_in_heartbeats(ground: Ground, tally: Tally) -> None:
    """From now on, make every third heartbeat of this process false, each in a different way."""
    real, turn = gossip.describe, 0

    def describe(context: Context, *rest: Any, **more: Any) -> Any:
        nonlocal turn
        said, turn = real(context, *rest, **more), turn + 1
        if turn % 3 or turn < 6:
            return said
        tally.did("false heartbeats")
        return _false(said, ground, turn // 3)

    gossip.describe = describe


def _false(said: Any, ground: Ground, turn: int) -> Any:
    victims = tuple(victim.peer for victim in ground.victims)
    invented = tuple(Identity.from_seed(os.urandom(32)).peer for _ in range(16))
    names = tuple(f"/dns4/{os.urandom(8).hex()}.slow.invalid/tcp/4001" for _ in range(8))
    changes: tuple[dict[str, Any], ...] = (
        {"lacks": victims},
        {"lacks": invented},
        {"height": said.height + 1000, "step": said.step + 1000},
        {"addresses": names},
        {"addresses": tuple(f"/ip4/127.0.0.1/tcp/{n}" for n in range(1, 9))},
        {"leaving": True},
        {"joining": True, "state": "\x1b[2J" * 30},
        {"dialable": False},
        {"tokens_per_s": 1 << 52, "inner_step": 1 << 52},
    )
    return replace(said, **changes[turn % len(changes)])


def begin(ground: Ground, tally: Tally, only: set[str], context: Context) -> Context:
    """Start all attacks. The node calls this with its context, and the attacks run until the node
    ends.
    """
    trio.lowlevel.spawn_system_task(_attack, ground, tally, only, context)
    return context


async def _attack(ground: Ground, tally: Tally, only: set[str], context: Context) -> None:
    faults: Counter[str] = Counter()
    member = membership.Member(ground, tally, context)
    await pause(SETTLE_S)
    membership.remember(member)
    if not only or "answers" in only:
        membership.lie_in_answers(member)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_tally, tally)
        nursery.start_soon(tell_faults, faults)
        for attack in membership.ATTACKS:
            if not only or attack.__name__ in only:
                nursery.start_soon(again_and_again, attack.__name__, attack, member, faults)


def main() -> None:
    ground, only = Ground.read(Path(sys.argv[1])), set(sys.argv[3:])
    expected = () if only else (*membership.COUNTED, reducing.COUNTED)
    tally = Tally(Path(sys.argv[2]), expected)
    if not only or "reduces" in only:
        reducing.lie_in_reduces(tally)
    if not only or "heartbeats" in only:
        lie_in_heartbeats(ground, tally)
    config = NodeConfig(
        ground.liar,
        bootstrap=tuple(victim.address for victim in ground.victims),
        listen=(f"/ip4/{ADDRESS}/tcp/0",),
        data_host=ADDRESS,
        data_port=0,
        device="cpu",
        assume_yes=True,
        quiet=True,
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    while True:
        try:
            remote = TrainerRemote(inner_step_s=INNER_STEP_S)
            run_node(
                config,
                trainers=partial(FakeTrainers, remote=remote),
                dress=partial(begin, ground, tally, only),
            )
        except Exception:
            traceback.print_exc()
        threading.Event().wait(AGAIN_S)


if __name__ == "__main__":
    main()
