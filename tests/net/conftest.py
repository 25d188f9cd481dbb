"""Networks of real hosts on loopback, and waiting for things without sleeping."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network, open_network
from p2ptrain.net.feed import SharedFeed

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
DEADLINE_S = 60.0
"""Seconds for what takes milliseconds on an idle machine."""

Admitted = Callable[[PeerId], bool]


def everybody(peer: PeerId) -> bool:
    return True


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


@asynccontextmanager
async def networks(
    count: int,
    admitted: Sequence[Admitted] | Admitted = everybody,
    listen: Sequence[str] = LOOPBACK,
) -> AsyncIterator[list[Network]]:
    """Make `count` hosts that do not know each other. Host i has the identity i + 1."""
    gates = [admitted] * count if callable(admitted) else list(admitted)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                open_network(identity(number + 1), listen=listen, admitted=gates[number])
            )
            for number in range(count)
        ]


async def eventually(holds: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Wait until something elsewhere has made `holds` true."""
    never = trio.Event()
    with trio.fail_after(deadline_s):
        while not holds():
            with trio.move_on_after(0.005):
                await never.wait()


async def heard(
    source: Network,
    topic: str,
    payload: bytes,
    channel: SharedFeed[bytes],
    deadline_s: float = DEADLINE_S,
) -> list[bytes]:
    """Publish `payload` repeatedly, as heartbeats are, until it arrives from `source`. Return what
    arrived before.
    """
    others: list[bytes] = []
    message = None
    with trio.fail_after(deadline_s):
        while message != (source.peer, payload):
            if message is not None:
                others.append(message[1])
            message = None
            await source.publish(topic, payload)
            with trio.move_on_after(0.1):
                message = await channel.receive()
    return others


async def echo(peer: PeerId, payload: bytes) -> bytes:
    return payload


@pytest.fixture(autouse=True)
def threads_end(no_thread_lingers: None) -> None:
    """Check that a test of a network leaves no thread behind."""
