"""Networks of real hosts on loopback, and functions that wait for a condition without sleeping."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakKeyDictionary

import pytest
import trio
from libp2p.abc import IHost
from libp2p.pubsub import pubsub as libp2p_pubsub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import signature_validator

from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network, open_network
from p2ptrain.net.feed import SharedFeed
from p2ptrain.net.host.handshakes import HANDSHAKES_MAX
from p2ptrain.net.host.hardening import build_host
from p2ptrain.net.room import ROOM, Room

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
DEADLINE_S = 60.0
"""Time limit of an operation in seconds. On an idle machine, an operation takes milliseconds."""

Admitted = Callable[[PeerId], bool]


def everybody(peer: PeerId) -> bool:
    return True


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


@asynccontextmanager
async def networks(
    count: int,
    admitted: Sequence[Admitted] | Admitted = everybody,
    listen: Sequence[str] | None = LOOPBACK,
    room: Room = ROOM,
    handshakes_max: int = HANDSHAKES_MAX,
) -> AsyncIterator[list[Network]]:
    """Run `count` networks that do not know each other. The first has `identity(1)`, the second
    `identity(2)`, and so on. `admitted` is one function for all of them, or one for each."""
    gates = [admitted] * count if callable(admitted) else list(admitted)
    async with AsyncExitStack() as stack:
        made: list[Network] = []
        for number, gate in enumerate(gates):
            host = build_host(identity(number + 1), handshakes_max=handshakes_max)
            opened = open_network(
                identity(number + 1), listen=listen, admitted=gate, room=room, host=host
            )
            made.append(await stack.enter_async_context(opened))
            HOSTS[made[-1]] = host
        yield made


HOSTS: WeakKeyDictionary[Network, IHost] = WeakKeyDictionary()


def host_of(network: Network) -> IHost:
    """Return the libp2p host of a network that `networks` has made."""
    return HOSTS[network]


async def eventually(holds: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Wait until another task has made `holds` true."""
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
    """Publish `payload` from `source` repeatedly, like a heartbeat, until `channel` receives it.
    Return the messages that `channel` received before."""
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


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[rpc_pb2.Message]:
    """Return a list to which each gossip message is added when its signature is checked."""
    messages: list[rpc_pb2.Message] = []
    validate = signature_validator

    def note(message: rpc_pb2.Message) -> bool:
        messages.append(message)
        return bool(validate(message))

    monkeypatch.setattr(libp2p_pubsub, "signature_validator", note)
    return messages


@pytest.fixture(autouse=True)
def threads_end(no_thread_lingers: None) -> None:
    """Check that each test leaves no thread behind."""
