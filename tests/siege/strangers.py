"""All strangers, in one process: `python -m tests.siege.strangers GROUND COUNTS [ATTACK…]`.

Half of the strangers are connected to two victims: the node that is killed and restarted, and one
more node. Each of the other strangers is connected to one victim. So each victim has more connected
strangers with low peer ids than there are voters.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from tests.siege import answers, crowding, sockets
from tests.siege.ground import (
    Attack,
    Ground,
    Tally,
    Victim,
    again_and_again,
    keep_tally,
    low_identities,
    pause,
    tell_faults,
)
from tests.siege.hosts import Stranger, dialling_from_sources, stranger

DRAWS = 1500
"""Number of identities to draw. The 64 lowest of them have lower peer ids than nearly all honest
nodes.
"""


def _victims_of(number: int, ground: Ground) -> tuple[Victim, ...]:
    count = len(ground.victims)
    if number % 2 == 0:
        return (ground.victims[0], ground.victims[1 + number // 2 % (count - 1)])
    return (ground.victims[1 + number // 2 % (count - 1)],)


async def besiege(ground: Ground, tally: Tally, only: set[str]) -> None:
    faults: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        stack.enter_context(dialling_from_sources())
        strangers: list[Stranger] = []
        for number, identity in enumerate(low_identities(ground.strangers, DRAWS, seed=23)):
            opened = stranger(number, identity, _victims_of(number, ground))
            strangers.append(await stack.enter_async_context(opened))
            if not only or "answers" in only:
                answers.register(strangers[-1].host, tally, number)
                answers.register_dht(strangers[-1].host, ground, tally)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(keep_tally, tally)
        nursery.start_soon(tell_faults, faults)
        for each in strangers:
            nursery.start_soon(each.stay_connected)
        nursery.start_soon(_count_connected, strangers, tally)
        crowd = crowding.Crowd(ground, tally, strangers)
        raw = sockets.Raw(ground, tally)
        for scene, attacks in ((crowd, crowding.ATTACKS), (raw, sockets.ATTACKS)):
            for attack in _chosen(attacks, only):
                nursery.start_soon(again_and_again, attack.__name__, attack, scene, faults)


def _chosen(attacks: tuple[Attack, ...], only: set[str]) -> list[Attack]:
    return [attack for attack in attacks if not only or attack.__name__ in only]


async def _count_connected(strangers: list[Stranger], tally: Tally) -> None:
    while True:
        tally.counts["strangers' connections"] = sum(each.connects for each in strangers)
        await pause(1.0)


LATER = 10
"""Niceness of the strangers' process. It gives the lying member CPU time before the strangers. If
the member had to wait for them, it would never be ready in time to lie in a reduce.
"""


def main() -> None:
    ground, only = Ground.read(Path(sys.argv[1])), set(sys.argv[3:])
    expected = () if only else (*crowding.COUNTED, *sockets.COUNTED, "strangers' connections")
    tally = Tally(Path(sys.argv[2]), expected)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    os.nice(LATER)
    trio.run(besiege, ground, tally, only)


if __name__ == "__main__":
    main()
