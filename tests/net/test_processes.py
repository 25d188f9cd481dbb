"""With peers in real processes, a node notices at once that a peer was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from p2ptrain.errors import PeerError
from p2ptrain.ids import PeerId
from p2ptrain.net import Network, PeerConnected, PeerDisconnected

from .conftest import DEADLINE_S, networks

SOON_S = 25.0
"""Time limit in seconds for noticing that a peer was killed. A node normally notices this within
milliseconds. The open request would time out only after four times this limit."""

PEER_PROCESS = """
import trio
from p2ptrain.identity import Identity
from p2ptrain.net import open_network

async def echo(peer, payload):
    return payload

async def hangs(peer, payload):
    await trio.sleep_forever()

async def main():
    identity = Identity.from_seed(bytes(31) + b"p")
    listen = ["/ip4/127.0.0.1/tcp/0"]
    async with open_network(identity, listen=listen, admitted=lambda peer: True) as network:
        network.handle("/echo/1", echo)
        network.handle("/hangs/1", hangs)
        print(network.addresses()[0], flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@asynccontextmanager
async def peer_process(network: Network) -> AsyncIterator[tuple[trio.Process, PeerId]]:
    """Run a peer in a separate process, connected to `network`."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", PEER_PROCESS], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        address = b""
        while not address.endswith(b"\n"):
            address += await process.stdout.receive_some()
        peer = await network.connect(address.decode().strip())
        assert await network.events.receive() == PeerConnected(peer)
        assert await network.request(peer, "/echo/1", b"x", deadline_s=DEADLINE_S) == b"x"
        yield process, peer
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()


async def test_loss_of_a_killed_peer_is_noticed_at_once() -> None:
    async with networks(1) as (network,), peer_process(network) as (process, peer):
        ended: list[PeerError] = []

        async def wait_for_reply() -> None:
            try:
                await network.request(peer, "/hangs/1", b"x", deadline_s=4 * SOON_S)
            except PeerError as exc:
                ended.append(exc)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_reply)
            await network.request(peer, "/echo/1", b"x", deadline_s=DEADLINE_S)
            nursery.cancel_scope.deadline = trio.current_time() + SOON_S
            os.kill(process.pid, signal.SIGKILL)
            assert await network.events.receive() == PeerDisconnected(peer)
        assert not nursery.cancel_scope.cancelled_caught, "the loss was noticed too late"
        assert [exc.peer for exc in ended] == [peer]
        assert network.connected() == set()


async def test_loss_and_return_of_a_restarted_peer_are_noticed() -> None:
    async with networks(1) as (network,):
        for _ in range(2):
            async with peer_process(network) as (process, peer):
                process.terminate()
                assert await network.events.receive() == PeerDisconnected(peer)


def test_dataplane_and_identity_do_not_load_libp2p() -> None:
    loaded = (
        "import sys, p2ptrain.dataplane, p2ptrain.identity;"
        "print('libp2p' in sys.modules, 'trio' in sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    ).stdout
    assert output.split() == ["False", "False"]
