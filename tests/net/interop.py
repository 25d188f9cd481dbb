"""Check that go-libp2p and js-libp2p find the nodes of a run in the DHT. Run it with
`scripts/interop`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from base64 import b32encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.net.addresses import parse
from p2ptrain.net.kad import KadServer, key_of

from .conftest import eventually, networks
from .worst_frames import nested

RUN = "p2ptrain/1/" + "ab" * 32
CID = b"\x01\x55" + key_of(RUN)
"""The CID of the run: version 1, codec "raw", and the multihash."""

Frames = list[dict[str, str]]


def number(tag: int, value: int) -> bytes:
    return bytes([tag, value])


async def exchange(socket: Path, request: bytes, wanted: list[bytes]) -> bytes:
    """Send a request to the go daemon. Return its output once it contains all of `wanted`, or after
    10 s."""
    heard = b""
    async with await trio.open_unix_socket(str(socket)) as stream:
        await stream.send_all(nested(0, request)[1:])
        with trio.move_on_after(10):
            while not heard or not all(each in heard for each in wanted):
                heard += await stream.receive_some()
    return heard


async def go_finds(p2pd: str, seed: Network, wanted: set[PeerId]) -> set[PeerId]:
    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder) / "p2pd.sock"
        command = [p2pd, "-listen", f"/unix{control}", "-dhtClient", "-hostAddrs"]
        command += ["/ip4/127.0.0.1/tcp/0", "-relay=false", "-quic=false", "-q"]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL)
        try:
            await eventually(control.exists)
            address = Multiaddr(parse(seed.addresses()[0]).transport).to_bytes()
            peer = nested(0x0A, ID.from_base58(seed.peer).to_bytes()) + nested(0x12, address)
            answer = await exchange(control, number(0x08, 1) + nested(0x12, peer), [])
            assert answer == b"\x02\x08\x00", answer
            asked = number(0x08, 2) + nested(0x1A, CID) + number(0x30, 20)
            ids = {peer: ID.from_base58(peer).to_bytes() for peer in wanted}
            found: set[PeerId] = set()
            while not wanted <= found:  # its routing table is empty until identify is done
                dht = number(0x08, 4) + nested(0x2A, asked)
                told = await exchange(control, dht, list(ids.values()))
                found = {peer for peer, raw in ids.items() if raw in told}
            return found
        finally:
            process.terminate()
            await process.wait()


async def js_finds(folder: str, seed: Network, wanted: set[PeerId]) -> set[PeerId]:
    cid = "b" + b32encode(CID).decode().lower().rstrip("=")
    script = Path(__file__).with_name("interop.mjs")
    done = await trio.run_process(
        ["node", str(script), seed.addresses()[0], cid, str(len(wanted))],
        capture_stdout=True,
        env={**os.environ, "INTEROP_JS": str(Path(folder).resolve())},
    )
    return {PeerId(peer) for peer in json.loads(done.stdout)}


@asynccontextmanager
async def a_run() -> AsyncIterator[tuple[Network, set[PeerId], Frames]]:
    """Yield a seed with the records of three nodes (itself included), the peer ids of these nodes,
    and a list to which each request to one of their DHTs is added with its answer."""
    frames: Frames = []
    answer = KadServer.answer

    def record(self: KadServer, asker: PeerId, request: bytes, now: float) -> bytes | None:
        reply = answer(self, asker, request, now)
        frame = {"node": self.me, "asker": asker, "request": request.hex()}
        frames.append({**frame, "answer": (reply or b"").hex()})
        return reply

    async with networks(3) as nodes:
        seed, *others = nodes
        for node in others:
            await seed.connect(node.addresses()[0])
            await node.provide(RUN)
        await seed.provide(RUN)
        with trio.fail_after(60):
            while len(await seed.find_providers(RUN)) < len(others):
                await trio.lowlevel.checkpoint()
        KadServer.answer = record  # type: ignore[method-assign]
        try:
            yield seed, {node.peer for node in nodes}, frames
        finally:
            KadServer.answer = answer  # type: ignore[method-assign]


async def main(p2pd: str, js: str, written_to: str = "") -> None:
    recorded: dict[str, Frames] = {}
    for name, finds, what in (("go-libp2p", go_finds, p2pd), ("js-libp2p", js_finds, js)):
        async with a_run() as (seed, wanted, frames):
            with trio.fail_after(120):
                found = await finds(what, seed, wanted)
            assert found == wanted, f"{name} found {found}"
            recorded[name] = frames
            sys.stdout.write(
                f"{name} found all {len(found)} nodes; it sent {len(frames)} requests\n"
            )
    if written_to:
        Path(written_to).write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
