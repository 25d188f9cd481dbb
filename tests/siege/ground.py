"""Code that all attacks share: the attackers' knowledge of the run and its nodes, and a tally of
their actions.

An attack is an async function that runs until it is cancelled. It counts each action, because a
siege proves nothing about an attack that never happened.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId


@dataclass(frozen=True)
class Victim:
    """An honest node."""

    name: str
    peer: PeerId
    host: str
    port: int
    data_port: int

    @property
    def address(self) -> str:
        return f"/ip4/{self.host}/tcp/{self.port}/p2p/{self.peer}"


@dataclass(frozen=True)
class Ground:
    """The knowledge of the attackers: the run, the lying member's home (the folder with its files),
    the honest nodes, and the number of strangers."""

    run: str
    liar: Path
    victims: tuple[Victim, ...]
    strangers: int

    @classmethod
    def read(cls, path: Path) -> Ground:
        told = json.loads(path.read_text())
        victims = tuple(Victim(**each) for each in told["victims"])
        return cls(told["run"], Path(told["liar"]), victims, told["strangers"])


@dataclass
class Tally:
    """The number of actions of each attack. `write` replaces the file atomically."""

    path: Path
    expected: tuple[str, ...]
    counts: Counter[str] = field(default_factory=Counter)

    def did(self, name: str, times: int = 1) -> None:
        self.counts[name] += times

    def write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"counts": dict(self.counts), "expected": self.expected}))
        os.replace(new, self.path)


Attack = Callable[[Any], Awaitable[None]]

FAILED_S = 0.5
"""Average number of seconds until an attack that failed is tried again."""

WRITE_S = 1.0
FAULTS_EVERY_S = 10.0


async def pause(seconds: float) -> None:
    with trio.move_on_after(seconds):
        await trio.sleep_forever()


async def again_and_again(name: str, attack: Attack, scene: Any, faults: Counter[str]) -> None:
    """Repeat an attack for ever. Count in `faults` every error that ends the attack, for
    debugging."""
    while True:
        try:
            await attack(scene)
        except* trio.Cancelled:
            raise
        except* Exception as group:
            faults[f"{name}: {leaf(group)!r}"[:160]] += 1
        await pause(FAILED_S * (0.5 + random.random()))


def leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def tell_faults(faults: Counter[str]) -> None:
    """Print the errors that have ended attacks so far to stderr at regular intervals."""
    while True:
        await pause(FAULTS_EVERY_S)
        for fault, times in faults.most_common():
            sys.stderr.write(f"{times:6} {fault}\n")
        sys.stderr.write("--\n")
        sys.stderr.flush()


async def keep_tally(tally: Tally) -> None:
    while True:
        tally.write()
        await pause(WRITE_S)


def low_identities(count: int, draws: int, seed: int) -> list[Identity]:
    """Draw many identities and return those with the lowest peer ids, since some code prefers the
    first peers in sorted order.
    """
    drawn = [
        Identity.from_seed((seed << 64 | number).to_bytes(32, "big")) for number in range(draws)
    ]
    return sorted(drawn, key=lambda identity: identity.peer)[:count]
